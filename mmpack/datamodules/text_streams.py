"""A text file read while training: streams of packs from a window, or of padded batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mmpack.batch import Batch
from mmpack.collate import Collator, PaddedCollator, PairCollator
from mmpack.datamodules.factory import PackStreamFactory, collator_settings, default_num_streams, tensor_bytes
from mmpack.datamodules.finetune_config import FinetuneConfig
from mmpack.datamodules.finetune_data import refuse_pairs_unpacked, text_tiling
from mmpack.datamodules.indexed import NothingToEncode
from mmpack.datamodules.text_stream import TextFile
from mmpack.errors import ConfigError, SampleError
from mmpack.indexed import OpenIndexed
from mmpack.stream import DynamicBatching, LengthBuckets, StreamConfig

_PROBES = 500  # records whose length is looked at to estimate n


@dataclass(frozen=True, kw_only=True)
class TextStreamFactory(PackStreamFactory[Batch]):
    """Opens the streams of one file.

    Args:
        sequences_per_pack: n, estimated from records spread over the file.
    """

    sequences_per_pack: float = 1.0


def stream_factory(
    config: FinetuneConfig,
    split: str,
    path: Path,
    tokenizer: Any,
    *,
    pad_token_id: int,
    world_size: int,
    training: bool,
) -> TextStreamFactory:
    """The streams of a split: one pass over the file at a time, each in another order if `training`."""
    capacity = config.layout.capacity(config.packed_sequence_size)
    data = TextFile(
        path, config.form, tokenizer, seq_length=config.seq_length, name=split, capacity=capacity,
        sequence_multiple=config.layout.sequence_multiple,
    )  # fmt: skip
    batching = config.batching_of(split)
    if data.holds_pairs:
        refuse_pairs_unpacked(batching)
    stream = _stream_config(config, batching, 2 if data.holds_pairs else 1)
    tiling = text_tiling()
    collator: Any
    if batching == "packing":
        packed = Collator(
            tiling=tiling, layout=config.layout, pad_token_id=pad_token_id, loss_weight=config.loss_weight
        )
        collator = PairCollator(inner=packed) if data.holds_pairs else packed
    else:
        collator = PaddedCollator(
            tiling=tiling,
            pad_token_id=pad_token_id,
            loss_weight=config.loss_weight,
            width=config.seq_length if config.pad_to_max_length and batching == "padding" else None,
            width_multiple=config.sequence_length_round,
            max_width=config.seq_length,
        )
    opened = OpenIndexed(datasets=(data,), seed=config.seed, shuffle=training, repeat=False)
    described = {f"stream.{name}": _plain(value) for name, value in asdict(stream).items()}
    most = max(capacity, config.tokens_budget) + config.layout.total_multiple
    return TextStreamFactory(
        open_source=opened,
        stream=stream,
        encoder=NothingToEncode(),
        collator=collator,
        num_streams=_num_streams(config, len(data), world_size, training),
        endless=False,
        settings=described
        | collator_settings(packed if data.holds_pairs else collator)
        | {"data.file": data.describe(), "data.seed": config.seed, "limit.seq_length": config.seq_length},
        versions={"mmpack": metadata.version("mmpack")},
        max_batch_bytes=tensor_bytes(most, most, tiling),
        sequences_per_pack=_estimate(data, capacity),
    )


def _plain(value: Any) -> Any:
    """With lists in place of tuples, as a state that was saved as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _stream_config(config: FinetuneConfig, batching: str, sequences_per_sample: int) -> StreamConfig:
    number, most = config.sequences_of("train"), config.layout.max_samples
    if batching == "packing":
        return StreamConfig(
            capacity=config.layout.capacity(config.packed_sequence_size),
            packing_buffer_size=config.packing_buffer_size,
            max_samples=None if most is None else most // sequences_per_sample,
            seed=config.seed,
        )
    if batching == "padding":
        return StreamConfig(samples_per_pack=number, seed=config.seed)
    if batching == "dynamic":
        rule: DynamicBatching | LengthBuckets = DynamicBatching(
            num_samples=config.packing_buffer_size,
            tokens_per_microbatch=config.tokens_budget,
            max_length=config.seq_length,
            sequence_length_round=config.sequence_length_round,
        )
    else:
        doubling = [32 * 2**k for k in range(32) if 32 * 2**k < config.seq_length] or [config.seq_length]
        rule = LengthBuckets(
            num_samples=max(config.packing_buffer_size, number), batch_size=number, bucket_boundaries=tuple(doubling)
        )
    return StreamConfig(batching=rule, seed=config.seed)


def _num_streams(config: FinetuneConfig, num_samples: int, world_size: int, training: bool) -> int:
    if training and config.num_streams is not None:
        if config.num_streams > num_samples:
            raise ConfigError(f"num_streams={config.num_streams}: the file has {num_samples} records only")
        return config.num_streams
    number = default_num_streams(num_samples)
    return number if training or number % world_size == 0 else world_size


def _estimate(data: TextFile, capacity: int) -> float:
    """Sequences that fill a pack on average."""
    lengths = []
    for index in range(0, len(data), max(1, len(data) // _PROBES)):
        try:
            lengths.append(data.sample(index).num_tokens)
        except SampleError:
            continue
    per_sample = 2 if data.holds_pairs else 1
    return per_sample * capacity / (sum(lengths) / len(lengths)) if lengths else 1.0
