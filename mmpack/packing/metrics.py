"""How good a packing is, in the four numbers that NeMo-RL's packers report."""

from __future__ import annotations

import statistics
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
    num_tokens, num_positions = sum(loads), sum(positions)
    utilization = num_tokens / num_positions if num_positions else 1.0
    deviation = statistics.stdev(loads) / statistics.fmean(loads) if len(loads) > 1 and num_tokens else 0.0
    largest = max(positions, default=0)
    return PackingMetrics(
        num_sequences=num_sequences,
        num_bins=len(loads),
        num_tokens=num_tokens,
        bin_utilization=utilization,
        waste_ratio=1.0 - utilization,
        bin_balance=1.0 - deviation,
        packing_efficiency=-(-num_tokens // largest) / len(loads) if largest else 1.0,
    )
