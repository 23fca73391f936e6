"""Records and pictures -> shards, by whatever engine runs the tasks."""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mmpack.convert.books import PlaceFile, key_of
from mmpack.convert.pictures import find_picture
from mmpack.convert.plan import ShardTask
from mmpack.energon.writer import OutSample, Part, ShardWriter, StoredSample, sample_parts, stored_bytes
from mmpack.engine import Engine, Remembered, stopped
from mmpack.errors import Reason, SampleError
from mmpack.images import image_extension
from mmpack.readers import FoundSample, Reader, settle
from mmpack.sources import parser_for
from mmpack.sources.json_files import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardJob:
    """What all shards have in common; it can be sent to other machines.

    `spool` holds what this run alone needs, within `folder`: shards grow there and are moved to their place whole.
    `done` is the folder that remembers finished shards for another run; None to remember nothing.
    """

    folder: Path
    spool: Path
    done: Path | None
    sources: tuple[Path, ...]
    reader: Reader
    places: PlaceFile
    image_root: Path
    format: str
    on_error: str
    max_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A tar file, and what is in it."""

    name: str
    samples: list[StoredSample]
    num_bytes: int
    checksum: tuple[int, int] | None = None  # of the file and its index; taken where shards are remembered


@dataclass(kw_only=True, slots=True)
class ShardResult:
    """What became of a task's records: the shards that hold the good ones, and the faults of the others."""

    shards: list[WrittenShard] = field(default_factory=list)
    faults: list[tuple[int, Reason, str]] = field(default_factory=list)  # position, reason, detail
    num_pictures: int = 0


def run_shards(engine: Engine, job: ShardJob, tasks: Iterable[ShardTask]) -> Generator[ShardResult, None, None]:
    """`write_shard` of each task, in order. Closed early, it starts no more and the shards begun are broken off.

    With `job.done`, a shard that an earlier run has finished is looked at and taken as it is.
    """
    function: Callable[[ShardJob, ShardTask], ShardResult] = write_shard
    if job.done is not None:
        job.done.mkdir(exist_ok=True)
        function = Remembered(function=write_shard, folder=job.done, name_of=_name_of_task, still_good=_are_whole)
    sees = (job.folder, job.spool, job.image_root, *job.sources)
    return engine.map(job, function, tasks, sees=sees)


def _name_of_task(task: ShardTask) -> str:
    return f"{task.name}-{hashlib.blake2b(task.positions.tobytes(), digest_size=8).hexdigest()}"


def _are_whole(job: ShardJob, result: ShardResult) -> bool:
    """Whether the shards of a result lie there with the bytes that were written."""
    return all(_checksum(job.folder / shard.name) == shard.checksum for shard in result.shards)


def _checksum(path: Path) -> tuple[int, int] | None:
    """CRC-32 of a shard and of its index; None where one of them is missing."""
    sums = []
    for file in (path, path.with_suffix(".tar.idx")):
        value = 0
        try:
            with file.open("rb") as content:
                while block := content.read(1 << 20):
                    value = zlib.crc32(block, value)
        except FileNotFoundError:
            return None
        sums.append(value)
    return sums[0], sums[1]


def write_shard(job: ShardJob, task: ShardTask) -> ShardResult:
    """Writes the good records of one task, to more than one file where they are larger than a shard may be."""
    result = ShardResult()
    shard = _OpenShard(job, task.name, result)
    try:
        found = job.reader.fetch(job.places.at(task.positions))
        for position, sample in zip(task.positions.tolist(), found, strict=True):
            if stopped():
                break
            try:
                parts = _parts(key_of(position), sample, job)
            except SampleError as error:
                if job.on_error == "raise":
                    raise error.with_key(name_of(sample.record)) from None
                result.faults.append((position, error.reason, f"{sample.record.place}: {error.detail}"))
                continue
            shard.put(key_of(position), parts)
            result.num_pictures += len(parts) - 1
    finally:
        shard.close()
    return result


class _OpenShard:
    """The file that is being written: none before the first sample, the next one when a sample does not fit."""

    def __init__(self, job: ShardJob, name: str, result: ShardResult) -> None:
        self._job = job
        self._name = name
        self._result = result
        self._writer: ShardWriter | None = None
        self._growing = job.spool / f"{uuid.uuid4().hex}.tar"  # another worker may be at the same task

    def put(self, key: str, parts: list[Part]) -> None:
        if self._writer is not None and self._writer.num_bytes + stored_bytes(parts) > self._job.max_bytes:
            self.close()
        if self._writer is None:
            self._writer = ShardWriter(self._growing)
        self._writer.put(key, parts)

    def _file_name(self) -> str:
        number = len(self._result.shards)
        return self._name if not number else f"{self._name.removesuffix('.tar')}_{number:03d}.tar"

    def close(self) -> None:
        if self._writer is not None:
            name = self._file_name()
            self._writer.close()
            size = self._growing.stat().st_size
            place = self._job.folder / name
            self._growing.with_suffix(".tar.idx").replace(place.with_suffix(".tar.idx"))
            self._growing.replace(place)
            checksum = None if self._job.done is None else _checksum(place)
            shard = WrittenShard(name=name, samples=self._writer.samples, num_bytes=size, checksum=checksum)
            self._result.shards.append(shard)
            self._writer = None


def _parts(key: str, sample: FoundSample, job: ShardJob) -> list[Part]:
    data, parsed = settle(sample, parser_for(job.format))
    pictures = tuple(find_picture(sample, name, job.image_root) for name in parsed.image_names)
    assert isinstance(data, dict)
    extensions = tuple(image_extension(picture.data) for picture in pictures)
    return sample_parts(OutSample(key=key, record=data, pictures=pictures, extensions=extensions))


def name_of(record: Record) -> str:
    """Where a record stands, and its id."""
    identity = record.data.get("id") if isinstance(record.data, dict) else None
    return f"{record.place}, id {identity!r}" if identity is not None else record.place
