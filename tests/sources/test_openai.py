"""OpenAI's messages: each rule, with its reason when it is broken."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.errors import Reason, SampleError
from mmpack.sample import PictureSlot, Role
from mmpack.sources.openai import parse_openai


def said(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


A = {"role": "assistant", "content": "a"}


def user(*parts: object) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(value: object) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_parts_keep_their_order_and_name_their_pictures() -> None:
    record = {
        "messages": [
            user(
                text("look"),
                {"type": "image", "image": "1.png"},
                {"type": "image_url", "image_url": {"url": "https://host/2.png"}},
                text("<image>"),
                text(""),
            ),
            A,
            user({"type": "image_url", "image_url": "3.png"}, {"type": "image", "path": "4.png"}),
            A,
            user({"type": "image", "url": "5.png", "text": None}),
            A,
        ]
    }
    parsed = parse_openai(record)
    assert parsed.image_names == ("1.png", "https://host/2.png", "3.png", "4.png", "5.png")
    assert parsed.turns[0].parts == ("look", PictureSlot(0), PictureSlot(1), "<image>")
    assert parsed.turns[2].parts == (PictureSlot(2), PictureSlot(3))


def test_the_list_of_pictures_names_them_in_order_of_their_places() -> None:
    record = {
        "images": ["1.png", {"path": "2.png"}],
        "messages": [user({"type": "image"}, text("q <image>")), A, *said(("user", "and <image>?")), A],
    }
    parsed = parse_openai(record)
    assert parsed.image_names == ("1.png", "2.png")
    assert parsed.turns[0].parts == (PictureSlot(0), "q <image>")
    assert parsed.turns[2].parts == ("and ", PictureSlot(1), "?")


def test_without_a_list_of_pictures_the_mark_is_a_word() -> None:
    record = {"messages": said(("user", "write <image> tags"), ("assistant", "<image>"))}
    assert parse_openai(record).turns[0].parts == ("write <image> tags",)
    converted = {"messages": [user({"type": "image", "image": "1"}, text("q")), A, *said(("user", "<image>")), A]}
    own = parse_openai(converted)
    assert parse_openai({**converted, "image_source": None, "image": ["0.png"]}).turns == own.turns


def test_roles() -> None:
    record = {
        "messages": said(("developer", "d"), ("User", "q"), ("tool", "42"), ("function", "43"), ("assistant", "a"))
    }
    roles = [turn.role for turn in parse_openai(record).turns]
    assert roles == [Role.SYSTEM, Role.USER, Role.USER, Role.USER, Role.ASSISTANT]
    assert len(parse_openai({"conversations": said(("user", "q"), ("assistant", "a"))}).turns) == 2


def test_calls_are_learned_as_json() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}},
        {"function": {"name": "g", "arguments": "no json"}},
    ]
    record = {"messages": [*said(("user", "q")), {"role": "assistant", "content": None, "tool_calls": calls}]}
    turn = parse_openai(record).turns[1]
    assert turn.trained
    assert turn.parts == ('{"name": "f", "arguments": {"x": "é"}}\n{"name": "g", "arguments": "no json"}',)
    record["messages"][1]["content"] = "I ask."
    assert parse_openai(record).turns[1].text.startswith('I ask.\n{"name": "f"')
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    assert parse_openai({"messages": [*said(("user", "q")), old]}).turns[1].text == '{"name": "f", "arguments": {}}'


def test_weight_zero_masks_a_message() -> None:
    messages = [*said(("user", "q")), {**A, "weight": 0}, *said(("user", "q")), {**A, "weight": 1}]
    assert [turn.trained for turn in parse_openai({"messages": messages}).turns] == [False, False, False, True]


def test_tools_stand_in_the_system_turn() -> None:
    record = {"tools": [{"name": "f"}, {"name": "g"}], "messages": said(("user", "q"), ("assistant", "a"))}
    assert parse_openai(record).turns[0].text == 'Tools:\n{"name": "f"}\n{"name": "g"}'
    record["messages"] = said(("system", "s"), ("user", "q"), ("assistant", "a"))
    assert parse_openai(record).turns[0].text == 's\n\nTools:\n{"name": "f"}\n{"name": "g"}'


def call(**fields: object) -> dict[str, Any]:
    return {"messages": [*said(("user", "q")), {"role": "assistant", **fields}]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, Reason.MISSING_FIELD),
        ({"messages": None}, Reason.WRONG_TYPE),
        ({"messages": {}}, Reason.WRONG_TYPE),
        ({"messages": []}, Reason.EMPTY_CONVERSATION),
        ({"messages": ["q"]}, Reason.WRONG_TYPE),
        ({"messages": [{"content": "no role"}, A]}, Reason.MISSING_FIELD),
        ({"messages": said((3, "q"))}, Reason.WRONG_TYPE),
        ({"messages": said(("narrator", "q"), ("assistant", "a"))}, Reason.UNKNOWN_ROLE),
        ({"messages": said(("user", "q"), ("system", "late"), ("assistant", "a"))}, Reason.ROLE_ORDER),
        ({"messages": said(("user", "q"))}, Reason.NO_ANSWER),
        ({"messages": [A]}, Reason.NO_ANSWER),
        ({"messages": said(("user", "q"), ("assistant", "  "))}, Reason.NO_ANSWER),
        ({"messages": [*said(("user", "q")), {**A, "weight": 0}]}, Reason.NO_ANSWER),
        (call(content=None), Reason.WRONG_TYPE),
        (call(), Reason.MISSING_FIELD),
        (call(content=None, tool_calls=[]), Reason.WRONG_TYPE),
        (call(content=None, tool_calls={}), Reason.WRONG_TYPE),
        (call(content=None, tool_calls=["f"]), Reason.WRONG_TYPE),
        (call(content=None, tool_calls=[{"function": {"arguments": "{}"}}]), Reason.MISSING_FIELD),
        (call(content=None, tool_calls=[{"function": {"name": 3}}]), Reason.WRONG_TYPE),
        (call(content="a", weight=2), Reason.WRONG_TYPE),
        (call(content="a", weight=True), Reason.WRONG_TYPE),
        ({"messages": said(("user", 3))}, Reason.WRONG_TYPE),
        ({"messages": [user("q"), A]}, Reason.WRONG_TYPE),
        ({"messages": [user({"type": "input_audio"}), A]}, Reason.WRONG_TYPE),
        ({"messages": [user({"text": "q"}), A]}, Reason.WRONG_TYPE),
        ({"messages": [user({"type": ["text"]}), A]}, Reason.WRONG_TYPE),
        ({"messages": [user({"type": "text"}), A]}, Reason.MISSING_FIELD),
        ({"messages": [user(text(None)), A]}, Reason.WRONG_TYPE),
        ({"messages": [user({"type": "image"}), A]}, Reason.IMAGE_MISSING),
        ({"messages": [user({"type": "image", "image": ""}), A]}, Reason.IMAGE_MISSING),
        ({"messages": [user({"type": "image_url", "image_url": {}}), A]}, Reason.WRONG_TYPE),
        ({"images": ["1", "2"], "messages": [user({"type": "image"}), A]}, Reason.PLACEHOLDER_COUNT),
        ({"images": ["1"], "messages": said(("user", "q"), ("assistant", "a"))}, Reason.PLACEHOLDER_COUNT),
        ({"tools": 3, "messages": said(("user", "q"), ("assistant", "a"))}, Reason.WRONG_TYPE),
    ],
)
def test_a_broken_rule_has_its_reason(record: object, reason: Reason) -> None:
    with pytest.raises(SampleError) as caught:
        parse_openai(record)
    assert caught.value.reason is reason


def test_lines_of_a_chat_file() -> None:
    """The lines a chat file has gone wrong with, and what becomes of each."""
    tool = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    kept = {
        "two users": said(("user", "a"), ("user", "b"), ("assistant", "c")),
        "system first": said(("system", "s"), ("user", "a"), ("assistant", "c")),
        "a call": [*said(("user", "a")), tool, *said(("tool", "42"), ("assistant", "It is 42."))],
    }
    for name, messages in kept.items():
        assert parse_openai({"messages": messages}).turns[-1].trained, name
    turns = parse_openai({"messages": kept["a call"]}).turns
    assert [turn.text for turn in turns if turn.trained] == ['{"name": "f", "arguments": null}', "It is 42."]
