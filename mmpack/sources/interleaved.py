"""A document with pictures in it: ``{"sequence": [...]}``, or ``{"texts": [...], "images": [...]}`` side by side, or
texts and pictures that are matched by ``"matched_text_indices"`` or by a ``"similarity_matrix"``.

It becomes one turn of the assistant without a question before it: all of its text is learned, its pictures are not.

Rules, each with its reason when it is broken:

* A sequence holds texts (or ``{"text"}``) and pictures (``{"image": name}``). The names may stand in the record's
  ``"image"`` instead, a list in the order of the pictures.
* ``"texts"`` and ``"images"`` are lists of one length; at each place one of them is null and the other is not.
* Texts are literal and follow each other as they are: nothing is put between them.
* With ``"matched_text_indices"`` (a text's number for each picture) or a ``"similarity_matrix"`` (a row for each
  picture, a column for each text; the greatest of a row is its text) every picture stands before its text, as in
  energon's `SimilarityInterleavedSample`. The texts are sentences then: a blank is put between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import Part, PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord, checks, similarity


def parse_interleaved(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    if any(record.get(field) is not None for field in similarity.FIELDS):
        return _parse_matched(record)
    listed = checks.image_names(record, "image")
    entries = _side_by_side(record) if record.get("sequence") is None and "texts" in record else _in_sequence(record)
    parts: list[Part] = []
    own: list[str] = []
    for text, picture in entries:
        if text is not None:
            if checks.text_of(text, "a text"):
                parts.append(text)
            continue
        parts.append(PictureSlot(len(own)))
        own.append("" if listed and picture is None else checks.image_name(picture, "a picture"))
    if not parts:
        raise SampleError(Reason.EMPTY_CONVERSATION, "the document is empty")
    return checks.checked([Turn(role=Role.ASSISTANT, parts=tuple(parts))], listed or tuple(own))


def _parse_matched(record: Mapping[str, Any]) -> ParsedRecord:
    names = checks.image_names(record)
    texts = [checks.text_of(text, "a text") for text in checks.list_of(checks.field_of(record, "texts")[1], "'texts'")]
    matched = similarity.matched_texts(len(names), len(texts), *(record.get(field) for field in similarity.FIELDS))
    if "image_source" in record:
        matched.sort()  # the converter has put the pictures in reading order
    sequence = similarity.in_reading_order(texts, matched)
    order = [entry for entry in sequence if isinstance(entry, int)]
    slots = iter(range(len(order)))
    parts: list[Part] = [
        PictureSlot(next(slots)) if isinstance(entry, int) else entry for entry in sequence if entry != ""
    ]
    return checks.checked([Turn(role=Role.ASSISTANT, parts=tuple(parts))], tuple(names[i] for i in order))


_Entry = tuple[Any, Any]  # a text and None, or None and a picture


def _in_sequence(record: Mapping[str, Any]) -> list[_Entry]:
    entries: list[_Entry] = []
    for entry in checks.list_of(checks.field_of(record, "sequence")[1], "'sequence'"):
        if isinstance(entry, str):
            entries.append((entry, None))
        elif isinstance(entry, dict) and entry.get("text") is not None:
            entries.append((entry["text"], None))
        elif isinstance(entry, dict) and "image" in entry:
            entries.append((None, entry["image"]))
        else:
            kind = checks.kind_of(entry)
            raise SampleError(Reason.WRONG_TYPE, f"'sequence' holds a {kind} that is neither a text nor a picture")
    return entries


def _side_by_side(record: Mapping[str, Any]) -> list[_Entry]:
    texts = checks.list_of(record["texts"], "'texts'")
    pictures = checks.list_of(checks.field_of(record, "images")[1], "'images'")
    if len(texts) != len(pictures):
        raise SampleError(Reason.WRONG_TYPE, f"{len(texts)} 'texts' beside {len(pictures)} 'images'")
    for number, (text, picture) in enumerate(zip(texts, pictures, strict=True), start=1):
        if (text is None) == (picture is None):
            what = "neither a text nor a picture" if text is None else "a text and a picture"
            raise SampleError(Reason.WRONG_TYPE, f"place {number} has {what}")
    return list(zip(texts, pictures, strict=True))
