"""Datasets in an object store, read through a copy on the local disk that grows as training needs it.

The copy holds energon's metadata and the shards' indexes from the start; a shard comes when the first of its samples is
asked for, once for all processes of a machine. All that reads a dataset reads the copy, so its order, its damages and
its states are those of the same dataset on a disk.

    $MMPACK_CACHE/<hash of URL>/<hash of content>/<name>/...     default: ~/.cache/mmpack/remote

A dataset that changes in the store gets a copy of its own when it is opened again, which shares what has not changed
with the one before. Copies may be deleted at any time at which no process uses them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from mmpack.energon import store
from mmpack.energon.store import Stored, is_remote, url_of
from mmpack.errors import ConfigError, StorageError

META_FOLDER = ".nv-meta"
DATASET_FILE = f"{META_FOLDER}/dataset.yaml"  # the last that is written: without it there is no dataset
UNFINISHED = ".mmpack-unfinished"  # there while a dataset is being written
_LISTING = ".mmpack-copy.json"
_YAML = (".yaml", ".yml")

_log = logging.getLogger(__name__)
_opened: dict[tuple[str, str | None], Path] = {}  # a run sees one state of the store, however often it opens it


def cache_folder() -> Path:
    """Where copies lie."""
    if folder := os.environ.get("MMPACK_CACHE"):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmpack" / "remote"


def local(path: Path | str, *, whole: bool = False) -> Path:
    """The local copy of a remote dataset, metadataset or file; a local path as it is.

    A metadataset on the disk that names remote datasets is written anew with the paths of their copies.

    Args:
        whole: with all shards, not only those that have been read.

    Raises:
        ConfigError: nothing there, or no whole dataset.
        StorageError: the store does not answer.
    """
    if not is_remote(path):
        found = Path(path)
        if found.suffix in _YAML and found.is_file() and "msc:" in found.read_text(encoding="utf-8", errors="replace"):
            found = _rewritten(found.read_bytes(), str(found), str(found.absolute().parent))
    else:
        url = url_of(path)
        key = (url, os.environ.get("MMPACK_CACHE"))
        if key not in _opened:
            _opened[key] = _open_metadataset(url) if url.endswith(_YAML) else _open_dataset(url)
        found = _opened[key]
    if whole:
        _fetch_all(found)
    return found


def local_file(path: Path | str) -> Path:
    """The local copy of one file of a remote dataset, which is there whole; a local path as it is."""
    if not is_remote(path):
        return Path(path)
    url, _, name = url_of(path).rpartition("/")
    folder = local(url)
    fetch = fetcher(folder)
    assert fetch is not None
    fetch(name)
    return folder / name


def forget(url: str) -> None:
    """Makes the next `local` look at the store again."""
    for key in [key for key in _opened if key[0] == url]:
        del _opened[key]


def shown(path: Path | str) -> str:
    """The URL of what is a copy; the path of what is none."""
    if is_remote(path):
        return url_of(path)
    copy = _copy_of(Path(path))
    return str(path) if copy is None else str(copy["url"])


def fetcher(folder: Path) -> Callable[[str], None] | None:
    """What makes a shard of a copy be there; None for a dataset of the local disk. It may be used after a fork."""
    copy = _copy_of(folder)
    if copy is None:
        return None
    url, objects = str(copy["url"]), {name: Stored(*known) for name, known in copy["objects"].items()}

    def fetch(name: str) -> None:
        if name in objects:
            _fetch(url, name, objects[name], folder)

    return fetch


def _copy_of(path: Path) -> dict[str, Any] | None:
    try:
        copy: dict[str, Any] = json.loads((path.parent / _LISTING).read_bytes())
    except OSError:
        return None
    return copy


def _open_dataset(url: str) -> Path:
    found = store.listing(url)
    found = {name: known for name, known in found.items() if name != UNFINISHED}
    if DATASET_FILE not in found:
        what = f"holds no {DATASET_FILE}, so it is no whole Energon dataset" if found else "holds nothing"
        raise ConfigError(f"path={url!r} {what}; make one with `mmpack convert SRC {url}`")
    content = [[name, known.size_bytes, known.tag] for name, known in sorted(found.items())]
    place = cache_folder() / _short_hash(url) / _short_hash(json.dumps(content))
    folder = place / url.rpartition("/")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{place} cannot be made: {error.strerror}; set MMPACK_CACHE to a folder that can") from None
    before = store.counts["repeated"]
    for name, known in sorted(found.items()):
        if name.startswith(f"{META_FOLDER}/") or name.endswith(".tar.idx"):
            _fetch(url, name, known, folder)
    objects = {name: [known.size_bytes, known.tag] for name, known in sorted(found.items())}
    _write(place / _LISTING, json.dumps({"url": url, "objects": objects}).encode())
    _log.info("%s is read through %s (%d requests repeated)", url, folder, store.counts["repeated"] - before)
    return folder


def _fetch_all(path: Path) -> None:
    if path.suffix in _YAML:
        for inner in _paths_in(yaml.safe_load(path.read_text(encoding="utf-8"))):
            _fetch_all(path.parent / inner["path"])
    elif (copy := _copy_of(path)) is not None:
        for name, known in copy["objects"].items():
            _fetch(str(copy["url"]), name, Stored(*known), path)


def _fetch(url: str, name: str, known: Stored, folder: Path) -> None:
    """Makes object `name` a file of `folder`: whole, or not there at all. Other processes wait for the first."""
    file = folder / name
    if _there(file, known):
        return
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{url} has an object of the name {name!r}, which leads out of the dataset")
    file.parent.mkdir(parents=True, exist_ok=True)
    locks = folder.parent / "locks"
    locks.mkdir(exist_ok=True)
    lock = os.open(locks / _short_hash(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _there(file, known):
            return
        for stale in locks.glob(f"{Path(name).name}.*.part"):  # of a process that died: the lock is ours
            stale.unlink(missing_ok=True)
        part = locks / f"{Path(name).name}.{uuid.uuid4().hex}.part"
        try:
            if not _link_known(name, known, folder, part):
                store.fetch(f"{url}/{name}", known, part)
            part.replace(file)
        except OSError as error:
            raise StorageError(
                f"{url}/{name} cannot be kept at {file}: {error.strerror or error}; make room there, or set "
                "MMPACK_CACHE to a folder that has it"
            ) from None
        finally:
            part.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _link_known(name: str, known: Stored, folder: Path, part: Path) -> bool:
    """Takes an object from an earlier copy of the dataset that has the same one."""
    for other in folder.parent.parent.glob(f"*/{_LISTING}"):
        earlier = other.parent / folder.name / name
        with suppress(OSError, ValueError, LookupError):
            same = json.loads(other.read_bytes())["objects"].get(name) == [known.size_bytes, known.tag]
            if same and known.tag and _there(earlier, known):
                os.link(earlier, part)
                return True
    return False


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _there(file: Path, known: Stored) -> bool:
    try:
        return file.stat().st_size == known.size_bytes
    except OSError:
        return False


def _open_metadataset(url: str) -> Path:
    try:
        known = store.look(url)
    except FileNotFoundError:
        raise ConfigError(f"path={url!r} does not exist") from None
    folder = cache_folder() / "metadatasets"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{uuid.uuid4().hex}"
    try:
        store.fetch(url, known, part)
        return _rewritten(part.read_bytes(), url, url.rpartition("/")[0])
    finally:
        part.unlink(missing_ok=True)


def _rewritten(content: bytes, name: str, base: str) -> Path:
    """A metadataset whose datasets are all here. Copies are named relative to it, so that it is the same anywhere."""
    try:
        values = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is no YAML: {' '.join(str(error).split())[:200]}") from None
    folder = cache_folder() / "metadatasets"
    folder.mkdir(parents=True, exist_ok=True)
    for entry in _paths_in(values):
        inner = entry["path"]
        if not is_remote(inner):
            inner = os.path.normpath(os.path.join(base, inner)) if not is_remote(base) else _joined(base, inner)
        there = local(inner)
        entry["path"] = os.path.relpath(there, folder) if there.is_relative_to(cache_folder()) else str(there)
    text = yaml.safe_dump(values, sort_keys=False).encode()
    file = folder / f"{Path(name).stem}-{hashlib.sha256(text).hexdigest()[:20]}.yaml"
    _write(file, text)
    return file


def _joined(base: str, inner: str) -> str:
    if inner.startswith("/"):
        raise ConfigError(f"a metadataset in {base} names the local path {inner!r}; give one relative to it, or a URL")
    return "msc://" + os.path.normpath(os.path.join(base.removeprefix("msc://"), inner))


def _paths_in(values: Any) -> list[dict[str, Any]]:
    """Every mapping in a metadataset that names a path."""
    found: list[dict[str, Any]] = []
    pending = [values]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("path"), str):
                found.append(part)
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found


def _write(file: Path, content: bytes) -> None:
    """Writes a small file whole or not at all."""
    part = file.with_name(f".{uuid.uuid4().hex}")
    part.write_bytes(content)
    part.replace(file)
