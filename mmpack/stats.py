"""How well packing works, in numbers: fill, waits, displacement, balance.

A pack is given as the list of its samples' places in the stream, packs in the order they were emitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FillStats:
    """How full packs are. `num_tokens` are real tokens, no padding."""

    num_packs: int
    num_full_packs: int  # filled to the last token
    num_tokens: int
    capacity: int  # tokens a pack holds

    @property
    def mean_fill(self) -> float:
        """Share of all packs' positions that hold a real token, 0 to 1; 1 for no packs at all."""
        return self.num_tokens / (self.num_packs * self.capacity) if self.num_packs else 1.0

    @property
    def full_share(self) -> float:
        """Share of the packs that are filled to the last token, 0 to 1; 1 for no packs at all."""
        return self.num_full_packs / self.num_packs if self.num_packs else 1.0

    def __add__(self, other: FillStats) -> FillStats:
        """Both together. Raises ValueError if the capacities differ."""
        if self.capacity != other.capacity:
            raise ValueError(f"packs of {self.capacity} and of {other.capacity} tokens have no common fill")
        return FillStats(
            num_packs=self.num_packs + other.num_packs,
            num_full_packs=self.num_full_packs + other.num_full_packs,
            num_tokens=self.num_tokens + other.num_tokens,
            capacity=self.capacity,
        )


def fill_stats(pack_tokens: Iterable[int], capacity: int) -> FillStats:
    """`FillStats` from the number of real tokens in each pack.

    >>> stats = fill_stats([8, 6], 8)
    >>> stats.mean_fill, stats.full_share
    (0.875, 0.5)
    """
    tokens = list(pack_tokens)
    return FillStats(
        num_packs=len(tokens),
        num_full_packs=sum(t == capacity for t in tokens),
        num_tokens=sum(tokens),
        capacity=capacity,
    )


def packs_before_drain(packs: Sequence[Sequence[int]], window: int) -> Sequence[Sequence[int]]:
    """The packs that were chosen from a full window of `window` samples; the rest drained it.

    >>> packs_before_drain([[0, 3], [1, 2, 4], [5]], window=4)
    [[0, 3], [1, 2, 4]]
    """
    # Before each pack the window is filled up, so it was full if that many samples were still to be emitted.
    remaining = sum(map(len, packs))
    for count, pack in enumerate(packs):
        if remaining < window:
            return packs[:count]
        remaining -= len(pack)
    return packs


def waits(packs: Sequence[Sequence[int]], window: int) -> list[int]:
    """Wait of each sample, by its place in the stream: samples emitted between its being read and its being emitted.

    Assumes that before each pack the window was filled up to `window` samples from the stream.

    >>> waits([[0, 3], [1, 2, 4], [5]], window=4)
    [0, 2, 2, 0, 0, 3]
    """
    wait_samples = [0] * sum(map(len, packs))
    emitted_when_read: list[int] = []
    emitted = 0
    for pack in packs:
        num_new = min(emitted + window, len(wait_samples)) - len(emitted_when_read)
        emitted_when_read += [emitted] * num_new
        for sample in pack:
            wait_samples[sample] = emitted - emitted_when_read[sample]
        emitted += len(pack)
    return wait_samples


def displacements(packs: Iterable[Sequence[int]]) -> list[int]:
    """For each emitted sample, |its place in the output - its place in the stream|.

    >>> displacements([[0, 3], [1, 2, 4], [5]])
    [0, 2, 1, 1, 0, 0]
    """
    output = (sample for pack in packs for sample in pack)
    return [abs(place - sample) for place, sample in enumerate(output)]


def length_bin(length: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below `length`.

    >>> [length_bin(length) for length in (1, 5, 12, 13, 1000, 1100)]
    [1, 6, 12, 16, 1024, 1536]
    """
    power = 1 << (length - 1).bit_length()
    return power * 3 // 4 if power >= 4 and length <= power * 3 // 4 else power


def count_lengths(lengths: Iterable[int]) -> dict[str, int]:
    """How many of the lengths fall into each bin; keys are `length_bin` as text, ascending.

    >>> count_lengths([5, 6, 900])
    {'6': 2, '1024': 1}
    """
    bins = Counter(length_bin(length) for length in lengths)
    return {str(bound): bins[bound] for bound in sorted(bins)}


def attention_cost(lengths: Iterable[int]) -> int:
    """What attention over a pack costs, up to a factor: the sum of the squared lengths of its samples.

    >>> attention_cost([3, 4])
    25
    """
    return sum(length * length for length in lengths)


def balance(step_costs: Iterable[Sequence[float]]) -> float:
    """How much longer steps take than with equal work: the mean over steps of (largest / mean cost over ranks).

    1.0 is perfect, and the answer for no steps. A step whose costs are all 0 counts as balanced.

    >>> balance([[1, 1], [3, 1]])
    1.25
    """
    ratios = [max(costs) * len(costs) / total if (total := sum(costs)) else 1.0 for costs in step_costs]
    return sum(ratios) / len(ratios) if ratios else 1.0
