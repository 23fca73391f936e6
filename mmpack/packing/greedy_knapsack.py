"""Greedy knapsack: fill one pack after the other with the longest sample that still fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def greedy_knapsack(lengths: Sequence[int], capacity: int, *, seed: int = 0) -> list[list[int]]:
    """A pack takes the longest remaining sample that fits until none does; then the next pack begins.

    What NeMo's multimodal encoder uses, sample for sample. It makes the packs of first fit decreasing. Of two equally
    long samples the later one goes first. `seed` is not used. O(n log n) comparisons.

    >>> greedy_knapsack([3, 5, 2, 7, 4, 6], 10)
    [[3, 0], [5, 4], [1, 2]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ascending = [lengths[i] for i in order]
    packs: list[list[int]] = []
    while order:
        room, pack = capacity, []
        while (place := bisect_right(ascending, room)) > 0:
            room -= ascending.pop(place - 1)
            pack.append(order.pop(place - 1))
        packs.append(pack)
    return packs
