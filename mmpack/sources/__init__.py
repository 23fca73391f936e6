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

from mmpack.registry import Registry
from mmpack.sample import Turn
from mmpack.sources.detect import detect

__all__ = ["SOURCES", "ParsedRecord", "RecordParser", "detect"]


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
