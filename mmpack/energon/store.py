"""Object stores through energon's multi-storage-client: ``msc://profile/bucket/path``, one request at a time.

Every request has a time-out and is tried a bounded number of times. The profile in the client's own configuration
(``MSC_CONFIG``) says where the store is; what it leaves out of time-outs and repetitions is set here, so that no
request hangs and each repetition is one that is counted.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mmpack.errors import ConfigError, StorageError, nearest

_T = TypeVar("_T")
_REMOTE = re.compile(r"msc:/+")  # pathlib makes one slash of two
_REFUSED = re.compile(r"status_code: (4\d\d)")
_TRY_AGAIN = ("408", "429")  # of the answers that refuse: too slow, too many requests
_CHUNK_BYTES = 32 << 20
_MOST_WAIT_S = 30.0
_DEFECTS = (TypeError, AttributeError, NameError, MemoryError)
READ_TIMEOUT_S, CONNECT_TIMEOUT_S = 30, 10  # where the profile does not say

_log = logging.getLogger(__name__)
_clients: dict[tuple[int, str | None, str], Any] = {}  # a fork must not use its parent's connections
counts: Counter[str] = Counter()  # requests, repeated ones and bytes of this process


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a store that does not answer is asked again.

    Args:
        attempts: of each request. ``MMPACK_STORE_ATTEMPTS``.
        first_wait_s: before the second attempt; doubled before each further one, up to 30 s. ``MMPACK_STORE_WAIT_S``.
    """

    attempts: int = 5
    first_wait_s: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.first_wait_s < float("inf"):
            raise ConfigError(f"{self}; attempts must be at least 1, first_wait_s at least 0")

    @classmethod
    def from_environment(cls) -> Patience:
        try:
            return cls(
                attempts=int(os.environ.get("MMPACK_STORE_ATTEMPTS", "5")),
                first_wait_s=float(os.environ.get("MMPACK_STORE_WAIT_S", "1")),
            )
        except ValueError as error:
            raise ConfigError(f"MMPACK_STORE_ATTEMPTS, MMPACK_STORE_WAIT_S: {error}") from None


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its size, and the store's tag for its content."""

    size_bytes: int
    tag: str

    def is_content(self, digest: str) -> bool:
        """Whether the tag says that a content of this MD5 is the object's. Of other objects (stored in parts, or
        encrypted by the store) the tag is no MD5, so False says nothing."""
        return self.tag == digest


def is_remote(path: Path | str) -> bool:
    """Whether a path is in a store.

    >>> is_remote("msc://lab/data/x"), is_remote(Path("msc://lab/data/x")), is_remote("data/x")
    (True, True, False)
    """
    return _REMOTE.match(str(path)) is not None


def url_of(path: Path | str) -> str:
    """The URL that a path means; pathlib makes one slash of two.

    >>> url_of(Path("msc://lab/data/x/"))
    'msc://lab/data/x'
    """
    return _REMOTE.sub("msc://", str(path), count=1).rstrip("/")


def listing(url: str) -> dict[str, Stored]:
    """All objects under `url`, by their names relative to it. Raises ConfigError if there is no such bucket."""

    def call(client: Any, inside: str) -> dict[str, Stored]:
        found = {}
        for item in client.list(path=inside):
            name = item.key.lstrip("/").removeprefix(f"{inside}/")
            inner = name != item.key.lstrip("/") and name not in ("", "/")
            if inner and item.type == "file" and not name.endswith("/"):  # a folder is an object to some tools
                found[name] = Stored(item.content_length, str(item.etag or "").strip('"'))
        return found

    try:
        return _ask(url, "listing", call)
    except FileNotFoundError as error:
        raise ConfigError(f"{url} cannot be listed: {_one_line(error)}; is the bucket's name right?") from None


def look(url: str) -> Stored:
    """The object at `url`. Raises FileNotFoundError."""

    def call(client: Any, inside: str) -> Stored:
        found = client.info(inside)
        if found.type != "file":
            raise FileNotFoundError(f"{inside} is a folder")
        return Stored(found.content_length, str(found.etag or "").strip('"'))

    return _ask(url, "looking at it", call)


def fetch(url: str, known: Stored, file: Path) -> None:
    """Downloads an object to `file`, and makes sure that it is what is `known` of it.

    A connection that is cut costs what is missing of its 32 MiB, not the file.

    Raises:
        StorageError: it is another object by now, or the store does not answer.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("wb") as out:
        for chunk in _chunks(url, known.size_bytes):
            digest.update(chunk)
            out.write(chunk)
    if known.is_content(digest.hexdigest()):
        return
    try:
        same = look(url) == known  # each chunk came with its checksum, if the store gives one
    except FileNotFoundError:
        same = False
    if not same:
        raise _changed(url)


def _chunks(url: str, size: int) -> Iterator[bytes]:
    from multistorageclient.types import Range

    for start in range(0, size, _CHUNK_BYTES):
        wanted = Range(offset=start, size=min(_CHUNK_BYTES, size - start))

        def call(client: Any, inside: str, wanted: Any = wanted) -> bytes:
            data: bytes = client.read(inside, byte_range=wanted)
            if len(data) != wanted.size:
                raise OSError(f"{len(data)} bytes came, {wanted.size} were asked for")
            return data

        try:
            chunk = _ask(url, f"reading from byte {start}", call)
        except FileNotFoundError:
            raise _changed(url) from None
        counts["bytes read"] += len(chunk)
        yield chunk


def _changed(url: str) -> StorageError:
    return StorageError(
        f"{url} was changed or removed while its dataset was in use; start again with what is there now"
    )


def send(file: Path, url: str) -> Stored:
    """Uploads a file, and makes sure that the store has all of it."""
    size = file.stat().st_size

    def call(client: Any, inside: str) -> Stored:
        client.upload_file(inside, str(file))
        found = client.info(inside)
        stored = Stored(found.content_length, str(found.etag or "").strip('"'))
        if stored.size_bytes != size:
            raise OSError(f"the store has {stored.size_bytes} bytes of it, sent were {size}")
        return stored

    stored = _ask(url, "writing", call)
    counts["bytes written"] += size
    return stored


def md5_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def remove(url: str) -> None:
    """Removes an object, if it is there."""
    try:
        _ask(url, "removing", lambda client, inside: client.delete(inside))
    except FileNotFoundError:
        return


def _ask(url: str, what: str, call: Callable[[Any, str], _T]) -> _T:
    """What `call` gets of the store, asked again while it does not answer.

    Raises:
        FileNotFoundError: there is no such object.
        ConfigError: the store refuses, or there is no way to it.
        StorageError: it did not answer any attempt.
    """
    patience = Patience.from_environment()
    profile, _, inside = url.removeprefix("msc://").partition("/")
    client = _client(profile, url)
    for attempt in range(1, patience.attempts + 1):
        counts["requests"] += 1
        try:
            return call(client, inside)
        except (FileNotFoundError, *_DEFECTS):
            raise
        except PermissionError as error:
            raise ConfigError(
                f"{url}: {what} is not allowed ({_one_line(error)}); check the credentials of profile {profile!r}"
            ) from None
        except Exception as error:  # whatever the client passes on of a connection or an answer
            last = _one_line(error)
            if (refused := _refusal(error)) == "404":
                raise FileNotFoundError(last) from None
            if refused is not None and refused not in _TRY_AGAIN:
                raise ConfigError(f"{url}: {what} was refused: {last}; check profile {profile!r}") from None
        if attempt < patience.attempts:
            counts["repeated"] += 1
            wait_s = min(patience.first_wait_s * 2 ** (attempt - 1), _MOST_WAIT_S)
            whole = f"attempt {attempt} of {patience.attempts}"
            _log.warning("%s: %s failed (%s): %s; once more in %g s", url, what, whole, last, wait_s)
            time.sleep(wait_s)
    raise StorageError(
        f"{url}: {what} failed {patience.attempts} times, the last with: {last}; see that the store of profile "
        f"{profile!r} is up and run again, or set MMPACK_STORE_ATTEMPTS higher, or the profile's read_timeout"
    )


def _refusal(error: BaseException) -> str | None:
    """The HTTP status of an answer that says that the request is wrong."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        return status if status.startswith("4") else None
    found = _REFUSED.search(str(error))
    return found[1] if found else None


def _client(profile: str, url: str) -> Any:
    """The client of a profile, for this process.

    Raises:
        ConfigError: no such profile, a configuration that cannot be read, or boto3 is missing.
    """
    key = (os.getpid(), os.environ.get("MSC_CONFIG"), profile)
    if key not in _clients:
        from multistorageclient import StorageClient, StorageClientConfig

        try:
            found, file = StorageClientConfig.read_msc_config()
            profiles = dict((found or {}).get("profiles") or {})
            if profile not in profiles:
                where = f"{file} has no profile {profile!r}" if file else f"no configuration with a profile {profile!r}"
                hint = f" ({nearest(profile, profiles)})" if profiles else ""
                raise ConfigError(f"{url}: {where}{hint}; let MSC_CONFIG name a file that has it")
            config = StorageClientConfig.from_dict(_bounded(found or {}, profile), profile=profile)
            _clients[key] = StorageClient(config)
        except ConfigError:
            raise
        except ImportError as error:
            raise ConfigError(f"{url}: {_one_line(error)}; install it with `pip install 'mmpack[s3]'`") from None
        except Exception as error:  # whatever the client finds wrong with its configuration
            raise ConfigError(f"{url}: profile {profile!r} cannot be used: {_one_line(error)}") from None
    return _clients[key]


def _bounded(config: dict[str, Any], profile: str) -> dict[str, Any]:
    """The configuration with one attempt a request and with time-outs, where it says nothing of them.

    The client's cache is left out: a dataset's files are kept by `mmpack.energon.remote`.
    """
    config = copy.deepcopy(config)
    config.pop("cache", None)
    chosen = config["profiles"][profile]
    chosen.setdefault("retry", {"attempts": 1})
    provider = chosen.get("storage_provider") or {}
    if provider.get("type") in ("s3", "s8k"):
        options = provider.setdefault("options", {})
        options.setdefault("read_timeout", READ_TIMEOUT_S)
        options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        options.setdefault("retries", {"mode": "standard", "total_max_attempts": 1})
    return config


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
