"""Reads every sample of a dataset or a file as training would, here or in worker processes."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml

from mmpack.check.facts import BadSample, CheckReport, Counts, Fill
from mmpack.encode import SampleEncoder
from mmpack.energon.reader import META_FOLDER, SourceConfig
from mmpack.energon.remote import local, shown
from mmpack.energon.source import EnergonSource
from mmpack.engine import Engine, check_engine, open_engine, tick
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.images import decode_image, image_size, video_format
from mmpack.indexed import LlavaFile, open_pictures
from mmpack.layout import Layout
from mmpack.ledger import CHOSEN
from mmpack.sample import Conversation
from mmpack.stats import fill_stats
from mmpack.stream.contract import ReadFault
from mmpack.window import stream_packs

Progress = Callable[[int, int], None]  # samples read, samples in all
_SLICES = 4  # of the data for each worker, so that all end at about the same time


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckConfig:
    """What to check, and with which settings.

    Args:
        path: folder (or ``msc://`` URL) of an Energon dataset, a metadataset's YAML file, or a file of records
            (JSON list or JSONL).
        encoder: counts tokens; a sample that is too long is no fault.
        layout, packed_sequence_size, packing_buffer_size: how samples would be packed.
        counted_with: the encoder's settings in words, for the report.
        splits: to read; None for all that the dataset has.
        deep: decode every picture instead of reading its header.
        image_root: the pictures of a file of records: a folder or a tar file; None for the file's folder.
        record_format: of a file of records.
        workers: processes; 1 reads in this one.
        engine: ``local``, or ``ray`` for a Ray cluster whose machines all see the data under the same name.
        address: of the Ray cluster; None for ``RAY_ADDRESS``, or one that is started here with `workers` CPUs.
        max_bad: share of bad samples up to which the data passes.

    Raises:
        ConfigError: a path that does not exist, or numbers that cannot be.
    """

    path: Path
    encoder: SampleEncoder
    layout: Layout
    packed_sequence_size: int
    packing_buffer_size: int
    counted_with: str = ""
    splits: Sequence[str] | None = None
    deep: bool = False
    image_root: Path | None = None
    record_format: str = "auto"
    workers: int = 1
    max_bad: float = 0.0
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", local(self.path))
        if not self.path.exists():
            raise ConfigError(f"{str(self.path)!r} does not exist")
        check_engine(self.engine, self.address)
        if self.workers < 1:
            raise ConfigError(f"workers={self.workers}; it must be at least 1")
        if not 0 <= self.max_bad <= 1:
            raise ConfigError(f"max_bad={self.max_bad}; give a share from 0 to 1, such as 0.01")

    @property
    def is_dataset(self) -> bool:
        """Whether energon reads it; if not, it is a file of records."""
        return self.path.is_dir() or self.path.suffix in (".yaml", ".yml")


def check(config: CheckConfig, progress: Progress = lambda done, total: None) -> CheckReport:
    """Reads everything and says what is there.

    Raises:
        ConfigError: the dataset or the file cannot be opened at all.
        WorkerError: a worker process died.
    """
    started = time.perf_counter()
    with closing(open_engine(config.engine, config.workers, address=config.address, what="checking")) as engine:
        splits, damaged, counts = _read_all(config, engine, progress)
    return CheckReport(
        path=shown(config.path),
        splits=splits,
        counted_with=config.counted_with,
        deep=config.deep,
        counts=counts,
        damaged_shards=_damaged_shards(damaged, counts),
        fill=_fill(counts, config),
        max_bad=config.max_bad,
        seconds=time.perf_counter() - started,
    )


def _read_all(
    config: CheckConfig, engine: Engine, progress: Progress
) -> tuple[tuple[str, ...], list[tuple[str, str]], Counts]:
    """The splits that were read, the shards that cannot be opened, and what was met."""
    damaged: list[tuple[str, str]] = []
    splits: tuple[str, ...] = ()
    calls: list[Callable[[], Counts]] = []
    num_slices = 1 if engine.parallel == 1 else _SLICES * engine.parallel
    if config.is_dataset:
        local(config.path, whole=True)
        splits = tuple(config.splits or dataset_splits(config.path))
        sources = [_source(config, split) for split in splits]
        wholes = [EnergonSource(source, stream=0, num_streams=1, on_fault=lambda e, n: None) for source in sources]
        damaged = [shard for whole in wholes for shard in whole.damaged_shards]
        total = sum(whole.num_samples for whole in wholes)
        for source in sources:
            calls += [_SplitSlice(config, source, i, num_slices) for i in range(num_slices)]
        sees = [config.path]
    else:
        root = config.image_root if config.image_root is not None else config.path.parent
        file = LlavaFile(config.path, pictures=open_pictures(root), record_format=config.record_format)
        total = len(file)
        calls += [_RecordSlice(config, file, i, num_slices) for i in range(num_slices)]
        sees = [config.path, root]
    counts = Counts()
    for part in _run(engine, calls, sees, total, progress):
        counts.add(part)
    return splits, damaged, counts


def _damaged_shards(damaged: Sequence[tuple[str, str]], counts: Counts) -> tuple[tuple[str, str], ...]:
    """The shards that were found damaged when they were opened, and those that could not give a sample."""
    known = dict(damaged)
    lost = Counter(f"{bad.folder}/{bad.shard}" for bad in counts.bad if bad.reason is Reason.UNREADABLE and bad.shard)
    more = {shard: f"is damaged: {count} of its samples cannot be read" for shard, count in sorted(lost.items())}
    return tuple({**more, **known}.items())


def dataset_splits(path: Path) -> list[str]:
    """The splits that have any data, by name. Raises ConfigError if the file that lists them cannot be read."""
    if path.is_dir():
        names = [path / META_FOLDER / name for name in ("split.yaml", "split.json")]
        file = next((name for name in names if name.is_file()), names[0])
        key = "split_parts"
    else:
        file, key = path, "splits"
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))[key]
        names_with_data = [str(name) for name, content in found.items() if content]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} lists no splits under {key!r} ({what}); is this an Energon dataset?") from None
    if not names_with_data:
        raise ConfigError(f"{file}: every split is empty")
    return names_with_data


def _source(config: CheckConfig, split: str) -> SourceConfig:
    return SourceConfig(
        path=config.path,
        split=split,
        training=False,
        repeat=False,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )


@dataclass(frozen=True, slots=True)
class _SplitSlice:
    """One stretch of a split."""

    config: CheckConfig
    source: SourceConfig
    number: int
    num_slices: int

    def __call__(self) -> Counts:
        counts = Counts()

        def on_fault(error: Exception, name: str) -> None:
            tick()
            fault = error if isinstance(error, ReadFault) else ReadFault(str(error), source="", shard="", name=name)
            key = fault.name.removeprefix(f"{fault.shard}/")
            bad = BadSample(
                folder=fault.folder, shard=fault.shard, key=key, reason=Reason.UNREADABLE, detail=fault.cause
            )
            counts.bad.append(bad)

        encoder = _counting(self.config.encoder)
        source = EnergonSource(self.source, stream=self.number, num_streams=self.num_slices, on_fault=on_fault)
        for drawn in source:
            tick()
            try:
                if isinstance(drawn.sample, SampleError):
                    raise drawn.sample
                assert isinstance(drawn.sample, Conversation)
                _look(drawn.sample, self.config, encoder, counts)
            except SampleError as error:
                bad = BadSample(
                    folder=drawn.folder, shard=drawn.shard, key=drawn.key, reason=error.reason, detail=error.detail
                )
                counts.bad.append(bad)
        return counts


@dataclass(frozen=True, slots=True)
class _RecordSlice:
    """One stretch of a file of records."""

    config: CheckConfig
    file: LlavaFile
    number: int
    num_slices: int

    def __call__(self) -> Counts:
        counts = Counts()
        encoder = _counting(self.config.encoder)
        first, last = (len(self.file) * i // self.num_slices for i in (self.number, self.number + 1))
        for index in range(first, last):
            tick()
            try:
                _look(self.file.sample(index), self.config, encoder, counts)
            except SampleError as error:
                bad = BadSample(
                    folder=str(self.config.path),
                    shard="",
                    key=self.file.key(index),
                    reason=error.reason,
                    detail=error.detail,
                )
                counts.bad.append(bad)
        return counts


def _counting(encoder: SampleEncoder) -> SampleEncoder:
    counting = copy.copy(encoder)
    counting.limit = dataclasses.replace(encoder.limit, oversize="drop")
    return counting


def _look(sample: Conversation, config: CheckConfig, encoder: SampleEncoder, counts: Counts) -> None:
    """Counts a good sample. Raises SampleError for a bad one, which names the picture if it is one's fault."""
    for picture in sample.pictures:
        if encoder.video_frames is None and video_format(picture.data) is not None:
            detail = f"{picture.name}: a video; say how many frames to take with video_frames"
            raise SampleError(Reason.VIDEO_FRAMES_UNSET, detail)
        try:
            if config.deep:
                decode_image(picture.data)
            else:
                image_size(picture.data)
        except SampleError as error:
            raise SampleError(error.reason, f"{picture.name}: {error.detail}") from None
    try:
        encoded = encoder.encode(sample)
    except SampleError as error:
        if error.reason not in CHOSEN:
            raise
        counts.num_too_long += 1
        counts.num_pictures += len(sample.pictures)
        return
    counts.num_pictures += len(sample.pictures)
    counts.tokens.append(encoded.num_tokens)
    counts.rooms.append(config.layout.room(encoded.num_tokens))
    counts.tiles.append(encoded.num_tiles)


def _fill(counts: Counts, config: CheckConfig) -> Fill | None:
    capacity = config.layout.capacity(config.packed_sequence_size)
    fitting = [i for i, room in enumerate(counts.rooms) if room <= capacity]
    if not fitting:
        return None
    packs = stream_packs((counts.rooms[i] for i in fitting), capacity, window=config.packing_buffer_size)
    stats = fill_stats((sum(counts.tokens[fitting[i]] for i in pack) for pack in packs), config.packed_sequence_size)
    return Fill(
        num_packs=stats.num_packs,
        packed_sequence_size=config.packed_sequence_size,
        fill_percent=100 * stats.mean_fill,
        full_packs_percent=100 * stats.full_share,
    )


def _call(calls: Sequence[Callable[[], Counts]], number: int) -> Counts:
    return calls[number]()


def _run(
    engine: Engine, calls: Sequence[Callable[[], Counts]], sees: Sequence[Path], total: int, progress: Progress
) -> Iterator[Counts]:
    """What each call counts, in order."""
    done = 0

    def ticked(count: int) -> None:
        nonlocal done
        done = max(done, count)
        progress(done, total)

    counted = 0
    with closing(engine.map(calls, _call, range(len(calls)), ticked=ticked, sees=sees)) as results:
        for counts in results:
            yield counts
            counted += counts.num_samples  # a cluster's tasks do not say how far they are
            ticked(counted)
