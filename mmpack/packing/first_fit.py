"""First fit: each sample, in the order given, into the first pack that still has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmpack.packing.limits import MOST_LOOKS, UNLIMITED, Limits


def first_fit(lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED) -> list[list[int]]:
    """Samples as they come, each into the first pack with room. `seed` is not used.

    Needs at most 1.7 times the fewest packs (Dósa and Sgall 2013). O(n log n).

    >>> first_fit([3, 5, 2, 7, 4, 6], 10)
    [[0, 1, 2], [3], [4, 5]]
    """
    return first_fit_in_order(lengths, capacity, range(len(lengths)), limits)


def first_fit_in_order(
    lengths: Sequence[int], capacity: int, order: Iterable[int], limits: Limits = UNLIMITED
) -> list[list[int]]:
    """First fit over the samples in `order`, a permutation of their indices."""
    if not lengths:
        return []
    if limits:
        return _first_fit_limited(lengths, capacity, order, limits)
    # All packs but one are more than half full, so this many are always enough.
    most_packs = min(len(lengths), 2 * sum(lengths) // capacity + 1)
    num_leaves = 1 << (most_packs - 1).bit_length()
    widest = [capacity] * (2 * num_leaves)  # a tournament tree: widest[k] is the most room below node k
    packs: list[list[int]] = []
    for i in order:
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


def _first_fit_limited(lengths: Sequence[int], capacity: int, order: Iterable[int], limits: Limits) -> list[list[int]]:
    """The same with one tree for each quantity; a node whose widest rooms all fit may still hold no pack that does."""
    num_leaves = 1 << (len(lengths) - 1).bit_length()
    trees = [[most] * (2 * num_leaves) for most in (capacity, *limits.most)]
    packs: list[list[int]] = []
    for i in order:
        needs = (lengths[i], *limits.costs[i])
        node = _first_leaf_that_fits(trees, needs, num_leaves) or num_leaves + len(packs)
        pack = node - num_leaves
        if pack == len(packs):
            packs.append([])
        packs[pack].append(i)
        for tree, need in zip(trees, needs, strict=True):
            tree[node] -= need
        while node > 1:
            node //= 2
            for tree in trees:
                tree[node] = max(tree[2 * node], tree[2 * node + 1])
    return packs


def _first_leaf_that_fits(trees: list[list[int]], needs: Sequence[int], num_leaves: int) -> int:
    """0 if none was found among the first so many nodes."""
    nodes = [1]
    for _ in range(4 * MOST_LOOKS):  # the way down to one leaf takes two nodes a level
        node = nodes.pop()
        if all(tree[node] >= need for tree, need in zip(trees, needs, strict=True)):
            if node >= num_leaves:
                return node
            nodes += [2 * node + 1, 2 * node]
        if not nodes:  # cannot be: a leaf of an empty pack fits everything
            break
    return 0
