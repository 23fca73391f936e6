"""The template of LLaVA-1.5, which is Vicuna v1.1: ``system USER: question ASSISTANT: answer</s>USER: ...``."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.sample import Role, Turn
from mmpack.templates import Control, Span, Text, spans_of

DEFAULT_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


class LlavaV1:
    """Trains every answer and the end token behind it.

    Args:
        system: used when a conversation brings no system turn; ``""`` for none.
        stop_string: the token that ends an answer.
    """

    def __init__(self, *, system: str | None = None, stop_string: str | None = None) -> None:
        self.system = DEFAULT_SYSTEM if system is None else system
        self.stop_string = "</s>" if stop_string is None else stop_string.strip()

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        spans: list[Span] = []
        if not (turns and turns[0].role is Role.SYSTEM) and self.system:
            spans.append(Text(self.system + " "))
        for turn in turns:
            if turn.role is Role.SYSTEM:
                spans += [*spans_of(turn), Text(" ")]
            elif turn.role is Role.USER:
                spans += [Text("USER: "), *spans_of(turn), Text(" ")]
            else:
                spans += [Text("ASSISTANT: "), *spans_of(turn), Control(self.stop_string, turn.trained)]
        return spans
