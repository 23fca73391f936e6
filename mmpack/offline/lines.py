"""The records of a text file: what `mmpack.sources.json_files` reads, and JSONL compressed under a ``.gz`` name."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sources.json_files import Record, read_records

_BOM = b"\xef\xbb\xbf"


def read_text_records(path: Path) -> Generator[Record, None, None]:
    """The records of `path` in order: a JSON list, JSONL, or JSONL.gz.

    Raises:
        ConfigError: the file is missing, empty, not UTF-8, or compressed under a name that does not say so.
    """
    if path.suffix != ".gz" or not path.is_file():
        records = read_records(path)
        first = next(records, None)
    else:
        records = _read_gzip(path)
        first = next(records, None)
    if first is None:
        raise ConfigError(f"{path} holds no samples: it is empty, or has blank lines only")
    return _with_first(first, records)


def _with_first(first: Record, rest: Iterator[Record]) -> Generator[Record, None, None]:
    yield first
    yield from rest


def _read_gzip(path: Path) -> Iterator[Record]:
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                content = (line.removeprefix(_BOM) if number == 1 else line).strip(b" \t\r\n")
                if content:
                    yield _record(f"line {number}", content)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}, behind line {number}: not a whole gzip file ({error}); copy it again") from None


def _record(place: str, content: bytes) -> Record:
    try:
        return Record(place=place, data=json.loads(content.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        return Record(place=place, data=None, error=SampleError(Reason.BROKEN_JSON, str(error)))


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
