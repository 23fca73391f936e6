"""Marks that travel through a chat template in place of the texts, and what is read back from its output."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mmpack.errors import ConfigError
from mmpack.sample import IMAGE_MARK, Role, Turn

MARK_START, MARK_END = "\ue000", "\ue001"  # private use: a template's own writing has none
BLOCK_START, BLOCK_END = "\ue002", "\ue003"

_MACRO = f"{{% macro mark_answer() %}}{BLOCK_START}{{{{ caller() }}}}{BLOCK_END}{{% endmacro %}}{{{{ '' }}}}"
_BLANKS_BEFORE_BLOCK = re.compile(r"\A[ \t]+(?=\{[%#][^+])")
_NOW = re.compile(r"""strftime_now\s*\(\s*("[^"\\]*"|'[^'\\]*')\s*\)""")
_BLOCK_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


@dataclass(frozen=True, slots=True)
class Mark:
    """What one mark stands for: text (or picture) number `number` of the conversation, said in turn `turn`."""

    number: int
    turn: int
    is_picture: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a template's output, at `start` in it: a mark, a control token, a picture's token, or text."""

    written: str
    start: int
    mark: Mark | None = None
    control: bool = False
    trained: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.written)


def mark_of(number: int) -> str:
    """The mark numbered `number`, as the template sees it."""
    return f"{MARK_START}{number}{MARK_END}"


def mark_generation(source: str) -> tuple[str, bool]:
    """The source with marks around what its generation blocks write, and whether there are such blocks.

    They become calls of a macro. A call is a block tag like the one it replaces, so the blanks that Jinja takes away
    around it stay the same; those it would take away at the very front are taken away here.

    >>> mark_generation("{%- generation %}{{ x }}{% endgeneration -%}")[0].removeprefix(_MACRO)
    '{%- call mark_answer() %}{{ x }}{% endcall -%}'
    """
    called = _BLOCK_TAG.sub(lambda m: f"{{%{m[1]} {'endcall' if m[2] else 'call mark_answer()'} {m[3]}%}}", source)
    if called == source:
        return source, False
    return _MACRO + _BLANKS_BEFORE_BLOCK.sub("", called), True


def fix_date(source: str, date: datetime) -> str:
    """The source with one date in place of the day it runs on.

    >>> fix_date("{{ strftime_now('%Y-%m-%d') }}", datetime(2024, 7, 26))
    '{{ "2024-07-26" }}'
    """
    return _NOW.sub(lambda m: json.dumps(date.strftime(m[1][1:-1])), source)


class Writing:
    """A template's output, cut into pieces.

    Args:
        rendered: the output, with marks.
        marks: what each mark stands for, by its number.
        turns: the turns that were rendered.
        controls: names of the control tokens.
        picture: what the template writes for a picture, if it has a way of its own.

    Raises:
        ConfigError: the template took a mark apart.
    """

    def __init__(
        self,
        rendered: str,
        marks: Sequence[Mark],
        turns: Sequence[Turn],
        *,
        controls: Collection[str],
        picture: str | None,
    ) -> None:
        self.rendered = rendered
        self.turns = turns
        self.pieces: list[Piece] = []
        self.blocks: list[tuple[int, int]] = []  # generation blocks: first piece, piece behind the last
        num_pictures = 0
        opened = 0
        names = [] if picture is None else [re.escape(picture)]
        names += [re.escape(name) for name in sorted(controls, key=len, reverse=True) if name in rendered]
        pattern = f"({MARK_START}\\d+{MARK_END}|{BLOCK_START}|{BLOCK_END}{''.join('|' + name for name in names)})"
        start = 0
        for i, written in enumerate(re.split(pattern, rendered)):
            piece = Piece(written, start)
            start = piece.end
            if written == BLOCK_START:
                opened = len(self.pieces)
            elif written == BLOCK_END:
                self.blocks.append((opened, len(self.pieces)))
            elif written.startswith(MARK_START) and i % 2:
                self.pieces.append(replace(piece, mark=marks[int(written[1:-1])]))
            elif written == picture and i % 2:
                self.pieces.append(replace(piece, mark=Mark(num_pictures, -1, is_picture=True)))
                num_pictures += 1
            elif written:
                if MARK_START in written or MARK_END in written:
                    raise ConfigError("the chat template cuts the texts of messages apart; pass another chat_template")
                self.pieces.append(replace(piece, control=bool(i % 2)))

    def train_generation_blocks(self) -> None:
        """Trains what the generation blocks of learned turns hold, and the stop right behind a bare answer."""
        reached: set[int] = set()
        for first, behind in self.blocks:
            turn = self._turn_of(first, behind)
            if turn is None or not self.turns[turn].trained:
                continue
            last = self.pieces[behind - 1].mark if behind > first else None
            stop_follows = behind < len(self.pieces) and self.pieces[behind].control
            if last is not None and not last.is_picture and stop_follows:
                behind += 1
            for i in range(first, behind):
                mark = self.pieces[i].mark
                if mark is None or mark.turn == turn:
                    self._train(i)
                if mark is not None and mark.turn == turn:
                    reached.add(turn)
        for i, turn_ in enumerate(self.turns):
            if turn_.trained and i not in reached:
                raise ConfigError(
                    f"the chat template has {{% generation %}} blocks, but none around the answer of turn {i + 1} of "
                    f"{len(self.turns)}; put one around every answer"
                )

    def train_answer(self, turn: int, end: int) -> None:
        """Trains a turn's answer, which the template finishes at `end`, up to the first control token behind it."""
        self._cut_at(end)
        own = [i for i, p in enumerate(self.pieces) if p.mark is not None and p.mark.turn == turn]
        if not own:
            raise ConfigError(f"the chat template leaves out the answer of turn {turn + 1} of {len(self.turns)}")
        for i in range(own[0], len(self.pieces)):
            if self.pieces[i].start >= end:
                break
            self._train(i)
            if i > own[-1] and self.pieces[i].control:
                break

    def _turn_of(self, first: int, behind: int) -> int | None:
        """The turn that a block belongs to: of the texts in it, else of the answer behind it, else before it."""
        places = [*range(first, behind), *range(behind, len(self.pieces)), *range(first - 1, -1, -1)]
        for place in places:
            mark = self.pieces[place].mark
            owner = -1 if mark is None else mark.turn
            if owner >= 0 and self.turns[owner].role is Role.ASSISTANT:
                return owner
        return None

    def _train(self, index: int) -> None:
        mark = self.pieces[index].mark
        if mark is None or not mark.is_picture:
            self.pieces[index] = replace(self.pieces[index], trained=True)

    def _cut_at(self, place: int) -> None:
        for i, piece in enumerate(self.pieces):
            if piece.start < place < piece.end and piece.mark is None and not piece.control:
                split = place - piece.start
                self.pieces[i : i + 1] = [
                    replace(piece, written=piece.written[:split]),
                    replace(piece, written=piece.written[split:], start=place),
                ]
                return


def picture_token(
    short: str, long: str, *, controls: Collection[str], given: str | None, tokenizers_own: str | None
) -> str | None:
    """What stands for a picture, told from an output without one (`short`) and the same with one (`long`).

    >>> picture_token("[S]x[E]", "[S]x[V][PAD][/V][E]", controls=["[V]", "[PAD]", "[/V]"], given=None,
    ...               tokenizers_own="[PAD]")
    '[PAD]'
    >>> picture_token("USER: x", "USER: <image>\\nx", controls=[], given=None, tokenizers_own=None)
    '<image>'

    Raises:
        ConfigError: `given` is not it, or several control tokens may be.
    """
    if given is not None:
        if long.count(given) != short.count(given) + 1:
            raise ConfigError(f"image_token={given!r}: the chat template writes a picture without it: {long!r}")
        return given
    names = [name for name in controls if long.count(name) == short.count(name) + 1]
    if not names:
        return IMAGE_MARK if IMAGE_MARK in long and IMAGE_MARK not in short else None
    around = ("start", "end", "begin", "boi", "eoi")
    inner = [name for name in names if not any(word in name.lower() for word in around)]
    for candidates in ([name for name in names if name == tokenizers_own], names, inner):
        if len(candidates) == 1:
            return candidates[0]
    raise ConfigError(
        f"for a picture the chat template writes {', '.join(sorted(names))}; say with image_token= which of them "
        "stands for the picture itself"
    )
