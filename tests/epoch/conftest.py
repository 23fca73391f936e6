"""A plan of small packs over the suite's Energon dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmpack.datamodules.factory import collator_settings, encoder_settings
from mmpack.energon.reader import SourceConfig
from mmpack.epoch import GlobalPlan, GlobalPlanLoader, PlanConfig, plan_energon
from tests.conftest import data_module

CAPACITY = 512


def make_plan(path: Path, tokenizer: Any, cache: Path, *, num_workers: int = 0, **options: Any) -> GlobalPlan[Any]:
    """`options` are of `PlanConfig`, or of the data module's encoder."""
    plan_options = {name: options.pop(name) for name in list(options) if name in PlanConfig.__dataclass_fields__}
    plan_config = PlanConfig(**{"capacity": CAPACITY, **plan_options})
    module = data_module(path, tokenizer, **options)
    encoder = module.task_encoder.build_encoder(options.get("seq_length", 512))
    collator = module.task_encoder.build_collator()
    return plan_energon(
        SourceConfig(path=path),
        plan_config,
        encoder,
        collator,
        lengths_settings=encoder_settings(encoder) | {"tiling": repr(collator.tiling)},
        settings=collator_settings(collator),
        versions={"mmpack": "0"},
        max_batch_bytes=1 << 20,
        cache=cache,
        num_workers=num_workers,
    )


@pytest.fixture(scope="session")
def whole(energon_dataset: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> GlobalPlan[Any]:
    return make_plan(energon_dataset, tokenizer, tmp_path_factory.mktemp("lengths"))


@pytest.fixture(scope="session")
def loaders(whole: GlobalPlan[Any]) -> Callable[..., list[GlobalPlanLoader[Any]]]:
    """Loaders of all ranks of a job."""

    def make(world_size: int, num_workers: int = 0) -> list[GlobalPlanLoader[Any]]:
        return [
            GlobalPlanLoader(whole, rank=rank, world_size=world_size, num_workers=num_workers)
            for rank in range(world_size)
        ]

    return make
