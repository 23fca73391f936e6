"""First fit over the lengths in an order drawn by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmpack.packing.first_fit import first_fit_in_order
from mmpack.packing.limits import UNLIMITED, Limits


def first_fit_shuffle(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """Samples in random order, each into the first pack with room: packs keep the mix of the data.

    The order is the one that NeMo's algorithm of this name draws after ``np.random.seed(seed)``; numpy's global
    generator is not touched. O(n log n).

    >>> first_fit_shuffle([3, 5, 2, 7, 4, 6], 10, seed=0)
    [[5, 2], [1, 0], [3], [4]]
    """
    order = list(range(len(lengths)))
    np.random.RandomState(seed).shuffle(order)
    return first_fit_in_order(lengths, capacity, order, limits)
