"""Records with pictures -> an Energon dataset, in parallel, whole or not at all.

Everything is written into a hidden folder beside the destination, which takes its place at the very end. Which sample
goes to which shard depends on its position in the file and the seed alone, so any number of workers writes the same
bytes. Pictures are probed by their headers; decoding every one to find those that are damaged further in is not done.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mmpack.energon.writer import OutSample, ShardWriter, write_metadata
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.images import image_extension, image_size
from mmpack.processes import end_with_parent, quiet_fork, terminate_as_exit
from mmpack.sample import Picture
from mmpack.sources import SOURCES
from mmpack.sources.json_files import Record, read_records

REPORT_NAME = "convert-report.json"
ON_ERROR = ("skip", "raise")
Progress = Callable[[int, int], None]  # records done, records in all


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """What to convert and how.

    Args:
        src: a file of records.
        dst: folder of the new dataset.
        image_root: folder that the records' picture paths are relative to; None for the folder of `src`.
        format: a name of `mmpack.sources.SOURCES`.
        split: share of each split, in the order of the dataset; a split that is asked for never stays empty.
        workers: processes; 0 and 1 convert in this one.
        on_error: ``"skip"`` counts a bad sample and goes on, ``"raise"`` stops at it.
        seed: of the choice of splits.
        max_samples_per_shard: shards get smaller where a split would have fewer than eight.
        overwrite: replace `dst` if it exists.
    """

    src: Path
    dst: Path
    image_root: Path | None = None
    format: str = "llava"
    split: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    workers: int = 1
    on_error: str = "skip"
    seed: int = 0
    max_samples_per_shard: int = 1000
    overwrite: bool = False

    def __post_init__(self) -> None:
        SOURCES.get(self.format)
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on_error={self.on_error!r}; allowed: {', '.join(ON_ERROR)}")
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}; it must not be negative")
        if self.max_samples_per_shard < 1:
            raise ConfigError(f"max_samples_per_shard={self.max_samples_per_shard}; it must be at least 1")
        if not self.split or any(not name.isidentifier() for name in self.split):
            raise ConfigError(f"split={dict(self.split)}; give names and shares, such as train=0.9,val=0.1")
        if any(not share > 0 for share in self.split.values()):
            raise ConfigError(f"split={dict(self.split)}; every share must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleReport:
    """What became of one record. `key` is empty if it was not kept."""

    id: Any  # as the record has it; None if it has none
    key: str
    reason: str | None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """What a conversion did."""

    path: Path
    samples: tuple[SampleReport, ...]
    splits: Mapping[str, int]  # kept samples of each
    num_shards: int
    num_pictures: int
    num_bytes: int  # of the shards
    seconds: float

    @property
    def kept(self) -> int:
        return sum(self.splits.values())

    @property
    def skipped(self) -> dict[str, int]:
        """Skipped records by reason."""
        return dict(sorted(Counter(s.reason for s in self.samples if s.reason is not None).items()))

    @property
    def num_duplicate_ids(self) -> int:
        """Kept samples whose id an earlier one has. All are kept: keys are unique whatever the ids are."""
        ids = Counter(repr(s.id) for s in self.samples if s.reason is None and s.id is not None)
        return sum(count - 1 for count in ids.values())

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, as `convert-report.json` holds it."""
        samples = []
        for sample in self.samples:
            entry = {"id": sample.id, "key": sample.key, "reason": sample.reason}
            samples.append(entry if sample.detail is None else {**entry, "detail": sample.detail})
        return {
            "kept": self.kept,
            "skipped": self.skipped,
            "duplicate_ids": self.num_duplicate_ids,
            "splits": dict(self.splits),
            "shards": self.num_shards,
            "pictures": self.num_pictures,
            "bytes": self.num_bytes,
            "seconds": round(self.seconds, 3),
            "path": str(self.path),
            "samples": samples,
        }


def convert(config: ConvertConfig, progress: Progress = lambda done, total: None) -> ConvertReport:
    """Converts, or leaves nothing behind.

    Raises:
        ConfigError: the source cannot be read, the destination exists, or a split would be empty.
        SampleError: a bad sample, with ``on_error="raise"``.
    """
    started = time.perf_counter()
    if config.dst.exists() and not config.overwrite and (not config.dst.is_dir() or any(config.dst.iterdir())):
        raise ConfigError(f"{config.dst} already exists; choose another destination, or overwrite it (--overwrite)")
    image_root = config.image_root if config.image_root is not None else config.src.parent
    if not image_root.is_dir():
        raise ConfigError(f"image_root={str(image_root)!r} is not a folder")
    records = list(read_records(config.src))
    if not records:
        raise ConfigError(f"{config.src} holds no samples")
    tasks = plan_shards(config, len(records))
    with terminate_as_exit(), _partial_folder(config.dst) as folder:
        outcomes = _write_shards(config, image_root, records, tasks, folder, progress)
        report = _report(config, records, tasks, outcomes, folder, started)
        _refuse_empty_splits(config, report)
        splits: dict[str, list[str]] = {name: [] for name in config.split}
        for task in tasks:
            if (folder / task.name).exists():
                splits[task.split].append(task.name)
        write_metadata(folder, splits, workers=config.workers)
        text = json.dumps(report.to_json(), ensure_ascii=True, indent=1, allow_nan=False, default=str)
        (folder / REPORT_NAME).write_text(text + "\n", encoding="utf-8")
        _take_place(folder, config.dst)
    return report


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """One shard to be written: its name, and the positions of its records in the file."""

    name: str
    split: str
    positions: tuple[int, ...]


def plan_shards(config: ConvertConfig, num_records: int) -> list[ShardTask]:
    """Which record goes where: exact shares by a seeded choice, the order of the file within each split."""
    if num_records < len(config.split):
        raise ConfigError(
            f"{num_records} samples cannot fill the splits {', '.join(config.split)}; ask for fewer splits"
        )
    order = list(range(num_records))
    random.Random(config.seed).shuffle(order)
    tasks: list[ShardTask] = []
    start = 0
    for split, count in _counts(config.split, num_records).items():
        positions = sorted(order[start : start + count])
        start += count
        size = min(config.max_samples_per_shard, max(1, -(-count // 8)))
        for number, first in enumerate(range(0, count, size)):
            chosen = tuple(positions[first : first + size])
            tasks.append(ShardTask(name=f"{split}-{number:06d}.tar", split=split, positions=chosen))
    return tasks


def _counts(split: Mapping[str, float], total: int) -> dict[str, int]:
    """`total` divided by shares, largest remainders first; a part that would be 0 takes one from the largest.

    >>> _counts({"train": 0.9, "val": 0.08, "test": 0.02}, 40)
    {'train': 36, 'val': 3, 'test': 1}
    >>> _counts({"train": 0.9, "val": 0.1}, 2)
    {'train': 1, 'val': 1}
    """
    whole = sum(split.values())
    exact = {name: total * share / whole for name, share in split.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not count:
            counts[max(counts, key=lambda other: counts[other])] -= 1
            counts[name] = 1
    return counts


@contextmanager
def _partial_folder(dst: Path) -> Iterator[Path]:
    """A hidden folder beside `dst` for this process; gone at the end. Those of processes that died are removed."""
    dst.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{dst.name}.partial-"
    for stale in dst.parent.glob(prefix + "*"):
        pid = stale.name.removeprefix(prefix)
        if not (pid.isdigit() and Path(f"/proc/{pid}").exists()):
            shutil.rmtree(stale, ignore_errors=True)
    folder = dst.parent / f"{prefix}{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take_place(folder: Path, dst: Path) -> None:
    """Puts the finished `folder` where `dst` is, and removes what was there."""
    if dst.exists():
        old = folder.with_name(folder.name + "-old")
        dst.rename(old)
        folder.rename(dst)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(dst)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a worker reports of one record."""

    position: int
    reason: str | None
    detail: str | None
    num_pictures: int


def _write_shards(
    config: ConvertConfig,
    image_root: Path,
    records: Sequence[Record],
    tasks: Sequence[ShardTask],
    folder: Path,
    progress: Progress,
) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    with _executor(config.workers) as pool:
        jobs = []
        for task in tasks:
            chosen = [(position, records[position]) for position in task.positions]
            call = (folder / task.name, chosen, image_root, config.format, config.on_error)
            jobs.append(pool.submit(_write_shard, *call))
        for job in jobs:
            outcomes += job.result()
            progress(len(outcomes), len(records))
    return sorted(outcomes, key=lambda outcome: outcome.position)


def _executor(workers: int) -> Executor:
    if workers <= 1:
        return _Inline()
    with quiet_fork():
        return ProcessPoolExecutor(
            workers, multiprocessing.get_context("fork"), initializer=end_with_parent, initargs=(os.getpid(),)
        )


class _Inline(Executor):
    """Runs a call when its result is asked for, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _Lazy(lambda: fn(*args, **kwargs))


class _Lazy(Future[Any]):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        return self._call()


def _write_shard(
    path: Path, records: Sequence[tuple[int, Record]], image_root: Path, source_format: str, on_error: str
) -> list[_Outcome]:
    """Writes one shard and says what became of each record. No file stays if none was kept."""
    outcomes = []
    with ShardWriter(path) as shard:
        for position, record in records:
            try:
                sample = _out_sample(f"{position:08d}", record, image_root, source_format)
            except SampleError as error:
                if on_error == "raise":
                    raise error.with_key(_name(record)) from None
                outcomes.append(_Outcome(position, error.reason.value, error.detail, 0))
                continue
            shard.add(sample)
            outcomes.append(_Outcome(position, None, None, len(sample.pictures)))
    if not shard.num_samples:
        path.unlink()
    return outcomes


def _out_sample(key: str, record: Record, image_root: Path, source_format: str) -> OutSample:
    if record.error is not None:
        raise record.error
    parsed = SOURCES.get(source_format)(record.data)
    pictures = tuple(Picture(name=name, data=_read(image_root, name)) for name in parsed.image_names)
    for picture in pictures:
        try:
            image_size(picture.data)
        except SampleError as error:
            raise SampleError(error.reason, f"{picture.name}: {error.detail}") from None
    assert isinstance(record.data, dict)
    extensions = tuple(image_extension(picture.data) for picture in pictures)
    return OutSample(key=key, record=record.data, pictures=pictures, extensions=extensions)


def _read(image_root: Path, name: str) -> bytes:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SampleError(Reason.IMAGE_MISSING, f"{name!r} leads out of the image folder")
    try:
        return (image_root / path).read_bytes()
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SampleError(Reason.IMAGE_MISSING, f"{name!r}: {what}") from None


def _name(record: Record) -> str:
    identity = record.data.get("id") if isinstance(record.data, dict) else None
    return f"{record.place}, id {identity!r}" if identity is not None else record.place


def _report(
    config: ConvertConfig,
    records: Sequence[Record],
    tasks: Sequence[ShardTask],
    outcomes: Sequence[_Outcome],
    folder: Path,
    started: float,
) -> ConvertReport:
    split_of = {position: task.split for task in tasks for position in task.positions}
    splits = dict.fromkeys(config.split, 0)
    samples = []
    for outcome, record in zip(outcomes, records, strict=True):
        kept = outcome.reason is None
        splits[split_of[outcome.position]] += kept
        identity = record.data.get("id") if isinstance(record.data, dict) else None
        key = f"{outcome.position:08d}" if kept else ""
        detail = None if kept else f"{record.place}: {outcome.detail}"
        samples.append(SampleReport(id=identity, key=key, reason=outcome.reason, detail=detail))
    shards = [folder / task.name for task in tasks if (folder / task.name).exists()]
    return ConvertReport(
        path=config.dst,
        samples=tuple(samples),
        splits=splits,
        num_shards=len(shards),
        num_pictures=sum(outcome.num_pictures for outcome in outcomes),
        num_bytes=sum(shard.stat().st_size for shard in shards),
        seconds=time.perf_counter() - started,
    )


def _refuse_empty_splits(config: ConvertConfig, report: ConvertReport) -> None:
    skipped = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items())
    if not report.kept:
        raise ConfigError(f"{config.src}: none of {len(report.samples)} samples can be used ({skipped})")
    if empty := [name for name, count in report.splits.items() if not count]:
        names = ", ".join(empty)
        raise ConfigError(f"split {names} would be empty ({skipped or 'too few samples'}); ask for fewer splits")
