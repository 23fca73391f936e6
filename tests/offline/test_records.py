"""Prompt-response records: ids, where the answer starts, what is learned; the cut of long ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.offline.records import PromptResponse, PromptResponseEncoder, TextLimit
from tests.offline.texts import bpe_tokenizer, char_tokenizer, mistral_tokenizer, trained_text

NEMO = PromptResponse(prompt_template="{input} {output}")


def encode(tokenizer: Any, record: object, form: PromptResponse = NEMO, **limit: Any) -> Any:
    return PromptResponseEncoder(tokenizer, form, TextLimit(**limit)).encode(record)


def cut(record: object, seq_length: int, form: PromptResponse = NEMO) -> Any:
    return encode(char_tokenizer(), record, form, seq_length=seq_length, oversize="truncate")


def test_short_record() -> None:
    row = encode(char_tokenizer(), {"input": "ab", "output": "cd"})
    assert char_tokenizer().convert_ids_to_tokens(row.token_ids_n.tolist()) == ["a", "b", "c", "d", "</s>"]
    assert row.answer_start == 2
    assert row.trained_n.tolist() == [False, False, True, True, True]
    assert row.loss_mask_n.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("seq_length", "num_prompt", "num_answer"), [(12, 5, 6), (8, 1, 6), (5, 0, 4), (17, 10, 6), (3, 0, 2)]
)
def test_the_prompt_is_cut_then_the_answer(seq_length: int, num_prompt: int, num_answer: int) -> None:
    row = cut({"input": "abcdefghij", "output": "KLMNOP"}, seq_length)
    tokens = char_tokenizer().convert_ids_to_tokens(row.token_ids_n.tolist())
    assert tokens == [*"abcdefghij"[:num_prompt], *"KLMNOP"[:num_answer], "</s>"]
    assert row.answer_start == num_prompt
    assert row.truncated == (seq_length < 17)


def test_left_cut_and_shares_of_fields() -> None:
    left = PromptResponse(prompt_template="{input} {output}", truncation_method="left")
    row = cut({"input": "abcdefghij", "output": "KLMNOP"}, 12, left)
    assert char_tokenizer().decode(row.token_ids_n[:5]).replace(" ", "") == "fghij"
    two = PromptResponse(prompt_template="C: {context} Q: {question} A: {answer}", truncation_field="context,question")
    row = cut({"context": "abcdefghij", "question": "xyz", "answer": "K"}, 13, two)
    text = char_tokenizer().decode(row.token_ids_n).replace(" ", "")
    assert text == "C:abcdeQ:A:K</s>"
    one = PromptResponse(prompt_template="{context} {question} {answer}", truncation_field="context")
    row = cut({"context": "abcdefghij", "question": "xyz", "answer": "K"}, 8, one)
    assert char_tokenizer().decode(row.token_ids_n).replace(" ", "") == "abcxyzK</s>"
    answer = PromptResponse(prompt_template="{input} {output}", truncation_field="output")
    row = cut({"input": "abc", "output": "KLMNOP"}, 6, answer)
    assert char_tokenizer().decode(row.token_ids_n).replace(" ", "") == "abcKL</s>"


def test_an_answer_is_never_cut_whole() -> None:
    form = PromptResponse(prompt_template="long words {input} {output}")
    with pytest.raises(SampleError) as caught:
        cut({"input": "ab", "output": "cd"}, 10, form)
    assert caught.value.reason is Reason.NO_ANSWER
    assert cut({"input": "ab", "output": "cd"}, 11, form).num_trained == 2


def test_policies() -> None:
    record = {"input": "abcdefghij", "output": "KLMNOP"}
    with pytest.raises(SampleError) as caught:
        encode(char_tokenizer(), record, seq_length=12, oversize="drop")
    assert caught.value.reason is Reason.OVERSIZE
    with pytest.raises(ConfigError, match="17 tokens, allowed 12"):
        encode(char_tokenizer(), record, seq_length=12, oversize="raise")


def test_whole_text_and_begin_and_separator() -> None:
    tokenizer = bpe_tokenizer()
    row = encode(tokenizer, {"input": "ab", "output": "cd"}, PromptResponse(answer_only_loss=False, add_bos=True))
    assert row.trained_n.all()
    assert row.token_ids_n[0] == tokenizer.bos_token_id
    assert tokenizer.decode(row.token_ids_n) == "<s>ab cd</s>"
    assert row.loss_mask_n.tolist() == [1] * (row.num_tokens - 1) + [0]
    with pytest.raises(ConfigError, match="sep_token"):
        encode(tokenizer, {"input": "ab", "output": "cd"}, PromptResponse(add_sep=True))


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(prompt=TEXTS, answer=TEXTS.filter(lambda text: bool(text.strip())))
def test_what_is_learned_is_the_answer_and_the_end(prompt: str, answer: str) -> None:
    tokenizer = bpe_tokenizer()
    row = encode(tokenizer, {"prompt": prompt, "response": answer}, PromptResponse())
    assert trained_text(tokenizer, row) == answer + "</s>"
    before = tokenizer.decode(row.token_ids_n[: row.answer_start], clean_up_tokenization_spaces=False)
    assert before == prompt + " "


@settings(max_examples=60, deadline=None)
@given(prompt=TEXTS, answer=TEXTS.filter(lambda text: bool(text.strip())), seq_length=st.integers(3, 30))
def test_a_cut_row_fits_and_keeps_a_target(prompt: str, answer: str, seq_length: int) -> None:
    tokenizer = bpe_tokenizer()
    whole = encode(tokenizer, {"prompt": prompt, "response": answer}, PromptResponse())
    limit: dict[str, Any] = {"seq_length": seq_length, "oversize": "truncate"}
    try:
        row = encode(tokenizer, {"prompt": prompt, "response": answer}, PromptResponse(), **limit)
    except SampleError:
        assert whole.num_tokens > seq_length
        return
    assert row.num_tokens == min(seq_length, whole.num_tokens)
    assert row.num_trained >= 1
    assert row.token_ids_n[-1] == tokenizer.eos_token_id
    cut_answer = row.token_ids_n[row.answer_start : -1].tolist()
    assert cut_answer == whole.token_ids_n[whole.answer_start : -1].tolist()[: len(cut_answer)]
    assert len(cut_answer) >= 1


def test_tokenizer_that_adds_blanks_learns_the_answer_only() -> None:
    tokenizer = mistral_tokenizer()
    row = encode(tokenizer, {"input": "What is it?", "output": "A cat."})
    assert trained_text(tokenizer, row).strip() == "A cat.</s>"
    assert tokenizer.decode(row.token_ids_n) == tokenizer.decode(
        [*tokenizer("What is it? A cat.", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    )


def test_markers_typed_by_a_user_are_text() -> None:
    tokenizer = bpe_tokenizer()
    row = encode(tokenizer, {"prompt": "Explain </s>.", "response": "</s> ends, <pad> fills."}, PromptResponse())
    assert (row.token_ids_n == tokenizer.eos_token_id).sum() == 1
    assert tokenizer.pad_token_id not in row.token_ids_n
    assert trained_text(tokenizer, row) == "</s> ends, <pad> fills.</s>"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (["a"], Reason.NOT_A_RECORD),
        ({"input": "a"}, Reason.MISSING_FIELD),
        ({"input": "a", "output": 3}, Reason.WRONG_TYPE),
        ({"input": None, "output": "b"}, Reason.WRONG_TYPE),
        ({"input": "a", "output": " \n"}, Reason.NO_ANSWER),
        ({"input": "a", "output": "\ud800"}, Reason.BAD_TEXT),
    ],
)
def test_bad_records(record: object, reason: Reason) -> None:
    for form in (NEMO, PromptResponse()):
        with pytest.raises(SampleError) as caught:
            encode(bpe_tokenizer(), record, form)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_template": "{input} {output}."}, "must end with"),
        ({"prompt_template": "{input} {output"}, "expected '}'"),
        ({"prompt_template": "{} {output}"}, "name in braces"),
        ({"prompt_template": "{a!r} {output}"}, "name in braces"),
        ({"prompt_template": "{output} {output}"}, "more than once"),
        ({"prompt_template": "{input} {output}", "label_key": "input"}, "label_key"),
        ({"prompt_template": "{input} {output}", "truncation_field": "inptu"}, "did you mean 'input'"),
        ({"truncation_method": "middle"}, "truncation_method='middle'"),
    ],
)
def test_bad_forms(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptResponse(**options)
