"""Greedy knapsack: fill one pack after the other with the longest sample that still fits."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.packing.first_fit_decreasing import first_fit_decreasing
from mmpack.packing.limits import UNLIMITED, Limits


def greedy_knapsack(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """A pack takes the longest remaining sample that fits until none does; then the next pack begins.

    What NeMo's multimodal encoder uses, sample for sample. These are the packs of first fit decreasing: its first
    pack, too, takes every sample that fits as they come by, longest first, and so on with the rest. Taking samples
    out of the middle of a list, the way the name tells it, would be quadratic. Of two equally long samples the later
    one goes first. `seed` is not used. O(n log n).

    >>> greedy_knapsack([3, 5, 2, 7, 4, 6], 10)
    [[3, 0], [5, 4], [1, 2]]
    """
    return first_fit_decreasing(lengths, capacity, seed=seed, limits=limits)
