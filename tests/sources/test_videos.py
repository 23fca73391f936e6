"""Videos of conversations: among the pictures, in the order of their places, also behind the converter."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mmpack.sources import parser_for


def said(*values: str) -> list[dict[str, str]]:
    return [{"from": "human" if i % 2 == 0 else "gpt", "value": value} for i, value in enumerate(values)]


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def chat(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": content} for i, content in enumerate(contents)]


MIXED = [part("video"), part("text", text="and <video>"), part("image"), part("video_url")]

CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "llava": ({"video": "a.mp4", "conversations": said("<video>\nWhat?", "That.")}, "<image>\nWhat?", ("a.mp4",)),
    "llava with image marks": (
        {"video": "a.mp4", "conversations": said("<image>\nWhat?", "That.")}, "<image>\nWhat?", ("a.mp4",),
    ),
    "pictures and videos": (
        {"image": ["1.png", "2.png"], "videos": ["a.mp4", "b.mp4"],
         "conversations": said("<video>a<image>b<video>", "c <image>")},
        "<image>a<image>b<image>", ("a.mp4", "1.png", "b.mp4", "2.png"),
    ),
    "frames": (
        {"video": ["f1.jpg", "f2.jpg", "f3.jpg"], "image": "1.png", "conversations": said("<image><video>?", "a")},
        "<image><image><image><image>?", ("1.png", "f1.jpg", "f2.jpg", "f3.jpg"),
    ),
    "frames of several": (
        {"videos": [["f1.jpg", "f2.jpg"], ["g1.jpg"]], "conversations": said("<video>or<video>?", "a")},
        "<image><image>or<image>?", ("f1.jpg", "f2.jpg", "g1.jpg"),
    ),
    "sharegpt": (
        {"videos": ["a.mp4"], "system": "s", "conversations": said("<video>?", "a")}, "<image>?", ("a.mp4",),
    ),
    "messages with marks": ({"videos": ["a.mp4"], "messages": chat("<video>?", "a")}, "<image>?", ("a.mp4",)),
    "messages with named parts": (
        {"messages": chat([part("video", video="a.mp4"), part("text", text="?")], "a")}, "<image>?", ("a.mp4",),
    ),
    "messages with frames as parts": (
        {"messages": chat([part("video", video=["f1.jpg", "f2.jpg"]), part("text", text="?")], "a")},
        "<image><image>?", ("f1.jpg", "f2.jpg"),
    ),
    "messages with a URL": (
        {"messages": chat([part("video_url", video_url={"url": "a.mp4"})], "a")}, "<image>", ("a.mp4",),
    ),
    "messages with parts and lists": (
        {"images": ["1.png"], "videos": ["a.mp4", "b.mp4"], "messages": chat(MIXED, "a")},
        "<image>and <video><image><image>", ("a.mp4", "1.png", "b.mp4"),
    ),
    "a word": ({"messages": chat("what is <video>?", "a")}, "what is <video>?", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_videos_are_read_as_pictures(name: str) -> None:
    record, text, names = CASES[name]
    before = copy.deepcopy(record)
    parsed = parser_for("auto")(record)
    question = next(turn for turn in parsed.turns if turn.role.value == "user")
    assert (question.text, parsed.image_names) == (text, names)
    assert record == before
    if not names:
        return
    own = [f"{i}.part" for i in range(len(names))]
    converted = {**record, "image_source": record.get("image"), "image": own}
    again = parser_for("auto")(converted)
    assert again.turns == parsed.turns
    assert again.image_names == tuple(own)
