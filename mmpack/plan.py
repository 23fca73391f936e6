"""Forecasts: how a split will pack, how many samples a pack holds (n), and the global batch size to set.

Only headers and text are read; no picture is decoded. The arithmetic is pure; `read_sizes` does the reading.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmpack.encode import SampleEncoder
from mmpack.energon.cook import source_of, to_conversation
from mmpack.energon.reader import Source, SourceConfig
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import Layout
from mmpack.ledger import DropLedger
from mmpack.stats import fill_stats
from mmpack.window import stream_packs

BYTES_PER_TEXT_TOKEN = 9  # an int64 id and a bool
Progress = Callable[[int, int], None]  # samples read, samples in all


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What one sample will take."""

    num_tokens: int  # text and image embeddings
    room: int  # the same, padded as its segment will be
    num_image_tokens: int
    num_tiles: int
    num_bytes: int  # held in the window: compressed pictures and token ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The samples of every logical stream, in the order in which a pass over the data reads them."""

    streams: Sequence[Sequence[SampleSize]]
    num_in_split: int  # samples of the split, read or not
    drops: DropLedger = field(default_factory=DropLedger)

    @property
    def samples(self) -> list[SampleSize]:
        """All that were read and are usable."""
        return list(itertools.chain.from_iterable(self.streams))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingPlan:
    """The settings that a forecast depends on.

    Args:
        capacity: positions that samples may fill in a pack.
        packed_sequence_size: positions of a pack.
        packing_buffer_size: samples in the window of one stream.
        align_window: finished plans that a stream holds back.
        tile_bytes: a tile's pixels as uint8.
        repeat: read on at the end of the data (windows stay full), or drain them there.
        samples_per_step: global batch size that was used, or would be, without packing.
        data_parallel_size, micro_batch_size: of the packed run.
    """

    capacity: int
    packed_sequence_size: int
    packing_buffer_size: int
    align_window: int = 1
    tile_bytes: int
    repeat: bool = True
    samples_per_step: int = 128
    data_parallel_size: int = 1
    micro_batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("samples_per_step", "data_parallel_size", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantiles:
    """How a number is spread over the samples."""

    smallest: int
    median: int
    p95: int
    largest: int
    mean: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a run over the data will be like. Byte counts are of one data-parallel rank, about."""

    num_samples: int  # usable, in the whole split (extrapolated if only some were read)
    num_samples_read: int
    dropped: dict[str, int]  # by reason, of those read
    num_streams: int
    packed_sequence_size: int
    tokens: Quantiles  # of a sample
    image_token_percent: float
    num_packs: int  # one pass over the split
    fill_percent: float  # real tokens of a pack's positions
    full_packs_percent: float  # packs filled to the last token
    n_from_packs: float  # samples / packs
    n_from_lengths: float  # packed_sequence_size / mean length
    samples_per_step: int
    global_batch_size: int  # packs per optimizer step: samples_per_step / n_from_packs, rounded
    data_parallel_size: int
    micro_batch_size: int
    tiles_per_pack: Quantiles
    window_bytes: int  # compressed samples in the windows of the rank's streams
    pixel_bytes_per_pack: int  # the largest met

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def packed_global_batch_size(
    samples_per_step: int, samples_per_pack: float, *, data_parallel_size: int = 1, micro_batch_size: int = 1
) -> int:
    """Packs per optimizer step that hold about as many samples as a step had without packing.

    Divided by n, rounded to the nearest multiple of data-parallel size x micro batch, and at least that. Source: the
    packing section of NeMo's documentation, "adjust the batch sizes".

    >>> packed_global_batch_size(128, 6.4), packed_global_batch_size(128, 6.4, data_parallel_size=8)
    (20, 24)
    >>> packed_global_batch_size(8, 100.0, data_parallel_size=4)
    4
    """
    unit = data_parallel_size * micro_batch_size
    return max(unit, int(samples_per_step / samples_per_pack / unit + 0.5) * unit)


def quantiles(values: Sequence[int]) -> Quantiles:
    """By nearest rank; all 0 for no values.

    >>> quantiles([1, 2, 3, 10])
    Quantiles(smallest=1, median=2, p95=10, largest=10, mean=4.0)
    """
    if not values:
        return Quantiles(smallest=0, median=0, p95=0, largest=0, mean=0.0)
    ordered = sorted(values)

    def rank(percent: int) -> int:
        return ordered[-(-len(ordered) * percent // 100) - 1]

    mean = sum(ordered) / len(ordered)
    return Quantiles(smallest=ordered[0], median=rank(50), p95=rank(95), largest=ordered[-1], mean=mean)


def plan_packs(rooms: Sequence[int], capacity: int, window: int, *, repeat: bool) -> Iterator[list[int]]:
    """The packs of one stream, as indices into `rooms`: as many as one pass over them takes.

    With `repeat` the samples go on from the start, as they do in training, so the window never drains, and packs are
    given until as many samples have gone out as there are.

    >>> list(plan_packs([5, 4, 2, 3, 1, 8], 8, 4, repeat=False))
    [[0, 3], [1, 2, 4], [5]]
    >>> list(plan_packs([5, 4, 2, 3, 1, 8], 8, 4, repeat=True))
    [[0, 3], [1, 2, 4], [5]]
    """
    if not repeat or not rooms:
        yield from stream_packs(rooms, capacity, window=window)
        return
    emitted = 0
    for pack in stream_packs(itertools.cycle(rooms), capacity, window=window):
        yield [i % len(rooms) for i in pack]
        emitted += len(pack)
        if emitted >= len(rooms):
            return


def forecast(sizes: Sizes, plan: PackingPlan) -> Forecast:
    """What `plan` makes of `sizes`. Raises ConfigError if no sample is usable."""
    samples = sizes.samples
    dropped = {reason.value: count for reason, count in sizes.drops.counts().items()}
    if not samples:
        raise ConfigError(f"no usable sample in the split; left out: {dropped or 'none, it is empty'}")
    packs = [
        [stream[i] for i in pack]
        for stream in sizes.streams
        for pack in plan_packs([s.room for s in stream], plan.capacity, plan.packing_buffer_size, repeat=plan.repeat)
    ]
    fill = fill_stats((sum(s.num_tokens for s in pack) for pack in packs), plan.packed_sequence_size)
    n = sum(map(len, packs)) / len(packs)
    num_read = len(samples) + sizes.drops.total
    num_samples = round(sizes.num_in_split * len(samples) / num_read)
    tokens = quantiles([s.num_tokens for s in samples])
    if plan.repeat or num_samples > len(samples):  # the packs of one pass hold its tokens at that fill
        per_pack = plan.packed_sequence_size * fill.mean_fill
        num_packs = max(1, math.ceil(num_samples * tokens.mean / per_pack - 1e-9))
    else:
        num_packs = len(packs)
    tiles = quantiles([sum(s.num_tiles for s in pack) for pack in packs])
    held = len(sizes.streams) / plan.data_parallel_size * (plan.packing_buffer_size + (plan.align_window - 1) * n)
    return Forecast(
        num_samples=num_samples,
        num_samples_read=len(samples),
        dropped=dropped,
        num_streams=len(sizes.streams),
        packed_sequence_size=plan.packed_sequence_size,
        tokens=tokens,
        image_token_percent=100 * sum(s.num_image_tokens for s in samples) / sum(s.num_tokens for s in samples),
        num_packs=num_packs,
        fill_percent=100 * fill.mean_fill,
        full_packs_percent=100 * fill.full_share,
        n_from_packs=num_samples / num_packs,
        n_from_lengths=plan.packed_sequence_size / tokens.mean,
        samples_per_step=plan.samples_per_step,
        global_batch_size=packed_global_batch_size(
            plan.samples_per_step,
            num_samples / num_packs,
            data_parallel_size=plan.data_parallel_size,
            micro_batch_size=plan.micro_batch_size,
        ),
        data_parallel_size=plan.data_parallel_size,
        micro_batch_size=plan.micro_batch_size,
        tiles_per_pack=tiles,
        window_bytes=round(min(held, num_samples) * sum(s.num_bytes for s in samples) / len(samples)),
        pixel_bytes_per_pack=tiles.largest * plan.tile_bytes,
    )


def read_sizes(
    source: SourceConfig,
    encoder: SampleEncoder,
    layout: Layout,
    *,
    num_streams: int,
    max_samples: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Sizes:
    """The sizes of a split's samples, stream by stream, in the order in which the loader will read them.

    Args:
        source: what to read; of training data one pass.
        encoder: counts the tokens. A sample that is too long is counted, whatever its policy says.
        layout: pads a sample to its room.
        num_streams: logical streams, as the loader has them.
        max_samples: read only about so many, the same number from every stream; None for all.
    """
    counting = copy.copy(encoder)
    counting.limit = dataclasses.replace(encoder.limit, oversize="drop")
    drops = DropLedger()

    def on_fault(error: Exception, name: str) -> None:
        drops.count(str(source.path), Reason.UNREADABLE, name, detail=" ".join(str(error).split())[:200])

    readers = [_open(source, stream, num_streams, on_fault) for stream in range(num_streams)]
    num_in_split = sum(reader.num_samples for reader in readers)
    share = num_in_split if max_samples is None else max(1, -(-max_samples // num_streams))
    total = sum(min(reader.num_samples, share) for reader in readers)
    streams: list[list[SampleSize]] = []
    done = 0
    for reader in readers:
        sizes: list[SampleSize] = []
        for raw, _ in itertools.islice(reader, min(share, reader.num_samples)):
            done += 1
            progress(done, total)
            try:
                sizes.append(_size(counting, layout, raw))
            except SampleError as error:
                drops.count(source_of(raw), error.reason, raw.__key__, detail=error.detail)
        streams.append(sizes)
    return Sizes(streams=streams, num_in_split=num_in_split, drops=drops)


def _open(source: SourceConfig, stream: int, num_streams: int, on_fault: Callable[[Exception, str], None]) -> Source:
    once = dataclasses.replace(source, repeat=False)
    try:
        return Source(once, stream=stream, num_streams=num_streams, on_fault=on_fault)
    except ConfigError:  # a weighted blend can only be read for ever; its length says where a pass ends
        return Source(source, stream=stream, num_streams=num_streams, on_fault=on_fault)


def _size(encoder: SampleEncoder, layout: Layout, raw: Any) -> SampleSize:
    sample = encoder.encode(to_conversation(raw))
    pictures = sum(planned.picture.num_bytes for planned in sample.pictures)
    return SampleSize(
        num_tokens=sample.num_tokens,
        room=layout.room(sample.num_tokens),
        num_image_tokens=sum(planned.num_tokens for planned in sample.pictures),
        num_tiles=sample.num_tiles,
        num_bytes=pictures + BYTES_PER_TEXT_TOKEN * len(sample.token_ids_n),
    )
