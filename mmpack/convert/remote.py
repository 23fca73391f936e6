"""A dataset for an object store: made on this machine, then uploaded, visible once it is whole."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mmpack.convert.config import REPORT_NAME, ConvertConfig, ConvertReport, Progress, SampleReports
from mmpack.convert.run import convert
from mmpack.energon import store
from mmpack.energon.remote import DATASET_FILE, META_FOLDER, UNFINISHED, forget
from mmpack.energon.store import Stored, url_of
from mmpack.errors import ConfigError
from mmpack.processes import terminate_as_exit

_log = logging.getLogger(__name__)


def convert_to_store(config: ConvertConfig, progress: Progress) -> ConvertReport:
    """`mmpack.convert.convert` to a store; raises what that and `upload` raise."""
    started = time.perf_counter()
    url = url_of(config.dst)
    if config.engine != "local" and config.staging is None:
        raise ConfigError(f"engine={config.engine!r} makes {url} in a folder that all machines see; name it as staging")
    check_place(url, overwrite=config.overwrite)
    with terminate_as_exit(), _staging_folder(config, url) as place:
        folder = place / url.rpartition("/")[2]
        report = convert(replace(config, dst=folder, overwrite=True, staging=None), progress)
        name_in_report(folder / REPORT_NAME, url)
        sent = upload(folder, url, overwrite=config.overwrite)
    _log.info("%s: %d objects sent, %d requests repeated", url, sent, store.counts["repeated"])
    samples = SampleReports(config.dst / REPORT_NAME, len(report.samples))
    return replace(report, path=config.dst, samples=samples, seconds=time.perf_counter() - started)


@contextmanager
def _staging_folder(config: ConvertConfig, url: str) -> Iterator[Path]:
    """A folder for what goes to `url`, of the same name each time, so that what a killed run left is removed."""
    root = config.staging or Path(tempfile.gettempdir()) / f"mmpack-{os.getuid()}"
    place = root / f"staging-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"staging={str(root)!r} cannot be used: {error.strerror}; name another folder") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is converting to {url}; let it finish") from None
        try:
            yield place
        except BaseException:
            if config.engine != "local":
                place = place / url.rpartition("/")[2]  # the next run takes over what else is there
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(lock)


def name_in_report(file: Path, url: str) -> None:
    """Puts the dataset's URL in the place of the folder in which it was made."""
    part = file.with_suffix(".part")
    with file.open(encoding="ascii") as old, part.open("w", encoding="ascii") as new:
        for line in old:
            new.write(f' "path": {json.dumps(url)},\n' if line.startswith(' "path":') else line)
    part.replace(file)


def check_place(url: str, *, overwrite: bool) -> dict[str, Stored]:
    """What is at `url`, if a dataset may be written there: nothing, one that was broken off, or one to be replaced.

    Raises:
        ConfigError: something else is there.
    """
    there = store.listing(url)
    if not there or UNFINISHED in there:
        return there
    if not overwrite:
        raise ConfigError(f"{url} already exists; choose another destination, or overwrite it (--overwrite)")
    if REPORT_NAME not in there or DATASET_FILE not in there:
        raise ConfigError(f"{url} is not a dataset that mmpack made, so it is not overwritten; choose another place")
    return there


def upload(folder: Path, url: str, *, overwrite: bool = False) -> int:
    """Puts a dataset in the store. It can be opened there once it is whole: what makes it a dataset comes last.

    What an upload that was broken off has put there stays, where it is the same. A dataset that is replaced is gone
    from the first moment on.

    Returns:
        Objects that were sent.

    Raises:
        ConfigError: something is there that `check_place` does not let be replaced.
        StorageError: the store does not answer. What is there by then is no dataset; the same call goes on.
    """
    there = check_place(url, overwrite=overwrite)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    marker = folder.parent / f"{folder.name}{UNFINISHED}"
    marker.write_text("A dataset is being written here, or was broken off: run the same command again.\n")
    store.send(marker, f"{url}/{UNFINISHED}")
    marker.unlink()
    forget(url)
    # From here to the end there is no dataset: neither energon nor `mmpack.energon.remote` opens one without this file.
    store.remove(f"{url}/{DATASET_FILE}")
    for name in there:
        if name not in files and name != UNFINISHED:
            store.remove(f"{url}/{name}")
    sent = 0
    for name in sorted(files, key=lambda name: (name == DATASET_FILE, name.startswith(META_FOLDER), name)):
        known = there.get(name)
        if known is not None and name != DATASET_FILE and known.is_content(store.md5_of(files[name])):
            continue
        store.send(files[name], f"{url}/{name}")
        sent += 1
    store.remove(f"{url}/{UNFINISHED}")
    return sent
