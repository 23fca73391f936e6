"""A file that is kept open for random access, also by forked workers: one place to open, read and close."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

__all__ = ["OpenFile"]


class OpenFile:
    """The file at `path`, open for reading until the object is let go.

    Reads carry their place (pread), so processes forked off this one share the descriptor without moving each
    other's position. A bare descriptor, not a file object: a file object that a cycle keeps alive is reported
    as forgotten when the collector comes by.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False  # the system closes what is open then

    def __reduce__(self) -> tuple[object, ...]:
        return (OpenFile, (self.path,))  # sent to another process, it is opened there

    def read(self, start: int, size: int) -> bytes:
        """`size` bytes from `start`; fewer where the file ends before them."""
        return os.pread(self._descriptor, size, start)
