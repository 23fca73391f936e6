"""The mock benchmark of a LLaVA: padding, dynamic batching and packing on made-up samples with pictures.

``mmpack bench configs/bench/mock.yaml``. Forward, backward and optimizer step of a LLaVA-style model on the same
samples, in the same order as far as a way keeps one, with the same budget of positions. The baseline pads to the
longest of its micro batch and attends with torch's sdpa. Lengths are those of `mmpack.bench.distributions`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmpack.batch import Batch
from mmpack.bench.batching import Advance, Subject, check_losses, metrics_of, plan, take_turns
from mmpack.bench.batching_config import BASELINE, WAYS, BatchingConfig
from mmpack.bench.batching_picture import draw
from mmpack.bench.distributions import distribution
from mmpack.bench.records import BenchRecord, Plain, versions
from mmpack.collate import Collator, PaddedCollator
from mmpack.errors import ConfigError, nearest
from mmpack.indexed.mock import MockSamples
from mmpack.indexed.mock_tiles import CellTiles
from mmpack.layout import Layout
from mmpack.model import LlavaSpec
from mmpack.sample import EncodedSample
from mmpack.tiling import TileSpec
from mmpack.train.contract import TrainConfig

BENCH = "mock"
TARGET = 1.5  # useful tokens/s of packing over padding
_FIRST_TEXT_ID = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class MockConfig:
    """What to measure.

    Args:
        lengths: a mix of `mmpack.bench.distributions`; pictures are in all samples that are long enough.
        ways: names of `mmpack.bench.batching_config.WAYS`; padding is always measured.
        seq_length: most tokens of a sample; longer draws are left out.
        tokens_per_microbatch: positions that a micro batch may have, padding included: the same budget for every way.
        global_batch_size: samples of the step.
        image_size_px, patch_size_px: of the vision tower; a picture is one tile of (image / patch) squared embeddings.
        hidden_size, num_layers, num_heads, vision_hidden_size: of the model, random and trained whole.
        repeats, warmups: steps that are averaged, and steps before them.
        device, precision: as in `mmpack.train.TrainConfig`.
        picture: PNG of the result; None for none.

    Raises:
        ConfigError: a number that cannot work, or an unknown name.
    """

    lengths: str = "caption_4k"
    ways: tuple[str, ...] = (BASELINE, "buckets", "dynamic", "packing_varlen", "packing_flash")
    seq_length: int = 4096
    tokens_per_microbatch: int = 8192
    global_batch_size: int = 48
    sequence_length_round: int = 64
    image_size_px: int = 336
    patch_size_px: int = 14
    vocab_size: int = 4096
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    vision_hidden_size: int = 32
    learning_rate: float = 1e-3
    repeats: int = 5
    warmups: int = 1
    device: str = "auto"
    precision: str = "auto"
    picture: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        distribution(self.lengths)
        for name in self.ways:
            if name not in WAYS:
                raise ConfigError(f"ways: unknown way {name!r}; {nearest(name, WAYS)}")
        self.batching()  # checks the numbers that both have
        if self.image_size_px % self.patch_size_px:
            raise ConfigError(
                f"image_size_px={self.image_size_px} is no multiple of patch_size_px={self.patch_size_px}"
            )

    @property
    def embeddings_per_tile(self) -> int:
        return (self.image_size_px // self.patch_size_px) ** 2

    def batching(self) -> BatchingConfig:
        """The part that says how samples are batched."""
        shared = {field.name for field in dataclasses.fields(BatchingConfig)} - {"text", "tokenizer", "family"}
        names = [field.name for field in dataclasses.fields(self) if field.name in shared]
        return BatchingConfig(**{name: getattr(self, name) for name in names})


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> MockConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    known = {field.name: field for field in dataclasses.fields(MockConfig)}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), known)}")
        default = known[key].default
        allowed: Any = str | None if default is None else type(default)
        if isinstance(default, tuple):
            allowed, value = tuple, tuple(value) if isinstance(value, list) else value
        elif isinstance(default, float):
            allowed = int | float
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ConfigError(f"{where}: {key}={value!r}; give one like {default!r}")
        values[key] = value
    return MockConfig(**values)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Lengths that have been drawn already."""

    lengths: Sequence[int]

    def draw(self, index: int, uniform: float, normal: float) -> int:
        return self.lengths[index]


def draw_samples(config: MockConfig) -> tuple[list[EncodedSample], CellTiles]:
    """The samples of the step, and how their pictures are cut."""
    spec = TileSpec(tile_size_px=config.image_size_px, embeddings_per_tile=config.embeddings_per_tile)
    drawn = distribution(config.lengths).lengths(4 * config.global_batch_size, seed=config.seed)
    lengths = [length for length in drawn if 1 < length <= config.seq_length][: config.global_batch_size]
    if len(lengths) < config.global_batch_size:
        raise ConfigError(f"seq_length={config.seq_length} leaves too few samples of {config.lengths!r}; raise it")
    tiling = CellTiles(spec)
    samples = MockSamples(
        split="train",
        num_samples=len(lengths),
        lengths=_Drawn(lengths),
        tiling=tiling,
        token_ids=np.arange(_FIRST_TEXT_ID, config.vocab_size, dtype=np.int64),
        seed=config.seed,
    )
    return [samples.sample(i) for i in range(len(lengths))], tiling


def batches_of(way: str, samples: Sequence[EncodedSample], config: MockConfig, tiling: CellTiles) -> list[Batch]:
    """The micro batches of one step."""
    collator: Collator | PaddedCollator
    if WAYS[way].mask is not None:
        collator = Collator(tiling=tiling, layout=Layout())
    else:
        collator = PaddedCollator(
            tiling=tiling,
            pad_token_id=0,
            width=config.seq_length if way == "padding_to_limit" else None,
            width_multiple=config.sequence_length_round if way == "dynamic" else 1,
            max_width=config.seq_length,
        )
    lengths = [sample.num_tokens for sample in samples]
    return [
        collator.collate([samples[i] for i in members], pack_index=number)[0]
        for number, members in enumerate(plan(way, lengths, config.batching()))
    ]


def run(config: MockConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """Measures every way: one record each, without metrics for one that cannot run here.

    Raises:
        ConfigError: the losses of the first step differ: then the ways do not compute the same.
    """
    nowhere: Any = "-"
    device = TrainConfig(output_dir=nowhere, device=config.device).torch_device
    samples, tiling = draw_samples(config)
    subjects: list[Subject] = []
    skipped: dict[str, str] = {}
    for way in config.batching().measured:
        kind = WAYS[way]
        if kind.needs_gpu and device.type != "cuda":
            skipped[way] = "needs a CUDA GPU"
            continue
        spec = LlavaSpec(
            vocab_size=config.vocab_size,
            image_size_px=config.image_size_px,
            patch_size_px=config.patch_size_px,
            vision_hidden_size=config.vision_hidden_size,
            text_hidden_size=config.hidden_size,
            text_intermediate_size=2 * config.hidden_size,
            text_layers=config.num_layers,
            text_heads=config.num_heads,
        )
        mask = kind.mask or "block_diagonal"
        dtype = torch.bfloat16 if kind.attention == "flash_attn" else torch.float32
        model = spec.build(seed=config.seed, attention=kind.attention, mask=mask, dtype=dtype).to(device)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        subjects.append(Subject(way, batches_of(way, samples, config, tiling), model, optimizer, config.precision))
    take_turns(subjects, config.warmups, config.repeats, advance)
    check_losses(subjects, config.precision, device)
    base = next(subject for subject in subjects if subject.way == BASELINE)
    records = [_record(subject, base, config, len(samples)) for subject in subjects]
    records += [
        BenchRecord(bench=BENCH, case=config.lengths, subject=way, metrics={}, config={"skipped": why})
        for way, why in skipped.items()
    ]
    if config.picture is not None:
        draw(records, config.picture)
    return records


def _record(subject: Subject, base: Subject, config: MockConfig, num_samples: int) -> BenchRecord:
    metrics = metrics_of(subject, base)
    if subject.way == "packing_varlen":
        metrics["target_times"] = TARGET
    settings: dict[str, Plain] = json.loads(json.dumps(dataclasses.asdict(config)))
    return BenchRecord(
        bench=BENCH,
        case=f"{config.lengths}, {num_samples} samples, {config.tokens_per_microbatch} positions",
        subject=subject.way,
        metrics=metrics,
        config=settings | {"way": WAYS[subject.way].about},
        versions=versions("torch", "transformers"),
    )
