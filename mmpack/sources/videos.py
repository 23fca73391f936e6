"""Videos in conversations: ``"video"`` or ``"videos"`` beside ``<video>`` marks, as LLaVA-Video and Qwen have them.

A record with videos is read as one with pictures: a video is one picture (its frames are chosen when the sample is
encoded), and a video that is given as the list of its frames is as many pictures. Marks and typed parts of messages
(``{"type": "video"}``) take pictures and videos in turn. A record of videos only may mark them with ``<image>``, as
LLaVA-Video-178K does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmpack.errors import Reason, SampleError
from mmpack.sample import IMAGE_MARK
from mmpack.sources import checks

VIDEO_MARK = "<video>"
FIELDS = ("video", "videos")
VIDEO_PARTS = ("video", "video_url")
_PICTURE_PARTS = ("image", "image_url")
_MARK = re.compile(f"{re.escape(IMAGE_MARK)}|{re.escape(VIDEO_MARK)}")


def as_pictures(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with its videos among its pictures, in the order of their places; itself if it has none.

    Raises:
        SampleError: videos or pictures do not fit their places, or a name is none.
    """
    field = next((name for name in FIELDS if record.get(name)), None)
    turns_field = "messages" if record.get("messages") is not None else "conversations"
    turns = record.get(turns_field)
    if field is None or not isinstance(turns, list):
        return record
    value = record[field]
    entries = [_names(entry, field) for entry in (value if isinstance(value, list) else [value])]
    rest = {name: inner for name, inner in record.items() if name not in (*FIELDS, "images", "image_source")}
    pictures = [] if "image_source" in record else list(checks.image_names({**record, **dict.fromkeys(FIELDS)}))
    places = [kind for turn in turns for kind in _places(turn)]
    if "video" not in places and not checks.has_pictures(record):
        turns = [_marked_as_videos(turn) for turn in turns]
        places = [kind for turn in turns for kind in _places(turn)]
    num_places = places.count("video")
    if num_places == 1 and len(entries) > 1:
        entries = [[name for entry in entries for name in entry]]  # the frames of the only one
    if num_places != len(entries):
        raise SampleError(Reason.PLACEHOLDER_COUNT, f"{num_places} {VIDEO_MARK} in the text for {len(entries)} videos")
    counts = iter([len(entry) for entry in entries])
    rewritten = [_rewritten(turn, counts) for turn in turns]
    if "image_source" in record:  # the converter has listed all of them already
        return {**rest, turns_field: rewritten}
    own, films = iter(pictures), iter(entries)
    names = [name for kind in places for name in (next(films) if kind == "video" else _one(own))]
    if left := len(list(own)):
        raise SampleError(Reason.PLACEHOLDER_COUNT, f"{left} pictures more than {IMAGE_MARK} in the text")
    return {**rest, "image": names, turns_field: rewritten}


def _names(entry: object, field: str) -> list[str]:
    """One video: its name, or those of its frames."""
    frames = entry if isinstance(entry, list) else [entry]
    if not frames:
        raise SampleError(Reason.IMAGE_MISSING, f"{field!r} holds a video without frames")
    return [checks.image_name(frame, repr(field)) for frame in frames]


def _one(names: Iterator[str]) -> list[str]:
    try:
        return [next(names)]
    except StopIteration:
        raise SampleError(Reason.PLACEHOLDER_COUNT, f"more {IMAGE_MARK} in the text than pictures") from None


def _content(turn: object) -> tuple[str, Any]:
    """The field of a turn that holds what is said, and that."""
    if not isinstance(turn, dict):
        return "", None
    field = "value" if "value" in turn else "content"
    return field, turn.get(field)


def _places(turn: object) -> Iterator[str]:
    """``"image"`` or ``"video"`` for each place of one, in order."""
    _, content = _content(turn)
    if isinstance(content, str):
        for mark in _MARK.findall(content):
            yield "video" if mark == VIDEO_MARK else "image"
    elif isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in VIDEO_PARTS or kind in _PICTURE_PARTS:
                yield "video" if kind in VIDEO_PARTS else "image"


def _marked_as_videos(turn: Any) -> Any:
    field, content = _content(turn)
    return {**turn, field: content.replace(IMAGE_MARK, VIDEO_MARK)} if isinstance(content, str) else turn


def _rewritten(turn: Any, counts: Iterator[int]) -> Any:
    """The turn with pictures in the place of each video, as many as it counts."""
    field, content = _content(turn)
    if isinstance(content, str):
        pieces = content.split(VIDEO_MARK)
        content = pieces[0] + "".join(IMAGE_MARK * next(counts) + piece for piece in pieces[1:])
    elif isinstance(content, list):
        parts: list[Any] = []
        for part in content:
            if isinstance(part, dict) and part.get("type") in VIDEO_PARTS:
                parts += [{"type": "image"}] * next(counts)
            else:
                parts.append(part)
        content = parts
    else:
        return turn
    return {**turn, field: content}
