"""Records of a JSON list or a JSONL file, one by one, with the place of each; no file is held in memory.

Rules of both kinds of file:

* What a file is decides its content, not its name: a list if it begins with ``[``, else one record a line.
* It is UTF-8; a byte order mark at the front, or at the front of a line, is skipped. Another encoding, or a file that
  is compressed although its name does not say so, is a fault of the file.
* A fault of the whole file is a ConfigError that names file, line and column. A list is one document, so whatever is
  wrong with its JSON is such a fault: a cut, a comma too many, a missing one.
* Lines end at line feeds only; U+2028, U+0085 and the like may stand raw inside a string. Blank lines do not count.
  A broken line, the last one of a file that is still being copied included, is one bad record.
* ``NaN`` and infinities are read as Python reads them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sources.json_list import scan_list

BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
MAX_RECORD_BYTES = 1 << 28  # of one line or entry: more is not read into memory
_HEAD_BYTES = 4096
_BLANKS = b" \t\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One record: its data, or why there is none."""

    place: str  # such as "entry 3" or "line 7", counted from 1
    data: object
    error: SampleError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRecord:
    """A record, and the bytes of its file that it was read from."""

    record: Record
    start: int
    size: int
    number: int  # of its entry or line, counted from 1


def read_records(path: Path) -> Iterator[Record]:
    """The records of `path` in order.

    A list is read twice, so that a fault in it is raised before the first record is handed out.

    Raises:
        ConfigError: the file is missing, empty, not UTF-8, compressed, cut, or neither a list nor lines of objects.
    """
    if is_list(path):
        for _ in scan_records(path):
            pass
    else:
        _refuse_other_texts(path, str(path))
    return (found.record for found in scan_records(path, looked_at=True))


def is_list(path: Path, *, name: str | None = None) -> bool:
    """Whether the file at `path` holds a JSON list rather than lines, by its first bytes. Errors call it `name`.

    Raises:
        ConfigError: it is missing, empty, compressed, or in another encoding.
    """
    name = name or str(path)
    if not path.is_file():
        raise ConfigError(f"{name} does not exist or is not a file")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    _refuse_other_encodings(name, head)
    first = head.removeprefix(BOM).lstrip()[:1]
    if not first:
        if path.stat().st_size <= len(head):
            raise ConfigError(f"{name} is empty: no samples in it")
        raise ConfigError(f"{name} begins with {len(head)} blank bytes: not JSON")
    return first == b"["


def scan_records(path: Path, *, name: str | None = None, looked_at: bool = False) -> Iterator[FoundRecord]:
    """The records of `path` with their places, each handed out as soon as it is read.

    Args:
        path: the file.
        name: what errors call it; None for its path.
        looked_at: it is known to be made of lines of objects, or to be a list.

    Raises:
        ConfigError: as `read_records`, some of them only once the records before the fault have been handed out.
    """
    if is_list(path, name=name):
        with path.open("rb") as file:
            begin = len(BOM) if file.read(len(BOM)) == BOM else 0
            for number, entry in enumerate(scan_list(file, begin, name or str(path), MAX_RECORD_BYTES), start=1):
                record = Record(place=f"entry {number}", data=entry.value)
                yield FoundRecord(record=record, start=entry.start, size=entry.size, number=number)
    else:
        if not looked_at:
            _refuse_other_texts(path, name or str(path))
        with path.open("rb") as file:
            yield from _scan_lines(file)


def record_in(content: bytes, place: str) -> Record:
    """The record that a line, or the bytes of one entry of a list, holds."""
    try:
        return Record(place=place, data=json.loads(content.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        what = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        return Record(place=place, data=None, error=SampleError(Reason.BROKEN_JSON, what))


def _refuse_other_encodings(name: str, head: bytes) -> None:
    encoding = json.detect_encoding(head)
    if not encoding.startswith("utf-8"):
        raise ConfigError(f"{name} is {encoding.upper()}, by its first bytes; save it as UTF-8")
    if head[:2] == GZIP_MAGIC:
        raise ConfigError(
            f"{name} looks gzip-compressed (it begins with gzip's magic bytes); unpack it, or give it a name in .gz"
        )


def _scan_lines(file: IO[bytes]) -> Iterator[FoundRecord]:
    start = 0
    for number in itertools.count(1):
        line = file.readline(MAX_RECORD_BYTES + 1)
        if not line:
            return
        size = len(line)
        if size > MAX_RECORD_BYTES and not line.endswith(b"\n"):
            while rest := file.readline(MAX_RECORD_BYTES):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
            error = SampleError(Reason.BROKEN_JSON, f"a line of {size} bytes; at most {MAX_RECORD_BYTES} are read")
            record = Record(place=f"line {number}", data=None, error=error)
            yield FoundRecord(record=record, start=start, size=size, number=number)
        elif content := line.removeprefix(BOM).strip(_BLANKS):
            skipped = len(BOM) if line.startswith(BOM) else 0
            record = record_in(content, f"line {number}")
            yield FoundRecord(record=record, start=start + skipped, size=size - skipped, number=number)
        start += size


def _refuse_other_texts(path: Path, name: str) -> None:
    """A first line that is no JSON: one object over many lines, or no JSON at all."""
    with path.open("rb") as file:
        first_records = [found.record for found in itertools.islice(_scan_lines(file), 100)]
    if not first_records or first_records[0].error is None or any(isinstance(r.data, dict) for r in first_records):
        return
    if path.stat().st_size <= MAX_RECORD_BYTES:
        try:
            whole: Any = json.loads(path.read_bytes().removeprefix(BOM))
        except (ValueError, RecursionError):
            pass
        else:
            kind = type(whole).__name__
            raise ConfigError(f"{name} holds one {kind}; expected a list of records, or one record a line")
    first = first_records[0]
    what = first.error.detail if first.error is not None else ""
    raise ConfigError(f"{name} is neither a JSON list nor JSON lines: {first.place} {what}")
