"""Opens the logical streams of an Energon dataset, and fingerprints everything that shapes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mmpack.batch import PackedBatch
from mmpack.collate import Collator
from mmpack.encode import SampleEncoder
from mmpack.energon.reader import META_FOLDER, Source, SourceConfig
from mmpack.energon.source import OpenEnergon
from mmpack.errors import ConfigError
from mmpack.stream import PackStream, StreamConfig

DEFAULT_NUM_STREAMS = 12  # divides among 1, 2, 3, 4, 6 and 12 ranks


@dataclass(frozen=True, kw_only=True)
class EnergonStreamFactory:
    """A `mmpack.loader.StreamFactory` over one split of an Energon dataset."""

    source: SourceConfig
    stream: StreamConfig
    encoder: SampleEncoder
    collator: Collator
    num_streams: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    max_batch_bytes: int

    @classmethod
    def build(
        cls,
        *,
        source: SourceConfig,
        stream: StreamConfig,
        encoder: SampleEncoder,
        collator: Collator,
        num_streams: int | None,
        world_size: int = 1,
    ) -> EnergonStreamFactory:
        """Opens the dataset once to see that it can be read. Raises ConfigError if not.

        Training data without `num_streams` gets a number that depends on the data alone; other splits, which are never
        resumed, one that `world_size` divides.
        """
        whole = Source(source, stream=0, num_streams=1, on_fault=lambda error, name: None)
        if num_streams is None:
            num_streams = default_num_streams(whole.num_samples)
            if not source.training and num_streams % world_size:
                num_streams = world_size
        if source.training and not 1 <= num_streams <= max(whole.num_samples, 1):
            raise ConfigError(
                f"num_streams={num_streams}: split {source.split!r} has {whole.num_samples} samples, and every stream "
                f"needs one; allowed: 1 to {max(whole.num_samples, 1)}"
            )
        return cls(
            source=source,
            stream=stream,
            encoder=encoder,
            collator=collator,
            num_streams=num_streams,
            settings=_settings(source, stream, encoder, collator),
            versions={name: metadata.version(name) for name in ("mmpack", "megatron-energon")},
            max_batch_bytes=max_batch_bytes(stream.capacity or 0, collator),
        )

    @property
    def endless(self) -> bool:
        """Whether the source repeats."""
        return self.source.repeat

    def filler(self, pack_index: int) -> PackedBatch:
        """A pack of weight zero."""
        return self.collator.filler(pack_index=pack_index)

    def __call__(self, stream: int) -> PackStream[PackedBatch]:
        return PackStream(
            self.stream,
            OpenEnergon(self.source),
            self.encoder,
            self.collator,
            stream=stream,
            num_streams=self.num_streams,
        )


def default_num_streams(num_samples: int) -> int:
    """L for a split of `num_samples`: 12, or 4 for small data, where every stream's last packs would weigh.

    It depends on the data alone, so that every number of ranks and workers sees the same streams.

    >>> [default_num_streams(n) for n in (1, 3, 4, 1000, 10**6)]
    [1, 2, 4, 4, 12]
    """
    if num_samples >= 200 * DEFAULT_NUM_STREAMS:
        return DEFAULT_NUM_STREAMS
    return max(n for n in (1, 2, 4) if n <= max(num_samples, 1))


def max_batch_bytes(capacity: int, collator: Collator) -> int:
    """Most bytes that the tensors of a pack usually take: 29 a position, and tiles for as many as can fit.

    A pack that takes more travels all the same, on a slower way.
    """
    tiling = collator.tiling
    row = max(capacity, collator.layout.fixed_total or 0) + collator.layout.total_multiple
    position_bytes, max_tiles = 29, capacity // tiling.spec.embeddings_per_tile
    if tiling.kind == "anyres":
        max_tiles *= 2  # the padding of its tiles costs pixels and no positions
    elif tiling.kind == "patches":
        max_tiles = capacity * getattr(tiling, "merge_size", 1) ** 2
        position_bytes += 3 * 8  # three more rows of positions
    offsets = 2 * 4 * (capacity + 2) + 6 * 4 * capacity
    return row * position_bytes + offsets + max_tiles * 3 * tiling.spec.tile_size_px**2 + 64 * 16


def _settings(source: SourceConfig, stream: StreamConfig, encoder: SampleEncoder, collator: Collator) -> dict[str, Any]:
    """All that shapes the packs, as plain values; big things by their hash."""
    described: dict[str, Any] = {f"stream.{name}": value for name, value in asdict(stream).items()}
    described |= {f"data.{name}": value for name, value in asdict(source).items() if name != "path"}
    described["data.index"] = dataset_id(source.path)
    described["tokenizer"] = _digest(encoder.tokenizer.backend_tokenizer.to_str().encode())
    described["tokenizer.bos"] = list(encoder.bos_token_ids)
    described["template"] = _digest(encoder.template.describe().encode())
    described["tiling"] = repr(collator.tiling)
    described |= {f"limit.{name}": value for name, value in asdict(encoder.limit).items() if name != "setting"}
    described |= {f"layout.{name}": value for name, value in asdict(collator.layout).items()}
    described |= {"loss_weight": collator.loss_weight, "pad_token_id": collator.pad_token_id}
    return described


def dataset_id(path: Path | str) -> str:
    """What tells one dataset from another: energon's index id, its shards and splits, or a metadataset's YAML."""
    local = Path(path)
    names = ("index.uuid", ".info.json", "split.yaml", "dataset.yaml")
    files = [local] if local.is_file() else [local / META_FOLDER / name for name in names]
    content = [file.read_bytes() for file in files if file.is_file()]
    return _digest(b"\0".join(content)) if content else str(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
