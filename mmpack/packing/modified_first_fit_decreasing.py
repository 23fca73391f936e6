"""Modified first fit decreasing (Johnson and Garey 1985), with the details of NeMo-RL's packer."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from mmpack.packing.limits import MOST_LOOKS, UNLIMITED, Limits, Room
from mmpack.packing.pool import Pool


def modified_first_fit_decreasing(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """Long samples get a pack each; what goes beside them is chosen by size class; the rest is spread.

    A sample is large above 1/2 of the capacity, medium above 1/3, small above 1/6, else tiny.

    1. Every large sample opens a pack, the longest first.
    2. Forward over these packs: the longest medium sample that fits, one each.
    3. Backward over those without a medium one: the shortest small sample and the longest other small one that fits
       beside it, if there is such a pair.
    4. Forward again: the longest remaining samples that fit, as many as do.
    5. The rest, longest first, each into the emptiest new pack that has room, or a new one. (The paper says first fit
       here; NeMo-RL takes the emptiest, which is why its packs are no fewer than plain first fit decreasing's.)

    The packs of step 5 stand in the order of their loads. `seed` is not used. O(n log n).

    >>> modified_first_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 2], [5, 3, 1, 4], [0, 6]]
    """
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    shortest_first = longest_first[::-1]  # of equally long samples the later first, so the earlier is taken first
    large = [i for i in longest_first if 2 * lengths[i] > capacity]
    medium = Pool([i for i in shortest_first if 2 * lengths[i] <= capacity < 3 * lengths[i]], lengths, limits)
    small_first = [i for i in range(len(lengths)) if 3 * lengths[i] <= capacity < 6 * lengths[i]]
    small_first.sort(key=lengths.__getitem__)  # equals the other way about: the shortest are taken from the front
    small = Pool(small_first, lengths, limits)
    tiny = [i for i in shortest_first if 6 * lengths[i] <= capacity]
    opened = _Packs(lengths, limits)
    for i in large:
        opened.open(i, capacity)
    has_medium = [opened.add_longest(p, medium) for p in range(len(large))]
    for p in reversed(range(len(large))):
        if not has_medium[p]:
            opened.add_pair(p, small)
    rest = Pool(sorted([*medium.free(), *small.free(), *tiny], key=lambda i: (lengths[i], -i)), lengths, limits)
    for p in range(len(large)):
        while opened.add_longest(p, rest):
            pass
    return opened.packs + _spread(lengths, capacity, list(rest.free()), limits)


class _Packs:
    """Packs and what each has left."""

    def __init__(self, lengths: Sequence[int], limits: Limits) -> None:
        self.packs: list[list[int]] = []
        self._rooms: list[int] = []
        self._lefts: list[Room] = []
        self._lengths = lengths
        self._limits = limits

    def open(self, sample: int, capacity: int) -> None:
        self.packs.append([])
        self._rooms.append(capacity)
        self._lefts.append(self._limits.room())
        self._add(len(self.packs) - 1, sample)

    def add_longest(self, p: int, pool: Pool) -> bool:
        """Whether there was one that fits."""
        place = pool.longest(self._rooms[p], self._lefts[p])
        if place:
            self._add(p, pool.take(place))
        return bool(place)

    def add_pair(self, p: int, small: Pool) -> None:
        """The shortest of `small` and, beside it, the longest that fits; nothing if there is no such pair."""
        if not (first := small.shortest()):
            return
        shortest = small.samples[first - 1]
        if self._lengths[shortest] > self._rooms[p] or not self._limits.fit(self._lefts[p], shortest):
            return
        left = self._lefts[p].copy()
        self._limits.take(left, shortest)
        second = small.longest(self._rooms[p] - self._lengths[shortest], left)
        if second > first:
            self._add(p, small.take(first))
            self._add(p, small.take(second))

    def _add(self, p: int, sample: int) -> None:
        self.packs[p].append(sample)
        self._rooms[p] -= self._lengths[sample]
        self._limits.take(self._lefts[p], sample)


def _spread(lengths: Sequence[int], capacity: int, shortest_first: list[int], limits: Limits) -> list[list[int]]:
    loads: list[tuple[int, list[int]]] = []  # a heap, the emptiest pack first
    lefts: dict[int, Room] = {}  # of the limits, by the pack's first sample
    for i in reversed(shortest_first):
        passed: list[tuple[int, list[int]]] = []
        while loads and loads[0][0] + lengths[i] <= capacity and len(passed) < MOST_LOOKS:
            load, pack = heapq.heappop(loads)
            if not limits or limits.fit(lefts[pack[0]], i):
                pack.append(i)
                passed.append((load + lengths[i], pack))
                break
            passed.append((load, pack))
        else:
            passed.append((lengths[i], [i]))
            lefts[i] = limits.room()
        limits.take(lefts[passed[-1][1][0]], i)
        for entry in passed:
            heapq.heappush(loads, entry)
    return [pack for _, pack in sorted(loads)]
