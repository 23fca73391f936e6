"""Best fit over the lengths in decreasing order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import chain

from mmpack.packing.limits import MOST_LOOKS, UNLIMITED, Limits, Room


def best_fit_decreasing(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """Longest sample first, each into the fullest pack that still has room for it.

    Needs at most 11/9 of the fewest packs plus 4 (Johnson 1974). O(n log n) plus the moves inside one sorted list of
    at most `capacity` numbers. Of two equally long samples the later one goes first, of two equally full packs the
    first one opened takes it. `seed` is not used.

    >>> best_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 5], [6, 0], [2, 3, 4, 1]]
    """
    longest_first = sorted(range(len(lengths)), key=lengths.__getitem__)[::-1]
    if limits:
        return _best_fit_limited(lengths, capacity, longest_first, limits)
    packs: list[list[int]] = []
    rooms: list[int] = []  # the different rooms that open packs have left, ascending
    packs_by_room: dict[int, list[int]] = {}  # room -> heap of the packs that have exactly that much left
    for i in longest_first:
        length = lengths[i]
        place = bisect_left(rooms, length)
        if place == len(rooms):
            pack, room = len(packs), capacity
            packs.append([])
        else:
            room = rooms[place]
            pack = heappop(packs_by_room[room])
            if not packs_by_room[room]:
                del packs_by_room[room], rooms[place]
        packs[pack].append(i)
        room -= length
        if room in packs_by_room:
            heappush(packs_by_room[room], pack)
        elif room:
            packs_by_room[room] = [pack]
            insort(rooms, room)
    return packs


def _best_fit_limited(
    lengths: Sequence[int], capacity: int, longest_first: Sequence[int], limits: Limits
) -> list[list[int]]:
    least = [min(column) for column in zip(*limits.costs, strict=True)]
    shortest = min(lengths, default=0)
    packs: list[list[int]] = []
    lefts: list[Room] = []
    open_packs: list[tuple[int, int]] = []  # (room, pack) ascending, of the packs that another sample may still fit
    for i in longest_first:
        start, end = bisect_left(open_packs, (lengths[i], -1)), len(open_packs)
        fullest = range(start, min(end, start + MOST_LOOKS // 2))
        # If the fullest are out of something else, the emptiest are not likely to be.
        for place in chain(fullest, range(max(fullest.stop, end - MOST_LOOKS // 2), end)):
            if limits.fit(lefts[open_packs[place][1]], i):
                room, pack = open_packs.pop(place)
                break
        else:
            room, pack = capacity, len(packs)
            packs.append([])
            lefts.append(limits.room())
        packs[pack].append(i)
        room -= lengths[i]
        limits.take(lefts[pack], i)
        if room >= shortest and all(left >= need for left, need in zip(lefts[pack], least, strict=True)):
            insort(open_packs, (room, pack))
    return packs
