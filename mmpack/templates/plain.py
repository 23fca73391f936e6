"""LLaVA's pre-training template: the picture, its caption, a newline. The question's words are left out."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.sample import PictureSlot, Role, Turn
from mmpack.templates import Span, Text, spans_of


class Plain:
    """Trains the answers, each followed by `stop_string` (a newline by default), and nothing else."""

    def __init__(self, *, system: str | None = None, stop_string: str | None = None) -> None:
        self.system = system or ""
        self.stop_string = "\n" if stop_string is None else stop_string

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        spans: list[Span] = [Text(self.system)] if self.system else []
        for turn in turns:
            if turn.role is Role.ASSISTANT:
                spans += [*spans_of(turn), Text(self.stop_string, turn.trained)]
            else:
                spans += [part for part in turn.parts if isinstance(part, PictureSlot)]
        return spans
