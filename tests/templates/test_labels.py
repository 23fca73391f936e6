"""Trained tokens decode to exactly the answers of the raw JSON and their stops, for every template of the table."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.sample import IMAGE_TOKEN_INDEX, Conversation, Role
from mmpack.templates import TEMPLATES, make_template
from tests.encode.test_encoder import picture
from tests.templates.conftest import conversation_of, decode_trained, encoder, real_records, turns
from tests.templates.test_forms import BY_NAME, TALK, stop_of

RECORDS = real_records()
# Those whose control tokens the bundled vocabulary has.
MISTRAL_NAMES = ["v0", "v0_mmtag", "v1", "v1_mmtag", "plain", "raw", "llama_2", "mistral", "mistral_instruct"]
MISTRAL_NAMES += ["mistral_zephyr"]


def answers_of(record: dict[str, Any], stop: str) -> str:
    return "".join(turn["value"] + stop for turn in record["conversations"] if turn["from"] == "gpt")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_trained_tokens_are_the_answers_of_the_json(name: str, wide_tokenizer: Any) -> None:
    encode = encoder(wide_tokenizer, make_template(name, tokenizer=wide_tokenizer)).encode
    for record in RECORDS:
        sample = encode(conversation_of(record))
        assert decode_trained(wide_tokenizer, sample) == answers_of(record, stop_of(name)), record["id"]


@pytest.mark.parametrize("name", MISTRAL_NAMES)
def test_so_they_are_with_a_real_vocabulary(name: str, mistral_tokenizer: Any) -> None:
    encode = encoder(mistral_tokenizer, make_template(name, tokenizer=mistral_tokenizer)).encode
    for record in RECORDS:
        sample = encode(conversation_of(record))
        assert decode_trained(mistral_tokenizer, sample) == answers_of(record, stop_of(name)), record["id"]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_whole_sample_decodes_to_the_documented_form(name: str, wide_tokenizer: Any) -> None:
    talk = Conversation(key="k", turns=tuple(TALK), pictures=(picture(9, 9),))
    ids = encoder(wide_tokenizer, make_template(name, tokenizer=wide_tokenizer)).encode(talk).token_ids_n.tolist()
    place = ids.index(IMAGE_TOKEN_INDEX)
    form = BY_NAME[name]
    begin = "" if form.startswith(("<s>", "<bos>", "<|begin_of_text|>")) else "<s>"
    before, behind = form.split("<image>")
    assert wide_tokenizer.decode(ids[:place], clean_up_tokenization_spaces=False) == begin + before
    assert wide_tokenizer.decode(ids[place + 1 :], clean_up_tokenization_spaces=False) == behind


def test_the_records_hold_what_they_are_meant_to_hold() -> None:
    text = [turn["value"] for record in RECORDS for turn in record["conversations"]]
    assert len(RECORDS) == 50
    assert any(t.startswith(" ") for t in text)
    assert any(t.endswith(" \n") for t in text)
    assert any("🙂" in t for t in text)
    assert any("<|im_end|>" in t for t in text)


def test_an_answer_with_a_trailing_blank_loses_no_label(wide_tokenizer: Any) -> None:
    # NeMo finds answers by searching their tokens: one trailing blank unlabels that answer and all behind it.
    talk = turns((Role.USER, "q"), (Role.ASSISTANT, "yes "), (Role.USER, "q"), (Role.ASSISTANT, "no"))
    sample = encoder(wide_tokenizer, make_template("v1")).encode(Conversation(key="k", turns=tuple(talk)))
    num_expected = sum(len(wide_tokenizer.encode(t, add_special_tokens=False)) for t in ("yes ", "</s>", "no", "</s>"))
    assert int(sample.trained_n.sum()) == num_expected
    assert decode_trained(wide_tokenizer, sample) == "yes </s>no</s>"
