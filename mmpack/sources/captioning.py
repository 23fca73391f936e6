"""A picture and its caption: ``{"image", "caption" or "text"}``.

The user's turn is the picture alone (all of them, if there are several), the assistant's the caption, literally.
"""

from __future__ import annotations

from mmpack.sample import PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord, checks
from mmpack.sources.vqa import required_pictures


def parse_captioning(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = required_pictures(record)
    caption = checks.text_field(record, "caption", "text")
    pictures = Turn(role=Role.USER, parts=tuple(map(PictureSlot, range(len(names)))))
    return checks.checked([pictures, checks.literal(Role.ASSISTANT, caption)], names)
