"""LLaVA's record: each rule, with its reason when it is broken."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.errors import Reason, SampleError
from mmpack.sample import PictureSlot, Role
from mmpack.sources.llava import parse_llava
from mmpack.sources.sharegpt import parse_sharegpt


def said(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"from": role, "value": value} for role, value in pairs]


QA = said(("human", "q"), ("gpt", "a"))


def reason_of(record: object) -> Reason:
    with pytest.raises(SampleError) as caught:
        parse_llava(record)
    return caught.value.reason


def test_marks_are_pictures_wherever_they_stand() -> None:
    record = {
        "image": ["1", "2"],
        "conversations": said(("human", "a<image>b"), ("gpt", "c\r\n"), ("human", "<image>")),
    }
    turns = parse_llava(record).turns
    assert turns[0].parts == ("a", PictureSlot(0), "b")
    assert turns[2].parts == (PictureSlot(1),)
    assert turns[1].text == "c\r\n"


def test_roles_without_regard_to_case_and_blanks() -> None:
    turns = parse_llava({"conversations": said(("System ", "s"), ("USER", "q"), ("Assistant", "a"))}).turns
    assert [turn.role for turn in turns] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]


def test_an_answer_before_any_question_is_not_learned() -> None:
    turns = parse_llava({"conversations": said(("gpt", "hi"), ("human", "q"), ("gpt", "a"), ("gpt", "b"))}).turns
    assert [turn.trained for turn in turns] == [False, False, True, True]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, Reason.MISSING_FIELD),
        ({"conversations": "q"}, Reason.WRONG_TYPE),
        ({"conversations": []}, Reason.EMPTY_CONVERSATION),
        ({"conversations": ["q"]}, Reason.WRONG_TYPE),
        ({"conversations": [{"value": "q"}]}, Reason.MISSING_FIELD),
        ({"conversations": said(("human", None))}, Reason.WRONG_TYPE),
        ({"conversations": said(("bard", "q"))}, Reason.UNKNOWN_ROLE),
        ({"conversations": said(("tool", "q"))}, Reason.UNKNOWN_ROLE),
        ({"conversations": said(("human", "q"), ("system", "s"), ("gpt", "a"))}, Reason.ROLE_ORDER),
        ({"conversations": said(("gpt", "a"))}, Reason.NO_ANSWER),
        ({"conversations": said(("human", "q"), ("gpt", " \n"))}, Reason.NO_ANSWER),
        ({"conversations": said(("human", "<image>"), ("gpt", "a"))}, Reason.PLACEHOLDER_COUNT),
        ({"image": "1", "conversations": QA}, Reason.PLACEHOLDER_COUNT),
        ({"image": 1, "conversations": QA}, Reason.WRONG_TYPE),
        ({"image": [None], "conversations": QA}, Reason.WRONG_TYPE),
        ({"image": "", "conversations": QA}, Reason.IMAGE_MISSING),
        ({"image": "\ud800", "conversations": QA}, Reason.BAD_TEXT),
        ({"images": ["1"], "conversations": QA}, Reason.PLACEHOLDER_COUNT),
        ({"image_path": "1.jpg", "conversations": QA}, Reason.MISSING_FIELD),
        ({"video": "1.mp4", "conversations": QA}, Reason.PLACEHOLDER_COUNT),
        ({"video": ["1.mp4", "2.mp4"], "conversations": QA}, Reason.PLACEHOLDER_COUNT),
        ({"video": [3], "conversations": said(("human", "<video>"), ("gpt", "a"))}, Reason.WRONG_TYPE),
        ({"videos": [[]], "conversations": said(("human", "<video>"), ("gpt", "a"))}, Reason.IMAGE_MISSING),
        ({"audio": "1.wav", "conversations": QA}, Reason.WRONG_TYPE),
        (
            {"video": "1.mp4", "image": "1.png", "conversations": said(("human", "<video>"), ("gpt", "a"))},
            Reason.PLACEHOLDER_COUNT,
        ),
        (
            {
                "video": "1.mp4",
                "image": "1.png",
                "conversations": said(("human", "<video><image><image>"), ("gpt", "a")),
            },
            Reason.PLACEHOLDER_COUNT,
        ),
    ],
)
def test_a_broken_rule_has_its_reason(record: object, reason: Reason) -> None:
    assert reason_of(record) is reason


def test_sharegpt_tools_speak_on_the_user_side() -> None:
    record = {
        "images": ["1"],
        "system": "be brief <image>",
        "tools": [{"name": "f"}],
        "conversations": said(("human", "<image>q"), ("function_call", "f()"), ("observation", "1"), ("gpt", "a")),
    }
    turns = parse_sharegpt(record).turns
    assert [(turn.role, turn.trained) for turn in turns] == [
        (Role.SYSTEM, False),
        (Role.USER, False),
        (Role.ASSISTANT, True),
        (Role.USER, False),
        (Role.ASSISTANT, True),
    ]
    assert turns[0].parts == ("be brief <image>", '\n\nTools:\n{"name": "f"}')  # a mark in it is a word


def test_sharegpt_knows_one_system_turn() -> None:
    with pytest.raises(SampleError) as caught:
        parse_sharegpt({"system": "s", "conversations": said(("system", "t"), ("human", "q"), ("gpt", "a"))})
    assert caught.value.reason is Reason.ROLE_ORDER


def test_sharegpt_tools_without_a_system_turn_make_one() -> None:
    turns = parse_sharegpt({"tools": "f(x)", "conversations": QA}).turns
    assert (turns[0].role, turns[0].text) == (Role.SYSTEM, "Tools:\nf(x)")
    assert len(parse_sharegpt({"tools": "", "conversations": QA}).turns) == 2


@pytest.mark.parametrize("tools", [3, {"name": "f"}, ["\ud800"], True])
def test_sharegpt_tools_are_text_or_a_list(tools: object) -> None:
    with pytest.raises(SampleError) as caught:
        parse_sharegpt({"tools": tools, "conversations": QA})
    assert caught.value.reason in (Reason.WRONG_TYPE, Reason.BAD_TEXT)
