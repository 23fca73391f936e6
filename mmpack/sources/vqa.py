"""A question about pictures: ``{"image", "question" or "context", "answer" or "answers"}``.

Rules, each with its reason when it is broken:

* The pictures stand where the question has ``<image>``, or before it, each followed by a line feed. At least one
  picture is there. Answers are literal.
* ``"answer"`` is a text. ``"answers"`` is a text or a list of texts, of which one is taken: the one with the greatest
  of ``"answer_weights"``, the first of several such, the first of all without weights.
* A list of questions is a dialogue: ``"answers"`` has one for each, and the pictures belong to the first question or
  to the marks in any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import IMAGE_MARK, PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord, checks


def parse_vqa(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = checks.object_of(record)
    names = required_pictures(record)
    name, question = checks.field_of(record, "question", "context")
    if isinstance(question, list):
        return checks.checked(_dialogue(question, record, len(names)), names)
    parts = checks.question_parts(checks.text_of(question, repr(name)), len(names))
    turns = [Turn(role=Role.USER, parts=parts), checks.literal(Role.ASSISTANT, _answer(record))]
    return checks.checked(turns, names)


def required_pictures(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The record's pictures, of which there must be one at least."""
    names = checks.image_names(record)
    if not names:
        raise SampleError(Reason.MISSING_FIELD, "the record has no 'image'")
    return names


def _answer(record: Mapping[str, Any]) -> str:
    name, answers = checks.field_of(record, "answer", "answers")
    if name == "answer" or not isinstance(answers, list):
        return checks.text_of(answers, repr(name))
    if not answers:
        raise SampleError(Reason.NO_ANSWER, "'answers' is empty")
    return checks.text_of(answers[_heaviest(record.get("answer_weights"), len(answers))], "'answers'")


def _heaviest(weights: object, num_answers: int) -> int:
    if weights is None:
        return 0
    numbers = checks.list_of(weights, "'answer_weights'")
    if len(numbers) != num_answers:
        raise SampleError(Reason.WRONG_TYPE, f"{len(numbers)} 'answer_weights' for {num_answers} answers")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise SampleError(Reason.WRONG_TYPE, f"'answer_weights' holds a {checks.kind_of(number)}, not a number")
    return max(range(num_answers), key=lambda i: numbers[i])


def _dialogue(questions: Sequence[object], record: Mapping[str, Any], num_pictures: int) -> list[Turn]:
    name, answers = checks.field_of(record, "answers", "answer")
    answers = checks.list_of(answers, repr(name))
    if len(answers) != len(questions):
        raise SampleError(Reason.WRONG_TYPE, f"{len(questions)} questions and {len(answers)} answers")
    texts = [checks.text_of(question, "a question") for question in questions]
    marked = any(IMAGE_MARK in text for text in texts)
    turns: list[Turn] = []
    num_marks = 0
    for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        parts = checks.cut_at_marks(text, num_marks) if marked or i else checks.question_parts(text, num_pictures)
        num_marks += sum(isinstance(part, PictureSlot) for part in parts)
        turns += [
            Turn(role=Role.USER, parts=parts),
            checks.literal(Role.ASSISTANT, checks.text_of(answer, repr(name))),
        ]
    return turns
