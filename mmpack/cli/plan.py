"""``mmpack plan``."""

from __future__ import annotations

from typing import Any

from mmpack.cli.show import print_json, print_table, progress
from mmpack.config import Config, read_config
from mmpack.datamodules.batching import Batching
from mmpack.datamodules.planned import global_plan
from mmpack.energon.reader import SourceConfig
from mmpack.epoch.forecast import PlannedEpoch, forecast_epoch
from mmpack.errors import ConfigError
from mmpack.plan import Forecast, PackingPlan, forecast, read_sizes


def plan(
    config: Config, split: str, max_samples: int | None, samples_per_step: int, data_parallel_size: int
) -> Forecast:
    """The forecast for a split: its lengths are read, nothing is decoded."""
    if max_samples is not None and max_samples < 1:
        raise ConfigError(f"--samples {max_samples}; at least 1, or leave it out for all")
    num_streams = config.data.num_streams
    if num_streams is not None and num_streams % data_parallel_size:
        raise ConfigError(
            f"--data-parallel-size {data_parallel_size} does not divide data.num_streams={num_streams}; "
            "choose sizes that do"
        )
    if config.data.module != "energon":
        raise ConfigError(
            f"data.module={config.data.module!r}: only Energon datasets are planned; convert the data first"
        )
    module: Any = config.with_values("data", {"num_workers": 0}).data_module()
    factory = module.stream_factory(split, training=split == "train")
    encoder = module.task_encoder
    assert encoder.packed_sequence_size is not None
    settings = PackingPlan(
        capacity=encoder.layout.capacity(encoder.packed_sequence_size),
        packed_sequence_size=encoder.packed_sequence_size,
        packing_buffer_size=module.packing_buffer_size,
        align_window=factory.stream.align_window,
        tile_bytes=3 * encoder.build_tiling().spec.tile_size_px ** 2,
        repeat=factory.source.repeat,
        samples_per_step=samples_per_step,
        data_parallel_size=data_parallel_size,
    )
    with progress("reading lengths") as advance:
        sizes = read_sizes(
            factory.source,
            factory.encoder,
            encoder.layout,
            num_streams=factory.num_streams,
            max_samples=max_samples,
            progress=lambda done, total: advance(done, total, ""),
        )
    return forecast(sizes, settings)


def plan_epoch(config: Config, max_samples: int | None, samples_per_step: int, data_parallel_size: int) -> PlannedEpoch:
    """The first epoch of the global plan; its length index is built if there is none, and kept."""
    if max_samples is not None:
        raise ConfigError(
            f"--samples {max_samples} with data.order='global_plan': an epoch is planned from all lengths; leave it out"
        )
    whole = length_index(config, "train")
    return forecast_epoch(
        whole,
        config.data.packed_sequence_size,
        samples_per_step=samples_per_step,
        data_parallel_size=data_parallel_size,
    )


def length_index(config: Config, split: str, *, rebuild: bool = False) -> Any:
    """The global plan of a split, its length index built with progress if there is none."""
    data = config.data
    encoder = config.task_encoder()
    if data.module != "energon" or encoder.packed_sequence_size is None:
        raise ConfigError("only packs of Energon datasets are planned; set data.module='energon', packed_sequence_size")
    source = SourceConfig(path=data.path, split=split, seed=data.seed)
    limits = {
        name: getattr(data, name) for name in ("max_tiles_per_pack", "max_images_per_pack", "max_samples_per_pack")
    }
    with progress("measuring lengths") as advance:
        return global_plan(
            source,
            Batching(kind="packing", packing_buffer_size=data.packing_buffer_size or 200, **limits),
            encoder,
            data.seq_length,
            num_workers=data.num_workers,
            progress=lambda done, total: advance(done, total, ""),
            rebuild=rebuild,
        )


def epoch_rows(result: PlannedEpoch) -> list[tuple[str, str]]:
    """The table for people."""
    tokens, tiles = result.tokens, result.tiles_per_pack
    ranks = f"{result.data_parallel_size} rank" + ("s" if result.data_parallel_size > 1 else "")
    left_out = ", ".join(f"{count} {reason}" for reason, count in result.dropped.items())
    return [
        ("samples in packs", f"{result.num_samples:,}"),
        ("left out", left_out or "none"),
        (
            "tokens a sample: min / median / 95 % / max",
            f"{tokens.smallest} / {tokens.median} / {tokens.p95} / {tokens.largest}",
        ),
        ("packs of the epoch", f"{result.num_packs:,} of {result.packed_sequence_size:,} positions"),
        (
            "fill",
            f"{result.fill_percent:.2f} % ({result.full_packs_percent:.1f} % of the packs full to the last token)",
        ),
        ("n = samples / packs", f"{result.n_from_packs:.2f}"),
        (
            "global batch size to set",
            f"{result.global_batch_size} packs for {result.samples_per_step} samples, {ranks}",
        ),
        ("optimizer steps of the epoch", f"{result.steps:,} ({result.num_fillers} packs of weight 0 at its end)"),
        ("cost of the dearest rank / mean", f"{result.max_over_mean_cost:.4f}"),
        ("tiles a pack: median / max", f"{tiles.median} / {tiles.largest}"),
        ("length index", result.index),
    ]


def run(
    path: str,
    overrides: list[str],
    split: str,
    max_samples: int | None,
    samples_per_step: int,
    data_parallel_size: int,
    *,
    as_json: bool,
) -> None:
    """Plans and shows."""
    config = read_config(path, overrides)
    if split == "train" and getattr(config.data, "order", None) == "global_plan":
        planned = plan_epoch(config, max_samples, samples_per_step, data_parallel_size)
        if as_json:
            print_json(planned.to_json())
        else:
            print_table("Planned epoch of split 'train'", epoch_rows(planned))
        return
    result = plan(config, split, max_samples, samples_per_step, data_parallel_size)
    if as_json:
        print_json(result.to_json())
    else:
        print_table(f"Plan for split {split!r}", rows(result, stops=config.data.oversize in (None, "raise")))


def rows(result: Forecast, *, stops: bool = False) -> list[tuple[str, str]]:
    """The table for people."""
    tokens = result.tokens
    left_out = ", ".join(f"{count} {reason}" for reason, count in result.dropped.items())
    if stops and "oversize" in result.dropped:
        left_out += "; oversize='raise' stops a run at the first that is too long: set 'drop', or longer packs"
    ranks = f"{result.data_parallel_size} rank" + ("s" if result.data_parallel_size > 1 else "")
    tiles = result.tiles_per_pack
    pixels = f"{result.pixel_bytes_per_pack / 1e6:.1f} MB of pixels"
    return [
        ("usable samples", f"{result.num_samples:,} ({result.num_samples_read:,} read)"),
        ("left out", left_out or "none"),
        (
            "tokens a sample: min / median / 95 % / max",
            f"{tokens.smallest} / {tokens.median} / {tokens.p95} / {tokens.largest}",
        ),
        ("image tokens", f"{result.image_token_percent:.0f} % of all tokens"),
        (
            "packs of one pass",
            f"{result.num_packs:,} of {result.packed_sequence_size:,} positions, {result.num_streams} streams",
        ),
        (
            "fill",
            f"{result.fill_percent:.2f} % ({result.full_packs_percent:.1f} % of the packs full to the last token)",
        ),
        ("n = samples / packs", f"{result.n_from_packs:.2f}"),
        ("n = pack size / mean length", f"{result.n_from_lengths:.2f}"),
        (
            "global batch size to set",
            f"{result.global_batch_size} packs for {result.samples_per_step} samples, {ranks}",
        ),
        ("tiles a pack: median / max", f"{tiles.median} / {tiles.largest} ({pixels})"),
        ("windows of a rank", f"{result.window_bytes / 1e6:.1f} MB, compressed"),
    ]
