"""How good a packing is, in the four numbers that NeMo-RL's packers report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingMetrics:
    """Metrics of one packing; ratios from 0 to 1."""

    num_sequences: int
    num_bins: int
    num_tokens: int
    bin_utilization: float  # tokens / positions of all packs
    waste_ratio: float  # the rest of them
    bin_balance: float  # 1 - (sample standard deviation of the packs' loads / their mean); 1 is even
    packing_efficiency: float  # fewest packs that the tokens could need / packs


def packing_metrics(packs: Sequence[Sequence[int]], lengths: Sequence[int], capacity: int) -> PackingMetrics:
    """The metrics of `packs`, lists of indices into `lengths`, in bins of `capacity` tokens.

    For no packs all ratios are as good as can be. A balance below 0 (one pack full, many nearly empty) is kept.

    >>> metrics = packing_metrics([[7], [0], [6], [2, 3], [5, 1, 4]], [4, 1, 3, 2, 1, 3, 4, 5], 5)
    >>> round(metrics.bin_utilization, 4), round(metrics.waste_ratio, 4), round(metrics.bin_balance, 4)
    (0.92, 0.08, 0.8809)
    """
    loads = [sum(lengths[i] for i in pack) for pack in packs]
    return load_metrics(loads, [capacity] * len(loads), num_sequences=sum(map(len, packs)))


def load_metrics(loads: Sequence[int], positions: Sequence[int], *, num_sequences: int) -> PackingMetrics:
    """The same of packs that are already made: the tokens that each holds, and the positions that each has.

    >>> load_metrics([90, 100], [100, 100], num_sequences=7).bin_utilization
    0.95
    """
    meter = PackingMeter()
    for load, held in zip(loads, positions, strict=True):
        meter.add(load, held, num_sequences=0)
    return meter.metrics(num_sequences=num_sequences)


class PackingMeter:
    """The same of packs that come one by one and are not kept.

    >>> meter = PackingMeter()
    >>> for load in (90, 100):
    ...     meter.add(load, 100, num_sequences=3)
    >>> meter.metrics().bin_utilization, meter.metrics().num_sequences
    (0.95, 6)
    """

    def __init__(self) -> None:
        self._num_bins = self._num_sequences = self._largest = 0
        self._tokens = self._squares = self._positions = 0  # whole numbers: nothing is lost to rounding

    def add(self, load: int, positions: int, *, num_sequences: int) -> None:
        """One more pack of `load` tokens in `positions`."""
        self._num_bins += 1
        self._num_sequences += num_sequences
        self._tokens += load
        self._squares += load * load
        self._positions += positions
        self._largest = max(self._largest, positions)

    def metrics(self, *, num_sequences: int | None = None) -> PackingMetrics:
        """Of all packs so far; `num_sequences` in place of what was counted."""
        count, tokens = self._num_bins, self._tokens
        utilization = tokens / self._positions if self._positions else 1.0
        deviation = 0.0
        if count > 1 and tokens:
            variance = (count * self._squares - tokens * tokens) / (count * (count - 1))
            deviation = math.sqrt(variance) * count / tokens
        return PackingMetrics(
            num_sequences=self._num_sequences if num_sequences is None else num_sequences,
            num_bins=count,
            num_tokens=tokens,
            bin_utilization=utilization,
            waste_ratio=1.0 - utilization,
            bin_balance=1.0 - deviation,
            packing_efficiency=-(-tokens // self._largest) / count if self._largest else 1.0,
        )
