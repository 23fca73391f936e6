"""Record formats: how a file's records are read, and how one record becomes checked turns and picture names.

A format is one file and one line in `SOURCES`: a function ``(record) -> ParsedRecord`` that knows nothing of files,
so that it serves the converter and the reader of the converted dataset alike. `detect` says which one fits a record.

Rules of all formats (the rules of one are in its module):

* The record is an object, and no text in it holds half of a surrogate pair.
* Pictures are named by ``"image"`` or, without it, ``"images"``: a name, an object with ``"path"``, or a list of
  these. A format that can name a picture where it stands takes the name from there if the record has no such list.
  A name is a path below the image folder, a part of the sample, or a ``data:`` URL that holds the picture itself.
* There are as many places for pictures in the turns as pictures, in the same order.
* At least one text is learned that is not blank. Text is kept to the character.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mmpack.errors import Reason, SampleError
from mmpack.registry import Registry
from mmpack.sample import Turn
from mmpack.sources.detect import detect

__all__ = ["AUTO", "SOURCES", "ParsedRecord", "RecordParser", "detect", "parser_for"]

AUTO = "auto"  # in place of a format: each record by its fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedRecord:
    """A record that passed its checks: one picture slot in the turns for every name, at least one answer."""

    turns: tuple[Turn, ...]
    image_names: tuple[str, ...]  # as the record has them: paths below an image folder, or parts of a sample


RecordParser = Callable[[object], ParsedRecord]

SOURCES: Registry[RecordParser] = Registry(
    "record format",
    {
        "llava": "mmpack.sources.llava:parse_llava",
        "sharegpt": "mmpack.sources.sharegpt:parse_sharegpt",
        "openai": "mmpack.sources.openai:parse_openai",
        "messages": "mmpack.sources.openai:parse_openai",
        "chat": "mmpack.sources.openai:parse_openai",
        "vqa": "mmpack.sources.vqa:parse_vqa",
        "multi_choice": "mmpack.sources.multi_choice:parse_multi_choice",
        "captioning": "mmpack.sources.captioning:parse_captioning",
        "ocr": "mmpack.sources.ocr:parse_ocr",
        "interleaved": "mmpack.sources.interleaved:parse_interleaved",
        "text": "mmpack.sources.text:parse_text",
        "prompt_response": "mmpack.sources.prompt_response:parse_prompt_response",
    },
)


def parser_for(record_format: str) -> RecordParser:
    """The parser of a format, or for ``auto`` one that looks at the fields of each record.

    Raises:
        ConfigError: unknown format, with the nearest name.

    >>> parser_for("auto")({"text": "all of it"}).turns[0].text
    'all of it'
    """
    if record_format == AUTO:
        return _parse_detected
    return partial(_parse_named, record_format, SOURCES.get(record_format))


def _parse_named(name: str, parse: RecordParser, record: object) -> ParsedRecord:
    try:
        return parse(record)
    except SampleError as error:
        found = detect(record) if error.reason is Reason.MISSING_FIELD else None
        if found is None or SOURCES.get(found) is parse:
            raise
        raise SampleError(
            error.reason,
            f"{error.detail}; it was read as {name!r} but looks like {found!r}: name that format, or 'auto'",
        ) from None


def _parse_detected(record: object) -> ParsedRecord:
    found = detect(record)
    if found is None:
        if not isinstance(record, dict):
            raise SampleError(Reason.NOT_A_RECORD, "a record is an object")
        fields = ", ".join(name[:40] for name in sorted(map(str, record))[:8]) or "none"
        raise SampleError(Reason.MISSING_FIELD, f"no format has these fields: {fields}; name the format")
    return SOURCES.get(found)(record)
