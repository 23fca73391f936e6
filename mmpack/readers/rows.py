"""A row of a table, as Arrow hands it out, -> a record and the pictures in it.

Rules:

* Columns that are null are not there: a table has every column in every row.
* A picture is bytes, or an object of ``"bytes"`` and ``"path"``, wherever it stands. Bytes are taken from the row and
  called by the path, made unique; without them the path is one below the image folder; without either there is no
  picture. Empty places are left out of a list of pictures.
* If neither ``"image"`` nor ``"images"`` is there, a column called as pictures often are (``img``, ``picture``,
  ``jpg``, ...) stands for ``"image"``.
* Columns that hold lists or objects in most sets may hold them as JSON text. What is no JSON stays text.
* Times, decimals and the like become text.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sources import checks

PICTURE_COLUMNS = ("image", "images")
_OTHER_PICTURE_COLUMNS = ("img", "imgs", "picture", "pictures", "photo", "jpg", "jpeg", "png", "webp")
_JSON_COLUMNS = ("conversations", "messages", "conversation", "sequence", "texts", "choices", "images", "answers")


def record_of_row(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The record in a row, and its pictures by the names that the record gives them."""
    row = {name: value for name, value in row.items() if value is not None}
    for other in _OTHER_PICTURE_COLUMNS:
        if other in row and not any(name in row for name in PICTURE_COLUMNS) and _is_picture(row[other]):
            value = row.pop(other)
            row["images" if isinstance(value, list) else "image"] = value
    if "conversation" in row and "conversations" not in row:
        row["conversations"] = row.pop("conversation")
    pictures: dict[str, bytes] = {}
    record = {}
    for name, value in row.items():
        if name in _JSON_COLUMNS and isinstance(value, str):
            value = _from_json(value)
        value = _plain(value, pictures)
        if name in PICTURE_COLUMNS and isinstance(value, list):
            value = [entry for entry in value if entry is not None]
        if value is not None:
            record[name] = value
    return record, pictures


def checked_row(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """As `record_of_row`; raises SampleError for text that is none."""
    try:
        return record_of_row(row)
    except RecursionError:
        raise SampleError(Reason.WRONG_TYPE, "nested too deeply") from None


def _is_picture(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_picture(entry) for entry in value)
    return isinstance(value, bytes) or (isinstance(value, dict) and "bytes" in value)


def _from_json(text: str) -> Any:
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _plain(value: Any, pictures: dict[str, bytes]) -> Any:
    """`value` as JSON has it; pictures go to `pictures` and leave their names."""
    if isinstance(value, dict):
        if "bytes" in value and value.keys() <= {"bytes", "path"}:
            path = value.get("path") or None
            return path if value["bytes"] is None else _named(value["bytes"], path, pictures)
        return {str(name): _plain(item, pictures) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, pictures) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return _named(bytes(value), None, pictures)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal | uuid.UUID):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return f"({checks.kind_of(value)})"


def _named(data: object, path: object, pictures: dict[str, bytes]) -> str:
    """Keeps a picture under a name of its own."""
    if not isinstance(data, bytes):
        raise SampleError(Reason.WRONG_TYPE, f"a picture's 'bytes' are a {checks.kind_of(data)}")
    wanted = path if isinstance(path, str) and path else f"picture {len(pictures)}"
    name, count = wanted, 1
    while name in pictures or name[:5].lower() == "data:":
        count += 1
        name = f"{wanted.replace(':', ' ')} ({count})"
    pictures[name] = data
    return name
