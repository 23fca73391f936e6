"""A prompt and its response, without pictures: ``{"prompt", "response"}`` or ``{"input", "output"}``, both literal."""

from __future__ import annotations

from mmpack.sample import Role
from mmpack.sources import ParsedRecord, checks


def parse_prompt_response(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = checks.image_names(record)
    question = checks.literal(Role.USER, checks.text_field(record, "prompt", "input"))
    answer = checks.literal(Role.ASSISTANT, checks.text_field(record, "response", "output"))
    return checks.checked([question, answer], names)
