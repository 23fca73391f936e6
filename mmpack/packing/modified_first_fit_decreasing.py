"""Modified first fit decreasing (Johnson and Garey 1985), with the details of NeMo-RL's packer."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int, *, seed: int = 0) -> list[list[int]]:
    """Long samples get a pack each; what goes beside them is chosen by size class; the rest is spread.

    A sample is large above 1/2 of the capacity, medium above 1/3, small above 1/6, else tiny.

    1. Every large sample opens a pack, the longest first.
    2. Forward over these packs: the longest medium sample that fits, one each.
    3. Backward over those without a medium one: the shortest small sample and the longest other small one that fits
       beside it, if there is such a pair.
    4. Forward again: the longest remaining samples that fit, as many as do.
    5. The rest, longest first, each into the emptiest new pack that has room, or a new one. (The paper says first fit
       here; NeMo-RL takes the emptiest, which is why its packs are no fewer than plain first fit decreasing's.)

    The packs of step 5 stand in the order of their loads. `seed` is not used.

    >>> modified_first_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 2], [5, 3, 1, 4], [0, 6]]
    """
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    large = [i for i in longest_first if 2 * lengths[i] > capacity]
    medium = [i for i in longest_first if 2 * lengths[i] <= capacity < 3 * lengths[i]]
    small = sorted(
        (i for i in range(len(lengths)) if 3 * lengths[i] <= capacity < 6 * lengths[i]), key=lengths.__getitem__
    )
    tiny = [i for i in longest_first if 6 * lengths[i] <= capacity]
    packs = [[i] for i in large]
    rooms = [capacity - lengths[i] for i in large]
    has_medium = _add_medium(lengths, packs, rooms, medium)
    _add_small_pairs(lengths, packs, rooms, small, has_medium)
    rest = sorted([*medium, *small, *tiny])
    _add_what_fits(lengths, packs, rooms, rest)
    return packs + _spread(lengths, capacity, rest)


def _add_medium(lengths: Sequence[int], packs: list[list[int]], rooms: list[int], medium: list[int]) -> list[bool]:
    """Takes samples out of `medium`; of equally long ones the earlier first."""
    medium.sort(key=lambda i: (lengths[i], -i))  # ascending, so that the longest that fits is found by bisection
    has_medium = [False] * len(packs)
    for p, pack in enumerate(packs):
        place = bisect_right(medium, rooms[p], key=lengths.__getitem__)
        if place > 0:
            chosen = medium.pop(place - 1)
            pack.append(chosen)
            rooms[p] -= lengths[chosen]
            has_medium[p] = True
    return has_medium


def _add_small_pairs(
    lengths: Sequence[int], packs: list[list[int]], rooms: list[int], small: list[int], has_medium: list[bool]
) -> None:
    """`small` is ordered shortest first."""
    for p in reversed(range(len(packs))):
        if has_medium[p] or len(small) < 2 or lengths[small[0]] + lengths[small[1]] > rooms[p]:
            continue
        shortest = small.pop(0)
        place = bisect_right(small, rooms[p] - lengths[shortest], key=lengths.__getitem__) - 1
        longest = small.pop(place)
        packs[p] += [shortest, longest]
        rooms[p] -= lengths[shortest] + lengths[longest]


def _add_what_fits(lengths: Sequence[int], packs: list[list[int]], rooms: list[int], rest: list[int]) -> None:
    """Takes samples out of `rest`; of equally long ones the earlier first."""
    rest.sort(key=lambda i: (lengths[i], -i))
    for p, pack in enumerate(packs):
        while (place := bisect_right(rest, rooms[p], key=lengths.__getitem__)) > 0:
            chosen = rest.pop(place - 1)
            pack.append(chosen)
            rooms[p] -= lengths[chosen]


def _spread(lengths: Sequence[int], capacity: int, rest: Sequence[int]) -> list[list[int]]:
    loads: list[tuple[int, list[int]]] = []  # a heap, the emptiest pack first
    for i in sorted(rest, key=lambda i: (-lengths[i], i)):
        if loads and loads[0][0] + lengths[i] <= capacity:
            load, pack = heapq.heappop(loads)
            heapq.heappush(loads, (load + lengths[i], [*pack, i]))
        else:
            heapq.heappush(loads, (lengths[i], [i]))
    return [pack for _, pack in sorted(loads)]
