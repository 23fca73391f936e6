"""A question with lettered choices: ``{"question" or "context", "choices" or "options", "answer"}``.

The turns are always these, and there is nothing to configure::

    user        pictures (as in `mmpack.sources.vqa`, but none is needed), then the question and a line for each choice:
                Which animal is it?
                A. cat
                B. dog
    assistant   B. dog

Rules, each with its reason when it is broken:

* ``"choices"`` (or ``"options"``) are 1 to 26 texts.
* The right one, ``"answer"`` or ``"correct_choice_idx"``, is an index from 0, the text of a choice (of the first, if
  several are equal), or its letter: ``B``, ``b``, ``(B)``, ``B.`` or ``B)``.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import Role, Turn
from mmpack.sources import ParsedRecord, checks


def parse_multi_choice(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = checks.image_names(record)
    question = checks.text_field(record, "question", "context")
    field, listed = checks.field_of(record, "choices", "options")
    choices = [checks.text_of(choice, "a choice") for choice in checks.list_of(listed, repr(field))]
    if not 1 <= len(choices) <= len(string.ascii_uppercase):
        raise SampleError(Reason.WRONG_TYPE, f"{len(choices)} choices; 1 to {len(string.ascii_uppercase)} have letters")
    lettered = [f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False)]
    right = lettered[_right_choice(record, choices)]
    parts = (*checks.question_parts(question, len(names)), "\n" + "\n".join(lettered))
    return checks.checked([Turn(role=Role.USER, parts=parts), checks.literal(Role.ASSISTANT, right)], names)


def _right_choice(record: Mapping[str, Any], choices: Sequence[str]) -> int:
    name, answer = checks.field_of(record, "answer", "correct_choice_idx")
    if isinstance(answer, int) and not isinstance(answer, bool):
        if 0 <= answer < len(choices):
            return answer
        raise SampleError(Reason.NO_ANSWER, f"{name!r} is not an index of {len(choices)} choices, counted from 0")
    text = checks.text_of(answer, repr(name))
    if text in choices:
        return choices.index(text)
    letters = string.ascii_uppercase[: len(choices)]
    letter = text.strip().removeprefix("(").rstrip(").").upper()
    if len(letter) == 1 and letter in letters:
        return letters.index(letter)
    raise SampleError(Reason.NO_ANSWER, f"{name!r} is neither one of the choices nor a letter from A to {letters[-1]}")
