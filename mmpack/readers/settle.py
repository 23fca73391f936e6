"""From a record and the pictures beside it to a record that names its pictures and passes its format's checks.

Rules for a source that keeps pictures beside its records (a tar archive):

* A record that names its pictures means parts of its sample, by their names, or whole members; case does not matter.
  A record that names one picture means the plain part (``jpg``) too, if that is the sample's only picture.
* A record that names none is taken with all of the sample's pictures, in the order of their names (numbers by value),
  if it has places for them; else as it is, if that is a sample.
* Pictures numbered in a row (``0.jpg``, ``1.jpg``, ...) are one series. A record with a single ``<image>`` for a whole
  series, which it does not name or names by whole members, means all of it: the mark is written once for each. One
  that names them as parts has been written part by part, as our own datasets are, and its marks are counted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.readers.contract import FoundSample
from mmpack.sample import IMAGE_MARK
from mmpack.sources import ParsedRecord, RecordParser

PICTURE_EXTENSIONS = frozenset(
    (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "tif", "tiff", "avif", "ppm", "pgm"),
        *("pbm", "jp2", "j2k", "qoi", "mpo", "heic", "heif"),
    )
)


def settle(sample: FoundSample, parse: RecordParser) -> tuple[object, ParsedRecord]:
    """The record with the names of its pictures, and what its format makes of it.

    Raises:
        SampleError: the record was not read, or it breaks a rule of its format or one above.
    """
    data, picture_parts = sample.record.data, sample.picture_parts
    if sample.record.error is not None:
        raise sample.record.error
    try:
        return _settled(data, picture_parts, parse)
    except SampleError as error:
        if sample.own_pictures and not picture_parts and error.reason is Reason.PLACEHOLDER_COUNT:
            raise SampleError(Reason.IMAGE_MISSING, f"{error.detail}; the sample has {sample.holds}") from None
        raise


def _settled(data: object, picture_parts: Sequence[str], parse: RecordParser) -> tuple[object, ParsedRecord]:
    names_some = isinstance(data, dict) and (data.get("image") or data.get("images"))
    if not picture_parts or not isinstance(data, dict):
        return data, parse(data)
    if names_some:
        by_parts = any(name in picture_parts for field in ("image", "images") for name in _listed(data.get(field)))
        return (data, parse(data)) if by_parts else _parsed(data, picture_parts, parse)
    with_all = {**data, "image": list(picture_parts)}
    try:
        alone: ParsedRecord | None = parse(data)
    except SampleError:
        alone = None
    if alone is not None and alone.image_names:
        return data, alone
    try:
        return _parsed(with_all, picture_parts, parse)
    except SampleError:
        if alone is not None:
            return data, alone  # pictures beside a text that has no place for them
        raise


def _listed(names: object) -> list[object]:
    return names if isinstance(names, list) else [names]


def _parsed(data: object, picture_parts: Sequence[str], parse: RecordParser) -> tuple[object, ParsedRecord]:
    try:
        return data, parse(data)
    except SampleError as error:
        if error.reason is not Reason.PLACEHOLDER_COUNT or not isinstance(data, dict) or not is_series(picture_parts):
            raise
        spread = _spread_mark(data, len(picture_parts))
        if spread is not None:
            with contextlib.suppress(SampleError):
                return spread, parse(spread)
        raise


def is_series(names: Sequence[str]) -> bool:
    """Whether names are ``0.jpg``, ``1.jpg``, ... or ``1.jpg``, ``2.png``, ..., two at least.

    >>> is_series(["0.jpg", "1.jpg"]), is_series(["first.jpg", "second.jpg"]), is_series(["jpg"])
    (True, False, False)
    """
    stems = [name.rpartition(".")[0] for name in names]
    if len(stems) < 2 or not all(stem.isascii() and stem.isdigit() and len(stem) < 10 for stem in stems):
        return False
    numbers = [int(stem) for stem in stems]
    return numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _spread_mark(data: dict[str, Any], count: int) -> dict[str, Any] | None:
    """The record with its only image mark written `count` times; None if it has none or several."""
    for field, text in (("conversations", "value"), ("messages", "content")):
        turns = data.get(field)
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            continue
        marks = [turn[text].count(IMAGE_MARK) if isinstance(turn.get(text), str) else 0 for turn in turns]
        if sum(marks) != 1:
            return None
        at = marks.index(1)
        turn = {**turns[at], text: turns[at][text].replace(IMAGE_MARK, IMAGE_MARK * count)}
        return {**data, field: [*turns[:at], turn, *turns[at + 1 :]]}
    return None


def by_number(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts names with the numbers in them by value.

    >>> sorted(["10.png", "9.png", "jpg"], key=by_number)
    ['9.png', '10.png', 'jpg']
    """
    pieces = [piece for piece in re.split(r"([0-9]+)", name) if piece]
    return [
        (not piece.isdigit(), int(piece) if piece.isdecimal() and len(piece) < 20 else 0, piece) for piece in pieces
    ]


def is_picture(name: str) -> bool:
    """Whether a file or part is called as pictures are."""
    return name.rpartition(".")[2].lower() in PICTURE_EXTENSIONS
