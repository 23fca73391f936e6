"""The record of OpenAI's fine-tuning files and of most chat sets: ``{"messages": [{"role", "content"}, ...]}``.

Rules, each with its reason when it is broken:

* Roles are system or developer (at the front only), user, assistant, and tool or function, which stand on the user's
  side. Case does not matter. ``"conversations"`` may stand for ``"messages"``.
* Content is a text, or a list of parts: ``{"type": "text", "text"}``, and pictures as ``{"type": "image"}`` with
  ``"image"``, ``"path"`` or ``"url"`` or without a name, or ``{"type": "image_url", "image_url": {"url"}}``.
* The pictures are those of the record's ``"images"`` or ``"image"``, in the order of their places. Without such a list
  every part names its own; a part without a name is a missing picture. URLs other than ``data:`` are names as well:
  nothing is fetched.
* Videos are parts ``{"type": "video", "video": name}`` (or the list of its frames' names) or ``"video_url"``, or stand
  beside the messages (`mmpack.sources.videos`).
* ``<image>`` in a content that is a text is a picture if the record has a list of pictures. Without one, and inside a
  part, it is a word like any other.
* The calls in ``"tool_calls"`` (or the older ``"function_call"``) are learned behind the message's content, one a line
  as JSON: ``{"name": ..., "arguments": {...}}``. Only with them may an assistant's content be null or missing.
* ``"weight": 0`` on an assistant's message masks it. An answer before any question is masked too.
* ``"tools"`` stand at the end of the system turn (which they make if there is none), one a line as JSON.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import Part, PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord, checks, videos
from mmpack.sources.llava import known_role

ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.USER,
    "function": Role.USER,
}


def parse_openai(record: object) -> ParsedRecord:
    """The checked record. Raises SampleError with the first rule that it breaks."""
    record = videos.as_pictures(checks.object_of(record))
    listed = checks.image_names(record)
    field, messages = checks.field_of(record, "messages", "conversations")
    messages = checks.list_of(messages, repr(field))
    if not messages:
        raise SampleError(Reason.EMPTY_CONVERSATION, f"{field!r} is empty")
    reader = _Messages(marks=checks.has_pictures(record))
    turns = [reader.turn(message, number) for number, message in enumerate(messages, start=1)]
    turns = checks.with_tools(turns, record.get("tools"))
    names = listed or tuple(reader.own_names())
    return checks.checked(checks.mask_unasked(turns), names)


class _Messages:
    """Turns messages into turns, and gathers what their parts call their pictures (None: no name)."""

    def __init__(self, *, marks: bool) -> None:
        self._marks = marks
        self._names: list[str | None] = []

    def turn(self, message: object, number: int) -> Turn:
        where = f"message {number}"
        if not isinstance(message, dict):
            raise SampleError(Reason.WRONG_TYPE, f"{where} is a {checks.kind_of(message)}, not an object")
        _, name = checks.field_of(message, "role", where=where)
        role = known_role(checks.text_of(name, f"'role' of {where}"), number, ROLES)
        calls = _calls(message, where) if role is Role.ASSISTANT else ""
        content = message.get("content")
        if content is None and not calls:
            checks.field_of(message, "content", where=where)  # says what is wrong
        parts: list[Part] = [] if content is None else self._parts(content, where)
        if calls:
            parts.append("\n" + calls if parts else calls)
        return Turn(role=role, parts=tuple(parts), masked=_masked(message, where) if role is Role.ASSISTANT else False)

    def _parts(self, content: object, where: str) -> list[Part]:
        if isinstance(content, list):
            return [part for entry in content for part in self._entry(entry, where) if part != ""]
        text = checks.text_of(content, f"'content' of {where}")
        if not self._marks:
            return [text] if text else []
        parts = list(checks.cut_at_marks(text, len(self._names)))
        self._names += [None] * sum(isinstance(part, PictureSlot) for part in parts)
        return parts

    def _entry(self, entry: object, where: str) -> list[Part]:
        frames = entry.get("video") if isinstance(entry, dict) and entry.get("type") == "video" else None
        if not isinstance(frames, list):
            return [self._part(entry, where)]
        return [self._part({"type": "image", "image": frame}, where) for frame in frames]

    def _part(self, entry: object, where: str) -> Part:
        if not isinstance(entry, dict):
            raise SampleError(Reason.WRONG_TYPE, f"{where} has a {checks.kind_of(entry)} as a part, not an object")
        kind = entry.get("type")
        if kind == "text":
            return checks.text_of(checks.field_of(entry, "text", where=f"a part of {where}")[1], f"a part of {where}")
        if kind not in ("image", "image_url", *videos.VIDEO_PARTS):
            shown = ascii(kind[:40]) if isinstance(kind, str) else checks.kind_of(kind)
            known = "text, image, image_url, video, video_url"
            raise SampleError(Reason.WRONG_TYPE, f"{where} has a part of type {shown}; known: {known}")
        self._names.append(_name(entry, where))
        return PictureSlot(len(self._names) - 1)

    def own_names(self) -> list[str]:
        """What the parts call their pictures. Raises SampleError if one has no name."""
        named = [name for name in self._names if name is not None]
        if len(named) < len(self._names):
            missing = len(self._names) - len(named)
            raise SampleError(
                Reason.IMAGE_MISSING, f"{missing} pictures have no name, and there is no list of pictures"
            )
        return named


def _name(entry: Mapping[str, Any], where: str) -> str | None:
    for field in ("image", "image_url", *videos.VIDEO_PARTS, "path", "url"):
        value = entry.get(field)
        if value is not None:
            if isinstance(value, dict) and isinstance(value.get("url"), str):
                value = value["url"]
            return checks.image_name(value, f"{field!r} in {where}")
    return None


def _calls(message: Mapping[str, Any], where: str) -> str:
    """The calls as text, one a line; empty if there are none."""
    calls = message.get("tool_calls")
    if calls is None:
        calls = [] if message.get("function_call") is None else [message["function_call"]]
    lines = []
    for call in checks.list_of(calls, f"'tool_calls' of {where}"):
        function = call.get("function", call) if isinstance(call, dict) else call
        if not isinstance(function, dict):
            raise SampleError(Reason.WRONG_TYPE, f"a call in {where} is a {checks.kind_of(function)}, not an object")
        name = checks.text_of(checks.field_of(function, "name", where=f"a call in {where}")[1], f"a name in {where}")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):  # what is no JSON stays the text it is
                arguments = json.loads(arguments)
        lines.append(checks.json_text({"name": name, "arguments": arguments}, f"a call in {where}"))
    return "\n".join(lines)


def _masked(message: Mapping[str, Any], where: str) -> bool:
    weight = message.get("weight")
    if weight is None:
        return False
    if isinstance(weight, bool) or weight not in (0, 1):
        raise SampleError(Reason.WRONG_TYPE, f"'weight' of {where} is neither 0 nor 1")
    return bool(weight == 0)
