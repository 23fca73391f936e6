"""Small rules for child processes: they end with their parent, and forking stays quiet."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from types import FrameType


def end_with_parent(parent: int) -> None:
    """Ends this process soon after process `parent` is gone, however it went; a blocked pipe cannot hold it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def quiet_fork() -> Iterator[None]:
    """Children forked within use no tokenizer threads, and say so before the tokenizer's fork handler warns of it."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = before or "false"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
            yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]


class SharedHeap:
    """Keeps the pages that forked children share with this process shared, until `release`.

    A full run of Python's cyclic garbage collector writes into the header of every object that it visits, in parent and
    children alike, and so copies nearly all pages of the heap some minutes after a fork: 60 MB for each process where
    torch and transformers are loaded. Objects that are there when the first `SharedHeap` is made are therefore left out
    of its runs until the last one is released; reference counts free them as ever. Nothing is done where someone else
    has frozen objects already.
    """

    _holders = 0
    _ours = False  # whether what is frozen was frozen here

    def __init__(self) -> None:
        self._held = True
        SharedHeap._holders += 1
        if SharedHeap._holders == 1 and gc.get_freeze_count() == 0:
            gc.collect()  # garbage must not be kept
            gc.freeze()
            SharedHeap._ours = True

    def release(self) -> None:
        """May be called more than once."""
        if not self._held:
            return
        self._held = False
        SharedHeap._holders -= 1
        if SharedHeap._holders == 0 and SharedHeap._ours:
            gc.unfreeze()
            SharedHeap._ours = False


@contextlib.contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Within, SIGTERM raises SystemExit, so that `finally` clauses run. Main thread only; elsewhere it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
