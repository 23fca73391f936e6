"""Opens the logical streams of a data set, and fingerprints everything that shapes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic

import yaml

from mmpack.batch import B
from mmpack.collate import Collator, PaddedCollator
from mmpack.encode import SampleEncoder
from mmpack.energon.blend import blended_sources
from mmpack.energon.reader import META_FOLDER, Source, SourceConfig
from mmpack.energon.source import OpenEnergon
from mmpack.errors import ConfigError
from mmpack.stream import OpenSource, PackStream, StreamConfig
from mmpack.stream.mixed import OpenMix
from mmpack.stream.packs import Encoder, FillingCollator
from mmpack.tiling import TilingPolicy

DEFAULT_NUM_STREAMS = 12  # divides among 1, 2, 3, 4, 6 and 12 ranks


@dataclass(frozen=True, kw_only=True)
class PackStreamFactory(Generic[B]):
    """A `mmpack.loader.StreamFactory` over any source.

    Args:
        open_source: opens the source of a stream; `endless` if it repeats.
        stream: how packs are chosen.
        encoder: makes tokens of conversations; it is not asked by sources of encoded samples.
        collator: makes batches.
        num_streams: L.
        settings: all that shapes the packs, as plain values; big things by their hash.
        versions: of what reads the data.
        max_batch_bytes: most bytes that the tensors of a pack usually take.
    """

    open_source: OpenSource
    stream: StreamConfig
    encoder: Encoder
    collator: FillingCollator[B]
    num_streams: int
    endless: bool
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    max_batch_bytes: int

    def filler(self, pack_index: int) -> B:
        """A batch of weight zero."""
        return self.collator.filler(pack_index=pack_index)

    def __call__(self, stream: int) -> PackStream[B]:
        return PackStream(
            self.stream, self.open_source, self.encoder, self.collator, stream=stream, num_streams=self.num_streams
        )


@dataclass(frozen=True, kw_only=True)
class EnergonStreamFactory(PackStreamFactory[Any]):
    """Batches of one split of an Energon dataset."""

    source: SourceConfig
    encoder: SampleEncoder

    @classmethod
    def build(
        cls,
        *,
        source: SourceConfig,
        stream: StreamConfig,
        encoder: SampleEncoder,
        collator: Collator | PaddedCollator,
        num_positions: int,
        num_streams: int | None,
        world_size: int = 1,
        by_tokens: bool = False,
    ) -> EnergonStreamFactory:
        """Opens the dataset once to see that it can be read. Raises ConfigError if not.

        Training data without `num_streams` gets a number that depends on the data alone; other splits, which are never
        resumed, one that `world_size` divides.
        """
        open_source: OpenSource = OpenEnergon(source)
        if by_tokens:
            blend = blended_sources(source)
            open_source = OpenMix(
                sources=[OpenEnergon(entry) for entry, _ in blend],
                weights=[weight for _, weight in blend],
                unit="tokens",
                encoder=encoder,
            )
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
            open_source=open_source,
            endless=source.repeat,
            source=source,
            stream=stream,
            encoder=encoder,
            collator=collator,
            num_streams=num_streams,
            settings=_settings(source, stream, encoder, collator)
            | {"data.blend_by": "tokens" if by_tokens else "samples"},
            versions={name: metadata.version(name) for name in ("mmpack", "megatron-energon")},
            max_batch_bytes=max_batch_bytes(num_positions, collator),
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


def max_batch_bytes(capacity: int, collator: Collator | PaddedCollator) -> int:
    """Most bytes that the tensors of a batch usually take; see `tensor_bytes`."""
    row = capacity
    if isinstance(collator, Collator):
        row = max(capacity, collator.layout.fixed_total or 0) + collator.layout.total_multiple
    return tensor_bytes(row, capacity, collator.tiling)


def tensor_bytes(num_positions: int, num_filled: int, tiling: TilingPolicy) -> int:
    """29 bytes a position, and tiles for as many as fit `num_filled` positions.

    A pack that takes more travels all the same, on a slower way.
    """
    position_bytes, max_tiles = 29, num_filled // tiling.spec.embeddings_per_tile
    if tiling.kind == "anyres":
        max_tiles *= 2  # the padding of its tiles costs pixels and no positions
    elif tiling.kind == "patches":
        max_tiles = num_filled * getattr(tiling, "merge_size", 1) ** 2
        position_bytes += 3 * 8  # three more rows of positions
    offsets = 2 * 4 * (num_filled + 2) + 6 * 4 * num_filled
    return num_positions * position_bytes + offsets + max_tiles * 3 * tiling.spec.tile_size_px**2 + 64 * 16


def _settings(
    source: SourceConfig, stream: StreamConfig, encoder: SampleEncoder, collator: Collator | PaddedCollator
) -> dict[str, Any]:
    """All that shapes the packs, as plain values; big things by their hash."""
    described: dict[str, Any] = {f"stream.{name}": value for name, value in asdict(stream).items()}
    described |= {f"data.{name}": value for name, value in asdict(source).items() if name != "path"}
    described["data.index"] = dataset_id(source.path)
    return described | encoder_settings(encoder) | collator_settings(collator)


def encoder_settings(encoder: SampleEncoder) -> dict[str, Any]:
    """What decides the tokens of a sample."""
    described: dict[str, Any] = {
        "tokenizer": digest(encoder.tokenizer.backend_tokenizer.to_str().encode()),
        "tokenizer.bos": list(encoder.bos_token_ids),
        "template": digest(encoder.template.describe().encode()),
    }
    if encoder.video_frames is not None:
        described["video_frames"] = encoder.video_frames
    limit = {name: getattr(encoder.limit, name) for name in ("seq_length", "oversize")}
    return described | {f"limit.{name}": value for name, value in limit.items()}


def collator_settings(collator: Collator | PaddedCollator) -> dict[str, Any]:
    """What decides how samples are laid out."""
    described: dict[str, Any] = {"loss_weight": collator.loss_weight, "pad_token_id": collator.pad_token_id}
    described["tiling"] = repr(collator.tiling)
    if isinstance(collator, Collator):
        return described | {f"layout.{name}": value for name, value in asdict(collator.layout).items()}
    names = ("width", "width_multiple", "max_width")
    return described | {f"rows.{name}": getattr(collator, name) for name in names}


def dataset_id(path: Path | str) -> str:
    """What tells one dataset from another: energon's index id, its shards and splits.

    Of a metadataset its YAML, and the same of every dataset that is named in it.
    """
    local = Path(path)
    names = ("index.uuid", ".info.json", "split.yaml", "dataset.yaml")
    files = [local] if local.is_file() else [local / META_FOLDER / name for name in names]
    content = [file.read_bytes() for file in files if file.is_file()]
    if local.is_file():
        content += [dataset_id(inner).encode() for inner in _named_in(local) if inner.exists()]
    return digest(b"\0".join(content)) if content else str(path)


def dataset_names(path: Path | str) -> set[str] | None:
    """The datasets that samples of `path` may come from, as counters name them; None if that cannot be told here."""
    local = Path(path)
    if not local.exists():  # remote, or an error that opening it tells
        return None
    if not local.is_file():
        return {local.absolute().name, local.resolve().name}
    if "://" in local.read_text(encoding="utf-8", errors="replace"):
        return None
    names: set[str] = set()
    for inner in _named_in(local):
        found = dataset_names(inner)
        if found is None:
            return None
        names |= found
    return names


def _named_in(metadataset: Path) -> list[Path]:
    """Every local path under the key ``path`` in a metadataset's YAML, in the order of the file."""
    try:
        pending: list[Any] = [yaml.safe_load(metadataset.read_text(encoding="utf-8"))]
    except (yaml.YAMLError, UnicodeDecodeError):
        return []
    found: list[Path] = []
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            named = part.get("path")
            if isinstance(named, str) and "://" not in named and metadataset.parent / named != metadataset:
                found.append(metadataset.parent / named)
            pending += reversed(list(part.values()))
        elif isinstance(part, list):
            pending += reversed(part)
    return found


def digest(data: bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
