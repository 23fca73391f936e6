"""What a planned epoch is like: packs, fill, steps, and how evenly its ranks are loaded."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmpack.epoch.packs import GlobalPlan
from mmpack.errors import ConfigError
from mmpack.plan import Quantiles, packed_global_batch_size, quantiles
from mmpack.stats import balance


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedEpoch:
    """Counted, not estimated: an epoch is planned as it will be read."""

    epoch: int
    num_samples: int  # in packs
    dropped: dict[str, int]  # by reason; what no epoch has
    packed_sequence_size: int
    tokens: Quantiles  # of a sample
    num_packs: int
    fill_percent: float  # real tokens of the packs' positions
    full_packs_percent: float  # packs filled to the last token
    n_from_packs: float  # samples / packs
    samples_per_step: int
    global_batch_size: int  # packs per optimizer step: samples_per_step / n_from_packs, rounded
    data_parallel_size: int
    steps: int  # optimizer steps of the epoch, the last one perhaps smaller
    num_fillers: int  # packs of weight zero in the last step of ranks
    max_over_mean_cost: float  # of ranks in a step; 1 is even
    tiles_per_pack: Quantiles
    index: str  # folder of the length index

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def forecast_epoch(
    whole: GlobalPlan[Any],
    packed_sequence_size: int,
    *,
    epoch: int = 0,
    samples_per_step: int = 128,
    data_parallel_size: int = 1,
) -> PlannedEpoch:
    """Plans an epoch and counts. Raises ConfigError for a size below 1, or if no sample can be used."""
    for name, value in (("samples_per_step", samples_per_step), ("data_parallel_size", data_parallel_size)):
        if value < 1:
            raise ConfigError(f"{name}={value}; it must be at least 1")
    plan = whole.plan(epoch)
    starts = np.concatenate([[0], plan.ends[:-1]])
    tokens = np.abs(np.asarray(whole.index.num_tokens)[plan.members].astype(np.int64))
    filled = np.add.reduceat(tokens, starts)
    tiles = np.add.reduceat(np.asarray(whole.index.num_tiles)[plan.members].astype(np.int64), starts)
    n = len(plan.members) / plan.num_packs
    batch_size = packed_global_batch_size(samples_per_step, n, data_parallel_size=data_parallel_size)
    # packs of a row of their own are longer than others
    positions = np.maximum(filled, packed_sequence_size).sum()
    num_fillers = -plan.num_packs % data_parallel_size
    costs = np.concatenate([plan.costs, np.zeros(num_fillers)]).reshape(-1, data_parallel_size)
    return PlannedEpoch(
        epoch=epoch,
        num_samples=len(plan.members),
        dropped={reason.value: count for reason, count in whole.left_out().counts().items()},
        packed_sequence_size=packed_sequence_size,
        tokens=quantiles(tokens.tolist()),
        num_packs=plan.num_packs,
        fill_percent=float(100 * filled.sum() / positions),
        full_packs_percent=float(100 * np.mean(filled >= packed_sequence_size)),
        n_from_packs=n,
        samples_per_step=samples_per_step,
        global_batch_size=batch_size,
        data_parallel_size=data_parallel_size,
        steps=math.ceil(plan.num_packs / batch_size),
        num_fillers=num_fillers,
        max_over_mean_cost=balance(costs.tolist()),
        tiles_per_pack=quantiles(tiles.tolist()),
        index=str(whole.index.folder),
    )
