"""NeMo's chats: the written text, and exactly what is learned of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.offline.chat import CHAT_TOKENS, ChatTokens, NemoChatEncoder, chat_text, trained_texts
from mmpack.offline.records import TextLimit
from tests.offline.texts import bpe_tokenizer, mistral_tokenizer, trained_runs


def chat(*turns: tuple[str, str] | tuple[str, str, str | None], **more: Any) -> dict[str, Any]:
    names = ("from", "value", "label")
    return {
        "system": "sys",
        "mask": "User",
        "conversations": [dict(zip(names, turn, strict=False)) for turn in turns],
        **more,
    }


PLAIN = chat(("User", "hi"), ("Assistant", "yo"), ("User", "q2"), ("Assistant", "a2"))
LABELLED = chat(
    ("User", "hi", None), ("Assistant", "yo", "quality:4"), ("User", "q2", None), ("Assistant", "a2", "quality:3")
)
V2T, T2V = {**LABELLED, "type": "VALUE_TO_TEXT"}, {**LABELLED, "type": "TEXT_TO_VALUE"}

TEXT = (
    "<extra_id_0>System\nsys\n<extra_id_1>User\nhi\n<extra_id_1>Assistant\nyo\n"
    "<extra_id_1>User\nq2\n<extra_id_1>Assistant\na2\n<extra_id_1>"
)


def encode(record: object, *, extra: bool = True, tokens: Any = "extra_id", **limit: Any) -> Any:
    return NemoChatEncoder(bpe_tokenizer(extra=extra), tokens, TextLimit(**limit)).encode(record)


def test_text_and_loss_of_a_plain_chat() -> None:
    assert chat_text(PLAIN) == TEXT
    assert trained_texts(PLAIN) == ["yo\n<extra_id_1>", "a2\n<extra_id_1>"]


@pytest.mark.parametrize("extra", [True, False])
def test_tokens_say_the_same_whether_the_marks_are_tokens_or_text(extra: bool) -> None:
    tokenizer = bpe_tokenizer(extra=extra)
    row = encode(PLAIN, extra=extra)
    assert tokenizer.decode(row.token_ids_n) == TEXT
    assert trained_runs(tokenizer, row) == ["yo\n<extra_id_1>", "a2\n<extra_id_1>"]
    answer = tokenizer.decode(row.token_ids_n[row.answer_start :])
    assert answer == "a2\n<extra_id_1>"
    if extra:
        assert (row.token_ids_n == tokenizer.convert_tokens_to_ids("<extra_id_1>")).sum() == 5


def test_labels_before_the_reply_change_the_text_only() -> None:
    text = TEXT.replace("Assistant\nyo", "Assistant\n<extra_id_2>quality:4\nyo")
    assert chat_text(V2T) == text.replace("Assistant\na2", "Assistant\n<extra_id_2>quality:3\na2")
    assert trained_texts(V2T) == ["yo\n<extra_id_1>", "a2\n<extra_id_1>"]
    assert trained_runs(bpe_tokenizer(), encode(V2T)) == trained_texts(V2T)


def test_labels_behind_the_reply_are_what_is_learned() -> None:
    text = TEXT.replace("yo\n", "yo\n<extra_id_2>quality:4\n").replace("a2\n", "a2\n<extra_id_2>quality:3\n")
    assert chat_text(T2V) == text
    assert trained_texts(T2V) == ["quality:4\n<extra_id_1>", "quality:3\n<extra_id_1>"]
    assert trained_runs(bpe_tokenizer(), encode(T2V)) == trained_texts(T2V)


def test_speakers_are_compared_whole() -> None:
    record = {**PLAIN, "mask": "User2"}
    learned = "".join(trained_texts(record))
    assert "yo" in learned
    assert "a2" in learned
    # every turn but the first is learned, since nobody of that name speaks
    assert trained_texts(record) == ["yo\n<extra_id_1>", "q2\n<extra_id_1>", "a2\n<extra_id_1>"]
    assert trained_texts({**PLAIN, "mask": ["User", "Someone"]}) == trained_texts(PLAIN)


def test_ends() -> None:
    asked = chat(("User", "hi"), ("Assistant", "yo"), ("User", "q2"))
    assert chat_text(asked).endswith("<extra_id_1>User\nq2\n")
    assert trained_texts(asked) == ["yo\n<extra_id_1>"]
    first = chat(("Assistant", "welcome"), ("User", "hi"), ("Assistant", "yo"))
    assert trained_texts(first) == ["yo\n<extra_id_1>"]


def test_control_character_marks() -> None:
    text = chat_text(V2T, CHAT_TOKENS["control"])
    assert text.startswith("\0System\nsys\n\x11User\nhi\n\x11Assistant\n\x12quality:4\nyo\n\x11User")
    assert trained_texts(V2T, CHAT_TOKENS["control"]) == ["yo\n\x11", "a2\n\x11"]
    row = encode(V2T, tokens={"system_turn_start": "\0", "turn_start": "\x11", "label_start": "\x12"})
    assert bpe_tokenizer().decode(row.token_ids_n) == text


def test_a_mark_typed_by_a_user_is_text() -> None:
    record = chat(("User", "what is <extra_id_1>?"), ("Assistant", "a mark: <extra_id_1>"))
    row = encode(record)
    assert (row.token_ids_n == bpe_tokenizer().convert_tokens_to_ids("<extra_id_1>")).sum() == 3
    assert trained_runs(bpe_tokenizer(), row) == ["a mark: <extra_id_1>\n<extra_id_1>"]


def test_with_a_tokenizer_that_adds_blanks() -> None:
    row = NemoChatEncoder(mistral_tokenizer()).encode(PLAIN)
    assert [run.strip() for run in trained_runs(mistral_tokenizer(), row)] == ["yo\n<extra_id_1>", "a2\n<extra_id_1>"]


def test_a_long_chat_is_cut_at_its_end_or_left_out() -> None:
    whole = encode(PLAIN)
    row = encode(PLAIN, seq_length=whole.num_tokens - 4, oversize="truncate")
    assert row.truncated
    assert row.token_ids_n.tolist() == whole.token_ids_n.tolist()[:-4]
    with pytest.raises(SampleError) as caught:
        encode(PLAIN, seq_length=10, oversize="truncate")
    assert caught.value.reason is Reason.NO_ANSWER


def oracle(record: dict[str, Any]) -> list[str]:
    """The learned stretches by reading the record itself."""
    turns = record["conversations"]
    learned = [i > 0 and turn["from"] != record["mask"] for i, turn in enumerate(turns)]
    return [turn["value"] + "\n<extra_id_1>" for turn, is_learned in zip(turns, learned, strict=True) if is_learned]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["User", "Assistant", "Tool"]), st.text("abc \n", max_size=5)), min_size=1))
def test_any_order_of_speakers(turns: list[tuple[str, str]]) -> None:
    record = chat(*turns)
    wanted = oracle(record)
    if not any(text.removesuffix("<extra_id_1>").strip() for text in wanted):
        with pytest.raises(SampleError):
            encode(record)
        return
    assert trained_texts(record) == wanted
    assert trained_runs(bpe_tokenizer(), encode(record)) == wanted


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("text", Reason.NOT_A_RECORD),
        ({"system": "s"}, Reason.MISSING_FIELD),
        ({"conversations": "x"}, Reason.WRONG_TYPE),
        ({"conversations": []}, Reason.EMPTY_CONVERSATION),
        (chat(("User", "hi"), ("Assistant", "yo"), type="VALUE"), Reason.WRONG_TYPE),
        (chat(("User", "hi"), ("Assistant", "yo"), mask=3), Reason.WRONG_TYPE),
        (chat(("User", "hi"), ("Assistant", " ")), Reason.NO_ANSWER),
        (chat(("User", "hi")), Reason.NO_ANSWER),
        ({"conversations": [{"from": "User"}]}, Reason.MISSING_FIELD),
        ({"conversations": [{"from": "User", "value": None}]}, Reason.WRONG_TYPE),
        ({"conversations": ["hi"]}, Reason.WRONG_TYPE),
        (chat(("User", "hi"), ("Assistant", "yo"), type="TEXT_TO_VALUE"), Reason.NO_ANSWER),
    ],
)
def test_bad_records(record: object, reason: Reason) -> None:
    with pytest.raises(SampleError) as caught:
        encode(record)
    assert caught.value.reason is reason


def test_bad_marks() -> None:
    with pytest.raises(ConfigError, match="did you mean 'turn_start'"):
        ChatTokens.of({"turn_strat": "x"})
    with pytest.raises(ConfigError, match="'extra'"):
        ChatTokens.of("extra")
    with pytest.raises(ConfigError, match="turn_start=''"):
        ChatTokens(turn_start="")
