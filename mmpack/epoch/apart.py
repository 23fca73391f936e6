"""Takes apart what an epoch draws twice of one sample, where both came into one pack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

_MOST_TRIES = 10_000  # partners looked at for one sample

Sizes = Sequence[tuple[Sequence[int], int]]  # of each item, and most of a pack: positions first, then the limits


class _Packs:
    """Packs whose items can be exchanged; `packs` is changed in place."""

    def __init__(self, packs: list[list[int]], samples: Sequence[int], sizes: Sizes, max_samples: int | None) -> None:
        self.packs, self.samples, self.sizes, self.max_samples = packs, samples, sizes, max_samples
        self.held = [Counter(samples[item] for item in pack) for pack in packs]
        self.totals = [[sum(size[item] for item in pack) for size, _ in sizes] for pack in packs]
        self.spots: dict[int, list[tuple[int, int]]] = defaultdict(list)  # room -> pack and place, some out of date
        for k, pack in enumerate(packs):
            for place, item in enumerate(pack):
                self.spots[sizes[0][0][item]].append((k, place))

    def partners(self, item: int) -> Iterator[tuple[int, int]]:
        """Where other items are: those that are as long first, then the ones of the next lengths."""
        room = self.sizes[0][0][item]
        tries = 0
        for near in sorted(self.spots, key=lambda other: (abs(other - room), other)):
            spots = self.spots[near]
            for i in range(len(spots)):
                tries += 1
                if tries > _MOST_TRIES:
                    return
                yield spots[(i + item) % len(spots)]  # not always the first

    def exchange(self, k: int, place: int) -> bool:
        """Swaps an item with one of another pack, if there is one such that both packs still hold."""
        item = self.packs[k][place]
        for j, other_place in self.partners(item):
            if j == k or other_place >= len(self.packs[j]):  # something moved away
                continue
            other = self.packs[j][other_place]
            if self.samples[other] in self.held[k] or self.samples[item] in self.held[j]:
                continue
            changes = [size[other] - size[item] for size, _ in self.sizes]
            most = [most for _, most in self.sizes]
            fits = all(t + c <= m for t, c, m in zip(self.totals[k], changes, most, strict=True))
            if fits and all(t - c <= m for t, c, m in zip(self.totals[j], changes, most, strict=True)):
                self._put(k, place, other)
                self._put(j, other_place, item)
                return True
        return False

    def move(self, k: int, place: int) -> None:
        """Puts an item where there is room for it, or into a pack of its own."""
        item = self.packs[k].pop(place)
        self._count(k, item, -1)
        for j, pack in enumerate(self.packs):
            if self.samples[item] not in self.held[j] and (self.max_samples is None or len(pack) < self.max_samples):
                sums = [t + size[item] for t, (size, _) in zip(self.totals[j], self.sizes, strict=True)]
                if all(total <= most for total, (_, most) in zip(sums, self.sizes, strict=True)):
                    break
        else:
            j = len(self.packs)
            self.packs.append([])
            self.held.append(Counter())
            self.totals.append([0] * len(self.sizes))
        self.packs[j].append(item)
        self._count(j, item, 1)

    def _put(self, k: int, place: int, item: int) -> None:
        self._count(k, self.packs[k][place], -1)
        self._count(k, item, 1)
        self.packs[k][place] = item
        self.spots[self.sizes[0][0][item]].append((k, place))

    def _count(self, k: int, item: int, sign: int) -> None:
        self.held[k][self.samples[item]] += sign
        self.held[k] += Counter()  # forgets those at 0
        self.totals[k] = [t + sign * size[item] for t, (size, _) in zip(self.totals[k], self.sizes, strict=True)]


def apart(
    packs: list[list[int]], samples: Sequence[int], sizes: Sizes, max_samples: int | None = None
) -> list[list[int]]:
    """The packs with no sample twice in one, unless every pack holds the sample already.

    Of two that met one is swapped with an item of the same length, so packs stay as full as they were. Without such a
    partner it is one of another length, or the item moves to where there is room, or gets a new pack.

    Args:
        packs: lists of items, which are numbered from 0.
        samples: the sample that each item is.
        sizes: of each item, and most of a pack; positions first.
        max_samples: that a pack holds at most.

    >>> apart([[0, 1], [2, 3]], samples=[7, 7, 8, 9], sizes=[([5, 3, 5, 3], 8)])
    [[0, 3], [2, 1]]
    >>> apart([[0, 1]], samples=[7, 7], sizes=[([5, 3], 8)])
    [[0, 1]]
    """
    if all(len({samples[item] for item in pack}) == len(pack) for pack in packs):
        return packs
    whole = _Packs([list(pack) for pack in packs], samples, sizes, max_samples)
    num_packs = 0
    while num_packs < len(whole.packs):  # a new pack lacks what all others held
        num_packs = len(whole.packs)
        for k in range(num_packs):
            _take_apart(whole, samples, k)
    return whole.packs


def _take_apart(whole: _Packs, samples: Sequence[int], k: int) -> None:
    """Pack `k`, from its last item to its first."""
    for place in reversed(range(1, len(whole.packs[k]))):
        sample = samples[whole.packs[k][place]]
        twice = whole.held[k][sample] > 1 and not all(sample in held for held in whole.held)
        if twice and not whole.exchange(k, place):
            whole.move(k, place)
