"""Padding, dynamic batching and packing side by side: the same samples, the same model, one optimizer step.

``mmpack bench configs/bench/batching.yaml``. Every way takes the same global batch, cut into micro batches of at most
the same number of positions, in the same order as far as it keeps one. So the useful tokens of a step are equal, and
its loss must be. Steps of all ways take turns, so that a busy machine is busy for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmpack.batch import Batch
from mmpack.bench.batching_config import BASELINE, BENCH, WAYS, BatchingConfig, config_from_mapping
from mmpack.bench.batching_picture import draw
from mmpack.bench.batching_text import TextSet, draw_samples, read_texts, train_tokenizer
from mmpack.bench.memory import MemoryPeak
from mmpack.bench.records import BenchRecord, versions
from mmpack.collate import Collator, PaddedCollator
from mmpack.datamodules.finetune_data import text_tiling
from mmpack.dynamic import bucket_batches, dynamic_batches, packed_microbatches
from mmpack.errors import ConfigError
from mmpack.layout import Layout
from mmpack.model.causal import CausalSpec
from mmpack.sample import EncodedSample
from mmpack.train.contract import TrainConfig
from mmpack.train.precision import compute_in

__all__ = ["BENCH", "BatchingConfig", "batches_of", "config_from_mapping", "run"]

Advance = Callable[[int, int, str], None]  # (steps done, steps, what was done last)
LOSS_TOLERANCE = {"32": 1e-3, "bf16": 3e-2}  # the first step's losses are of the same weights and samples


def plan(way: str, lengths: Sequence[int], config: BatchingConfig) -> list[list[int]]:
    """Which samples make each micro batch.

    >>> small = BatchingConfig(seq_length=8, tokens_per_microbatch=16, sequence_length_round=1, bucket_size=2)
    >>> plan("padding", [2, 8, 2, 3, 3], small), plan("padding_to_limit", [2, 8, 2], small)
    ([[0, 1], [2, 3, 4]], [[0, 1], [2]])
    """
    budget = config.tokens_per_microbatch
    if way == "padding_to_limit":
        return _in_order(lengths, lambda rows, longest: rows * config.seq_length <= budget)
    if way == BASELINE:
        return _in_order(lengths, lambda rows, longest: rows * longest <= budget)
    if way == "buckets":
        made = bucket_batches(lengths, bucket_size=config.bucket_size, tokens_per_microbatch=budget, seed=config.seed)
    elif way == "dynamic":
        (made,) = dynamic_batches(
            lengths,
            tokens_per_microbatch=budget,
            sequence_length_round=config.sequence_length_round,
            max_length=config.seq_length,
        )
    else:
        (made,) = packed_microbatches(lengths, capacity=budget, algorithm="exact_fill")
    return [list(batch.indices) for batch in made if batch.indices]


def _in_order(lengths: Sequence[int], fits: Callable[[int, int], bool]) -> list[list[int]]:
    """As many samples as fit, one behind the other: rows of the longest so far."""
    batches: list[list[int]] = []
    longest = 0
    for number, length in enumerate(lengths):
        longest = max(longest, length)
        if not batches or not fits(len(batches[-1]) + 1, longest):
            batches.append([])
            longest = length
        batches[-1].append(number)
    return batches


def batches_of(way: str, samples: Sequence[EncodedSample], config: BatchingConfig, pad_token_id: int) -> list[Batch]:
    """The micro batches of one step."""
    tiling = text_tiling()
    collator: Collator | PaddedCollator
    if WAYS[way].mask is not None:
        collator = Collator(tiling=tiling, layout=Layout(), pad_token_id=pad_token_id)
    else:
        collator = PaddedCollator(
            tiling=tiling,
            pad_token_id=pad_token_id,
            width=config.seq_length if way == "padding_to_limit" else None,
            width_multiple=config.sequence_length_round if way == "dynamic" else 1,
            max_width=config.seq_length,
        )
    lengths = [sample.num_tokens for sample in samples]
    return [
        collator.collate([samples[i] for i in members], pack_index=number)[0]
        for number, members in enumerate(plan(way, lengths, config))
    ]


@dataclass(slots=True)
class Subject:
    """One way, its model and what was measured of it."""

    way: str
    batches: list[Batch]
    model: Any  # a CausalModel or a PackedModel
    optimizer: torch.optim.Optimizer
    precision: str
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def step(self, *, counted: bool) -> None:
        device = self.model.device
        total = sum(float(batch.loss_weight.sum()) for batch in self.batches)
        with MemoryPeak(device) as peak:
            begun = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.zeros((), device=device)
            for batch in self.batches:
                with compute_in(self.precision, device):
                    part = self.model(batch.to(device)).loss_sum / total
                part.backward()
                loss += part.detach()
            self.optimizer.step()
            self.losses.append(float(loss))  # waits for a GPU
            seconds = time.perf_counter() - begun
        if counted:
            self.seconds.append(seconds)
            self.peak_bytes = max(self.peak_bytes, peak.bytes)


def run(config: BatchingConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """Measures every way: one record each, without metrics for one that cannot run here.

    Raises:
        ConfigError: the losses of the first step differ: then the ways do not compute the same.
    """
    device = TrainConfig(output_dir=_NOWHERE, device=config.device).torch_device
    texts = read_texts(config.text)
    tokenizer = _tokenizer(texts, config)
    samples, num_cut = draw_samples(
        texts, tokenizer, count=config.global_batch_size, seq_length=config.seq_length, seed=config.seed
    )
    about = {"text_set": texts.about, "text_hash": texts.digest, "num_records": len(texts.records), "num_cut": num_cut}
    subjects, skipped = [], {}
    for way in config.measured:
        try:
            subjects.append(_subject(way, samples, tokenizer, config, device))
        except ConfigError as error:
            skipped[way] = str(error)
    take_turns(subjects, config.warmups, config.repeats, advance)
    check_losses(subjects, subjects[0].precision, device)
    base = next(subject for subject in subjects if subject.way == BASELINE)
    records = [_record(subject, base, config, about, device) for subject in subjects]
    records += [_skipped(way, why, config, about) for way, why in skipped.items()]
    if config.picture is not None:
        draw(records, config.picture)
    return records


def take_turns(subjects: Sequence[Subject], warmups: int, repeats: int, advance: Advance) -> None:
    """One step of each subject after the other, `warmups` uncounted times and then `repeats` times."""
    rounds = warmups + repeats
    # Padded positions give numbers so small that processors slow down: as zeros, padding is up to 4 times faster.
    torch.set_flush_denormal(True)
    try:
        for number in range(rounds):
            for place, subject in enumerate(subjects):
                subject.step(counted=number >= warmups)
                advance(number * len(subjects) + place + 1, rounds * len(subjects), subject.way)
    finally:
        torch.set_flush_denormal(False)


_NOWHERE: Any = "-"


def _tokenizer(texts: TextSet, config: BatchingConfig) -> Any:
    if config.tokenizer is None:
        return train_tokenizer(texts, config.vocab_size)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(config.tokenizer)


def _subject(
    way: str, samples: Sequence[EncodedSample], tokenizer: Any, config: BatchingConfig, device: torch.device
) -> Subject:
    kind = WAYS[way]
    if kind.needs_gpu and device.type != "cuda":
        raise ConfigError("needs a CUDA GPU")
    spec = CausalSpec(
        family=config.family,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        max_position_embeddings=config.seq_length,
        mask=kind.mask or "varlen",
        attention=kind.attention,
        seed=config.seed,
        dtype="bfloat16" if kind.attention == "flash_attn" else "float32",
    )
    model = spec.build(tokenizer).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    batches = batches_of(way, samples, config, tokenizer.pad_token_id or 0)
    return Subject(way, batches, model, optimizer, config.precision)


def check_losses(subjects: Sequence[Subject], precision: str, device: torch.device) -> None:
    exact = precision == "32" or (precision == "auto" and device.type == "cpu")
    first = {subject.way: subject.losses[0] for subject in subjects}
    if max(first.values()) - min(first.values()) > LOSS_TOLERANCE["32" if exact else "bf16"]:
        raise ConfigError(f"the same samples have other losses, so the ways do not compute the same: {first}")


def _record(
    subject: Subject, base: Subject, config: BatchingConfig, about: dict[str, Any], device: torch.device
) -> BenchRecord:
    metrics = metrics_of(subject, base)
    if (expected := WAYS[subject.way].expected) is not None:
        metrics |= {"expected_from": expected[0], "expected_to": expected[1]}
    losses: list[Any] = list(subject.losses)
    return BenchRecord(
        bench=BENCH,
        case=f"{about['text_set']}, {config.global_batch_size} samples, {config.tokens_per_microbatch} positions",
        subject=subject.way,
        metrics=metrics,
        config=_settings(config, about) | {"losses": losses, "device": str(device), "way": WAYS[subject.way].about},
        versions=versions("torch", "transformers"),
    )


def metrics_of(subject: Subject, base: Subject) -> dict[str, float]:
    """What was measured of a subject, beside the baseline."""
    useful = sum(batch.num_real_tokens for batch in subject.batches)
    positions = sum(batch.num_tokens for batch in subject.batches)
    mean = statistics.mean(subject.seconds)
    return {
        "step_ms": 1000 * mean,
        "step_ms_min": 1000 * min(subject.seconds),
        "useful_tokens_per_s": round(useful / mean),
        "times_padding": statistics.mean(base.seconds) / mean,
        "useful_tokens": useful,
        "positions": positions,
        "padding_percent": 100 * (1 - useful / positions),
        "micro_batches": len(subject.batches),
        "peak_memory_mb": subject.peak_bytes / 2**20,
        "loss_first": subject.losses[0],
        "loss_last": subject.losses[-1],
    }


def _skipped(way: str, why: str, config: BatchingConfig, about: dict[str, Any]) -> BenchRecord:
    return BenchRecord(
        bench=BENCH, case=str(about["text_set"]), subject=way, metrics={}, config={**about, "skipped": why}
    )


def _settings(config: BatchingConfig, about: dict[str, Any]) -> dict[str, Any]:
    own = {name: getattr(config, name) for name in config.__dataclass_fields__ if name not in ("ways", "picture")}
    return own | about
