"""Says when training waits for its data, and what bounds the data."""

from __future__ import annotations

import os
from typing import Any

from mmpack.loader.work import Work

_STEPS = 50  # looked at together
_SHARE = 0.2  # of their time that may be waiting
_SILENCE = 10  # times as many steps before it is said again
_BUSY = 0.7  # of the time that a pack takes: so much CPU means that CPU is what it takes


class SlowDataWatch:
    """Looks at the waits of every `_STEPS` steps.

    Args:
        loader: the training loader; what its workers do is told by its `work`, where it has one.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._waited = self._took = 0.0
        self._num_steps = self._silent_for = 0
        self._work = self._work_now()

    def step(self, wait_s: float, step_s: float) -> str | None:
        """Notes a step. Returns what to tell the user, if the last steps waited for much of their time."""
        self._num_steps += 1
        self._silent_for -= 1
        if self._num_steps == 1:
            return None  # the first pack waits for a window to be filled
        self._waited += wait_s
        self._took += step_s
        if (self._num_steps - 1) % _STEPS:
            return None
        share, work = self._waited / self._took, self._work_now()
        done = work.since(self._work)
        self._waited = self._took = 0.0
        self._work = work
        if share <= _SHARE or self._silent_for > 0:
            return None
        self._silent_for = _SILENCE * _STEPS
        return f"{100 * share:.0f} % of the last {_STEPS} steps went by waiting for data. {self._bound(done)}"

    def _work_now(self) -> Work:
        work = getattr(self._loader, "work", None)
        return work.copy() if isinstance(work, Work) else Work()

    def _bound(self, done: Work) -> str:
        num_workers = getattr(self._loader, "num_workers", None)
        if num_workers is None:
            return "Its batches are made in the training process, between the steps"
        if num_workers == 0:
            return "Packs are made in the training process, between the steps: set num_workers"
        if not done.num_packs:
            return "No pack came from the workers"
        cpu_s, wall_s = done.cpu_s / done.num_packs, done.wall_s / done.num_packs
        each = f"A pack takes a worker {wall_s:.2g} s, {100 * cpu_s / wall_s:.0f} % of it CPU"
        cores = _cores()
        more = f"more workers (num_workers={num_workers}, {cores} cores)"
        if cpu_s >= _BUSY * wall_s:
            help_ = f"{more}, or decode=fast; `mmpack profile` tells which stage takes it"
            return f"{each}: CPU bounds. What helps: {help_}"
        if num_workers + 1 > cores:
            return f"{each}: {num_workers} workers and the trainer share {cores} cores. What helps: more cores"
        return f"{each}: reading bounds. What helps: storage that is nearer or faster, or {more}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
