"""Next fit in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.packing.limits import UNLIMITED, Limits


def concatenative(
    lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
) -> list[list[int]]:
    """Fills packs in the given order and opens the next as soon as a sample does not fit; keeps the order.

    Needs at most twice the fewest packs. O(n). `seed` is not used.

    >>> concatenative([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[0, 1, 2], [3, 4, 5], [6], [7]]
    """
    packs: list[list[int]] = []
    room, left = 0, limits.room()
    for i, length in enumerate(lengths):
        if length > room or (limits and not limits.fit(left, i)):
            packs.append([])
            room, left = capacity, limits.room()
        packs[-1].append(i)
        room -= length
        if limits:
            limits.take(left, i)
    return packs
