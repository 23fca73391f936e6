"""What making packs takes, so that a trainer that waits can say what for."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Work:
    """Sums over packs: from when a pack was begun until it was whole, without the wait for a place to put it."""

    num_packs: int = 0
    cpu_s: float = 0.0  # of the process that made it
    wall_s: float = 0.0

    def add(self, cpu_s: float, wall_s: float) -> None:
        """One more pack."""
        self.num_packs += 1
        self.cpu_s += cpu_s
        self.wall_s += wall_s

    def since(self, earlier: Work) -> Work:
        """What came in after `earlier`."""
        return Work(
            num_packs=self.num_packs - earlier.num_packs,
            cpu_s=self.cpu_s - earlier.cpu_s,
            wall_s=self.wall_s - earlier.wall_s,
        )

    def copy(self) -> Work:
        """As it is now."""
        return self.since(Work())


class Stopwatch:
    """CPU of this process and time on the wall since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """(CPU seconds, seconds)."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall
