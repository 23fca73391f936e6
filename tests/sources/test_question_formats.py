"""The formats of one question or none: VQA, choices, captions, text in pictures, documents, texts."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.errors import Reason, SampleError
from mmpack.sample import PictureSlot, Role
from mmpack.sources import SOURCES, ParsedRecord, detect, parser_for
from mmpack.sources.inline import inline_picture
from mmpack.sources.ocr import OCR_QUESTION


def parse(name: str, **record: object) -> ParsedRecord:
    return SOURCES.get(name)(record)


def parts(name: str, **record: object) -> list[tuple[Any, ...]]:
    return [turn.parts for turn in parse(name, **record).turns]


def test_vqa_puts_pictures_before_the_question_or_at_its_marks() -> None:
    one, two = PictureSlot(0), PictureSlot(1)
    assert parts("vqa", image="1", question="q", answer="a") == [(one, "\n", "q"), ("a",)]
    assert parts("vqa", images=["1", "2"], context="q", answers="a") == [(one, "\n", two, "\n", "q"), ("a",)]
    assert parts("vqa", image=["1", "2"], question="<image>q<image>", answer="<image>") == [
        (one, "q", two),
        ("<image>",),
    ]


@pytest.mark.parametrize(
    ("answers", "weights", "taken"),
    [(["x", "y"], None, "x"), (["x", "y"], [0.1, 1], "y"), (["x", "y", "z"], [0, 2, 2], "y"), (["x"], [-1], "x")],
)
def test_vqa_takes_the_heaviest_answer(answers: list[str], weights: list[float] | None, taken: str) -> None:
    assert parts("vqa", image="1", question="q", answers=answers, answer_weights=weights)[1] == (taken,)


def test_vqa_dialogue() -> None:
    turns = parse("vqa", image="1", context=["q", "r"], answers=["a", "b"]).turns
    assert [turn.text for turn in turns] == ["<image>\nq", "a", "r", "b"]
    turns = parse("vqa", image="1", context=["q", "r <image>"], answers=["a", "b"]).turns
    assert [turn.parts for turn in turns][2] == ("r ", PictureSlot(0))


def test_choices_have_letters() -> None:
    record: dict[str, Any] = {"image": "1", "question": "which?", "choices": ["cat", "dog"]}
    turns = parse("multi_choice", **record, answer=1).turns
    assert [turn.text for turn in turns] == ["<image>\nwhich?\nA. cat\nB. dog", "B. dog"]
    for answer in ("dog", "B", " b"):
        assert parse("multi_choice", **record, answer=answer).turns == turns
    assert parse("multi_choice", **record, correct_choice_idx=0).turns[1].text == "A. cat"
    assert parse("multi_choice", context="c", choices=["B", "A"], answer="B").turns[1].text == "A. B"  # a text wins


def test_caption() -> None:
    assert parts("captioning", image="1", caption=" a cat\n") == [(PictureSlot(0),), (" a cat\n",)]
    assert parts("captioning", image="1", text="<image>") == [(PictureSlot(0),), ("<image>",)]


def test_text_in_a_picture() -> None:
    question = (PictureSlot(0), "\n", OCR_QUESTION)
    assert parts("ocr", image="1", text="EXIT") == [question, ("EXIT",)]
    assert parts("ocr", image="1", text=None, lines_text=["NO", "EXIT"])[1] == ("NO\nEXIT",)
    assert parts("ocr", image="1", words_text=["NO", "EXIT"])[1] == ("NO EXIT",)


def test_a_document_is_learned_as_a_whole() -> None:
    first, second = PictureSlot(0), PictureSlot(1)
    parsed = parse("interleaved", sequence=[{"image": "1"}, "a", "", {"text": "<image>"}, {"image": "2"}])
    (turn,) = parsed.turns
    assert turn.parts == (first, "a", "<image>", second)
    assert turn.role is Role.ASSISTANT
    assert turn.trained
    assert parsed.image_names == ("1", "2")
    parsed = parse("interleaved", texts=["a", None, "b"], images=[None, {"path": "1"}, None])
    assert parsed.turns[0].parts == ("a", first, "b")
    assert parse("interleaved", sequence=["a", {"image": None}], image=["0.png"]).image_names == ("0.png",)


def test_a_document_matched_by_likeness() -> None:
    likeness = [[0.1, 0.8, 0.8], [0.7, 0.2, -1], [0, 3, 0]]
    parsed = parse("interleaved", texts=["One.", "Two.", "<image>"], images=["a", "b", "c"], similarity_matrix=likeness)
    first, second, third = (PictureSlot(i) for i in range(3))
    assert parsed.turns[0].parts == (first, "One.", second, third, " Two.", " <image>")
    assert parsed.image_names == ("b", "a", "c")
    given = {"matched_text_indices": [2, 0], "similarity_matrix": None}
    parsed = parse("interleaved", texts=["One.", "Two.", "Three."], images=["a", {"path": "b"}], **given)
    assert (parsed.turns[0].text, parsed.image_names) == ("<image>One. Two.<image> Three.", ("b", "a"))
    again = {"image": ["0.png", "1.png"], "image_source": None, "images": ["a", "b"], **given}
    parsed = parse("interleaved", texts=["One.", "Two.", "Three."], **again)  # as the converter writes it
    assert (parsed.turns[0].text, parsed.image_names) == ("<image>One. Two.<image> Three.", ("0.png", "1.png"))


def test_texts() -> None:
    assert parts("text", text=" a <image>\r\n") == [(" a <image>\r\n",)]
    assert parse("text", text="a").turns[0].trained
    assert parts("prompt_response", prompt="<image>", response="    return 1\n") == [("<image>",), ("    return 1\n",)]
    assert parts("prompt_response", input="", output="b") == [(), ("b",)]
    assert parts("prompt_response", image="1", prompt="q", completion="b") == [(PictureSlot(0), "\n", "q"), ("b",)]
    assert parts("text", text="a", file_name="a.py", videos=[]) == [("a",)]


@pytest.mark.parametrize(
    ("beside", "question"),
    [({}, "add"), ({"input": ""}, "add"), ({"input": None}, "add"), ({"context": "3 4 "}, "add\n3 4 ")],
)
def test_an_instruction_is_never_left_out(beside: dict[str, Any], question: str) -> None:
    record = {"instruction": "add", **beside}
    assert [turn.text for turn in parser_for("auto")({**record, "output": "7"}).turns] == [question, "7"]
    assert [turn.text for turn in parser_for("auto")({**record, "response": "7"}).turns] == [question, "7"]


def test_options_are_choices() -> None:
    record: dict[str, Any] = {"image": "1", "question": "which?", "options": ["cat", "dog"]}
    for answer in (1, "B", "(B)", "b.", "B)", "dog"):
        turns = parser_for("auto")({**record, "answer": answer}).turns
        assert [turn.text for turn in turns] == ["<image>\nwhich?\nA. cat\nB. dog", "B. dog"]
    assert detect({**record, "options": [], "answer": "a cat"}) == "vqa"


def test_a_record_of_another_format_says_which() -> None:
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    with pytest.raises(SampleError, match="read as 'llava' but looks like 'openai'") as caught:
        parser_for("llava")(record)
    assert caught.value.reason is Reason.MISSING_FIELD


BROKEN: list[tuple[str, dict[str, Any], Reason]] = [
    ("vqa", {"question": "q", "answer": "a"}, Reason.MISSING_FIELD),
    ("vqa", {"image": "1", "answer": "a"}, Reason.MISSING_FIELD),
    ("vqa", {"image": "1", "question": "q"}, Reason.MISSING_FIELD),
    ("vqa", {"image": "1", "question": None, "answer": "a"}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": 3, "answer": "a"}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answer": ["a"]}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answers": []}, Reason.NO_ANSWER),
    ("vqa", {"image": "1", "question": "q", "answers": [3]}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answers": ["a"], "answer_weights": [1, 2]}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answers": ["a"], "answer_weights": [True]}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answers": ["a"], "answer_weights": 1}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": "q", "answer": " "}, Reason.NO_ANSWER),
    ("vqa", {"image": "1", "question": "<image><image>", "answer": "a"}, Reason.PLACEHOLDER_COUNT),
    ("vqa", {"image": "1", "question": ["q"], "answers": ["a", "b"]}, Reason.WRONG_TYPE),
    ("vqa", {"image": "1", "question": [], "answers": []}, Reason.PLACEHOLDER_COUNT),
    ("multi_choice", {"question": "q", "answer": 0}, Reason.MISSING_FIELD),
    ("multi_choice", {"question": "q", "choices": [], "answer": 0}, Reason.WRONG_TYPE),
    ("multi_choice", {"question": "q", "choices": ["a"] * 27, "answer": 0}, Reason.WRONG_TYPE),
    ("multi_choice", {"question": "q", "choices": [3], "answer": 0}, Reason.WRONG_TYPE),
    ("multi_choice", {"question": "q", "choices": ["a"]}, Reason.MISSING_FIELD),
    ("multi_choice", {"question": "q", "choices": ["a"], "answer": 1}, Reason.NO_ANSWER),
    ("multi_choice", {"question": "q", "choices": ["a"], "answer": -1}, Reason.NO_ANSWER),
    ("multi_choice", {"question": "q", "choices": ["a"], "answer": "b"}, Reason.NO_ANSWER),
    ("multi_choice", {"question": "q", "choices": ["a"], "answer": True}, Reason.WRONG_TYPE),
    ("multi_choice", {"question": "<image>", "choices": ["a"], "answer": 0}, Reason.PLACEHOLDER_COUNT),
    ("captioning", {"caption": "a"}, Reason.MISSING_FIELD),
    ("captioning", {"image": "1"}, Reason.MISSING_FIELD),
    ("captioning", {"image": "1", "caption": ["a"]}, Reason.WRONG_TYPE),
    ("captioning", {"image": {"bytes": "x"}, "caption": "a"}, Reason.WRONG_TYPE),
    ("ocr", {"image": "1"}, Reason.MISSING_FIELD),
    ("ocr", {"image": "1", "lines_text": "a"}, Reason.WRONG_TYPE),
    ("ocr", {"image": "1", "words_text": [3]}, Reason.WRONG_TYPE),
    ("ocr", {"image": "1", "text": ""}, Reason.NO_ANSWER),
    ("interleaved", {"sequence": "a"}, Reason.WRONG_TYPE),
    ("interleaved", {"sequence": []}, Reason.EMPTY_CONVERSATION),
    ("interleaved", {"sequence": [3]}, Reason.WRONG_TYPE),
    ("interleaved", {"sequence": [{"image": "1"}]}, Reason.NO_ANSWER),
    ("interleaved", {"sequence": ["a", {"image": None}]}, Reason.WRONG_TYPE),
    ("interleaved", {"sequence": ["a", {"image": ""}]}, Reason.IMAGE_MISSING),
    ("interleaved", {"sequence": ["a", {"image": "1"}], "image": ["1", "2"]}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"]}, Reason.MISSING_FIELD),
    ("interleaved", {"texts": ["a"], "images": [None, "1"]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": ["a"], "images": ["1"]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": [None], "images": [None]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": ["a"], "images": ["1"], "matched_text_indices": [1]}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"], "images": ["1"], "matched_text_indices": [-1]}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"], "images": ["1"], "matched_text_indices": [0.0]}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"], "images": ["1"], "matched_text_indices": []}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"], "images": ["1"], "matched_text_indices": 0}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": ["a", None], "images": ["1"], "matched_text_indices": [0]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": ["a"], "images": ["1"], "similarity_matrix": [[1, 2]]}, Reason.PLACEHOLDER_COUNT),
    ("interleaved", {"texts": ["a"], "images": ["1"], "similarity_matrix": [[True]]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": ["a"], "images": ["1"], "similarity_matrix": [[float("nan")]]}, Reason.WRONG_TYPE),
    ("interleaved", {"texts": [" "], "images": ["1"], "similarity_matrix": [[1]]}, Reason.NO_ANSWER),
    ("text", {"text": 3}, Reason.WRONG_TYPE),
    ("text", {"text": " "}, Reason.NO_ANSWER),
    ("text", {"text": "a", "image": "1"}, Reason.PLACEHOLDER_COUNT),
    ("prompt_response", {"prompt": "q"}, Reason.MISSING_FIELD),
    ("prompt_response", {"prompt": "q", "response": 3}, Reason.WRONG_TYPE),
    ("prompt_response", {"prompt": "<image><image>", "response": "a", "image": "1"}, Reason.PLACEHOLDER_COUNT),
    ("prompt_response", {"instruction": "q", "input": 3, "output": "a"}, Reason.WRONG_TYPE),
    ("text", {"text": "a", "file_name": "1.jpg"}, Reason.MISSING_FIELD),
    ("text", {"text": "a", "img": ["1.PNG"]}, Reason.MISSING_FIELD),
    ("vqa", {"image": "1", "question": "q", "answer": "a", "audio": "1.wav"}, Reason.WRONG_TYPE),
]


@pytest.mark.parametrize(("name", "record", "reason"), BROKEN)
def test_a_broken_rule_has_its_reason(name: str, record: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(SampleError) as caught:
        SOURCES.get(name)(record)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"conversations": [{"from": "human"}], "images": ["1"]}, "sharegpt"),
        ({"conversations": [{"from": "Observation"}]}, "sharegpt"),
        ({"conversations": [{"from": ["tool"]}, 3]}, "llava"),
        ({"conversations": [{"role": "user"}]}, "openai"),
        ({"conversations": 3}, "llava"),
        ({"context": "q", "choices": [], "answers": []}, "multi_choice"),
        ({"image": "1", "context": "q", "answers": []}, "vqa"),
        ({"image": "1", "text": "a", "words_text": []}, "ocr"),
        ({"caption": "a"}, "captioning"),
        ({"input": "a", "output": "b"}, "prompt_response"),
        ({"question": "q"}, None),
        ({"text": None}, None),
        ({}, None),
    ],
)
def test_detection(record: object, name: str | None) -> None:
    assert detect(record) == name


def test_a_data_url_holds_its_picture() -> None:
    assert inline_picture("DATA:image/png;base64,iVBO\nRw0%4B") == b"\x89PNG\r\n\x0a"[:4] + b"\r\n"[:1] + b"\n"
    for broken in ("data:image/png,abc", "data:;base64,a", "data:;base64,é", "data:"):
        with pytest.raises(SampleError) as caught:
            inline_picture(broken)
        assert caught.value.reason is Reason.NOT_AN_IMAGE
