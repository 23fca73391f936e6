"""What every record format owes: any JSON value gives a sound ParsedRecord or a SampleError, and nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import PictureSlot, Role
from mmpack.sources import SOURCES, ParsedRecord, detect

FORMATS = ["llava", "sharegpt", "openai", "vqa", "multi_choice", "captioning", "ocr", "interleaved", "text"]
FORMATS += ["prompt_response"]

GOOD: dict[str, dict[str, Any]] = {
    "llava": {
        "image": ["a.png"],
        "conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "answer"}],
    },
    "sharegpt": {
        "images": ["a.png"],
        "system": "s",
        "tools": "t",
        "conversations": [
            {"from": "human", "value": "<image>q"},
            {"from": "function_call", "value": "f()"},
            {"from": "observation", "value": "1"},
            {"from": "gpt", "value": "answer"},
        ],
    },
    "openai": {
        "images": ["a.png"],
        "tools": [{"name": "f"}],
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image", "image": "a.png"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                "weight": 0,
            },
            {"role": "tool", "content": "1"},
            {"role": "assistant", "content": "answer", "weight": 1},
        ],
    },
    "vqa": {"image": "a.png", "question": "q", "answers": ["x", "answer"], "answer_weights": [0.1, 0.9]},
    "multi_choice": {"image": "a.png", "question": "q", "choices": ["x", "answer"], "answer": 1},
    "captioning": {"image": "a.png", "caption": "answer"},
    "ocr": {"image": "a.png", "lines_text": ["answer"]},
    "interleaved": {"texts": ["one ", None, "answer"], "images": [None, "a.png", None]},
    "text": {"text": "answer"},
    "prompt_response": {"prompt": "q", "response": "answer"},
}


def with_answer(value: Any, answer: str) -> Any:
    """`value` with other words where it says "answer"."""
    if isinstance(value, dict):
        return {name: with_answer(inner, answer) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_answer(inner, answer) for inner in value]
    return answer if value == "answer" else value


scalars = st.none() | st.booleans() | st.integers(-2, 30) | st.floats() | st.text(max_size=8)
marked = st.sampled_from(
    ["<image>", "<image>\n<image>", " ", "", "human", "gpt", "user", "assistant", "system", "tool"]
)
OTHER_NAMES = ["from", "value", "role", "content", "type", "path", "url", "image_url", "function", "arguments", "id"]
names = st.sampled_from([*sorted({name for record in GOOD.values() for name in record}), *OTHER_NAMES])
values = st.recursive(
    scalars | marked, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5)
)


def is_sound(parsed: ParsedRecord) -> bool:
    slots = [part.index for turn in parsed.turns for part in turn.parts if isinstance(part, PictureSlot)]
    texts = [part for turn in parsed.turns for part in turn.parts if isinstance(part, str)]
    for text in [*texts, *parsed.image_names]:
        text.encode("utf-8")
    learned = "".join(part for turn in parsed.turns if turn.trained for part in turn.parts if isinstance(part, str))
    return (
        slots == list(range(len(parsed.image_names)))
        and all(parsed.image_names)
        and "" not in texts
        and bool(learned.strip())
        and all(turn.role is not Role.SYSTEM for turn in parsed.turns[1:])
    )


def test_the_table_is_covered() -> None:
    assert set(SOURCES) == {*FORMATS, "messages", "chat"}
    assert SOURCES.get("messages") is SOURCES.get("chat") is SOURCES.get("openai")


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sharegpt'"):
        SOURCES.get("sharegtp")


@pytest.mark.parametrize("name", FORMATS)
def test_the_good_record_is_parsed_and_detected(name: str) -> None:
    record = GOOD[name]
    before = copy.deepcopy(record)
    parsed = SOURCES.get(name)(record)
    assert is_sound(parsed)
    assert record == before
    assert "answer" in parsed.turns[-1].text
    assert parsed.image_names == (("a.png",) if "a.png" in json.dumps(record) else ())
    assert detect(record) == name


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [None, 3, "text", [], [{}], True])
def test_what_is_no_object_is_no_record(name: str, value: object) -> None:
    with pytest.raises(SampleError) as caught:
        SOURCES.get(name)(value)
    assert caught.value.reason is Reason.NOT_A_RECORD
    assert detect(value) is None


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_object_lacks_a_field(name: str) -> None:
    with pytest.raises(SampleError) as caught:
        SOURCES.get(name)({})
    assert caught.value.reason is Reason.MISSING_FIELD


@pytest.mark.parametrize("name", FORMATS)
def test_half_a_surrogate_pair_is_bad_text(name: str) -> None:
    with pytest.raises(SampleError) as caught:
        SOURCES.get(name)(with_answer(GOOD[name], "\ud83d"))
    assert caught.value.reason is Reason.BAD_TEXT


@pytest.mark.parametrize("name", FORMATS)
def test_a_blank_answer_is_no_answer(name: str) -> None:
    record = with_answer(GOOD[name], " ")
    if name == "sharegpt":
        record["conversations"][1]["from"] = "tool"
    if name == "interleaved":
        record["texts"][0] = " "
    if name == "multi_choice":  # its answer always has a letter
        assert SOURCES.get(name)(record).turns[-1].text == "B.  "
        return
    with pytest.raises(SampleError) as caught:
        SOURCES.get(name)(record)
    assert caught.value.reason is Reason.NO_ANSWER


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(record=st.one_of(values, st.dictionaries(names, values, max_size=6)))
def test_any_value_is_parsed_or_refused(name: str, record: object) -> None:
    found = detect(record)
    assert found is None or found in SOURCES
    try:
        parsed = SOURCES.get(name)(record)
    except SampleError:
        return
    assert is_sound(parsed)


@st.composite
def broken_records(draw: st.DrawFn, good: dict[str, Any]) -> Any:
    """A good record in which one value, somewhere, is another, or a field is gone."""
    record = copy.deepcopy(good)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            walk(inner)

    walk(record)
    holder, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        holder[key] = draw(values)
    else:
        del holder[key]
    return record


MATCHED = {
    "texts": ["one", "answer"],
    "images": ["a.png", "b.png"],
    "matched_text_indices": [1, 0],
    "similarity_matrix": [[0.5, 1], [2, 0]],
}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "matched": ("interleaved", MATCHED),
    "matched by likeness": (
        "interleaved", {field: value for field, value in MATCHED.items() if field != "matched_text_indices"},
    ),
    "llava with videos": (
        "llava",
        {
            "image": "a.png",
            "videos": ["a.mp4", ["f1.png", "f2.png"]],
            "conversations": [
                {"from": "human", "value": "<video><image>q<video>"}, {"from": "gpt", "value": "answer"},
            ],
        },
    ),
    "openai with videos": (
        "openai",
        {
            "images": ["a.png"],
            "video": "a.mp4",
            "messages": [
                {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "q"}, {"type": "image"}]},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "answer"},
            ],
        },
    ),
    "openai with named videos": (
        "openai",
        {
            "messages": [
                {"role": "user", "content": [{"type": "video", "video": ["f1.png"]},
                                             {"type": "video_url", "video_url": {"url": "a.mp4"}}]},
                {"role": "assistant", "content": "answer"},
            ],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FORMATS, *VARIANTS])
def test_a_record_with_one_fault_is_parsed_or_refused(name: str) -> None:
    name, good = VARIANTS.get(name) or (name, GOOD[name])
    assert is_sound(SOURCES.get(name)(good))

    @settings(max_examples=80, deadline=None)
    @given(record=broken_records(good))
    def check(record: object) -> None:
        detect(record)
        try:
            parsed = SOURCES.get(name)(record)
        except SampleError:
            return
        assert is_sound(parsed)

    check()


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("text", "prompt_response")])
def test_a_converted_record_keeps_its_turns(name: str) -> None:
    """The converter puts part names into "image" and the record's own into "image_source"."""
    record = GOOD[name]
    converted = {**record, "image_source": record.get("image"), "image": ["0.png"]}
    assert detect(converted) in (name, "llava")
    assert SOURCES.get(name)(converted).turns == SOURCES.get(name)(record).turns
    assert SOURCES.get(name)(converted).image_names == ("0.png",)
