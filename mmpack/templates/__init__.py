"""Chat templates: how a conversation becomes text, and which of that text the model must learn to produce.

A template turns the turns into spans. Labels follow from the spans that were rendered; nothing is ever searched
for in the tokens. A span is literal text, a control token (looked up by name, so that the same characters typed
by a user stay plain text), or the place of a picture.

What every template keeps: learned are an answer's text and the stop behind it, and nothing else; an answer that is
masked is written but not learned; no text is stripped or changed; a system turn replaces the template's own prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmpack.errors import ConfigError, nearest
from mmpack.registry import Registry
from mmpack.sample import PictureSlot, Turn


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text; `trained` if the model must learn to produce it."""

    text: str
    trained: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """One token of the tokenizer's vocabulary, by its name, such as ``</s>`` or ``<|im_end|>``."""

    token: str
    trained: bool = False


Span = Text | Control | PictureSlot


class Template(Protocol):
    """Renders turns as spans."""

    @property
    def renders_bos(self) -> bool:
        """Whether the spans begin with the begin-of-sequence token, or must do without one."""
        ...

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        """The conversation in reading order; one PictureSlot for every one in the turns."""
        ...

    def describe(self) -> str:
        """All that decides what `render` gives, as one line that is the same in every process."""
        ...


class TemplateFactory(Protocol):
    """Builds a template from its options: the default system prompt and the token that ends an answer."""

    def __call__(self, *, system: str | None = None, stop_string: str | None = None) -> Template: ...


TEMPLATES: Registry[TemplateFactory] = Registry(
    "conversation template",
    {
        "default": "mmpack.templates.llava:VICUNA_V1",
        "v0": "mmpack.templates.llava:LLAVA_V0",
        "v0_mmtag": "mmpack.templates.llava:LLAVA_V0_MMTAG",
        "v0_plain": "mmpack.templates.llava:PLAIN",
        "v1": "mmpack.templates.llava:VICUNA_V1",
        "v1_mmtag": "mmpack.templates.llava:LLAVA_V1_MMTAG",
        "vicuna_v1": "mmpack.templates.llava:VICUNA_V1",
        "plain": "mmpack.templates.llava:PLAIN",
        "raw": "mmpack.templates.llava:RAW",
        "interleaved": "mmpack.templates.llava:RAW",
        "llava_v0": "mmpack.templates.llava:LLAVA_V0",
        "llava_v0_mmtag": "mmpack.templates.llava:LLAVA_V0_MMTAG",
        "llava_v1": "mmpack.templates.llava:LLAVA_V1",
        "llava_v1_mmtag": "mmpack.templates.llava:LLAVA_V1_MMTAG",
        "llava_plain": "mmpack.templates.llava:PLAIN",
        "llava_llama_2": "mmpack.templates.families:LLAVA_LLAMA_2",
        "llava_llama_2_simple": "mmpack.templates.families:LLAVA_LLAMA_2_SIMPLE",
        "llava_llama_2_mmtag": "mmpack.templates.families:LLAVA_LLAMA_2_MMTAG",
        "llava_llama_3": "mmpack.templates.families:LLAVA_LLAMA_3",
        "llava_mistral_instruct": "mmpack.templates.families:MISTRAL_INSTRUCT",
        "llama_2": "mmpack.templates.families:LLAMA_2",
        "llama_3": "mmpack.templates.families:LLAMA_3",
        "mistral": "mmpack.templates.families:MISTRAL",
        "mistral_instruct": "mmpack.templates.families:MISTRAL_INSTRUCT",
        "mistral_orca": "mmpack.templates.llava:MISTRAL_ORCA",
        "mistral_zephyr": "mmpack.templates.llava:MISTRAL_ZEPHYR",
        "mistral_direct": "mmpack.templates.llava:DIRECT",
        "mpt": "mmpack.templates.llava:MPT",
        "mpt_text": "mmpack.templates.llava:MPT_TEXT",
        "chatml": "mmpack.templates.families:CHATML",
        "chatml_direct": "mmpack.templates.llava:DIRECT",
        "qwen_1_5": "mmpack.templates.families:QWEN_1_5",
        "qwen_2_5": "mmpack.templates.families:QWEN_2_5",
        "qwen_2_vl": "mmpack.templates.families:QWEN_2_VL",
        "qwen_2_5_vl": "mmpack.templates.families:QWEN_2_VL",
        "gemma_instruct": "mmpack.templates.families:GEMMA_INSTRUCT",
        "nvgpt": "mmpack.templates.families:NVGPT",
        "nv_steerlm": "mmpack.templates.families:NV_STEERLM",
        "nv_dpo": "mmpack.templates.families:NV_DPO",
    },
)

CHAT_TEMPLATE_NAMES = ("hf", "chat_template", "auto")  # all three: the template that the tokenizer itself brings


def make_template(
    name: str, *, tokenizer: Any = None, system: str | None = None, stop_string: str | None = None
) -> Template:
    """The template called `name`, for one tokenizer.

    Args:
        name: a name of `TEMPLATES`, or ``"hf"``, ``"chat_template"`` or ``"auto"`` for the tokenizer's chat template.
        tokenizer: of transformers. Names that only some vocabularies hold as one token, such as Mistral's ``[INST]``,
            become control tokens where this one does, and stay text without a tokenizer.
        system: prompt for conversations without a system turn; None for the template's own, ``""`` for none.
        stop_string: what ends an answer; None for the template's own.

    Raises:
        ConfigError: there is no such template, or the tokenizer's chat template cannot be used.
    """
    if name in CHAT_TEMPLATE_NAMES:
        from mmpack.templates.hugging_face import HuggingFaceTemplate

        if stop_string is not None:
            raise ConfigError(
                f"stop_string={stop_string!r}: a chat template writes its own stop; leave stop_string out"
            )
        return HuggingFaceTemplate(tokenizer, system=system)
    if name not in TEMPLATES:
        raise ConfigError(
            f"unknown conversation template {name!r}; {nearest(str(name), [*TEMPLATES, *CHAT_TEMPLATE_NAMES])}"
        )
    factory = TEMPLATES.get(name)
    if tokenizer is not None:
        from mmpack.templates.style import Style

        if isinstance(factory, Style):
            return factory(system=system, stop_string=stop_string, vocabulary=added_tokens(tokenizer))
    return factory(system=system, stop_string=stop_string)


def added_tokens(tokenizer: Any) -> frozenset[str]:
    """The names that a tokenizer of transformers holds as one token each, besides its learned pieces."""
    return frozenset(tokenizer.added_tokens_encoder) | frozenset(tokenizer.all_special_tokens)


def spans_of(turn: Turn) -> list[Span]:
    """A turn's own parts as spans; pictures are never trained."""
    return [Text(part, turn.trained) if isinstance(part, str) else part for part in turn.parts]
