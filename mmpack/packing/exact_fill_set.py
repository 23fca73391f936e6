"""Exact fill of a whole set: the view of a stream slides along the shuffled samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmpack.packing.best_fit_decreasing import best_fit_decreasing
from mmpack.packing.exact_fill import fill_exactly, next_pack
from mmpack.packing.first_fit_decreasing import first_fit_decreasing
from mmpack.packing.limits import UNLIMITED, Limits

_VIEW_SAMPLES = (48, 256)  # looked at for one pack: first the few that nearly always do; beyond, nothing is gained
_TAIL_PACKS, _TAIL_TRIES = 64, 8
_PATIENCE = 16  # packs in a row that a large view may leave unfilled; then it is tried for every so many only
_EXACT_SAMPLES = 32  # mean lengths of room that are solved exactly; before, whatever comes goes in


def exact_fill(lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED) -> list[list[int]]:
    """Packs a whole set: exact fill over a view that slides along the shuffled set, or best fit decreasing if better.

    The shuffle (by `seed`) keeps a sorted set from presenting only samples of one size. Near linear on realistic
    lengths, and there it needs the fewest packs possible or one or two more. Never more packs than best fit
    decreasing, which is asked whenever the answer is above the bound below. Where over a quarter of the samples are
    longer than half a pack, only best fit decreasing is asked: it sees the whole set, and wins.

    >>> [sum([6, 4, 5, 5, 7, 3][i] for i in pack) for pack in exact_fill([6, 4, 5, 5, 7, 3], 10)]
    [10, 10, 10]
    """
    limits = limits.that_can_bind()
    num_long = int(np.count_nonzero(np.asarray(lengths) > capacity // 2))
    if 4 * num_long > len(lengths) and not limits:
        return best_fit_decreasing(lengths, capacity, limits=limits)
    # Every token needs a place, and no two of the long samples share a pack: no packing needs fewer.
    fewest = max(-(-sum(lengths) // capacity), num_long, limits.fewest_packs())
    packs = _slide(lengths, capacity, _shuffled(len(lengths), seed), limits)
    for attempt in range(_TAIL_TRIES):
        if len(packs) <= fewest:
            return packs
        packs = _with_other_tail(packs, lengths, capacity, seed + attempt, limits)
    if len(packs) > fewest:
        packs = min(packs, best_fit_decreasing(lengths, capacity, limits=limits), key=len)
    if len(packs) > fewest and limits:  # best fit looks at tokens alone; first fit may suit the other limits better
        packs = min(packs, first_fit_decreasing(lengths, capacity, limits=limits), key=len)
    return packs


def _shuffled(num_samples: int, seed: int) -> list[int]:
    # RandomState is the one generator of numpy whose numbers are promised never to change.
    order: list[int] = np.random.RandomState(seed).permutation(num_samples).tolist()
    return order


def _with_other_tail(
    packs: list[list[int]], lengths: Sequence[int], capacity: int, seed: int, limits: Limits
) -> list[list[int]]:
    """The last packs again, shuffled anew, if that takes fewer: only there was little left to choose from."""
    tail = [i for pack in packs[-_TAIL_PACKS:] for i in pack]
    again = _slide([lengths[i] for i in tail], capacity, _shuffled(len(tail), seed), limits.of(tail))
    if len(again) >= min(_TAIL_PACKS, len(packs)):
        return packs
    return packs[:-_TAIL_PACKS] + [[tail[k] for k in pack] for pack in again]


def _slide(lengths: Sequence[int], capacity: int, order: list[int], limits: Limits) -> list[list[int]]:
    return _slide_within_limits(lengths, capacity, order, limits) if limits else _slide_freely(lengths, capacity, order)


def _slide_freely(lengths: Sequence[int], capacity: int, order: list[int]) -> list[list[int]]:
    """`order` is a shuffled permutation. The samples that a pack read and left come first at the next one."""
    in_order: list[int] = np.asarray(lengths)[order].tolist()  # a loop over a million places waits for memory
    num_samples = len(order)
    exact_tokens = _EXACT_SAMPLES * sum(lengths) // max(1, num_samples)
    packs: list[list[int]] = []
    passed: list[int] = []  # read and left by the last packs, oldest first
    passed_lengths: list[int] = []
    num_read = not_full = 0
    while passed or num_read < num_samples:
        pack: list[int] = []
        room = capacity
        while num_read < num_samples and in_order[num_read] <= room - exact_tokens:
            pack.append(order[num_read])
            room -= in_order[num_read]
            num_read += 1
        hopeless = not_full >= _PATIENCE and len(packs) % _PATIENCE
        for view_samples in _VIEW_SAMPLES[:1] if hopeless else _VIEW_SAMPLES:
            end = max(num_read, num_read + view_samples - len(passed))
            view_lengths = passed_lengths[:view_samples] + in_order[num_read:end]
            if pack:
                view_lengths.insert(0, capacity - room)
            places, num_seen = fill_exactly(view_lengths, capacity)
            if num_seen < len(view_lengths):
                not_full = 0
                break  # it is full: more to choose from changes nothing
        else:
            not_full += 1
        if pack:
            places = [place - 1 for place in places[1:]]
            num_seen -= 1
        num_new = max(0, num_seen - len(passed))
        passed += order[num_read : num_read + num_new]
        passed_lengths += in_order[num_read : num_read + num_new]
        num_read += num_new
        packs.append(pack + [passed[place] for place in places])
        for place in reversed(places):
            del passed[place], passed_lengths[place]
    return packs


def _slide_within_limits(lengths: Sequence[int], capacity: int, order: list[int], limits: Limits) -> list[list[int]]:
    view = order[: _VIEW_SAMPLES[-1]]
    num_read = len(view)
    packs: list[list[int]] = []
    while view:
        chosen = next_pack([lengths[i] for i in view], capacity, limits.of(view))
        packs.append([view[place] for place in chosen])
        for place in reversed(chosen):
            del view[place]
        more = order[num_read : num_read + len(chosen)]
        num_read += len(more)
        view += more
    return packs
