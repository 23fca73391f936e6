"""Next fit in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence


def concatenative(lengths: Sequence[int], capacity: int, *, seed: int = 0) -> list[list[int]]:
    """Fills packs in the given order and opens the next as soon as a sample does not fit; keeps the order.

    Needs at most twice the fewest packs. O(n). `seed` is not used.

    >>> concatenative([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[0, 1, 2], [3, 4, 5], [6], [7]]
    """
    packs: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths):
        if length > room:
            packs.append([])
            room = capacity
        packs[-1].append(i)
        room -= length
    return packs
