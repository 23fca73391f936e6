"""The global plan mode of the Energon module: what its settings are, and the plan that they make."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from mmpack.collate import Collator
from mmpack.datamodules.batching import Batching
from mmpack.datamodules.factory import collator_settings, encoder_settings, max_batch_bytes
from mmpack.datamodules.multimodal import MultiModalTaskEncoder
from mmpack.energon.reader import SourceConfig
from mmpack.epoch import GlobalPlan, PlanConfig, plan_energon
from mmpack.epoch.lengths import Progress
from mmpack.errors import ConfigError

ORDERS = ("stream", "global_plan")
DEFAULT_BUFFER = 200  # samples in the window of a stream of validation, which is never planned


def refuse_stream_settings(
    batching: str | None, packed_sequence: bool, align_window: int, blend_by: str, num_streams: int | None
) -> None:
    """Raises ConfigError, with the remedy, for a setting that planned epochs have no use for."""
    if batching not in (None, "packing") or not packed_sequence:
        raise ConfigError(
            f"order='global_plan' with batching={batching!r} and packed_sequence={packed_sequence}: only packs are "
            "planned; set batching='packing', or order='stream'"
        )
    if align_window != 1:
        raise ConfigError(f"align_window={align_window} with order='global_plan': a plan is balanced already; set it "
                          "to 1")  # fmt: skip
    if blend_by != "samples":
        raise ConfigError(f"blend_by={blend_by!r} with order='global_plan': an epoch is planned in samples; set "
                          "blend_by='samples', or order='stream'")  # fmt: skip
    if num_streams is not None:
        raise ConfigError(f"num_streams={num_streams} with order='global_plan': there are no streams, and any number "
                          "of ranks and workers goes on; leave it out")  # fmt: skip


def global_plan(
    source: SourceConfig,
    batching: Batching,
    task_encoder: MultiModalTaskEncoder,
    seq_length: int,
    *,
    num_workers: int = 0,
    progress: Progress = lambda done, total: None,
    rebuild: bool = False,
) -> GlobalPlan[Any]:
    """The plan of a split; its length index is built if there is none.

    Args:
        source: the split.
        batching: limits of a pack.
        task_encoder, seq_length: how samples are encoded, and the most tokens of one.
        num_workers: processes that measure lengths.
        progress, rebuild: see `mmpack.epoch.build_length_index`.

    Raises:
        ConfigError, DataError, WorkerError: as `mmpack.epoch.plan_energon`.
    """
    batching = batching.for_encoder(task_encoder)  # for commands that come without a module: the layout's limit too
    encoder = task_encoder.build_encoder(seq_length)
    collator = batching.collator(task_encoder, seq_length)
    assert isinstance(collator, Collator)
    assert task_encoder.packed_sequence_size is not None
    capacity = task_encoder.layout.capacity(task_encoder.packed_sequence_size)
    return plan_energon(
        source,
        PlanConfig(
            capacity=capacity,
            seed=source.seed,
            max_tiles=batching.max_tiles_per_pack,
            max_images=batching.max_images_per_pack,
            max_samples=batching.max_samples_per_pack,
        ),
        encoder,
        collator,
        lengths_settings=encoder_settings(encoder) | {"tiling": repr(collator.tiling)},
        settings=collator_settings(collator),
        versions={name: metadata.version(name) for name in ("mmpack", "megatron-energon")},
        max_batch_bytes=max_batch_bytes(task_encoder.packed_sequence_size, collator),
        num_workers=num_workers,
        progress=progress,
        rebuild=rebuild,
    )
