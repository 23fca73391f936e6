"""A file of records -> rows of tokens, here or in worker processes; the order is the file's, whatever the workers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, Reason, SampleError, WorkerError
from mmpack.offline.preference import rows_of_record
from mmpack.offline.records import RecordEncoder
from mmpack.processes import end_with_parent, quiet_fork
from mmpack.sources.json_files import Record

RECORDS_PER_CALL = 256

Progress = Callable[[int, int], None]  # records done; in all, 0 while that is unknown


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenBlock:
    """The rows of some records on end, and what became of the other records."""

    token_ids_t: NDArray[np.int32]
    loss_mask_t: NDArray[np.uint8]  # 1 where the next token is a target
    lengths_n: NDArray[np.int64]
    record_n: NDArray[np.int64]  # for each row the number of its record, counted from 0; a pair has two rows
    truncated: list[str]  # places of the records that were cut
    skipped: list[tuple[str, Reason, str]]  # place, reason, detail
    num_records: int


def tokenize(
    records: Iterable[Record], encoder: RecordEncoder, *, workers: int = 1, on_error: str = "skip"
) -> Generator[TokenBlock, None, None]:
    """The blocks of all records in order. Closed early, it starts no more of them.

    Raises:
        SampleError: a bad record, with ``on_error="raise"``; it names the place.
        ConfigError: a sequence that is too long, with ``oversize="raise"``; it names the place.
    """
    calls = _numbered_chunks(records)
    if workers <= 1:
        for first, chunk in calls:
            yield encode_block(encoder, first, chunk, on_error)
        return
    waiting: deque[Future[TokenBlock]] = deque()
    context = multiprocessing.get_context("fork")
    # The pool forks at the first call, not when it is built: all of its use is within quiet_fork.
    with quiet_fork(), ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), encoder)) as pool:
        try:
            for first, chunk in calls:
                waiting.append(pool.submit(_encode_here, first, chunk, on_error))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise WorkerError("a tokenizing process died, perhaps for want of memory; try fewer workers") from None
        finally:
            for job in waiting:
                job.cancel()


def _numbered_chunks(records: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    source = iter(records)
    first = 0
    while chunk := list(itertools.islice(source, RECORDS_PER_CALL)):
        yield first, chunk
        first += len(chunk)


_encoder: Any = None  # in a worker process: what it encodes with; inherited by fork, not pickled for every call


def _start_worker(parent: int, encoder: RecordEncoder) -> None:
    global _encoder
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def _encode_here(first: int, records: Sequence[Record], on_error: str) -> TokenBlock:
    return encode_block(_encoder, first, records, on_error)


def encode_block(encoder: RecordEncoder, first: int, records: Sequence[Record], on_error: str) -> TokenBlock:
    """Encodes some records; `first` is the number of the first one."""
    ids: list[NDArray[np.int32]] = []
    masks: list[NDArray[np.uint8]] = []
    numbers: list[int] = []
    truncated: list[str] = []
    skipped: list[tuple[str, Reason, str]] = []
    for number, record in enumerate(records, start=first):
        try:
            if record.error is not None:
                raise record.error
            rows = rows_of_record(encoder, record.data)
        except ConfigError as error:
            raise ConfigError(f"{record.place}: {error}") from None
        except SampleError as error:
            if on_error == "raise":
                raise error.with_key(record.place) from None
            skipped.append((record.place, error.reason, error.detail))
            continue
        for row in rows:
            ids.append(row.token_ids_n)
            masks.append(row.loss_mask_n)
            numbers.append(number)
        if any(row.truncated for row in rows):
            truncated.append(record.place)
    return TokenBlock(
        token_ids_t=np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32),
        loss_mask_t=np.concatenate(masks) if masks else np.zeros(0, dtype=np.uint8),
        lengths_n=np.array([len(row) for row in ids], dtype=np.int64),
        record_n=np.array(numbers, dtype=np.int64),
        truncated=truncated,
        skipped=skipped,
        num_records=len(records),
    )
