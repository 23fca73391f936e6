"""One renderer for all conversation forms that a few strings describe: what stands before and behind each part."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Role, Turn
from mmpack.templates import Control, Span, Text, spans_of

STOP = "{stop}"  # in the strings of a style: the place of what ends an answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How a family of models writes a conversation; calling it gives the template.

    The strings are what is written. In them every name listed in `controls` is a control token, and ``{stop}`` is
    the stop. Pairs are what stands before and behind.
    """

    name: str
    stop: str  # ends an answer: a control token unless `stop_is_text`
    stop_is_text: bool = False
    controls: tuple[str, ...] = ()
    maybe_controls: tuple[str, ...] = ()  # control tokens where the vocabulary holds them as such, else text
    begin: str = ""  # the begin-of-sequence token of a family that writes it as part of its form
    default_system: str = ""
    system: tuple[str, str] = ("", "")
    system_in_question: bool = False  # the system prompt is written into the next question
    system_always: bool = False  # the frame of the system prompt is written even around an empty one
    question: tuple[str, str] = ("", "")
    question_words: bool = True  # False: of questions and system turns only the pictures are kept
    again: str = ""  # before a question that follows an answer
    answer: str = ""  # what a model finds before it answers
    answer_end: str = STOP  # learned with the answer
    after_answer: str = ""  # written behind, not learned
    picture: tuple[str, str] = ("", "")

    def __call__(
        self, *, system: str | None = None, stop_string: str | None = None, vocabulary: Collection[str] = ()
    ) -> StyledTemplate:
        """The template of this style; `vocabulary` says which of `maybe_controls` are control tokens."""
        return StyledTemplate(self, system=system, stop_string=stop_string, vocabulary=vocabulary)


class StyledTemplate:
    """Renders conversations in one style.

    Args:
        style: what is written where.
        system: prompt for conversations without a system turn; None for the style's own, ``""`` for none.
        stop_string: what ends an answer, instead of the style's own. Blanks around a control token's name are ignored.
        vocabulary: names that the tokenizer holds as one token each.

    Raises:
        ConfigError: `stop_string` is blank where a control token is needed.
    """

    def __init__(
        self,
        style: Style,
        *,
        system: str | None = None,
        stop_string: str | None = None,
        vocabulary: Collection[str] = (),
    ) -> None:
        self.style = style
        self.system = style.default_system if system is None else system
        stop = style.stop if stop_string is None else stop_string
        self.stop_string = stop if style.stop_is_text else stop.strip()
        if not self.stop_string and not style.stop_is_text:
            raise ConfigError(
                f"stop_string={stop_string!r}: answers of template {style.name!r} end with a control token; name one, "
                f"e.g. {style.stop!r}, or leave stop_string out"
            )
        self.controls = tuple(sorted({*style.controls, *(c for c in style.maybe_controls if c in vocabulary)}))
        self._begin = self._spans(style.begin)
        self._system = (self._spans(style.system[0]), self._spans(style.system[1]))
        self._question = (self._spans(style.question[0]), self._spans(style.question[1]))
        self._again = self._spans(style.again)
        self._answer = self._spans(style.answer)
        self._end = {trained: self._spans(style.answer_end, trained) for trained in (False, True)}
        self._after_answer = self._spans(style.after_answer)
        self._picture = (self._spans(style.picture[0]), self._spans(style.picture[1]))
        has_default = bool(self.system) or style.system_always
        self._default_system = self._framed([Text(self.system)]) if has_default else ()

    @property
    def needed_controls(self) -> tuple[str, ...]:
        """Every control token that `render` may write."""
        written = [self._begin, *self._system, *self._question, self._again, self._answer, *self._end.values()]
        written += [self._after_answer, *self._picture]
        return tuple(sorted({span.token for spans in written for span in spans if isinstance(span, Control)}))

    @property
    def renders_bos(self) -> bool:
        """Whether the style writes the begin-of-sequence token itself."""
        return bool(self._begin)

    def describe(self) -> str:
        """The style and the options, as JSON."""
        options = {"system": self.system, "stop_string": self.stop_string, "controls": self.controls}
        return json.dumps({"template": "style", **asdict(self.style), **options}, sort_keys=True)

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        """The conversation as spans.

        Raises:
            SampleError: a system turn has no question behind it, in a style that writes it into the question.
        """
        style = self.style
        spans: list[Span] = list(self._begin)
        has_own_system = style.question_words and bool(turns) and turns[0].role is Role.SYSTEM
        waiting: list[Span] = []  # a system prompt on its way into the next question
        if not has_own_system:
            (waiting if style.system_in_question else spans).extend(self._default_system)
        waits_for_question = False
        answered = False
        for turn in turns:
            if turn.role is Role.ASSISTANT:
                spans += [*self._answer, *self._content(turn), *self._end[turn.trained], *self._after_answer]
                answered = True
            elif turn.role is Role.SYSTEM and style.question_words:
                waits_for_question = style.system_in_question
                (waiting if style.system_in_question else spans).extend(self._framed(self._content(turn)))
            else:
                spans += [*(self._again if answered else ()), *self._question[0], *waiting, *self._content(turn)]
                spans += self._question[1]
                waiting, waits_for_question, answered = [], False, False
        if waits_for_question:
            raise SampleError(
                Reason.ROLE_ORDER, f"a system turn without a question behind it; {style.name!r} writes it into one"
            )
        return spans

    def _content(self, turn: Turn) -> list[Span]:
        content = spans_of(turn)
        if turn.role is not Role.ASSISTANT and not self.style.question_words:
            content = [span for span in content if not isinstance(span, Text)]
        before, behind = self._picture
        if not before and not behind:
            return content
        tagged: list[Span] = []
        for span in content:
            tagged += [span] if isinstance(span, Text) else [*before, span, *behind]
        return tagged

    def _framed(self, prompt: Iterable[Span]) -> tuple[Span, ...]:
        return (*self._system[0], *prompt, *self._system[1])

    def _spans(self, written: str, trained: bool = False) -> tuple[Span, ...]:
        """A string of the style as spans: the stop put in, the control tokens cut out."""
        names = [re.escape(name) for name in sorted(self.controls, key=len, reverse=True)]
        spans: list[Span] = []
        for piece in re.split("|".join([*names, re.escape(STOP)]).join("()"), written):
            if piece == STOP:
                spans.append(
                    Text(self.stop_string, trained) if self.style.stop_is_text else Control(self.stop_string, trained)
                )
            elif piece:
                spans.append(Control(piece, trained) if piece in self.controls else Text(piece, trained))
        return tuple(spans)
