"""Chat templates: how a conversation becomes text, and which of that text the model must learn to produce.

A template turns the turns into spans. Labels follow from the spans that were rendered; nothing is ever searched
for in the tokens. A span is literal text, a control token (looked up by name, so that the same characters typed
by a user stay plain text), or the place of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        """The conversation in reading order; one PictureSlot for every one in the turns."""
        ...


class TemplateFactory(Protocol):
    """Builds a template from its options: the default system prompt and the token that ends an answer."""

    def __call__(self, *, system: str | None = None, stop_string: str | None = None) -> Template: ...


TEMPLATES: Registry[TemplateFactory] = Registry(
    "conversation template",
    {
        "v1": "mmpack.templates.llava_v1:LlavaV1",
        "llava_v1": "mmpack.templates.llava_v1:LlavaV1",
        "plain": "mmpack.templates.plain:Plain",
        "chatml": "mmpack.templates.chatml:ChatML",
    },
)


def spans_of(turn: Turn) -> list[Span]:
    """A turn's own parts as spans; pictures are never trained."""
    return [Text(part, turn.trained) if isinstance(part, str) else part for part in turn.parts]
