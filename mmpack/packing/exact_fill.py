"""Exact fill: the oldest sample, and with it the set of the next ones whose lengths add up to the capacity.

Lengths are whole numbers, so the room that some set of samples leaves in a pack is a bit of one integer: bit r is set
if a set leaves r tokens, and another sample of length l adds the bits of ``left >> l``. Realistic lengths are so
mixed that a handful of samples more than a pack holds already reaches every sum; then every pack is full to the last
token and the order hardly changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from mmpack.packing.limits import UNLIMITED, Limits

_MOST_BITS = 1 << 20  # of the integer; beyond, lengths are counted in units of more than one token
_MOST_TRIES = 8  # exact answers that are asked for before best fit has to do where other limits bind


def next_pack(lengths: Sequence[int], capacity: int, limits: Limits = UNLIMITED) -> list[int]:
    """Chooses the next pack from a window of samples: indices into `lengths`, ascending, always with 0 among them.

    Exact as long as at most half of the samples are longer than half a pack. Each of those needs a pack of its own;
    where they are the majority, short samples are what is scarce, an exact answer would spend several on one pack,
    and the long ones would be left without. There `oldest_and_best_fit` fills better (uniform lengths up to the
    capacity, 200 samples: 98.8 % against 95.7 %).

    Args:
        lengths: tokens of the samples in the window, oldest first, each from 1 to `capacity`; not empty.
        capacity: tokens that a pack holds at most.
        limits: what a pack may cost beside tokens, for the same samples.

    >>> next_pack([5, 4, 2, 3, 1], 8)
    [0, 3]
    >>> next_pack([5, 7, 8, 6, 2, 3], 8)
    [0, 5]
    """
    # Were more than half of the samples longer than half a pack, the mean would be above a quarter: no need to count.
    if capacity * len(lengths) < 4 * sum(lengths):
        num_long = sum(2 * length > capacity for length in lengths)
        if 2 * num_long > len(lengths):
            return oldest_and_best_fit(lengths, capacity, limits)
    return oldest_and_exact_fill(lengths, capacity, limits)


def oldest_and_exact_fill(lengths: Sequence[int], capacity: int, limits: Limits = UNLIMITED) -> list[int]:
    """The oldest sample and, of the rest, a set that fills the pack as far as any set can.

    Reads the window oldest first and stops where the pack can be full; among the sets that end there, it leaves out
    the newest samples it can do without. O(samples read x capacity / 64) machine words. With limits beside tokens it
    asks again without what went over, a few times; the answer is then as full as it found, not as any set can be.

    >>> oldest_and_exact_fill([3, 9, 4, 2, 1, 3], 10)
    [0, 2, 3, 4]
    """
    return _within_limits(lengths, capacity, limits) if limits else fill_exactly(lengths, capacity)[0]


def fill_exactly(lengths: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """(chosen places, number of samples read) as `oldest_and_exact_fill` says, without limits beside tokens."""
    room = capacity - lengths[0]
    if room > _MOST_BITS:
        return _fill_in_units(lengths, capacity)
    left = 1 << room
    left_before: list[int] = []  # the same before sample 1 + i was read
    for length in islice(lengths, 1, None):
        if left & 1:
            break
        left_before.append(left)
        left |= left >> length
    wanted = 0 if left & 1 else (left & -left).bit_length() - 1
    chosen: list[int] = []
    place = len(left_before)
    while wanted != room:
        if not left_before[place - 1] >> wanted & 1:  # without this sample no set leaves that much
            chosen.append(place)
            wanted += lengths[place]
        place -= 1
    chosen.append(0)
    chosen.reverse()
    return chosen, len(left_before) + 1


def _fill_in_units(lengths: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """The same for a capacity whose bits would be too many: every length rounded up to a unit, then topped up."""
    if sum(lengths) <= capacity:
        return list(range(len(lengths))), len(lengths)
    unit = -(-capacity // _MOST_BITS)
    # One unit more for the rounding of the oldest: it is counted in units here and in tokens below.
    chosen, _ = fill_exactly([-(-length // unit) for length in lengths], max(capacity // unit, -(-lengths[0] // unit)))
    room = capacity - sum(lengths[i] for i in chosen)
    taken = set(chosen)
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if lengths[i] <= room and i not in taken:
            chosen.append(i)
            room -= lengths[i]
    return sorted(chosen), len(lengths)


def oldest_and_best_fit(lengths: Sequence[int], capacity: int, limits: Limits = UNLIMITED) -> list[int]:
    """The oldest sample, then again and again the longest that still fits, of equals the older one.

    >>> oldest_and_best_fit([5, 1, 2, 2, 4], 8)
    [0, 1, 2]
    """
    room = capacity - lengths[0]
    left = limits.room_beside([0])
    chosen = [0]
    # Longest first; sorting is stable, so equals stay oldest first.
    for i in sorted(range(1, len(lengths)), key=lengths.__getitem__, reverse=True) if room else ():
        if lengths[i] <= room and limits.fit(left, i):
            chosen.append(i)
            room -= lengths[i]
            limits.take(left, i)
            if not room:
                break
    chosen.sort()
    return chosen


def _within_limits(lengths: Sequence[int], capacity: int, limits: Limits) -> list[int]:
    """Solves for tokens; if that is over a limit, leaves out the offenders and solves again; at last best fit."""
    beside_oldest = limits.room_beside([0])
    candidates = [0, *(i for i in range(1, len(lengths)) if limits.fit(beside_oldest, i))]
    candidate_lengths = [lengths[i] for i in candidates]
    fullest: list[int] = []
    for _ in range(_MOST_TRIES):
        chosen = [candidates[place] for place in fill_exactly(candidate_lengths, capacity)[0]]
        offenders = _offenders(chosen, lengths, limits)
        if not offenders:
            return chosen
        candidates = [i for i in candidates if i not in offenders]
        candidate_lengths = [lengths[i] for i in candidates]
        fullest = [i for i in chosen if i not in offenders]
        if not candidates[1:]:
            break
    best_fit = oldest_and_best_fit(lengths, capacity, limits)
    return max(best_fit, fullest, key=lambda pack: sum(lengths[i] for i in pack))


def _offenders(chosen: Sequence[int], lengths: Sequence[int], limits: Limits) -> set[int]:
    """Samples without which `chosen` is within its limits: those that cost most a token, the newer of equals."""
    room = limits.room_beside(chosen)
    offenders: set[int] = set()
    while (d := min(range(len(room)), key=room.__getitem__)) is not None and room[d] < 0:
        rest = [i for i in chosen[1:] if i not in offenders]
        worst = max(rest, key=lambda i: (limits.costs[i][d] / lengths[i], i))
        offenders.add(worst)
        for k, cost in enumerate(limits.costs[worst]):
            room[k] += cost
    return offenders
