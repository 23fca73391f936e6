"""Where the records of a JSON list or a JSONL file begin: 8 bytes a record, found without reading a record into memory.

The same files are refused with the same words as by `mmpack.sources.json_files`. One difference: a record inside a list
that is no JSON although its braces and quotes close is one bad record here, since it is not read before it is drawn.
"""

from __future__ import annotations

import os
import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import DataError
from mmpack.indexed.json_list import ListScanner
from mmpack.sources.json_files import read_records

_BOM = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[ \t\r]*")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecordIndex:
    """Offsets of n records: record i lies in the bytes ``starts[i]`` to ``starts[i + 1] - gap``, blanks around it."""

    starts: NDArray[np.int64]  # (n + 1,)
    gap: int  # 1 in a list, for the comma

    def __len__(self) -> int:
        return len(self.starts) - 1

    def span(self, index: int) -> tuple[int, int]:
        """First byte of record `index`, and how many there are."""
        start, end = self.starts[index : index + 2].tolist()
        return start, end - self.gap - start


def index_records(path: Path) -> RecordIndex:
    """The index of the file at `path`, which is read once.

    Raises:
        ConfigError: as `mmpack.sources.json_files.read_records`.
    """
    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4096)
    if head.removeprefix(_BOM).lstrip()[:1] == b"[":
        return _index_list(path, len(_BOM) if head.startswith(_BOM) else 0)
    read_records(path)  # looks at the first lines, and refuses what is no JSONL
    return _index_lines(path, len(_BOM) if head.startswith(_BOM) else 0)


def _index_list(path: Path, begin: int) -> RecordIndex:
    scanner = ListScanner(begin)
    with path.open("rb") as file:
        file.seek(begin)
        while chunk := file.read(_CHUNK_BYTES):
            if not scanner.feed(chunk):
                break
    starts = scanner.finish()
    if starts is None or not _last_is_there(path, starts):
        for _ in read_records(path):  # reads it whole, and says what is wrong and where
            break
        raise DataError(f"{path}: the list changed while it was read")
    return RecordIndex(starts=starts, gap=1)


def _last_is_there(path: Path, starts: NDArray[np.int64]) -> bool:
    """Whether something stands before the closing bracket, as it does not in ``[]`` or behind a last comma."""
    with path.open("rb") as file:
        file.seek(int(starts[-2]))
        return bool(file.read(int(starts[-1] - starts[-2] - 1)).strip())


def _index_lines(path: Path, begin: int) -> RecordIndex:
    starts = array("q")
    undecided: int | None = begin  # start of a line of which only blanks have been read
    offset = begin
    with path.open("rb") as file:
        file.seek(begin)
        while chunk := file.read(_CHUNK_BYTES):
            if undecided is not None:
                end = _end_of_blanks(chunk, 0)
                if end < len(chunk):
                    if chunk[end] != 10:
                        starts.append(undecided)
                    undecided = None
            bytes_n = np.frombuffer(chunk, dtype=np.uint8)
            lines = np.flatnonzero(bytes_n == 10) + 1
            if len(lines) and lines[-1] == len(chunk):
                undecided, lines = offset + len(chunk), lines[:-1]
            first = bytes_n[lines]
            lines, first = lines[first != 10], first[first != 10]
            suspects = np.flatnonzero((first == 32) | (first == 9) | (first == 13))
            if len(suspects):
                keep = np.ones(len(lines), dtype=np.bool_)
                for i in suspects.tolist():
                    end = _end_of_blanks(chunk, int(lines[i]))
                    keep[i] = end < len(chunk) and chunk[end] != 10
                    if end == len(chunk):
                        undecided = offset + int(lines[i])
                lines = lines[keep]
            starts.frombytes((lines.astype(np.int64) + offset).tobytes())
            offset += len(chunk)
    starts.append(os.stat(path).st_size)
    return RecordIndex(starts=np.frombuffer(starts, dtype=np.int64), gap=0)


def _end_of_blanks(chunk: bytes, start: int) -> int:
    match = _BLANKS.match(chunk, start)
    assert match is not None
    return match.end()
