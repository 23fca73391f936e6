"""A file of records -> rows of tokens; the order is the file's, whatever engine runs the tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmpack.engine import Engine, Remembered, open_engine
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.offline.preference import rows_of_record
from mmpack.offline.records import RecordEncoder
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
    records: Iterable[Record],
    encoder: RecordEncoder,
    *,
    workers: int = 1,
    on_error: str = "skip",
    engine: Engine | None = None,
    done: Path | None = None,
) -> Generator[TokenBlock, None, None]:
    """The blocks of all records in order. Closed early, it starts no more of them.

    Args:
        engine: runs the tasks; None for `workers` processes of this machine.
        done: an existing folder that remembers blocks, for the same records and encoder; None to remember none.

    Raises:
        SampleError: a bad record, with ``on_error="raise"``; it names the place.
        ConfigError: a sequence that is too long, with ``oversize="raise"``; it names the place.
    """
    if engine is None:
        engine = open_engine("local", workers, what="tokenizing")
    function: Callable[[_Job, _Chunk], TokenBlock] = _encode_chunk
    if done is not None:
        function = Remembered(function=_encode_chunk, folder=done, name_of=_name_of_chunk, still_good=_holds)
    sees = () if done is None else (done,)
    yield from engine.map((encoder, on_error), function, _numbered_chunks(records), sees=sees)


_Job = tuple[RecordEncoder, str]  # and what becomes of a bad record
_Chunk = tuple[int, list[Record]]  # the number of the first one, and the records


def _encode_chunk(job: _Job, chunk: _Chunk) -> TokenBlock:
    return encode_block(job[0], *chunk, job[1])


def _name_of_chunk(chunk: _Chunk) -> str:
    return f"{chunk[0]:012d}"


def _holds(job: _Job, block: TokenBlock) -> bool:
    return True  # the block is all there is


def _numbered_chunks(records: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    source = iter(records)
    first = 0
    while chunk := list(itertools.islice(source, RECORDS_PER_CALL)):
        yield first, chunk
        first += len(chunk)


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
