"""A text to be learned as it is: ``{"text"}``. It becomes one turn of the assistant; pictures have no place in it."""

from __future__ import annotations

from mmpack.sample import Role
from mmpack.sources import ParsedRecord, checks


def parse_text(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = checks.image_names(record)
    return checks.checked([checks.literal(Role.ASSISTANT, checks.text_field(record, "text"))], names)
