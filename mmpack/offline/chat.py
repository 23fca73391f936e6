"""NeMo's chat records: ``{"system", "mask", "type", "conversations": [{"from", "value", "label"}, ...]}``.

Written out, with the default tokens, as

    <extra_id_0>System\\n{system}\\n<extra_id_1>User\\n{value}\\n<extra_id_1>Assistant\\n{value}\\n<extra_id_1>

What is learned: the text of every turn whose speaker is not in `mask`, up to and with the token that opens the next
turn, which is how the model says that it has finished. The first turn is context and never learned. With type
``VALUE_TO_TEXT`` a label stands before the text and is not learned; with ``TEXT_TO_VALUE`` it stands behind the text
and is what is learned instead of it. Speakers are compared whole: "User" is not masked by a mask of "User2".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError, nearest
from mmpack.offline.records import TextLimit, text_field
from mmpack.offline.tokens import LiteralTokenizer, TextRow
from mmpack.templates import Control, Span, Text

TYPES = ("VALUE_TO_TEXT", "TEXT_TO_VALUE")


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """The marks of a chat. One that is a token of the vocabulary becomes that token; any other is plain text.

    Args:
        system_turn_start: opens the system turn.
        turn_start: opens every other turn, and ends the last one if it is learned.
        label_start: opens a label.
        end_of_turn: behind a turn's text.
        end_of_name: behind a speaker's name, and behind a label.
    """

    system_turn_start: str = "<extra_id_0>"
    turn_start: str = "<extra_id_1>"
    label_start: str = "<extra_id_2>"
    end_of_turn: str = "\n"
    end_of_name: str = "\n"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{field.name}={value!r}; a mark of a chat is some text")

    @classmethod
    def of(cls, value: ChatTokens | Mapping[str, str] | str) -> ChatTokens:
        """From itself, a name in `CHAT_TOKENS`, or a mapping of some marks. Raises ConfigError."""
        if isinstance(value, ChatTokens):
            return value
        if isinstance(value, str):
            if value not in CHAT_TOKENS:
                raise ConfigError(f"chat tokens {value!r} are unknown; {nearest(value, CHAT_TOKENS)}")
            return CHAT_TOKENS[value]
        allowed = [field.name for field in fields(cls)]
        for name in value:
            if name not in allowed:
                raise ConfigError(f"special token {name!r} is unknown; {nearest(name, allowed)}")
        return cls(**value)


CHAT_TOKENS = {
    "extra_id": ChatTokens(),
    "control": ChatTokens(system_turn_start="\0", turn_start="\x11", label_start="\x12"),  # of NeMo-Aligner's models
}


class NemoChatEncoder:
    """Encodes NeMo's chat records; see the module's docstring. A longer one is cut at its end."""

    def __init__(
        self, tokenizer: Any, tokens: ChatTokens | Mapping[str, str] | str = "extra_id", limit: TextLimit | None = None
    ) -> None:
        self.tokens = ChatTokens.of(tokens)
        self.limit = limit or TextLimit()
        self._tokenizer = LiteralTokenizer(tokenizer)

    def encode(self, record: object) -> TextRow:
        """The row of one record; see `RecordEncoder`."""
        spans = chat_spans(record, self.tokens)
        known = [
            Text(span.token, span.trained)
            if isinstance(span, Control) and self._tokenizer.control(span.token) is None
            else span
            for span in spans
        ]
        return self.limit.cut_end(self._tokenizer.row(known))


def chat_text(record: object, tokens: ChatTokens | None = None) -> str:
    """The whole chat as written text."""
    return "".join(_written(span) for span in chat_spans(record, tokens or ChatTokens()))


def trained_texts(record: object, tokens: ChatTokens | None = None) -> list[str]:
    """The stretches of the written text that are learned, in order."""
    stretches: list[str] = []
    before = False
    for span in chat_spans(record, tokens or ChatTokens()):
        trained = not isinstance(span, Text | Control) or span.trained
        if trained:
            stretches += [""] if not before else []
            stretches[-1] += _written(span)
        before = trained
    return stretches


def _written(span: Span) -> str:
    assert isinstance(span, Text | Control)
    return span.text if isinstance(span, Text) else span.token


def chat_spans(record: object, tokens: ChatTokens) -> list[Span]:
    """The chat as spans, marked as learned or not. Raises SampleError with the first rule that the record breaks."""
    if not isinstance(record, dict):
        raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {type(record).__name__}")
    turns = record.get("conversations")
    if not isinstance(turns, list):
        what = "no 'conversations'" if turns is None else f"'conversations' is a {type(turns).__name__}, not a list"
        raise SampleError(Reason.MISSING_FIELD if turns is None else Reason.WRONG_TYPE, what)
    if not turns:
        raise SampleError(Reason.EMPTY_CONVERSATION, "'conversations' is empty")
    kind, masked = _type(record), _masked_speakers(record)
    system = text_field(record, "system") if record.get("system") is not None else ""
    spans: list[Span] = [
        Control(tokens.system_turn_start),
        Text(f"System{tokens.end_of_name}{system}{tokens.end_of_turn}"),
    ]
    learned_before = learned_any = False
    for number, turn in enumerate(turns, start=1):
        speaker, text, label = _turn(turn, number)
        learned = number > 1 and speaker not in masked
        spans += [Control(tokens.turn_start, learned_before), Text(speaker + tokens.end_of_name)]
        label_spans: list[Span] = []
        if label is not None and kind is not None:
            label_spans = [Control(tokens.label_start)]
            label_spans.append(Text(label + tokens.end_of_name, learned and kind == "TEXT_TO_VALUE"))
        if kind == "TEXT_TO_VALUE":
            learned = learned and label is not None
            spans += [Text(text + tokens.end_of_turn), *label_spans]
        else:
            spans += [*label_spans, Text(text + tokens.end_of_turn, learned)]
        learned_before = learned
        target = label if kind == "TEXT_TO_VALUE" else text
        learned_any |= learned and target is not None and bool(target.strip())
    if learned_before:
        spans.append(Control(tokens.turn_start, True))
    if not learned_any:
        what = f"everything behind the first turn is masked {masked} or blank"
        raise SampleError(Reason.NO_ANSWER, f"nothing to learn: {what}")
    return spans


def _type(record: Mapping[str, object]) -> str | None:
    kind = record.get("type")
    if kind is not None and kind not in TYPES:
        raise SampleError(Reason.WRONG_TYPE, f"'type' is {str(kind)[:40]!r}; null, {' or '.join(TYPES)}")
    return None if kind is None else str(kind)


def _masked_speakers(record: Mapping[str, object]) -> tuple[str, ...]:
    mask = record.get("mask", "User")
    names = [] if mask is None else mask if isinstance(mask, list) else [mask]
    if not all(isinstance(name, str) for name in names):
        raise SampleError(Reason.WRONG_TYPE, "'mask' is no speaker's name, nor a list of them")
    return tuple(names)


def _turn(turn: object, number: int) -> tuple[str, str, str | None]:
    """Speaker, text and label."""
    if not isinstance(turn, dict):
        raise SampleError(Reason.WRONG_TYPE, f"turn {number} is a {type(turn).__name__}, not an object")
    try:
        label = text_field(turn, "label") if turn.get("label") is not None else None
        return text_field(turn, "from"), text_field(turn, "value"), label
    except SampleError as error:
        raise SampleError(error.reason, f"turn {number}: {error.detail}") from None
