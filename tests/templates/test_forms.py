"""Each form as its family documents it, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Role, Turn
from mmpack.templates import TEMPLATES, Control, PictureSlot, Text, make_template
from tests.templates.conftest import controls_of, turns, written

S, U, A = Role.SYSTEM, Role.USER, Role.ASSISTANT
TALK = turns((S, "Be brief."), (U, "<image>\nWhat is it?"), (A, "A cat."), (U, "Sure?"), (A, "Yes."))

V0 = "Be brief.###Human: <image>\nWhat is it?###Assistant: A cat.###Human: Sure?###Assistant: Yes.###"
V0_TAGS = V0.replace("<image>", "<Image><image></Image>")
V1 = "Be brief. USER: <image>\nWhat is it? ASSISTANT: A cat.</s>USER: Sure? ASSISTANT: Yes.</s>"
V1_TAGS = V1.replace("<image>", "<Image><image></Image>")
LLAMA_2 = (
    "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n<image>\nWhat is it? [/INST] A cat. </s>"
    "<s>[INST] Sure? [/INST] Yes. </s>"
)
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n<image>\nWhat is it?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA cat.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
)
MISTRAL_INSTRUCT = "<s>[INST] Be brief.\n\n<image>\nWhat is it? [/INST] A cat.</s>[INST] Sure? [/INST] Yes.</s>"
MPT = (
    "<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\n<image>\nWhat is it?<|im_end|>"
    "<|im_start|>assistant\nA cat.<|im_end|><|im_start|>user\nSure?<|im_end|><|im_start|>assistant\nYes.<|im_end|>"
)
CHATML = MPT.replace("<|im_end|>", "<|im_end|>\n")
GPT = (
    "<extra_id_0>System\nBe brief.\n<extra_id_1>User\n<image>\nWhat is it?\n<extra_id_1>Assistant\nA cat.\n"
    "<extra_id_1>User\nSure?\n<extra_id_1>Assistant\nYes.\n<extra_id_1>"
)
LABELS = (
    "<extra_id_2>quality:4,toxicity:0,humor:0,creativity:0,helpfulness:4,correctness:4,coherence:4,complexity:4,"
    "verbosity:4\n"
)
FORMS = {
    ("v0", "llava_v0"): V0,
    ("v0_mmtag", "llava_v0_mmtag"): V0_TAGS,
    ("v1", "default", "vicuna_v1", "llava_v1"): V1,
    ("v1_mmtag", "llava_v1_mmtag"): V1_TAGS,
    ("plain", "llava_plain", "v0_plain"): "<image>A cat.\nYes.\n",
    ("raw", "interleaved"): "Be brief.<image>\nWhat is it?A cat.</s>Sure?Yes.</s>",
    ("llama_2", "llava_llama_2", "llava_llama_2_simple"): LLAMA_2,
    ("llava_llama_2_mmtag",): LLAMA_2.replace("<image>", "<Image><image></Image>"),
    ("llama_3", "llava_llama_3"): LLAMA_3,
    ("mistral_instruct", "llava_mistral_instruct"): MISTRAL_INSTRUCT,
    ("mistral",): MISTRAL_INSTRUCT.replace("[/INST] ", "[/INST]").replace("brief.\n\n", "brief.\n"),
    ("mpt", "mpt_text", "mistral_orca", "mistral_direct", "chatml_direct"): MPT,
    ("mistral_zephyr",): (
        "<|system|>\nBe brief.</s><|user|>\n<image>\nWhat is it?</s><|assistant|>\nA cat.</s>"
        "<|user|>\nSure?</s><|assistant|>\nYes.</s>"
    ),
    ("chatml", "qwen_1_5", "qwen_2_5"): CHATML,
    ("qwen_2_vl", "qwen_2_5_vl"): CHATML.replace("<image>", "<|vision_start|><image><|vision_end|>"),
    ("gemma_instruct",): (
        "<bos><start_of_turn>user\nBe brief.\n\n<image>\nWhat is it?<end_of_turn>\n"
        "<start_of_turn>model\nA cat.<end_of_turn>\n"
        "<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"
    ),
    ("nvgpt", "nv_dpo"): GPT,
    ("nv_steerlm",): GPT.replace("Assistant\n", "Assistant\n" + LABELS),
}
BY_NAME = {name: form for names, form in FORMS.items() for name in names}
# What each form must give as tokens rather than as characters; everything else it writes is text.
TOKENS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
TOKENS += ["<|eot_id|>", "<|vision_start|>", "<|vision_end|>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
TOKENS += ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
STOPS = {"llama_2": " </s>", "llama_3": "<|eot_id|>", "v0": "###", "plain": "\n", "gemma": "<end_of_turn>"}
STOPS |= {"nv": "\n<extra_id_1>", "mpt": "<|im_end|>", "chatml": "<|im_end|>", "qwen": "<|im_end|>"}
STOPS |= {"orca": "<|im_end|>", "direct": "<|im_end|>"}


def stop_of(name: str) -> str:
    """The documented stop of a form; ``</s>`` for all that are not listed."""
    found = [stop for part, stop in STOPS.items() if part in name and not (part == "v0" and "plain" in name)]
    return found[0] if found else "</s>"


def test_every_template_of_the_table_has_its_form_written_out() -> None:
    assert sorted(BY_NAME) == sorted(TEMPLATES)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_the_form_is_the_documented_one(name: str) -> None:
    spans = TEMPLATES.get(name)().render(TALK)
    form = BY_NAME[name]
    assert written(spans) == form
    assert [span for span in spans if isinstance(span, PictureSlot)] == [PictureSlot(0)]
    places = sorted((i, token) for token in TOKENS for i in range(len(form)) if form.startswith(token, i))
    assert controls_of(spans) == [token for _, token in places]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_answers_and_their_stops_are_learned_and_nothing_else(name: str) -> None:
    stop = stop_of(name)
    template = TEMPLATES.get(name)()
    assert written(template.render(TALK), only_trained=True) == f"A cat.{stop}Yes.{stop}"
    masked = turns((U, "q"), (A, "read only"), (U, "q"), (A, "learn"), masked=[1])
    assert written(template.render(masked), only_trained=True) == f"learn{stop}"
    assert "read only" + stop in written(template.render(masked))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_conversation_of_odd_shape_keeps_every_answer_and_picture(name: str) -> None:
    odd = turns((A, "hm"), (U, "a<image>"), (U, "<image>b"), (A, "one "), (A, "\ntwo<image>"), (U, "last"), masked=[0])
    spans = TEMPLATES.get(name)().render(odd)
    stop = stop_of(name)
    assert written(spans, only_trained=True) == f"one {stop}\ntwo{stop}"
    assert [span.index for span in spans if isinstance(span, PictureSlot)] == [0, 1, 2]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_typed_control_strings_stay_text(name: str) -> None:
    typed = "".join(TOKENS) + "###{stop}[/INST]"
    spans = TEMPLATES.get(name)().render(turns((U, "q"), (A, typed)))
    plain = TEMPLATES.get(name)().render(turns((U, "q"), (A, "")))
    assert controls_of(spans) == controls_of(plain)
    assert Text(typed, True) in spans


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_options_replace_the_default_prompt_and_the_stop(name: str) -> None:
    factory = TEMPLATES.get(name)
    talk = turns((U, "q"), (A, "a"))
    assert "PROMPT" in written(factory(system="PROMPT").render(talk))
    if "plain" not in name:
        own = written(factory(system="PROMPT").render([*turns((S, "OWN")), *talk]))
        assert "OWN" in own
        assert "PROMPT" not in own
    trained = factory(stop_string=" <stop> ").render(talk)
    assert written(trained, only_trained=True).strip() in ("a<stop>", "a <stop>", "a\n<stop>")


DEFAULT_PROMPTS = {
    "v0": "curious human and an artificial",
    "v1": "curious user and an artificial",
    "llava_v1": "curious human and an artificial",
    "v1_mmtag": "using natural language.The visual content will be provided",
    "llama_2": "respectful and honest assistant",
    "llava_llama_3": "language and vision assistant",
    "mpt": "<|im_start|>system\nA conversation between a user and an LLM-based AI assistant. ",
    "chatml_direct": "<|im_start|>system\nAnswer the questions.<|im_end|><|im_start|>user",
    "qwen_1_5": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    "qwen_2_5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
    "nvgpt": "the user's questions.\n\n<extra_id_1>User\n",
    "nv_dpo": "<extra_id_0>System\n\n<extra_id_1>User\n",
}


@pytest.mark.parametrize("name", sorted(DEFAULT_PROMPTS))
def test_the_default_prompt_is_the_familys(name: str) -> None:
    assert DEFAULT_PROMPTS[name] in written(TEMPLATES.get(name)().render(turns((U, "q"), (A, "a"))))


def test_families_without_a_prompt_write_none() -> None:
    talk = turns((U, "q"), (A, "a"))
    assert written(TEMPLATES.get("chatml")().render(talk)).startswith("<|im_start|>user\nq")
    assert written(TEMPLATES.get("v1")(system="").render(talk)) == "USER: q ASSISTANT: a</s>"
    assert written(TEMPLATES.get("llama_2")(system="").render(talk)) == "<s>[INST] q [/INST] a </s>"
    assert written(TEMPLATES.get("mistral")().render(talk)) == "<s>[INST] q [/INST]a</s>"


def test_the_two_turn_vector_of_nvidias_chat() -> None:
    spans = TEMPLATES.get("nvgpt")().render(turns((S, "sys"), (U, "hi"), (A, "yo"), (U, "q2"), (A, "a2")))
    assert written(spans) == (
        "<extra_id_0>System\nsys\n<extra_id_1>User\nhi\n<extra_id_1>Assistant\nyo\n<extra_id_1>User\nq2\n<extra_id_1>"
        "Assistant\na2\n<extra_id_1>"
    )
    assert written(spans, only_trained=True) == "yo\n<extra_id_1>a2\n<extra_id_1>"


@pytest.mark.parametrize("name", ["llama_2", "mistral", "gemma_instruct"])
def test_a_system_turn_without_a_question_has_no_place(name: str) -> None:
    with pytest.raises(SampleError) as caught:
        TEMPLATES.get(name)().render(turns((S, "sys"), (A, "a")))
    assert caught.value.reason is Reason.ROLE_ORDER


def test_begin_tokens_are_told() -> None:
    begins = {name for name in TEMPLATES if TEMPLATES.get(name)().renders_bos}
    assert begins == {name for name, form in BY_NAME.items() if form.startswith(("<s>", "<bos>", "<|begin_of_text|>"))}


def test_a_blank_stop_is_refused_where_a_token_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"answers of template 'vicuna_v1' end with a control token; .*'</s>'"):
        TEMPLATES.get("v1")(stop_string=" ")
    assert written(TEMPLATES.get("plain")(stop_string="").render(turns((U, "q"), (A, "a")))) == "a"


def test_descriptions_tell_templates_apart_and_are_the_same_in_every_process() -> None:
    import subprocess
    import sys

    names = sorted(TEMPLATES)
    descriptions = [TEMPLATES.get(name)().describe() for name in names]
    distinct = {id(TEMPLATES.get(name)) for name in names}
    assert len(set(descriptions)) == len(distinct)
    assert TEMPLATES.get("v1")(system="x").describe() != TEMPLATES.get("v1")().describe()
    assert TEMPLATES.get("v1")(stop_string="x").describe() != TEMPLATES.get("v1")().describe()
    code = "from mmpack.templates import TEMPLATES\nfor n in sorted(TEMPLATES): print(TEMPLATES.get(n)().describe())"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert out.stdout.splitlines() == descriptions


def test_names_that_only_some_vocabularies_hold_become_tokens_there(
    mistral_tokenizer: Any, wide_tokenizer: Any
) -> None:
    talk = turns((U, "q [INST]"), (A, "a"))
    known = make_template("mistral_instruct", tokenizer=mistral_tokenizer)
    unknown = make_template("mistral_instruct", tokenizer=wide_tokenizer)
    assert written(known.render(talk)) == written(unknown.render(talk)) == "<s>[INST] q [INST] [/INST] a</s>"
    assert controls_of(known.render(talk)) == ["<s>", "[INST]", "[/INST]", "</s>"]
    assert controls_of(unknown.render(talk)) == ["<s>", "</s>"]
    assert known.describe() != unknown.describe()


def test_make_template_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="unknown conversation template 'lama_2'; did you mean 'llama_2'"):
        make_template("lama_2")
    with pytest.raises(ConfigError, match="tokenizer is None"):
        make_template("hf")
    with pytest.raises(ConfigError, match="a chat template writes its own stop"):
        make_template("auto", stop_string="</s>")


def test_a_turn_without_words_is_rendered(wide_tokenizer: Any) -> None:
    spans = TEMPLATES.get("chatml")().render([Turn(role=U, parts=()), Turn(role=A, parts=())])
    assert spans[-2:] == [Control("<|im_end|>", True), Text("\n")]
