"""Random draws of energon's datasets that are numbered: their state is a count, and not a generator's 5,000 bytes.

Energon saves a torch generator for every dataset, and for a shuffled one the list of all parts still to come, which
grows with the data. Here draw n of a dataset is a hash of (seed, stream, dataset, n), and the parts to come follow from
the number of the epoch. So a state stays small and quick to make, whatever the data, the step and the version of torch.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from megatron.energon.flavors.webdataset.sample_loader import WebdatasetSampleLoaderDataset
from megatron.energon.rng import WorkerRng
from megatron.energon.state import FlexState

_MASK = 2**64 - 1


def draw(seed: int, stream: int, count: int) -> int:
    """A number of 64 bits that the three decide: the finalizer of splitmix64 (Steele, Lea, Flood, 2014).

    >>> draw(1, 2, 3) == draw(1, 2, 3), draw(1, 2, 3) == draw(1, 2, 4)
    (True, False)
    """
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + (count + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


class NumberedDraws(WorkerRng):  # type: ignore[misc]
    """What energon's datasets draw from, each draw numbered.

    Args:
        seed, number: decide all draws.
    """

    def __init__(self, seed: int, number: int) -> None:
        self._seed, self._number = seed, number
        self._count = 0

    def _next(self) -> int:
        self._count += 1
        return draw(self._seed, self._number, self._count)

    def randbelow(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self._next() % n

    def choice_idx(self, probs: Any) -> int:
        """A place in `probs`, drawn by these weights; never one of weight 0."""
        weights: Sequence[float] = probs.tolist()
        if len(weights) == 1:
            return 0
        ends = list(accumulate(weights))
        place = bisect_right(ends, (self._next() >> 11) / 2**53 * ends[-1])
        return min(place, max(i for i, weight in enumerate(weights) if weight > 0))

    def shuffle(self, l: list[Any]) -> list[Any]:  # noqa: E741  (energon's name for it)
        """The same things in another order."""
        first = self._next()
        return [l[i] for i in sorted(range(len(l)), key=lambda i: draw(first, self._number, i))]

    def save_state(self) -> FlexState:
        """How many draws there were."""
        return FlexState(count=self._count)

    def restore_state(self, state: FlexState) -> None:
        """Goes on behind so many draws."""
        self._count = state["count"]


def number_draws(dataset: Any, seed: int, stream: int) -> None:
    """Makes all datasets in a tree of energon's wrappers draw by number, in place."""
    pending, number = [dataset], 0
    while pending:
        one = pending.pop()
        number += 1
        if isinstance(getattr(one, "_worker_rng", None), WorkerRng):
            one._worker_rng = NumberedDraws(draw(seed, stream, 0), number)
        if isinstance(one, WebdatasetSampleLoaderDataset):
            _follow_epochs(one, draw(seed, stream, 1), number)
        pending += getattr(one, "datasets", ())


def _follow_epochs(dataset: Any, seed: int, number: int) -> None:
    """Makes the order of a dataset's parts follow from the number of its epoch, instead of being saved."""

    def parts_to_come() -> list[int]:
        size, epochs = len(dataset.slice_offsets) - 1, dataset.shuffle_over_epochs
        order = list(range(size)) * max(1, epochs or 1)
        if epochs is not None:
            epoch_seed = draw(seed, number, dataset._epoch_count)
            if epochs == -1:  # drawn with replacement: the first few here, the others one by one
                order = [draw(epoch_seed, 0, i) % size for i in range(dataset.parallel_slice_iters)]
            else:
                order = [order[i] for i in sorted(range(len(order)), key=lambda i: draw(epoch_seed, 0, i))]
        taken = dataset._pending_slices_offset or 0
        order = order[taken:][::-1]  # taken from the end
        dataset._pending_slices_offset, dataset._pending_slice_indexes = taken, order
        return order

    restore = dataset.restore_state

    @functools.wraps(restore)
    def restore_state(state: FlexState) -> None:
        restore(state)
        dataset._pending_slice_indexes = None  # follows from the epoch and how many were taken

    dataset._savable_fields = tuple(name for name in dataset._savable_fields if name != "_pending_slice_indexes")
    dataset._slices_once = parts_to_come
    dataset.restore_state = restore_state
