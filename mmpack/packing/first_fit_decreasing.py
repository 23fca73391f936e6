"""First fit over the lengths in decreasing order."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.packing.first_fit import first_fit_in_order
from mmpack.packing.limits import UNLIMITED, Limits


def first_fit_decreasing(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """Longest sample first, each into the first pack that still has room for it.

    Needs at most 11/9 of the fewest packs plus 6/9 (Dósa 2007). O(n log n). Of two equally long samples the later
    one goes first, as in NeMo. `seed` is not used.

    >>> first_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 5], [6, 0], [2, 3, 4, 1]]
    """
    return first_fit_in_order(lengths, capacity, sorted(range(len(lengths)), key=lengths.__getitem__)[::-1], limits)
