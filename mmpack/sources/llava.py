"""LLaVA's record: ``{"id", "image": path or list of paths, "conversations": [{"from", "value"}, ...]}``.

Rules, each with its reason when it is broken:

* Roles are human or user, gpt or assistant, and system at the front only; case does not matter.
* ``<image>`` is a picture wherever it stands, in any turn. There are as many marks as pictures, in their order.
* Several answers in a row are all answers. An answer before any question is read but not learned, and a last question
  without an answer teaches nothing. At least one learned answer is not blank.
* Text is kept to the character, carriage returns and blanks included.
"""

from __future__ import annotations

from dataclasses import replace

from mmpack.errors import Reason, SampleError
from mmpack.sample import IMAGE_MARK, Part, PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord

ROLES = {
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
}


def parse_llava(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    if not isinstance(record, dict):
        raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {_kind(record)}")
    image_names = _image_names(record.get("image"))
    if "conversations" not in record:
        raise SampleError(Reason.MISSING_FIELD, "no 'conversations'")
    conversations = record["conversations"]
    if not isinstance(conversations, list):
        raise SampleError(Reason.WRONG_TYPE, f"'conversations' is a {_kind(conversations)}, not a list")
    if not conversations:
        raise SampleError(Reason.EMPTY_CONVERSATION, "'conversations' is empty")
    turns: list[Turn] = []
    num_marks = 0
    for number, entry in enumerate(conversations, start=1):
        role, text = _role_and_text(entry, number)
        parts = _parts(text, num_marks)
        num_marks += sum(isinstance(part, PictureSlot) for part in parts)
        turns.append(Turn(role=role, parts=parts))
    if num_marks != len(image_names):
        raise SampleError(
            Reason.PLACEHOLDER_COUNT, f"{num_marks} {IMAGE_MARK} in the text for {len(image_names)} pictures"
        )
    if any(turn.role is Role.SYSTEM for turn in turns[1:]):
        raise SampleError(Reason.ROLE_ORDER, "a system turn stands behind another turn")
    turns = _mask_unasked(turns)
    _check_answers(turns)
    return ParsedRecord(turns=tuple(turns), image_names=image_names)


def _image_names(image: object) -> tuple[str, ...]:
    if image is None:
        return ()
    names = image if isinstance(image, list) else [image]
    for name in names:
        if not isinstance(name, str):
            raise SampleError(Reason.WRONG_TYPE, f"'image' holds a {_kind(name)}, not a path")
        if not name:
            raise SampleError(Reason.IMAGE_MISSING, "'image' is an empty path")
        _check_utf8(name, "'image'")
    return tuple(names)


def _role_and_text(entry: object, number: int) -> tuple[Role, str]:
    if not isinstance(entry, dict):
        raise SampleError(Reason.WRONG_TYPE, f"turn {number} is a {_kind(entry)}, not an object")
    for field in ("from", "value"):
        if field not in entry:
            raise SampleError(Reason.MISSING_FIELD, f"turn {number} has no {field!r}")
        if not isinstance(entry[field], str):
            raise SampleError(Reason.WRONG_TYPE, f"{field!r} of turn {number} is a {_kind(entry[field])}, not text")
    _check_utf8(entry["value"], f"turn {number}")
    role = ROLES.get(entry["from"].strip().lower())
    if role is None:
        named = ascii(entry["from"][:40])
        raise SampleError(Reason.UNKNOWN_ROLE, f"turn {number} is from {named}; known: {', '.join(ROLES)}")
    return role, entry["value"]


def _parts(text: str, num_before: int) -> tuple[Part, ...]:
    """The text cut at its image marks; slots count on from `num_before`."""
    parts: list[Part] = []
    for i, piece in enumerate(text.split(IMAGE_MARK)):
        if i:
            parts.append(PictureSlot(num_before + i - 1))
        if piece:
            parts.append(piece)
    return tuple(parts)


def _mask_unasked(turns: list[Turn]) -> list[Turn]:
    """Masks the answers that stand before the first question."""
    first_question = next((i for i, turn in enumerate(turns) if turn.role is Role.USER), len(turns))
    return [replace(turn, masked=True) for turn in turns[:first_question]] + turns[first_question:]


def _check_answers(turns: list[Turn]) -> None:
    learned = [turn for turn in turns if turn.trained]
    if not any(isinstance(part, str) and part.strip() for turn in learned for part in turn.parts):
        raise SampleError(Reason.NO_ANSWER, "every answer is blank" if learned else "no answer to a question")


def _check_utf8(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SampleError(Reason.BAD_TEXT, f"{where}: character {error.start} is half of a surrogate pair") from None


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
