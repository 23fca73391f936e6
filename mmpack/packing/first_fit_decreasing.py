"""First fit over the lengths in decreasing order."""

from __future__ import annotations

from collections.abc import Sequence


def first_fit_decreasing(lengths: Sequence[int], capacity: int, *, seed: int = 0) -> list[list[int]]:
    """Longest sample first, each into the first pack that still has room for it.

    Needs at most 11/9 of the fewest packs plus 6/9 (Dósa 2007). O(n log n). Of two equally long samples the later
    one goes first, as in NeMo. `seed` is not used.

    >>> first_fit_decreasing([4, 1, 3, 2, 1, 3, 4, 5], 8)
    [[7, 5], [6, 0], [2, 3, 4, 1]]
    """
    if not lengths:
        return []
    # All packs but one are more than half full, so this many are always enough.
    most_packs = min(len(lengths), 2 * sum(lengths) // capacity + 1)
    num_leaves = 1 << (most_packs - 1).bit_length()
    widest = [capacity] * (2 * num_leaves)  # a tournament tree: widest[k] is the most room below node k
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__)[::-1]:
        length = lengths[i]
        node = 1
        while node < num_leaves:
            node *= 2
            if widest[node] < length:
                node += 1
        pack = node - num_leaves
        if pack == len(packs):
            packs.append([])
        packs[pack].append(i)
        widest[node] -= length
        while node > 1:
            node //= 2
            most = max(widest[2 * node], widest[2 * node + 1])
            if widest[node] == most:
                break
            widest[node] = most
    return packs
