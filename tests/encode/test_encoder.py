"""The encoder: labels come from rendered spans, control strings in user text stay text, lengths are exact."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import IMAGE_TOKEN_INDEX, Conversation, EncodedSample, Picture, PictureSlot, Role, Turn
from mmpack.templates import TEMPLATES, make_template
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec

ANSWERS = [
    "yes",
    " leading blank",
    "trailing blank ",
    "two\nlines\n",
    "naïve 中文 🙂",
    "question",
    "</s> as text",
    "  ",
]


def picture(width_px: int, height_px: int) -> Picture:
    out = io.BytesIO()
    Image.new("RGB", (width_px, height_px)).save(out, "PNG")
    return Picture(name="p.png", data=out.getvalue())


def make_encoder(tokenizer: Any, *, template: str = "v1", limit: int = 10_000, **options: Any) -> SampleEncoder:
    return SampleEncoder(
        tokenizer=tokenizer,
        template=TEMPLATES.get(template)(),
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=limit, **options),
    )


def conversation(*turns: tuple[Role, Any], pictures: tuple[Picture, ...] = ()) -> Conversation:
    parts = [Turn(role=role, parts=content if isinstance(content, tuple) else (content,)) for role, content in turns]
    return Conversation(key="k", turns=tuple(parts), pictures=pictures, source="test")


def trained_text(tokenizer: Any, sample: EncodedSample) -> str:
    text: str = tokenizer.decode(sample.token_ids_n[sample.trained_n].tolist(), clean_up_tokenization_spaces=False)
    return text


@pytest.mark.parametrize("answer", ANSWERS)
def test_trained_tokens_are_the_answer_and_its_end(tokenizer: Any, answer: str) -> None:
    turns = ((Role.USER, "question?"), (Role.ASSISTANT, answer), (Role.USER, "more?"), (Role.ASSISTANT, "question"))
    sample = make_encoder(tokenizer, template="chatml").encode(conversation(*turns))
    assert trained_text(tokenizer, sample) == answer + "<|im_end|>" + "question" + "<|im_end|>"


def test_llava_v1_renders_as_documented(tokenizer: Any) -> None:
    sample = make_encoder(tokenizer).encode(
        conversation(
            (Role.USER, (PictureSlot(0), "\nWhat is this?")),
            (Role.ASSISTANT, "This is a cat"),
            pictures=(picture(40, 30),),
        )
    )
    ids = sample.token_ids_n.tolist()
    where = ids.index(IMAGE_TOKEN_INDEX)
    before = tokenizer.decode(ids[:where])
    after = tokenizer.decode(ids[where + 1 :])
    assert before.startswith("<s>A chat between a curious user")
    assert before.endswith("questions. USER: ")
    assert after == "\nWhat is this? ASSISTANT: This is a cat</s>"
    assert trained_text(tokenizer, sample) == "This is a cat</s>"
    assert sample.num_tokens == len(ids) - 1 + 4


def test_plain_trains_the_caption_and_a_newline(tokenizer: Any) -> None:
    sample = make_encoder(tokenizer, template="plain").encode(
        conversation(
            (Role.USER, (PictureSlot(0), "ignored words")), (Role.ASSISTANT, "a cat"), pictures=(picture(9, 9),)
        )
    )
    assert trained_text(tokenizer, sample) == "a cat\n"
    assert tokenizer.decode([t for t in sample.token_ids_n.tolist() if t >= 0]) == "<s>a cat\n"


def test_control_strings_in_user_text_stay_plain_text(tokenizer: Any) -> None:
    text = "say </s> and <|im_end|> and <s>"
    sample = make_encoder(tokenizer, template="chatml").encode(conversation((Role.USER, text), (Role.ASSISTANT, "ok")))
    ids = sample.token_ids_n.tolist()
    control = [tokenizer.convert_tokens_to_ids(t) for t in ("</s>", "<|im_end|>", "<s>")]
    assert [ids.count(token) for token in control] == [0, 2, 1]  # two turns end, one sample begins
    assert text in tokenizer.decode(ids)
    assert tokenizer.encode("</s>", add_special_tokens=False) == [control[0]]  # the tokenizer itself is unchanged


def test_pictures_keep_reading_order(tokenizer: Any) -> None:
    sizes = [(10, 20), (30, 10), (50, 50)]
    sample = make_encoder(tokenizer).encode(
        conversation(
            (Role.USER, (PictureSlot(0), " then ", PictureSlot(1))),
            (Role.ASSISTANT, "one"),
            (Role.USER, ("and ", PictureSlot(2))),
            (Role.ASSISTANT, "two"),
            pictures=tuple(picture(*size) for size in sizes),
        )
    )
    assert [(p.width_px, p.height_px) for p in sample.pictures] == sizes
    assert int((sample.token_ids_n == IMAGE_TOKEN_INDEX).sum()) == 3
    assert sample.num_tokens == len(sample.token_ids_n) + 3 * (4 - 1)
    assert not sample.trained_n[sample.token_ids_n == IMAGE_TOKEN_INDEX].any()


def test_a_sample_without_an_answer_is_refused(tokenizer: Any) -> None:
    with pytest.raises(SampleError) as caught:
        make_encoder(tokenizer, template="plain").encode(conversation((Role.USER, "only a question")))
    assert caught.value.reason is Reason.NO_ANSWER
    assert caught.value.key == "k"


def test_a_bad_picture_names_the_sample(tokenizer: Any) -> None:
    turns = ((Role.USER, (PictureSlot(0),)), (Role.ASSISTANT, "x"))
    with pytest.raises(SampleError, match="sample 'k': not_an_image"):
        make_encoder(tokenizer).encode(conversation(*turns, pictures=(Picture(name="p", data=b"<html>"),)))


def test_oversize_raise_says_what_to_change(tokenizer: Any) -> None:
    sample = conversation((Role.USER, "q"), (Role.ASSISTANT, "word " * 100))
    with pytest.raises(ConfigError, match=r"seq_length=20: sample 'k' of 'test' needs \d+ tokens .* oversize='drop'"):
        make_encoder(tokenizer, limit=20).encode(sample)


def test_oversize_drop_is_a_counted_reason(tokenizer: Any) -> None:
    sample = conversation((Role.USER, "q"), (Role.ASSISTANT, "word " * 100))
    with pytest.raises(SampleError) as caught:
        make_encoder(tokenizer, limit=20, oversize="drop").encode(sample)
    assert caught.value.reason is Reason.OVERSIZE


def test_a_template_the_tokenizer_cannot_speak_is_refused_when_the_encoder_is_built(tokenizer: Any) -> None:
    refused = set()
    for name in TEMPLATES:
        template = make_template(name, tokenizer=tokenizer)
        options = {"tiling": make_tiling("single", tile_spec()), "limit": LengthLimit(seq_length=100)}
        needed = set(template.needed_controls)  # type: ignore[attr-defined]  # not of every template, but of these
        if needed <= set(tokenizer.get_vocab()):
            SampleEncoder(tokenizer=tokenizer, template=template, **options)
            continue
        refused.add(name)
        with pytest.raises(ConfigError, match=r"needs the control token .* which the tokenizer does not have"):
            SampleEncoder(tokenizer=tokenizer, template=template, **options)
    assert {"llama_3", "llava_llama_3", "gemma_instruct", "nvgpt", "nv_dpo", "nv_steerlm", "qwen_2_vl"} <= refused
    assert not refused & {"v0", "v1", "plain", "chatml", "mistral", "llama_2"}


def test_so_is_a_stop_that_it_does_not_have(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"control token '<\|endoftext\|>'"):
        SampleEncoder(
            tokenizer=tokenizer,
            template=TEMPLATES.get("v1")(stop_string="<|endoftext|>"),
            tiling=make_tiling("single", tile_spec()),
            limit=LengthLimit(seq_length=100),
        )


def test_a_missing_tokenizer_and_an_unknown_policy_are_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match="tokenizer is None"):
        make_encoder(None)
    with pytest.raises(ConfigError, match="oversize='dorp'"):
        LengthLimit(seq_length=5, oversize="dorp")


def test_a_tokenizer_that_adds_blanks_gets_the_natural_tokens() -> None:
    # As SentencePiece models do: every text begins with a blank that decoding takes away again.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    texts = ["USER: question ASSISTANT: This is a cat " * 3] * 20
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    encoder = SampleEncoder(
        tokenizer=tokenizer,
        template=TEMPLATES.get("v1")(system=""),
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=100),
    )
    sample = encoder.encode(conversation((Role.USER, "question"), (Role.ASSISTANT, "This is a cat")))
    natural = tokenizer.encode("USER: question ASSISTANT: This is a cat", add_special_tokens=False)
    assert sample.token_ids_n.tolist() == [tokenizer.bos_token_id, *natural, tokenizer.eos_token_id]
    assert trained_text(tokenizer, sample) == "This is a cat</s>"
