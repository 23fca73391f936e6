"""Jobs of several ranks within one process: what they take together, and the state that they save together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack import state as states
from tests.conftest import data_module, digest


@dataclass
class Job:
    """The data modules of all ranks."""

    ranks: list[Any]

    def take(self, num_steps: int | None) -> list[Any]:
        """The batches of the next steps, or of the rest of the epoch, in their global order."""
        taken = [list(itertools.islice(rank.train_dataloader(), num_steps)) for rank in self.ranks]
        return sorted((batch for rank in taken for batch in rank), key=lambda batch: int(batch.pack_index))

    def save(self) -> dict[str, Any]:
        return states.merge([rank.state_dict() for rank in self.ranks])

    def load(self, state: dict[str, Any]) -> Job:
        for rank in self.ranks:
            rank.load_state_dict(state)
        return self


def start_job(dataset: Path, tokenizer: Any, world_size: int = 1, num_workers: int = 0, /, **options: Any) -> Job:
    return Job(
        [
            data_module(
                dataset,
                tokenizer,
                data_parallel_rank=rank,
                data_parallel_size=world_size,
                num_workers=num_workers,
                **options,
            )
            for rank in range(world_size)
        ]
    )


JobStarter = Callable[..., Job]


def named(batches: list[Any]) -> list[tuple[int, str]]:
    """Number and content of each batch."""
    return [(batch.pack_index, digest(batch)) for batch in batches]
