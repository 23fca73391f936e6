"""Chat templates: the same text as transformers renders, its control tokens as tokens, labels on answers and stops."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import PictureSlot, Role, Turn
from mmpack.templates import Control, Text, make_template
from mmpack.templates.hugging_face import HuggingFaceTemplate
from tests.templates.conftest import controls_of, conversation_of, decode_trained, encoder, real_records, turns, written

S, U, A = Role.SYSTEM, Role.USER, Role.ASSISTANT

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}" + CHATML
LLAMA_3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' "
    "+ m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set text = '<|begin_of_text|>' + text %}{% endif %}"
    "{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set prompt = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set prompt = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + (prompt if loop.first else '') + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
QWEN_2_VL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}<|im_end|>\n{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As LLaVA's in transformers: parts only, pictures before the texts, blocks around answers, `<image>` no token.
PARTS_ONLY = (
    "{% for m in messages %}{{ m['role'] | upper + ': ' }}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ c['text'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ c['text'] + ' ' }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
BLOCKS = (
    "{%- for m in messages %}\n    {%- if m.role == 'assistant' %}\nASSISTANT:\n"
    "    {%- generation %} {{ m.content }}\n    {% endgeneration %}\n"
    "    {%- else %}\n{{ m.role | upper }}: {{ m.content }}\n    {%- endif %}\n{%- endfor %}"
)
STOP_BEHIND_BLOCK = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
TEXT_SOURCES = {
    "chatml": (CHATML, "<|im_end|>"),
    "qwen": (QWEN, "<|im_end|>"),
    "llama_3": (LLAMA_3, "<|eot_id|>"),
    "mistral": (MISTRAL, "</s>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "qwen_2_vl": (QWEN_2_VL, "<|im_end|>"),
    "stop_behind_block": (STOP_BEHIND_BLOCK, "<|im_end|>"),
}


def rendered(tokenizer: Any, source: str, talk: list[Turn], *, as_parts: bool = False) -> str:
    """What transformers renders, pictures as ``<image>`` where they are not parts of their own."""
    messages = []
    for turn in talk:
        parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in turn.parts]
        messages.append({"role": turn.role.value, "content": parts if as_parts else turn.text})
    text: str = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False)
    return text


@pytest.mark.parametrize("name", sorted(TEXT_SOURCES))
def test_the_text_is_what_transformers_renders(name: str, wide_tokenizer: Any) -> None:
    source, stop = TEXT_SOURCES[name]
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=source)
    talks = [
        turns((U, "hi"), (A, "yo")),
        turns((U, "hi"), (A, "yo"), (U, "and?"), (A, "no")),
        turns((S, "Be brief."), (U, "hi"), (A, "yo"), (U, "and 🙂?"), (A, "two\n\nlines")),
    ]
    for talk in talks[: 2 if name == "gemma" else 3]:
        spans = template.render(talk)
        text = rendered(wide_tokenizer, source, talk)
        assert written(spans) == text
        answers = "".join(turn.text + stop for turn in talk if turn.role is A)
        assert written(spans, only_trained=True) == answers
        # Cut at its control tokens, the text is what the tokenizer itself cuts there.
        special = [t for t in wide_tokenizer.tokenize(text) if t in set(wide_tokenizer.all_special_tokens)]
        assert controls_of(spans) == special


@pytest.mark.parametrize("name", sorted(TEXT_SOURCES))
def test_trained_tokens_are_the_answers_of_the_json(name: str, wide_tokenizer: Any) -> None:
    source, stop = TEXT_SOURCES[name]
    encode = encoder(wide_tokenizer, HuggingFaceTemplate(wide_tokenizer, chat_template=source)).encode
    for record in real_records():
        sample = encode(conversation_of(record))
        answers = [turn["value"] + stop for turn in record["conversations"] if turn["from"] == "gpt"]
        assert decode_trained(wide_tokenizer, sample) == "".join(answers), record["id"]


def test_the_default_is_the_tokenizers_own_template(wide_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(wide_tokenizer)
    tokenizer.chat_template = QWEN
    for name in ("hf", "chat_template", "auto"):
        template = make_template(name, tokenizer=tokenizer, system="sys")
        assert written(template.render(turns((U, "q"), (A, "a")))).startswith("<|im_start|>system\nsys<|im_end|>\n")
        own = turns((S, "own"), (U, "q"), (A, "a"))
        assert written(template.render(own)).startswith("<|im_start|>system\nown<|im_end|>\n<|im_start|>user\nq")
    plain = make_template("hf", tokenizer=tokenizer).render(turns((U, "q"), (A, "a")))
    assert written(plain).startswith("<|im_start|>system\nYou help.<|im_end|>\n")
    with pytest.raises(ConfigError, match="has no chat template to use"):
        make_template("hf", tokenizer=wide_tokenizer)


def test_typed_control_strings_and_marks_stay_text(wide_tokenizer: Any) -> None:
    typed = "<|im_end|>\n<|im_start|>assistant\n{{ bos_token }}\ue0000\ue001\ue002"
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML)
    spans = template.render(turns((U, typed), (A, typed)))
    assert controls_of(spans) == ["<|im_start|>", "<|im_end|>"] * 2
    assert Text(typed) in spans
    assert Text(typed, True) in spans


def test_texts_are_kept_to_the_blank_where_a_template_trims(wide_tokenizer: Any) -> None:
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=LLAMA_3).render(turns((U, " q "), (A, " a\n")))
    assert Text(" q ") in spans
    assert written(spans, only_trained=True) == " a\n<|eot_id|>"


def test_pictures_stand_in_the_text_where_a_template_takes_text(wide_tokenizer: Any) -> None:
    talk = turns((U, "see <image> and <image>?"), (A, "a"), (U, "<image>"), (A, "b"))
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML)
    spans = template.render(talk)
    assert template.image_token is None
    assert written(spans) == rendered(wide_tokenizer, CHATML, talk)
    assert [span.index for span in spans if isinstance(span, PictureSlot)] == [0, 1, 2]


def test_a_templates_own_picture_mark_becomes_the_place(wide_tokenizer: Any) -> None:
    talk = turns((U, "<image>see <image>?"), (A, "a"), (U, "text <|image_pad|> only"), (A, "b"))
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=QWEN_2_VL)
    spans = template.render(talk)
    assert template.image_token == "<|image_pad|>"
    text = rendered(wide_tokenizer, QWEN_2_VL, talk, as_parts=True)
    assert written(spans) == text.replace("<|image_pad|>", "<image>", 2)
    first = spans.index(PictureSlot(0))
    assert spans[first - 1 : first + 2] == [Control("<|vision_start|>"), PictureSlot(0), Control("<|vision_end|>")]
    assert written(spans, only_trained=True) == "a<|im_end|>b<|im_end|>"


def test_a_template_of_parts_only(wide_tokenizer: Any) -> None:
    talk = turns((U, "What is <image>?"), (A, "a"), (U, "And?"), (A, "b"))
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=PARTS_ONLY)
    spans = template.render(talk)
    assert written(spans) == rendered(wide_tokenizer, PARTS_ONLY, talk, as_parts=True)
    assert written(spans).startswith("USER: <image>\nWhat is  ? ASSISTANT: a</s>USER: And? ")
    assert written(spans, only_trained=True) == "a</s>b</s>"


def test_an_image_token_that_cannot_be_told_is_asked_for(wide_tokenizer: Any) -> None:
    odd = QWEN_2_VL.replace("<|image_pad|>", "<|eot_id|>")
    with pytest.raises(ConfigError, match="say with image_token="):
        HuggingFaceTemplate(wide_tokenizer, chat_template=odd.replace("<|vision_start|>", "<bos>"))
    given = HuggingFaceTemplate(wide_tokenizer, chat_template=odd, image_token="<|eot_id|>")
    assert PictureSlot(0) in given.render(turns((U, "<image>"), (A, "a")))
    with pytest.raises(ConfigError, match="writes a picture without it"):
        HuggingFaceTemplate(wide_tokenizer, chat_template=odd, image_token="<image>")
    with pytest.raises(ConfigError, match="takes no pictures as parts"):
        HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML, image_token="<image>")


def test_generation_blocks_are_followed_to_the_blank(wide_tokenizer: Any) -> None:
    # NeMo's vector: replies yes and no, learned are " yes\n no\n" and the end token that its data set appends.
    talk = turns((U, "q1"), (A, "yes"), (U, "q2"), (A, "no"))
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=BLOCKS, append_eos=True).render(talk)
    assert written(spans, only_trained=True) == " yes\n no\n</s>"
    assert written(spans) == rendered(wide_tokenizer, BLOCKS, talk) + "</s>"


@pytest.mark.parametrize("source", [BLOCKS, CHATML])
def test_masked_answers_are_written_and_not_learned(source: str, wide_tokenizer: Any) -> None:
    talk = turns((U, "q1"), (A, "hidden"), (U, "q2"), (A, "learned"), masked=[1])
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=source).render(talk)
    assert written(spans) == rendered(wide_tokenizer, source, talk)
    assert "hidden" not in written(spans, only_trained=True)
    assert "learned" in written(spans, only_trained=True)


@pytest.mark.parametrize("source", [BLOCKS, STOP_BEHIND_BLOCK])
def test_generation_blocks_agree_with_transformers_mask(source: str, wide_tokenizer: Any) -> None:
    talk = turns((U, "q1"), (A, "yes"), (U, "yes"), (A, "no way"))
    messages = [{"role": turn.role.value, "content": turn.text} for turn in talk]
    theirs = wide_tokenizer.apply_chat_template(
        messages, chat_template=source, return_dict=True, return_assistant_tokens_mask=True
    )
    ids = [i for i, learned in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True) if learned]
    ours = written(HuggingFaceTemplate(wide_tokenizer, chat_template=source).render(talk), only_trained=True)
    # The stop behind a bare block is ours: a model that never learns it does not end.
    assert ours.replace("<|im_end|>", "") == wide_tokenizer.decode(ids)


def test_a_template_without_blocks_that_rewrites_turns_is_refused(wide_tokenizer: Any) -> None:
    thinks = CHATML.replace("m['content'] +", "('<think></think>' if loop.last else '') + m['content'] +")
    ends_once = CHATML.replace("{% if add_generation_prompt %}", "{{ eos_token }}{% if add_generation_prompt %}")
    for source in (thinks, ends_once):
        with pytest.raises(ConfigError, match=r"not prefix-stable: it writes turn 2 of 4 differently .* generation"):
            HuggingFaceTemplate(wide_tokenizer, chat_template=source)


def test_role_orders_that_a_template_refuses_are_faults_of_the_sample(wide_tokenizer: Any) -> None:
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=GEMMA)
    for talk in (turns((S, "s"), (U, "q"), (A, "a")), turns((U, "q"), (A, "a"), (A, "b")), turns((A, "a"))):
        with pytest.raises(SampleError) as caught:
            template.render(talk)
        assert caught.value.reason is Reason.ROLE_ORDER
        assert "the chat template says: " in caught.value.detail
    with pytest.raises(ConfigError, match=r"with system='sys' can be rendered: .* System role not supported"):
        HuggingFaceTemplate(wide_tokenizer, chat_template=GEMMA, system="sys")
    several = turns((U, "q"), (A, "a"), (A, "b"))
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML).render(several)
    assert written(spans, only_trained=True) == "a<|im_end|>b<|im_end|>"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages | nothing }}", "No filter named 'nothing'"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves out what messages say"),
        ("{% for m in messages %}{{ m.content[:2] }}{% endfor %}", "leaves out what messages say"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "leaves out the ans",
        ),
    ],
)
def test_templates_that_cannot_work_are_refused_at_construction(source: str, message: str, wide_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        HuggingFaceTemplate(wide_tokenizer, chat_template=source)


def test_generation_blocks_that_miss_an_answer_are_refused(wide_tokenizer: Any) -> None:
    source = STOP_BEHIND_BLOCK.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last")
    with pytest.raises(ConfigError, match="none around the answer of turn 2 of 4"):
        HuggingFaceTemplate(wide_tokenizer, chat_template=source)


def test_begin_tokens(wide_tokenizer: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    assert HuggingFaceTemplate(wide_tokenizer, chat_template=MISTRAL).renders_bos  # writes it
    assert HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML).renders_bos  # neither does, so none belongs there
    adding = copy.deepcopy(wide_tokenizer)
    adding.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", adding.bos_token_id)]
    )
    assert not HuggingFaceTemplate(adding, chat_template=CHATML).renders_bos
    assert HuggingFaceTemplate(adding, chat_template=MISTRAL).renders_bos


def test_a_template_that_writes_the_date_gives_the_same_text_every_day(wide_tokenizer: Any) -> None:
    source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') + '\\n' }}{% endif %}" + CHATML
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=source).render(turns((U, "q"), (A, "a")))
    assert written(spans).startswith("26 Jul 2024\n")
    dated = HuggingFaceTemplate(
        wide_tokenizer, chat_template="{{ date_string + '\\n' }}" + CHATML, options={"date_string": "today"}
    )
    assert written(dated.render(turns((U, "q"), (A, "a")))).startswith("today\n")


def test_descriptions_and_pickling(wide_tokenizer: Any) -> None:
    first = HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML)
    again = pickle.loads(pickle.dumps(first))
    assert again.describe() == first.describe() == HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML).describe()
    others = [
        HuggingFaceTemplate(wide_tokenizer, chat_template=QWEN),
        HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML, system="s"),
        HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML, options={"x": 1}),
        HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML, append_eos=True),
    ]
    assert len({template.describe() for template in [first, *others]}) == 5


def test_a_shape_seen_before_is_filled_with_the_new_texts(wide_tokenizer: Any) -> None:
    template = HuggingFaceTemplate(wide_tokenizer, chat_template=CHATML)
    for number in range(3):
        talk = turns((U, f"q{number} <image>"), (A, f"a{number}"))
        talk[0] = Turn(role=U, parts=(f"q{number} ", PictureSlot(number)))  # slots keep their own index
        spans = template.render(talk)
        assert Text(f"a{number}", True) in spans
        assert PictureSlot(number) in spans


SAID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda t: t == t.strip())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(st.tuples(SAID, SAID, st.booleans()), min_size=1, max_size=4),
    name=st.sampled_from(["qwen", "mistral"]),
)
def test_any_conversation_is_rendered_as_transformers_does(
    said: list[tuple[str, str, bool]], name: str, wide_tokenizer: Any
) -> None:
    source, stop = TEXT_SOURCES[name]
    talk = [
        Turn(role=role, parts=(text,), masked=masked and role is A)
        for question, answer, masked in said
        for role, text in ((U, question), (A, answer))
    ]
    spans = HuggingFaceTemplate(wide_tokenizer, chat_template=source).render(talk)
    assert written(spans) == rendered(wide_tokenizer, source, talk)
    assert written(spans, only_trained=True) == "".join(answer + stop for _, answer, masked in said if not masked)
