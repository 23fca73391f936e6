"""From an Energon dataset to a global plan: open it by number, measure it or find its length index, describe it all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmpack.batch import B
from mmpack.energon.direct import open_direct
from mmpack.energon.reader import META_FOLDER, SourceConfig
from mmpack.epoch.lengths import Progress, build_length_index
from mmpack.epoch.packs import GlobalPlan
from mmpack.epoch.plan import PlanConfig
from mmpack.stream.packs import Encoder, FillingCollator

CACHE_FOLDER = "mmpack-lengths"


def plan_energon(
    source: SourceConfig,
    config: PlanConfig,
    encoder: Encoder,
    collator: FillingCollator[B],
    *,
    lengths_settings: Mapping[str, Any],
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    max_batch_bytes: int,
    cache: Path | str | None = None,
    num_workers: int = 0,
    progress: Progress = lambda done, total: None,
    rebuild: bool = False,
) -> GlobalPlan[B]:
    """A global plan of one split.

    Args:
        source: path and split; how a stream would shuffle does not matter.
        config: how epochs are packed and ordered.
        encoder, collator: as for a stream.
        lengths_settings: all that decides a sample's length, as plain values.
        settings: what else shapes the packs.
        versions: of what reads the data.
        max_batch_bytes: most bytes that the tensors of a pack usually take.
        cache: folder for length indexes; None for one within the dataset, or beside a metadataset's YAML.
        num_workers, progress, rebuild: of the length index; see `build_length_index`.

    Raises:
        ConfigError, DataError, WorkerError: as `open_direct` and `build_length_index`.
    """
    parts = open_direct(source)
    datasets = [part.dataset for part in parts]
    index = build_length_index(
        datasets,
        encoder,
        cache=default_cache(source.path) if cache is None else Path(cache),
        settings=lengths_settings,
        num_workers=num_workers,
        progress=progress,
        rebuild=rebuild,
    )
    described = {
        "data.split": source.split,
        "data.datasets": [dataset.describe() for dataset in datasets],
        "data.per_epoch": [part.per_epoch for part in parts],
        **{f"plan.{field.name}": _plain(getattr(config, field.name)) for field in fields(config)},
    }
    return GlobalPlan(
        datasets=datasets,
        per_epoch=[part.per_epoch for part in parts],
        index=index,
        config=config,
        encoder=encoder,
        collator=collator,
        settings=described | dict(lengths_settings) | dict(settings),
        versions=versions,
        max_batch_bytes=max_batch_bytes,
    )


def default_cache(path: Path | str) -> Path:
    """Where the length indexes of a dataset lie if nothing else is said."""
    local = Path(path)
    return local.parent / f".{CACHE_FOLDER}" if local.is_file() else local / META_FOLDER / CACHE_FOLDER


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else repr(value)
