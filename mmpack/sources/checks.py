"""What all record formats check, and the small pieces that they build turns of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import IMAGE_MARK, Part, PictureSlot, Role, Turn
from mmpack.sources import ParsedRecord


def kind_of(value: object) -> str:
    """What JSON calls the type of `value`."""
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def object_of(record: object) -> Mapping[str, Any]:
    """`record`, which must be an object."""
    if not isinstance(record, dict):
        raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {kind_of(record)}")
    return record


def check_utf8(text: str, where: str) -> None:
    """Raises SampleError if `text` cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SampleError(Reason.BAD_TEXT, f"{where}: character {error.start} is half of a surrogate pair") from None


def text_of(value: object, where: str) -> str:
    """`value`, which must be text."""
    if not isinstance(value, str):
        raise SampleError(Reason.WRONG_TYPE, f"{where} is a {kind_of(value)}, not text")
    check_utf8(value, where)
    return value


def list_of(value: object, where: str) -> list[Any]:
    """`value`, which must be a list."""
    if not isinstance(value, list):
        raise SampleError(Reason.WRONG_TYPE, f"{where} is a {kind_of(value)}, not a list")
    return value


def field_of(record: Mapping[str, Any], *names: str, where: str = "") -> tuple[str, Any]:
    """The first of the fields `names` that is not null, and its value.

    Raises:
        SampleError: none of the fields is there, or all that are there are null.
    """
    for name in names:
        if record.get(name) is not None:
            return name, record[name]
    prefix = f"{where} has" if where else "the record has"
    if there := [repr(name) for name in names if name in record]:
        raise SampleError(Reason.WRONG_TYPE, f"{prefix} null as {' and '.join(there)}")
    raise SampleError(Reason.MISSING_FIELD, f"{prefix} no {' or '.join(map(repr, names))}")


def text_field(record: Mapping[str, Any], *names: str) -> str:
    """The text in the first of the fields `names` that is not null."""
    name, value = field_of(record, *names)
    return text_of(value, repr(name))


def has_pictures(record: Mapping[str, Any]) -> bool:
    """Whether the record, as its author wrote it, has a list of pictures.

    The converter puts the names of a sample's parts into ``"image"`` and keeps what was there in ``"image_source"``.
    """
    own = record["image_source"] if "image_source" in record else record.get("image")
    return bool(own) or bool(record.get("images"))


_NOT_READ = ("video", "videos", "audio", "audios")
_LIKE_A_PICTURE = ("file_name", "image_path", "image_file", "image_url", "img", "img_path", "picture")
_PICTURE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def _refuse_unread_media(record: Mapping[str, Any]) -> None:
    """A record without pictures that has some under another name would be learned blindly; so would one with a film."""
    for field in _LIKE_A_PICTURE:
        value = record.get(field)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, str) and first.lower().endswith(_PICTURE_ENDINGS):
            raise SampleError(
                Reason.MISSING_FIELD, f"{field!r} names a picture, which this format does not read; call it 'image'"
            )


def image_names(record: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    """The names in the first of `fields` ("image", then "images", if none is given) that is neither null nor empty.

    Raises:
        SampleError: a name that is no text, or pictures, films or sounds that only other fields hold.
    """
    for field in _NOT_READ:
        if record.get(field):
            raise SampleError(
                Reason.WRONG_TYPE, f"the record has {field!r}; sounds are not read, and videos in conversations only"
            )
    for field in fields or ("image", "images"):
        value = record.get(field)
        if value is not None and value != []:
            entries = value if isinstance(value, list) else [value]
            return tuple(image_name(entry, repr(field)) for entry in entries)
    _refuse_unread_media(record)
    return ()


def image_name(entry: object, where: str) -> str:
    """The name in one entry: itself, or what it has as ``"path"``."""
    if isinstance(entry, dict) and isinstance(entry.get("path"), str):
        entry = entry["path"]
    if not isinstance(entry, str):
        raise SampleError(Reason.WRONG_TYPE, f"{where} holds a {kind_of(entry)}, not a path")
    if not entry:
        raise SampleError(Reason.IMAGE_MISSING, f"{where} is an empty path")
    check_utf8(entry, where)
    return entry


def cut_at_marks(text: str, num_before: int = 0) -> tuple[Part, ...]:
    """The text cut at its image marks; slots count on from `num_before`.

    >>> cut_at_marks("a<image>b<image>", 1)
    ('a', PictureSlot(index=1), 'b', PictureSlot(index=2))
    """
    parts: list[Part] = []
    for i, piece in enumerate(text.split(IMAGE_MARK)):
        if i:
            parts.append(PictureSlot(num_before + i - 1))
        if piece:
            parts.append(piece)
    return tuple(parts)


def question_parts(text: str, num_pictures: int) -> tuple[Part, ...]:
    """A question about pictures: they stand where it has image marks, or before it, each followed by a line feed.

    >>> question_parts("What?", 1)
    (PictureSlot(index=0), '\\n', 'What?')
    """
    if not num_pictures or IMAGE_MARK in text:
        return cut_at_marks(text)
    front: list[Part] = []
    for i in range(num_pictures):
        front += [PictureSlot(i), "\n"]
    return (*front, text) if text else tuple(front)


def literal(role: Role, text: str, *, masked: bool = False) -> Turn:
    """A turn in which an image mark is a word like any other."""
    return Turn(role=role, parts=(text,) if text else (), masked=masked)


def json_text(value: object, where: str) -> str:
    """`value` as JSON on one line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise SampleError(Reason.WRONG_TYPE, f"{where} cannot be written as JSON") from None
    check_utf8(text, where)
    return text


def with_tools(turns: list[Turn], tools: object) -> list[Turn]:
    """Tells the model of its tools: a system turn gets, or becomes, ``Tools:`` and one definition a line, as JSON.

    A text in the place of the list is taken as it is; an empty one changes nothing.
    """
    if tools is None or tools in ("", []):
        return turns
    if isinstance(tools, str):
        lines = [text_of(tools, "'tools'")]
    else:
        lines = [json_text(tool, "'tools'") for tool in list_of(tools, "'tools'")]
    text = "\n".join(["Tools:", *lines])
    if turns and turns[0].role is Role.SYSTEM:
        first = turns[0]
        return [replace(first, parts=(*first.parts, f"\n\n{text}" if first.parts else text)), *turns[1:]]
    return [literal(Role.SYSTEM, text), *turns]


def mask_unasked(turns: Sequence[Turn]) -> list[Turn]:
    """Masks the answers that stand before the first question."""
    first_question = next((i for i, turn in enumerate(turns) if turn.role is Role.USER), len(turns))
    return [replace(turn, masked=True) for turn in turns[:first_question]] + list(turns[first_question:])


def checked(turns: Sequence[Turn], names: tuple[str, ...]) -> ParsedRecord:
    """The record of these turns and pictures.

    Raises:
        SampleError: the pictures do not fit their places, a system turn is not the first, or nothing is learned.
    """
    num_slots = sum(isinstance(part, PictureSlot) for turn in turns for part in turn.parts)
    if num_slots != len(names):
        raise SampleError(Reason.PLACEHOLDER_COUNT, f"{num_slots} {IMAGE_MARK} in the text for {len(names)} pictures")
    if any(turn.role is Role.SYSTEM for turn in turns[1:]):
        raise SampleError(Reason.ROLE_ORDER, "a system turn stands behind another turn")
    learned = [turn for turn in turns if turn.trained]
    if not any(isinstance(part, str) and part.strip() for turn in learned for part in turn.parts):
        raise SampleError(Reason.NO_ANSWER, "every answer is blank" if learned else "no answer to a question")
    return ParsedRecord(turns=tuple(turns), image_names=names)
