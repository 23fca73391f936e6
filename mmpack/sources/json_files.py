"""Records of a JSON list or a JSONL file, one by one, with the place of each.

What a file is decides its content, not its name. A fault of the whole file is a ConfigError that names file, line
and column; a broken line of a JSONL file is one bad record.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One record: its data, or why there is none."""

    place: str  # such as "entry 3" or "line 7", counted from 1
    data: object
    error: SampleError | None = None


def read_records(path: Path) -> Iterator[Record]:
    """The records of `path` in order. A JSONL file is read line by line, a list is held in memory.

    Raises:
        ConfigError: the file is missing, empty, not UTF-8, compressed, cut, or neither a list nor lines of objects.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist or is not a file")
    with path.open("rb") as file:
        head = file.read(4096)
    _refuse_other_encodings(path, head)
    first = head.removeprefix(_BOM).lstrip()[:1]
    if not first:
        if path.stat().st_size <= len(head):
            raise ConfigError(f"{path} is empty: no samples in it")
        raise ConfigError(f"{path} begins with {len(head)} blank bytes: not JSON")
    return _read_list(path) if first == b"[" else _read_lines(path)


def _refuse_other_encodings(path: Path, head: bytes) -> None:
    encoding = json.detect_encoding(head)
    if not encoding.startswith("utf-8"):
        raise ConfigError(f"{path} is {encoding.upper()}, by its first bytes; save it as UTF-8")
    if head[:2] == b"\x1f\x8b":
        raise ConfigError(f"{path} looks gzip-compressed (it begins with gzip's magic bytes); unpack it first")


def _read_list(path: Path) -> Iterator[Record]:
    try:
        text = path.read_bytes().removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start} cannot be read; save it as UTF-8") from None
    try:
        records = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {_json_fault(error, text)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be records") from None
    if not records:
        raise ConfigError(f"{path} holds an empty list: no samples in it")
    return (Record(place=f"entry {i}", data=data) for i, data in enumerate(records, start=1))


def _json_fault(error: ValueError, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    cut = "" if text.rstrip().endswith("]") else " (the list is not closed: was the file cut?)"
    return f"line {error.lineno} column {error.colno}: {error.msg}{cut}"


def _read_lines(path: Path) -> Iterator[Record]:
    """One object a line, split at line feeds only: other separators may stand raw inside a string."""
    first = next(_lines(path))
    if first.error is not None and not any(isinstance(r.data, dict) for r in itertools.islice(_lines(path), 100)):
        _refuse_one_object(path, first)
    return _lines(path)


def _lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content = (line.removeprefix(_BOM) if number == 1 else line).strip(b" \t\r\n")
            if not content:
                continue
            place = f"line {number}"
            try:
                yield Record(place=place, data=json.loads(content.decode("utf-8")))
            except (ValueError, RecursionError) as error:
                what = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
                yield Record(place=place, data=None, error=SampleError(Reason.BROKEN_JSON, what))


def _refuse_one_object(path: Path, first: Record) -> None:
    """A first line that is no JSON: one object over many lines, or no JSON at all."""
    try:
        whole: Any = json.loads(path.read_bytes().removeprefix(_BOM))
    except (ValueError, RecursionError):
        what = first.error.detail if first.error is not None else ""
        raise ConfigError(f"{path} is neither a JSON list nor JSON lines: {first.place} {what}") from None
    raise ConfigError(f"{path} holds one {type(whole).__name__}; expected a list of records, or one record a line")
