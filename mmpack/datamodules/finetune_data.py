"""A text file -> a store of packs in a cache folder -> the steps of a split."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmpack.batch import Batch
from mmpack.collate import Collator, PaddedCollator, PairCollator
from mmpack.datamodules.finetune_config import PACKED, FinetuneConfig
from mmpack.datamodules.step_loader import StepLoader
from mmpack.datamodules.step_plan import StepPlanner
from mmpack.datamodules.text_rows import StoredPacks, StoredSequences, holds_pairs
from mmpack.dynamic import MicroBatch
from mmpack.errors import ConfigError
from mmpack.ledger import DropLedger
from mmpack.offline import NemoPackedRows, PackedStore, PackReport, pack_dataset
from mmpack.offline.tokens import tokenizer_hash
from mmpack.tiling import TileSpec, TilingPolicy, make_tiling


def text_tiling() -> TilingPolicy:
    """A tiling for batches that never have pictures."""
    return make_tiling("single", TileSpec(tile_size_px=1, embeddings_per_tile=1))


def prepare_split(config: FinetuneConfig, split: str, path: Path, tokenizer: Any) -> tuple[PackedStore, PackReport]:
    """The packed store of a file, made now or by an earlier run, and what became of its records."""
    size = config.packed_sequence_size if config.batching_of(split) in PACKED else config.seq_length
    options = {
        "packed_sequence_size": size,
        "seq_length": min(config.seq_length, size),
        "algorithm": config.algorithm,
        "seed": config.seed,
        "sequence_multiple": config.layout.sequence_multiple,
        "workers": config.memmap_workers,
    }
    if config.batching_of(split) in PACKED and config.layout.max_samples is not None:
        options["max_samples"] = config.layout.max_samples
    decided = {**{k: v for k, v in options.items() if k != "workers"}, "form": config.form.to_plain()}
    decides = hashlib.sha256(json.dumps(decided, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name = config.specs.tokenizer_model_name or ""
    label = "".join(c if c.isalnum() or c in "-._" else "_" for c in Path(name).name) or "tokenizer"
    folder = _cache_folder(config, path) / f"{label}-{tokenizer_hash(tokenizer)[:8]}"
    stem = path.name.removesuffix(".gz").rpartition(".")[0]
    target = folder / f"{stem}-{size}-{decides}"
    report = pack_dataset(config.form.pack_config(path, target, overwrite=True, **options), tokenizer)
    return PackedStore.open(target), report


def _cache_folder(config: FinetuneConfig, path: Path) -> Path:
    if config.cache_dir is not None:
        return config.cache_dir
    if os.access(path.parent, os.W_OK):
        return path.parent / "packed"
    whole = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmpack" / "packed" / whole


def described(report: PackReport, split: str) -> str:
    """A line for people: what became of a file, and n."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items()) or "none"
    return (
        f"{split}: {report.num_sequences:,} sequences, {report.truncated:,} cut, left out: {left_out}; packs of "
        f"{report.packed_sequence_size:,}: {report.num_packs:,}, {report.fill_percent:.1f} % full, "
        f"n = {report.sequences_per_pack:.2f} sequences a pack"
    )


def ledger_of(report: PackReport | None, source: str) -> DropLedger:
    """What the preparation left out or cut, as the counters that loaders have."""
    if report is None:
        return DropLedger()
    counts = dict(report.skipped) | ({"truncated": report.truncated} if report.truncated else {})
    entries: dict[str, Any] = {
        reason: {"count": n, "keys": report.examples.get(reason, [])[:5]} for reason, n in counts.items()
    }
    return DropLedger.from_dict({source: entries} if entries else {})


def plan_loader(
    config: FinetuneConfig,
    split: str,
    rows: PackedStore | NemoPackedRows,
    drops: DropLedger,
    *,
    pad_token_id: int,
    rank: int,
    world_size: int,
) -> StepLoader[Batch]:
    """The batches of a split, on one rank; `config` has the global batch size as a number."""
    assert isinstance(config.global_batch_size, int)
    batching = config.batching_of(split)
    planner = StepPlanner(
        batching=batching,
        micro_batch_size=config.sequences_of(split),
        global_batch_size=config.global_batch_size,
        world_size=world_size,
        seq_length=config.seq_length,
        capacity=config.layout.capacity(config.packed_sequence_size),
        tokens_per_microbatch=config.tokens_budget,
        sequence_length_round=config.sequence_length_round,
        bucket_size=config.bucket_size,
        pad_multiple=config.layout.sequence_multiple,
        seed=config.seed,
        shuffle=split == "train",
        drop_last=config.drop_last and split == "train",
    )
    lengths, make = _maker(config, batching, rows, split, pad_token_id)
    if len(lengths) == 0:
        raise ConfigError(f"the {split} data holds no sequence to learn from")
    settings: dict[str, Any] = {
        f"plan.{name}": value for name, value in asdict(planner).items() if name != "world_size"
    }
    settings |= {f"layout.{name}": value for name, value in asdict(config.layout).items()}
    settings |= {"loss_weight": config.loss_weight, "pad_token_id": pad_token_id, "data": _identity(rows)}
    return StepLoader(planner, lengths, make, rank=rank, settings=settings, drops=drops, restart=split != "train")


def refuse_pairs_unpacked(batching: str) -> None:
    """Raises ConfigError for preference data that would not be kept in pairs."""
    if batching != "packing":
        raise ConfigError(
            f"batching={batching!r} with preference data: only packs keep a pair together; use batching='packing'"
        )


def _identity(rows: PackedStore | NemoPackedRows) -> str:
    """What tells the data from any other."""
    if isinstance(rows, PackedStore):
        return f"packed store {str(rows.meta.get('key'))[:16]}, {len(rows)} packs"
    return f"{rows.path.name}, {rows.path.stat().st_size} bytes, {len(rows)} packs"


def _maker(
    config: FinetuneConfig, batching: str, rows: PackedStore | NemoPackedRows, split: str, pad_token_id: int
) -> tuple[Sequence[int], Callable[[MicroBatch, int], Batch]]:
    """Lengths of what is planned over, and how the batch of a micro batch is made."""
    tiling = text_tiling()
    collator = PairCollator(
        inner=Collator(tiling=tiling, layout=config.layout, pad_token_id=pad_token_id, loss_weight=config.loss_weight)
    )
    if holds_pairs(rows):
        refuse_pairs_unpacked(batching)
    if batching == "packing":
        packs = StoredPacks(rows, split, config.layout.sequence_multiple)

        def pack(batch: MicroBatch, number: int) -> Batch:
            if not batch.indices:
                return collator.filler(pack_index=number)
            return collator.collate(packs.samples(batch.indices[0]), pack_index=number)[0]

        return [1] * len(packs), pack
    assert isinstance(rows, PackedStore), "ready-made packs are for packing only"
    sequences = StoredSequences(rows, split)

    def together(batch: MicroBatch, number: int) -> Batch:
        if not batch.indices:
            return collator.filler(pack_index=number)
        return collator.collate([sequences.sample(i) for i in batch.indices], pack_index=number)[0]

    def padded(batch: MicroBatch, number: int) -> Batch:
        width = batch.padded_length if batching == "dynamic" else None
        if config.pad_to_max_length and batching == "padding":
            width = config.seq_length
        layer = PaddedCollator(
            tiling=tiling,
            pad_token_id=pad_token_id,
            loss_weight=config.loss_weight,
            width=width,
            width_multiple=config.sequence_length_round,
            max_width=config.seq_length,
        )
        if not batch.indices:
            return layer.filler(pack_index=number)
        return layer.collate([sequences.sample(i) for i in batch.indices], pack_index=number)[0]

    lengths: list[int] = sequences.lengths.tolist()
    return lengths, together if batching == "global_packing" else padded
