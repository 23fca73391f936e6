"""What a running task may do beside its work: say how far it is, and ask whether anybody still waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Ticked = Callable[[int], None]  # units of work that all tasks have done so far


def _no_tick(count: int) -> None:
    pass


def _not_stopped() -> bool:
    return False


_tick: Callable[[int], None] = _no_tick
_stopped: Callable[[], bool] = _not_stopped


def tick(count: int = 1) -> None:
    """`count` more units of work are done. Does nothing where nobody counts, as on another machine."""
    _tick(count)


def stopped() -> bool:
    """Whether the result is not wanted any more, so that the task may return what it has."""
    return _stopped()


def connect(tick: Callable[[int], None], stopped: Callable[[], bool]) -> None:
    """Tells this process whom its tasks speak to; for engines, once in a worker process."""
    global _tick, _stopped
    _tick, _stopped = tick, stopped


@contextlib.contextmanager
def ticking(on_tick: Callable[[int], None]) -> Iterator[None]:
    """Ticks of the task that runs within go to `on_tick`."""
    global _tick
    before, _tick = _tick, on_tick
    try:
        yield
    finally:
        _tick = before
