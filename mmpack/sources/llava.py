"""LLaVA's record: ``{"id", "image" or "images": path or list of paths, "conversations": [{"from", "value"}, ...]}``.

Rules, each with its reason when it is broken:

* Roles are human or user, gpt or assistant, and system at the front only; case does not matter.
* ``<image>`` is a picture wherever it stands, in any turn. There are as many marks as pictures, in their order.
* Several answers in a row are all answers. An answer before any question is read but not learned, and a last question
  without an answer teaches nothing. At least one learned answer is not blank.
* Videos stand where ``<video>`` does (`mmpack.sources.videos`).
* Text is kept to the character, carriage returns and blanks included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord, checks, videos

ROLES = {
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
}


def parse_llava(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = videos.as_pictures(checks.object_of(record))
    names = checks.image_names(record)
    turns = spoken_turns(record, ROLES)
    return checks.checked(checks.mask_unasked(turns), names)


def spoken_turns(record: Mapping[str, Any], roles: Mapping[str, Role]) -> list[Turn]:
    """The turns in ``"conversations"``, with a slot for every image mark."""
    if "conversations" not in record:
        raise SampleError(Reason.MISSING_FIELD, "no 'conversations'")
    conversations = checks.list_of(record["conversations"], "'conversations'")
    if not conversations:
        raise SampleError(Reason.EMPTY_CONVERSATION, "'conversations' is empty")
    turns: list[Turn] = []
    num_marks = 0
    for number, entry in enumerate(conversations, start=1):
        role, text = _role_and_text(entry, number, roles)
        parts = checks.cut_at_marks(text, num_marks)
        num_marks += sum(isinstance(part, PictureSlot) for part in parts)
        turns.append(Turn(role=role, parts=parts))
    return turns


def _role_and_text(entry: object, number: int, roles: Mapping[str, Role]) -> tuple[Role, str]:
    if not isinstance(entry, dict):
        raise SampleError(Reason.WRONG_TYPE, f"turn {number} is a {checks.kind_of(entry)}, not an object")
    for field in ("from", "value"):
        if field not in entry:
            raise SampleError(Reason.MISSING_FIELD, f"turn {number} has no {field!r}")
        if not isinstance(entry[field], str):
            raise SampleError(
                Reason.WRONG_TYPE, f"{field!r} of turn {number} is a {checks.kind_of(entry[field])}, not text"
            )
    checks.check_utf8(entry["value"], f"turn {number}")
    return known_role(entry["from"], number, roles), entry["value"]


def known_role(name: str, number: int, roles: Mapping[str, Role]) -> Role:
    """The role called `name`, whatever its case."""
    role = roles.get(name.strip().lower())
    if role is None:
        raise SampleError(Reason.UNKNOWN_ROLE, f"turn {number} is from {name[:40]!a}; known: {', '.join(roles)}")
    return role
