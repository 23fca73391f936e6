"""Samples ordered by length, of which the longest that fits is taken again and again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from mmpack.packing.limits import MOST_LOOKS, UNLIMITED, Limits, Room


class Pool:
    """Samples, shortest first, that can be taken out at any place in nearly constant time.

    Places count from 1, so that 0 says "none".

    Args:
        ascending: the samples, shortest first; of equal ones the last is taken first.
        lengths: of all samples, by index.

    >>> pool = Pool([2, 0, 1], lengths=[4, 9, 1])
    >>> pool.take(pool.longest(8)), pool.take(pool.longest(8)), pool.longest(8)
    (0, 2, 0)
    """

    def __init__(self, ascending: Sequence[int], lengths: Sequence[int], limits: Limits = UNLIMITED) -> None:
        self.samples = ascending
        self._lengths = [lengths[i] for i in ascending]
        self._limits = limits
        self._at_or_below = list(range(len(ascending) + 1))  # disjoint sets: the next free place downwards
        self._shortest = 1

    def longest(self, room: int, left: Room | None = None) -> int:
        """The place of the longest free sample that fits `room` tokens and what is `left` of the limits, or 0."""
        place = self.free_at_or_below(bisect_right(self._lengths, room))
        if not self._limits or left is None:
            return place
        for _ in range(MOST_LOOKS):
            if not place or self._limits.fit(left, self.samples[place - 1]):
                return place
            place = self.free_at_or_below(place - 1)
        return 0

    def shortest(self) -> int:
        """The place of the shortest free sample, or 0."""
        while self._shortest <= len(self.samples) and self._at_or_below[self._shortest] != self._shortest:
            self._shortest += 1
        return self._shortest if self._shortest <= len(self.samples) else 0

    def take(self, place: int) -> int:
        """Takes out the sample at a free `place`."""
        self._at_or_below[place] = place - 1
        return self.samples[place - 1]

    def free(self) -> Iterable[int]:
        """The samples that were not taken, shortest first."""
        return (self.samples[p - 1] for p in range(1, len(self._at_or_below)) if self._at_or_below[p] == p)

    def free_at_or_below(self, place: int) -> int:
        """The highest free place that is not above `place`, or 0."""
        below = self._at_or_below
        root = place
        while below[root] != root:
            root = below[root]
        while below[place] != root:
            below[place], place = root, below[place]
        return root
