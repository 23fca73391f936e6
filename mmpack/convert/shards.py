"""Records and pictures -> shards, here or in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.energon.writer import OutSample, ShardWriter, StoredSample
from mmpack.errors import Reason, SampleError, WorkerError
from mmpack.images import image_extension, image_size
from mmpack.processes import end_with_parent, quiet_fork
from mmpack.sample import Picture
from mmpack.sources import parser_for
from mmpack.sources.inline import inline_picture, short_name
from mmpack.sources.json_files import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one record so far."""

    reason: Reason | None = None
    detail: str | None = None
    num_pictures: int = 0


Call = tuple[Path, Sequence[tuple[int, Record]], Path, str, str]


def run_shards(calls: Iterable[Call], workers: int) -> Generator[ShardResult, None, None]:
    """`_write_shard` of each call, in order. Closed early, it starts no more and the shards begun are broken off."""
    if workers <= 1:
        for call in calls:
            yield _write_shard(*call)
        return
    waiting: deque[Future[ShardResult]] = deque()
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    # The pool forks at the first call, not when it is built: all of its use is within quiet_fork.
    with quiet_fork(), ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), stop)) as pool:
        try:
            for call in calls:
                waiting.append(pool.submit(_write_shard, *call))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise WorkerError("a converting process died, perhaps for want of memory; try fewer workers") from None
        finally:
            stop.set()
            for job in waiting:
                job.cancel()


_stop: Any = None  # in a worker process: the event that says that nobody waits for its shard any more


def _start_worker(parent: int, stop: Any) -> None:
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


@dataclass(frozen=True, slots=True)
class ShardResult:
    outcomes: list[Outcome]  # of each record of the shard, in order
    samples: list[StoredSample]


def _write_shard(
    path: Path, records: Sequence[tuple[int, Record]], image_root: Path, source_format: str, on_error: str
) -> ShardResult:
    """Writes one shard and says what became of each record. No file stays if none was kept."""
    outcomes = []
    with ShardWriter(path) as shard:
        for position, record in records:
            if _stop is not None and _stop.is_set():
                break
            try:
                sample = _out_sample(key_of(position), record, image_root, source_format)
            except SampleError as error:
                if on_error == "raise":
                    raise error.with_key(name_of(record)) from None
                outcomes.append(Outcome(error.reason, error.detail))
                continue
            shard.add(sample)
            outcomes.append(Outcome(num_pictures=len(sample.pictures)))
    if not shard.samples:
        path.unlink()
        path.with_suffix(".tar.idx").unlink()
    return ShardResult(outcomes, shard.samples)


def key_of(position: int) -> str:
    return f"{position:08d}"


def _out_sample(key: str, record: Record, image_root: Path, source_format: str) -> OutSample:
    parsed = parser_for(source_format)(record.data)
    pictures = tuple(_picture(image_root, name) for name in parsed.image_names)
    for picture in pictures:
        try:
            image_size(picture.data)
        except SampleError as error:
            raise SampleError(error.reason, f"{picture.name}: {error.detail}") from None
    assert isinstance(record.data, dict)
    extensions = tuple(image_extension(picture.data) for picture in pictures)
    return OutSample(key=key, record=record.data, pictures=pictures, extensions=extensions)


def _picture(image_root: Path, name: str) -> Picture:
    """The picture that a record names: written into the record itself, or a file."""
    written = inline_picture(name)
    if written is not None:
        return Picture(name=short_name(name), data=written)
    return Picture(name=name, data=_read(image_root, name))


def _read(image_root: Path, name: str) -> bytes:
    inside = os.path.normpath(name)
    if os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir:
        raise SampleError(Reason.IMAGE_MISSING, f"{name!r} leads out of the image folder")
    path = image_root / inside
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            raise SampleError(Reason.IMAGE_MISSING, f"{name!r} is not a file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SampleError(Reason.IMAGE_MISSING, f"{name!r}: {what}") from None


def name_of(record: Record) -> str:
    identity = record.data.get("id") if isinstance(record.data, dict) else None
    return f"{record.place}, id {identity!r}" if identity is not None else record.place
