"""A dataset appears whole or not at all: it grows in a hidden folder beside its place."""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmpack.errors import ConfigError, DataError, SampleError

_LOCK = ".lock"


@contextmanager
def partial_folder(dst: Path) -> Iterator[Path]:
    """A hidden folder beside `dst` for this process; gone at the end. Those of processes that died are removed."""
    folder = _clear_place(dst) / f"{_prefix(dst)}partial-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def lasting_folder(dst: Path, fingerprint: str) -> Iterator[Path]:
    """A hidden folder beside `dst` with what an earlier run of the same `fingerprint` left in it.

    It stays where the run is broken off: by a signal, by workers that die, by a full disk. Where the request or the
    data are at fault it goes, and it goes when another run writes to `dst`.

    Raises:
        ConfigError: another process is at it.
    """
    name = f"{_prefix(dst)}unfinished-{fingerprint}"
    folder = _clear_place(dst, keep=name) / name
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _locked(lock):
            raise ConfigError(f"another process is writing {dst} with the same settings; let it finish")
        try:
            yield folder
        except (ConfigError, DataError, SampleError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def _clear_place(dst: Path, keep: str = "") -> Path:
    """The folder that `dst` is in, without what dead processes left there for it."""
    dst = dst.resolve()  # a name for ".", and the folder itself behind a link
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {dst.parent}: {error.strerror}; choose another destination") from None
    partial, unfinished = f"{_prefix(dst)}partial-", f"{_prefix(dst)}unfinished-"
    for stale in list(dst.parent.iterdir()):
        if stale.name.startswith(unfinished) and stale.name != keep and not _in_use(stale):
            shutil.rmtree(stale, ignore_errors=True)
        if not stale.name.startswith(partial):
            continue
        pid, _, old = stale.name.removeprefix(partial).partition("-")
        if pid.isdigit() and Path(f"/proc/{pid}").exists() and int(pid) != os.getpid():
            continue
        if old and not dst.exists():
            stale.rename(dst)  # killed between the two renames that replace a dataset
        else:
            shutil.rmtree(stale, ignore_errors=True)
    return dst.parent


def _prefix(dst: Path) -> str:
    """What the names of all hidden folders for `dst` begin with."""
    name = dst.resolve().name
    return f".{name}." if len(name) <= 100 else f".{name[:80]}{zlib.crc32(os.fsencode(name)):08x}."


def _locked(lock: int) -> bool:
    """Takes the lock that ends with its process; whether nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(lock)
    finally:
        os.close(lock)


def remove_hidden(folder: Path, keep: Collection[str] = ()) -> None:
    """Removes what a run needed for itself in the folder: all whose names begin with a dot, but for `keep`."""
    for path in folder.iterdir():
        if path.name.startswith(".") and path.name not in keep:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def take_place(folder: Path, dst: Path) -> None:
    """Puts the finished `folder` where `dst` is, and removes what was there."""
    dst = dst.resolve()
    if dst.exists():
        old = dst.parent / f"{_prefix(dst)}partial-{os.getpid()}-old"
        dst.rename(old)
        folder.rename(dst)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(dst)
