"""Records and pictures -> shards, here or in worker processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmpack.convert.books import Books, key_of
from mmpack.convert.pictures import find_picture
from mmpack.convert.plan import ShardTask
from mmpack.energon.writer import OutSample, Part, ShardWriter, StoredSample, sample_parts, stored_bytes
from mmpack.errors import Reason, SampleError, WorkerError
from mmpack.images import image_extension
from mmpack.processes import end_with_parent, quiet_fork
from mmpack.readers import FoundSample, Reader, settle
from mmpack.sources import parser_for
from mmpack.sources.json_files import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardJob:
    """What all shards have in common."""

    folder: Path
    reader: Reader
    books: Books
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


@dataclass(kw_only=True, slots=True)
class ShardResult:
    """What became of a task's records: the shards that hold the good ones, and the faults of the others."""

    shards: list[WrittenShard] = field(default_factory=list)
    faults: list[tuple[int, Reason, str]] = field(default_factory=list)  # position, reason, detail
    num_pictures: int = 0


def run_shards(job: ShardJob, tasks: Iterable[ShardTask], workers: int) -> Generator[ShardResult, None, None]:
    """`write_shard` of each task, in order. Closed early, it starts no more and the shards begun are broken off."""
    if workers <= 1:
        for task in tasks:
            yield write_shard(job, task)
        return
    waiting: deque[Future[ShardResult]] = deque()
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    gc.freeze()  # a collection in a child would touch, and so copy, all that it shares with its parent
    # The pool forks at the first call, not when it is built: all of its use is within quiet_fork.
    with quiet_fork(), ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), stop, job)) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(_write_shard_here, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise WorkerError("a converting process died, perhaps for want of memory; try fewer workers") from None
        finally:
            gc.unfreeze()
            stop.set()
            for waiting_job in waiting:
                waiting_job.cancel()


_stop: Any = None  # in a worker process: the event that says that nobody waits for its shard any more
_job: ShardJob | None = None  # in a worker process: what it was forked with


def _start_worker(parent: int, stop: Any, job: ShardJob) -> None:
    global _stop, _job
    _stop, _job = stop, job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def _write_shard_here(task: ShardTask) -> ShardResult:
    assert _job is not None
    return write_shard(_job, task)


def write_shard(job: ShardJob, task: ShardTask) -> ShardResult:
    """Writes the good records of one task, to more than one file where they are larger than a shard may be."""
    result = ShardResult()
    shard = _OpenShard(job, task.name, result)
    try:
        found = job.reader.fetch(job.books.places(task.positions))
        for position, sample in zip(task.positions.tolist(), found, strict=True):
            if _stop is not None and _stop.is_set():
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

    def put(self, key: str, parts: list[Part]) -> None:
        if self._writer is not None and self._writer.num_bytes + stored_bytes(parts) > self._job.max_bytes:
            self.close()
        if self._writer is None:
            self._writer = ShardWriter(self._job.folder / self._file_name())
        self._writer.put(key, parts)

    def _file_name(self) -> str:
        number = len(self._result.shards)
        return self._name if not number else f"{self._name.removesuffix('.tar')}_{number:03d}.tar"

    def close(self) -> None:
        if self._writer is not None:
            name = self._file_name()
            self._writer.close()
            size = (self._job.folder / name).stat().st_size
            self._result.shards.append(WrittenShard(name=name, samples=self._writer.samples, num_bytes=size))
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
