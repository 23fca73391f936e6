"""Pictures with their texts in a folder, and tables of text: written out as lines of JSON first, which are read then.

Rules:

* A folder of pictures, without a table beside them: a picture's text is in the file of the same name that ends in
  ``.txt`` or ``.caption``, or its record in the one that ends in ``.json``. Folders below count too; names in them
  that begin with a dot do not. The order is that of the names.
* ``metadata.jsonl``, ``metadata.csv`` and the like in a folder of pictures hold its records. Their ``file_name`` (or
  ``filename``, ``filepath``, ``file``, ``path``, ``img``, ``url``) is the picture's name below the folder.
* A table (CSV, TSV) has its columns' names in the first line; its separator is the one of ``,``, ``;`` and tab that
  stands there most often. Empty cells are not there. Text is UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.readers.json_reader import JsonFile, JsonReader
from mmpack.readers.rows import checked_row
from mmpack.readers.settle import is_picture
from mmpack.sources.json_files import MAX_RECORD_BYTES, Record

METADATA_NAMES = tuple(f"metadata.{ending}" for ending in ("jsonl", "json", "csv", "tsv", "jsonl.gz"))
_TEXT_ENDINGS = (".txt", ".caption")
_NAME_FIELDS = ("file_name", "filename", "filepath", "file", "path", "img", "image_path", "url")
_FAULT = "__fault__"  # field of a line that stands for a record which could not be made: [reason, detail]


def with_picture_name(record: Record) -> Record:
    """A record whose picture's name stands in ``"image"``, whatever the table calls it."""
    data = record.data
    if not isinstance(data, dict) or data.get("image") or data.get("images"):
        return record
    name = next((name for name in _NAME_FIELDS if isinstance(data.get(name), str) and data[name]), None)
    if name is None:
        return record
    return replace(record, data={**data, "image": data[name]})


def read_table(path: Path, name: str, spool: Path) -> JsonReader:
    """A CSV or TSV file.

    Raises:
        ConfigError: it is not UTF-8, has no rows, or its first line names no columns.
    """
    count = _write_lines(spool, _table_rows(path, name))
    if not count:
        raise ConfigError(f"{name} holds no rows: no samples in it")
    return JsonReader([JsonFile(path=spool, name=name)], change=_finished, unit="row", what="a table of pictures")


def read_captioned(folder: Path, spool: Path) -> JsonReader:
    """A folder of pictures with their texts beside them.

    Raises:
        ConfigError: there is no picture in it.
    """
    if not _write_lines(spool, _captioned(folder, folder)):
        raise ConfigError(f"{folder} holds no pictures")
    return JsonReader(
        [JsonFile(path=spool, name=str(folder))], change=_finished, unit="picture", what="pictures with texts"
    )


def _finished(record: Record) -> Record:
    data = record.data
    if isinstance(data, dict) and _FAULT in data:
        reason, detail = data[_FAULT]
        return replace(record, data={"id": data.get("id")}, error=SampleError(Reason(reason), detail))
    return with_picture_name(record)


def _write_lines(spool: Path, records: Iterator[dict[str, Any]]) -> int:
    spool.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with spool.open("w", encoding="ascii") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
            count += 1
    return count


def _table_rows(path: Path, name: str) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
            separator = max(",;\t", key=first.count)
            file.seek(0)
            rows = csv.DictReader(file, delimiter=separator, restkey=None)
            columns = [column.strip() for column in rows.fieldnames or []]
            if len(set(columns)) < len(columns) or not all(columns):
                raise ConfigError(f"{name}: the first line does not name each column once: {', '.join(columns)[:200]}")
            rows.fieldnames = columns
            for row in rows:
                if None in row:
                    what = f"more cells than the {len(columns)} columns"
                    yield {"id": row.get("id"), _FAULT: [Reason.WRONG_TYPE.value, what]}
                    continue
                yield checked_row({column: value for column, value in row.items() if value})[0]
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name} is not UTF-8 ({error.reason}); save it as UTF-8") from None
        except csv.Error as error:
            raise ConfigError(f"{name}: line {rows.line_num + 1}: {error}") from None


def _captioned(folder: Path, root: Path) -> Iterator[dict[str, Any]]:
    """Every picture below `folder` with its text, one folder's names in memory at a time."""
    with os.scandir(folder) as entries:
        found = sorted(
            (e.name, e.is_dir(follow_symlinks=False)) for e in entries if not e.name.startswith((".", "__MACOSX"))
        )
    names = {name for name, is_folder in found if not is_folder}
    for name, is_folder in found:
        path = folder / name
        if is_folder:
            yield from _captioned(path, root)
        elif is_picture(name):
            inside = path.relative_to(root).as_posix()
            try:
                record = {"id": inside} | _beside(folder, name, names)
                yield record if record.get("images") else record | {"image": inside}
            except SampleError as error:
                yield {"id": inside, _FAULT: [error.reason.value, error.detail]}


def _beside(folder: Path, name: str, names: set[str]) -> dict[str, Any]:
    """What stands in the file beside a picture."""
    stem = Path(name).stem
    for ending in (".json", *_TEXT_ENDINGS):
        for base in (stem, name):
            if base + ending in names:
                return _record_beside(folder / (base + ending))
    raise SampleError(Reason.MISSING_FIELD, f"no text beside {name[:200]!r} ({stem[:200]}.txt, .caption or .json)")


def _record_beside(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_RECORD_BYTES:
            raise SampleError(Reason.UNREADABLE, f"{path.name[:200]!r} has {size} bytes")
        content = path.read_bytes()
        if path.suffix == ".json":
            record = json.loads(content)
            if not isinstance(record, dict):
                raise SampleError(Reason.NOT_A_RECORD, f"{path.name[:200]!r} holds no object")
            return record
        return {"text": content.decode("utf-8-sig").rstrip("\r\n")}
    except OSError as error:
        raise SampleError(Reason.UNREADABLE, f"{path.name[:200]!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SampleError(Reason.BAD_TEXT, f"{path.name[:200]!r}: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise SampleError(Reason.BROKEN_JSON, f"{path.name[:200]!r}: {str(error)[:200]}") from None
