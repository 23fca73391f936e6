"""A dataset appears whole or not at all: it grows in a hidden folder beside its place."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmpack.errors import ConfigError


@contextmanager
def partial_folder(dst: Path) -> Iterator[Path]:
    """A hidden folder beside `dst` for this process; gone at the end. Those of processes that died are removed."""
    dst = dst.resolve()  # a name for ".", and the folder itself behind a link
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {dst.parent}: {error.strerror}; choose another destination") from None
    name = dst.name if len(dst.name) <= 100 else f"{dst.name[:80]}{zlib.crc32(os.fsencode(dst.name)):08x}"
    prefix = f".{name}.partial-"
    for stale in [path for path in dst.parent.iterdir() if path.name.startswith(prefix)]:
        pid, _, old = stale.name.removeprefix(prefix).partition("-")
        if pid.isdigit() and Path(f"/proc/{pid}").exists() and int(pid) != os.getpid():
            continue
        if old and not dst.exists():
            stale.rename(dst)  # killed between the two renames that replace a dataset
        else:
            shutil.rmtree(stale, ignore_errors=True)
    folder = dst.parent / f"{prefix}{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_place(folder: Path, dst: Path) -> None:
    """Puts the finished `folder` where `dst` is, and removes what was there."""
    dst = dst.resolve()
    if dst.exists():
        old = folder.with_name(folder.name + "-old")
        dst.rename(old)
        folder.rename(dst)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(dst)
