"""A picture and the text in it: ``{"image"}`` with ``"text"``, ``"lines_text"`` or ``"words_text"``.

The user's turn is the picture, a line feed and `OCR_QUESTION`; the answer is the first of these that is there: the
text as it is, the lines joined by line feeds, the words joined by blanks. Boxes are not used.
"""

from __future__ import annotations

from mmpack.sample import Role, Turn
from mmpack.sources import ParsedRecord, checks
from mmpack.sources.vqa import required_pictures

OCR_QUESTION = "Read all the text in the picture."
_JOINED_BY = {"lines_text": "\n", "words_text": " "}


def parse_ocr(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = required_pictures(record)
    name, value = checks.field_of(record, "text", *_JOINED_BY)
    if name in _JOINED_BY:
        pieces = [checks.text_of(piece, repr(name)) for piece in checks.list_of(value, repr(name))]
        text = _JOINED_BY[name].join(pieces)
    else:
        text = checks.text_of(value, repr(name))
    question = Turn(role=Role.USER, parts=checks.question_parts(OCR_QUESTION, len(names)))
    return checks.checked([question, checks.literal(Role.ASSISTANT, text)], names)
