"""ShareGPT's record: ``{"conversations": [{"from", "value"}, ...]}`` with ``"image"`` or ``"images"``.

The rules of LLaVA's record (`mmpack.sources.llava`) hold, and:

* ``function_call`` is the assistant's and is learned. ``tool`` and ``observation`` are what the world answered: they
  stand on the user's side and are not learned.
* ``"system"``, a text beside the conversation, is its system turn; with a system turn in the conversation too the
  order of roles is broken. ``"tools"`` (a text, or a list of definitions) stands at the end of the system turn.
"""

from __future__ import annotations

from mmpack.sample import Role
from mmpack.sources import ParsedRecord, checks, videos
from mmpack.sources.llava import ROLES as LLAVA_ROLES
from mmpack.sources.llava import spoken_turns

ROLES = {
    **LLAVA_ROLES,
    "function_call": Role.ASSISTANT,
    "tool": Role.USER,
    "observation": Role.USER,
}


def parse_sharegpt(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = videos.as_pictures(checks.object_of(record))
    names = checks.image_names(record)
    turns = spoken_turns(record, ROLES)
    if record.get("system") is not None:
        turns = [checks.literal(Role.SYSTEM, checks.text_field(record, "system")), *turns]
    turns = checks.with_tools(turns, record.get("tools"))
    return checks.checked(checks.mask_unasked(turns), names)
