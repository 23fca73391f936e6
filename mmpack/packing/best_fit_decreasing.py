"""Best fit over the lengths in decreasing order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush


def best_fit_decreasing(lengths: Sequence[int], capacity: int, *, seed: int = 0) -> list[list[int]]:
    """Longest sample first, each into the fullest pack that still has room for it.

    Needs at most 11/9 of the fewest packs plus 4 (Johnson 1974). O(n log n) plus the moves inside one sorted list of
    at most `capacity` numbers. Of two equally long samples the later one goes first, of two equally full packs the
    first one opened takes it. `seed` is not used.

    >>> best_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 5], [6, 0], [2, 3, 4, 1]]
    """
    packs: list[list[int]] = []
    rooms: list[int] = []  # the different rooms that open packs have left, ascending
    packs_by_room: dict[int, list[int]] = {}  # room -> heap of the packs that have exactly that much left
    for i in sorted(range(len(lengths)), key=lengths.__getitem__)[::-1]:
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
