"""A prompt and its response: ``{"prompt", "response"}``, ``{"input", "output"}``, or with an ``"instruction"``.

Rules:

* The response is the first of ``"response"``, ``"output"`` and ``"completion"``, literally.
* With an ``"instruction"`` (Alpaca's and Dolly's records) that is the question; ``"input"`` or ``"context"`` follow it
  after a line feed, unless they are blank. Without one, ``"prompt"`` or ``"input"`` is the question.
* Without pictures the question is literal. With pictures they stand as in `mmpack.sources.vqa`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmpack.sample import Role, Turn
from mmpack.sources import ParsedRecord, checks


def parse_prompt_response(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = checks.image_names(record)
    text = _question(record)
    if names:
        question = Turn(role=Role.USER, parts=checks.question_parts(text, len(names)))
    else:
        question = checks.literal(Role.USER, text)
    answer = checks.literal(Role.ASSISTANT, checks.text_field(record, "response", "output", "completion"))
    return checks.checked([question, answer], names)


def _question(record: Mapping[str, Any]) -> str:
    if record.get("instruction") is None:
        return checks.text_field(record, "prompt", "input")
    instruction = checks.text_field(record, "instruction")
    if record.get("input") is None and record.get("context") is None:
        return instruction
    beside = checks.text_field(record, "input", "context")
    return f"{instruction}\n{beside}" if beside.strip() else instruction
