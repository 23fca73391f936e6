"""What is recorded of a step: sizes, fill, waits, and what the loader says of itself."""

from __future__ import annotations

from itertools import chain
from typing import Any

from mmpack.batch import Batch
from mmpack.cost import CostModel
from mmpack.loader.work import Work
from mmpack.packing import load_metrics
from mmpack.stats import count_lengths

_PACKING = ("bin_utilization", "waste_ratio", "bin_balance", "packing_efficiency")


def cost_of(batches: list[Batch]) -> float:
    """What the batches cost a rank, by the cost model's defaults: what ranks are balanced by."""
    positions, tiles = (sum(b.num_tokens for b in batches), sum(int(b.pixels.shape[0]) for b in batches))
    return float(CostModel().costs(positions, sum(batch.sum_len_squared for batch in batches), tiles))


class StepObserver:
    """Makes the part of a step's record that comes from its batches and their loader.

    Args:
        loader: the training loader, of any kind.
        capacity: tokens that a pack holds at most; None where batches are rows of samples.
    """

    def __init__(self, loader: Any, capacity: int | None) -> None:
        self._loader, self._capacity = loader, capacity
        self._work = self._work_now()
        self._depth = 0

    def _work_now(self) -> Work | None:
        work: Work | None = getattr(self._loader, "work", None)
        return None if work is None else work.copy()

    def begin(self) -> None:
        """A step is about to ask for its batches."""
        self._depth = getattr(self._loader, "num_ready", 0)

    def record(self, batches: list[Batch], *, seconds: float, waited: float) -> dict[str, Any]:
        """Of a step that took `seconds`, `waited` of them for its batches."""
        real = sum(batch.num_real_tokens for batch in batches)
        drops = getattr(self._loader, "drops", None)
        return {
            "num_packs": len(batches),
            "num_samples": sum(batch.num_samples for batch in batches),
            "num_tokens": real,
            "num_positions": sum(batch.num_tokens for batch in batches),
            "num_loss_tokens": sum(batch.num_loss_tokens for batch in batches),
            "num_tiles": sum(int(batch.pixels.shape[0]) for batch in batches),
            "sum_len_squared": sum(batch.sum_len_squared for batch in batches),
            "useful_tokens_per_s": real / seconds,
            "step_s": seconds,
            "wait_s": waited,
            "queue_depth": self._depth,
            **self._pack_times(),
            **self._packing(batches),
            "lengths": count_lengths(chain.from_iterable(batch.sample_lengths for batch in batches)),
            "drops": {} if drops is None else drops.to_dict(),
        }

    def _pack_times(self) -> dict[str, float]:
        """Mean CPU and time that making one of the step's packs took, where the loader knows."""
        before, now = self._work, self._work_now()
        if before is None or now is None:
            return {}
        done, self._work = now.since(before), now
        count = max(1, done.num_packs)
        return {"pack_cpu_s": done.cpu_s / count, "pack_wall_s": done.wall_s / count}

    def _packing(self, batches: list[Batch]) -> dict[str, float]:
        """How well this rank's batches of the step are filled, in the numbers of NeMo-RL's packers."""
        metrics = load_metrics(
            [batch.num_real_tokens for batch in batches],
            [self._capacity or batch.num_tokens for batch in batches],
            num_sequences=sum(batch.num_samples for batch in batches),
        )
        return {name: getattr(metrics, name) for name in _PACKING}
