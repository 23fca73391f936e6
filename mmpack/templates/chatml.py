"""ChatML, the template of Qwen and many others: ``<|im_start|>role`` newline, text, ``<|im_end|>`` newline."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.sample import Role, Turn
from mmpack.templates import Control, Span, Text, spans_of


class ChatML:
    """Trains every answer and its ``<|im_end|>``."""

    def __init__(self, *, system: str | None = None, stop_string: str | None = None) -> None:
        self.system = system or ""
        self.stop_string = "<|im_end|>" if stop_string is None else stop_string.strip()

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        spans: list[Span] = []
        if self.system and not (turns and turns[0].role is Role.SYSTEM):
            spans += [Control("<|im_start|>"), Text("system\n" + self.system), Control(self.stop_string), Text("\n")]
        for turn in turns:
            spans += [Control("<|im_start|>"), Text(f"{turn.role.value}\n"), *spans_of(turn)]
            spans += [Control(self.stop_string, turn.trained), Text("\n")]
        return spans
