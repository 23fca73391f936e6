"""The batches of each optimizer step, out of any loader, to the end of the last epoch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from mmpack.batch import Batch
from mmpack.errors import ConfigError
from mmpack.train.contract import DataModule


def training_steps(data: DataModule, last_epoch: int | None) -> Generator[list[Batch], None, None]:
    """Batches step by step; a loader that gives one epoch is asked for the next.

    Args:
        last_epoch: passes after which it ends, the last step as large as what is left; None for no end, in which case a
            step may reach into the next epoch.

    Raises:
        ConfigError: the data gives no batch, or never ends although it should.
    """
    loader: Any = data.train_dataloader()
    if last_epoch is not None and getattr(getattr(loader, "factory", None), "endless", False):
        raise ConfigError("the training data repeats for ever and has no epochs; set max_steps, or repeat=False")
    empty, passes = 0, 0
    left: list[Batch] = []  # of an epoch whose batches did not fill a step
    while last_epoch is None or getattr(loader, "epoch", passes) < last_epoch:
        count = 0
        for batches in _epoch(loader, data.gradient_accumulation_steps, left):
            count += 1
            yield batches
        if left and last_epoch is not None:
            count += 1
            yield left.copy()
            left.clear()
        passes += 1
        empty = 0 if count or left else empty + 1
        if empty == 2:  # once may be the end of an epoch that a checkpoint was made at
            raise ConfigError("the training data gave no pack: every sample was left out, see the drop counters")


def _epoch(loader: Any, num_batches: int, left: list[Batch]) -> Iterator[list[Batch]]:
    """The whole steps of what is left of the epoch; `left` is what came before them, and holds what is left over."""
    steps = getattr(loader, "steps", None)
    if steps is not None:
        for step in steps():
            yield list(step)
        return
    batches: Iterable[Batch] = loader
    for batch in batches:
        left.append(batch)
        if len(left) == num_batches:
            whole = left.copy()
            left.clear()
            yield whole
