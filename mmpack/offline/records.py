"""Text records -> rows of tokens: prompt and response, NeMo's chats, and every conversation format of `sources`.

An encoder is told how long a row may be and what becomes of a longer one (`TextLimit`). Whatever is cut, a row
without a target is never trained on: it is left out, with its reason.
"""

from __future__ import annotations

import bisect
import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mmpack.errors import ConfigError, Reason, SampleError, nearest
from mmpack.offline.tokens import LiteralTokenizer, TextRow

OVERSIZE_POLICIES = ("raise", "drop", "truncate")
# Names that prompts and answers go by, tried in this order when no template is given.
FIELD_PAIRS = (("input", "output"), ("prompt", "response"), ("prompt", "completion"), ("question", "answer"))


class RecordEncoder(Protocol):
    """Turns one record into one row of tokens."""

    def encode(self, record: object) -> TextRow:
        """The row. Raises SampleError for a record that cannot be used, ConfigError for one that stops the run."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLimit:
    """How long one sequence may be.

    Args:
        seq_length: most tokens of one sequence; None for no limit.
        oversize: what becomes of a longer one: ``raise`` stops the run, ``drop`` leaves it out, ``truncate`` cuts it.
            Dropped and cut ones are counted.
    """

    seq_length: int | None = None
    oversize: str = "raise"

    def __post_init__(self) -> None:
        if self.seq_length is not None and self.seq_length < 2:
            raise ConfigError(f"seq_length={self.seq_length}; a sequence needs at least 2 tokens: one to predict from")
        if self.oversize not in OVERSIZE_POLICIES:
            raise ConfigError(f"oversize={self.oversize!r} is unknown; {nearest(self.oversize, OVERSIZE_POLICIES)}")

    def excess(self, num_tokens: int) -> int:
        """Tokens to cut, 0 for a row that fits. Raises for one that is too long and must not be cut."""
        if self.seq_length is None or num_tokens <= self.seq_length:
            return 0
        needs = f"{num_tokens} tokens, allowed {self.seq_length}"
        if self.oversize == "raise":
            raise ConfigError(f"a sequence needs {needs}; raise seq_length, or set oversize='drop' or 'truncate'")
        if self.oversize == "drop":
            raise SampleError(Reason.OVERSIZE, f"needs {needs}")
        return num_tokens - self.seq_length

    def cut_end(self, row: TextRow) -> TextRow:
        """The row without what is too much at its end. Raises SampleError if no target is left."""
        excess = self.excess(row.num_tokens)
        if excess:
            keep = row.num_tokens - excess
            row = TextRow(
                token_ids_n=row.token_ids_n[:keep],
                trained_n=row.trained_n[:keep],
                answer_start=min(row.answer_start, keep),
                truncated=True,
            )
        if row.num_trained == 0:
            what = "is left of the answers after the cut" if excess else "of the record is an answer's"
            raise SampleError(Reason.NO_ANSWER, f"no token {what}")
        return row


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptResponse:
    """What a prompt-response record is made of. NeMo's names.

    Args:
        prompt_template: the record's fields in braces, the answer's last: ``"{input} {output}"``. None: the first pair
            of `FIELD_PAIRS` that a record has, with a blank between.
        label_key: the answer's field, if it is to be checked against the template.
        truncation_field: fields to cut when a row is too long, separated by commas; None for all but the answer. When
            they are used up the answer is cut as well, but never whole.
        truncation_method: ``right`` cuts a field's end, ``left`` its beginning.
        answer_only_loss: learn the answer only; else every token.
        add_bos, add_sep, add_eos: begin with the tokenizer's bos token; put its sep token before the answer; end the
            answer with its eos token, which is learned.

    Raises:
        ConfigError: a template that cannot be filled in, or does not end with the answer.
    """

    prompt_template: str | None = None
    label_key: str | None = None
    truncation_field: str | None = None
    truncation_method: str = "right"
    answer_only_loss: bool = True
    add_bos: bool = False
    add_sep: bool = False
    add_eos: bool = True

    def __post_init__(self) -> None:
        if self.truncation_method not in ("right", "left"):
            raise ConfigError(f"truncation_method={self.truncation_method!r}; it is 'right' or 'left'")
        if self.prompt_template is None:
            return
        fields = [name for _, name in parse_template(self.prompt_template) if name is not None]
        if self.label_key is not None and fields[-1] != self.label_key:
            raise ConfigError(
                f"prompt_template={self.prompt_template!r} must end with the answer, {{{self.label_key}}} (label_key)"
            )
        for name in self.cut_fields(fields):
            if name not in fields:
                raise ConfigError(f"truncation_field={name!r} is not in the template; {nearest(name, fields)}")

    def cut_fields(self, fields: Sequence[str]) -> list[str]:
        """The fields to cut, for a template with `fields`, the answer's last."""
        if not self.truncation_field:
            return list(fields[:-1])
        return [name.strip() for name in self.truncation_field.split(",")]


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the field behind it. Raises ConfigError unless the template ends with a field.

    >>> parse_template("Q: {question} A: {answer}")
    [('Q: ', 'question'), (' A: ', 'answer')]
    """
    try:
        parts = [(literal, name, spec or conversion) for literal, name, spec, conversion in _parts(template)]
    except ValueError as error:
        raise ConfigError(f"prompt_template={template!r}: {error}") from None
    if not parts or parts[-1][1] is None:
        raise ConfigError(
            f"prompt_template={template!r} must end with the answer's field, such as '{{input}} {{output}}'"
        )
    for _, name, extra in parts:
        if name == "" or extra or (name and not name.replace("_", "a").replace("-", "a").isalnum()):
            raise ConfigError(f"prompt_template={template!r}: write a field as its name in braces, nothing else")
    fields = [name for _, name, _ in parts if name is not None]
    if fields.count(fields[-1]) > 1:
        raise ConfigError(f"prompt_template={template!r} has the answer {{{fields[-1]}}} more than once")
    return [(literal, name) for literal, name, _ in parts]


def _parts(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return list(string.Formatter().parse(template))


class PromptResponseEncoder:
    """Encodes prompt-response records.

    The prompt is one string, the blanks of the template included, and the answer one of its own, so what is learned
    decodes to exactly the answer's text.
    """

    def __init__(self, tokenizer: Any, form: PromptResponse | None = None, limit: TextLimit | None = None) -> None:
        self.form = form or PromptResponse()
        self.limit = limit or TextLimit()
        self._tokens = LiteralTokenizer(tokenizer)
        special = self._tokens.special
        self._bos = [special("bos", "add_bos")] if self.form.add_bos else []
        self._sep = [special("sep", "add_sep")] if self.form.add_sep else []
        self._eos = [special("eos", "add_eos")] if self.form.add_eos else []
        template = self.form.prompt_template
        self._template = None if template is None else parse_template(template)

    def encode(self, record: object) -> TextRow:
        """The row of one record; see `RecordEncoder`."""
        if not isinstance(record, dict):
            raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {type(record).__name__}")
        template = self._template or _template_for(record)
        pieces: list[tuple[str | None, str]] = []
        for literal, name in template:
            pieces.append((None, literal))
            if name is not None:
                pieces.append((name, text_field(record, name)))
        answer = pieces.pop()[1]
        if not answer.strip():
            raise SampleError(Reason.NO_ANSWER, f"{template[-1][1]!r} is blank")
        prompt = self._tokens.before_answer("".join(text for _, text in pieces))
        ids, answer_ids = self._tokens.ids([prompt, answer])
        fixed = len(self._bos) + len(self._sep) + len(self._eos)
        excess = self.limit.excess(fixed + len(ids) + len(answer_ids))
        if excess:
            fields = [name for _, name in template if name is not None]
            owners = _owners(self._tokens.starts(prompt), pieces)
            ids, answer_ids = self._cut(ids, owners, answer_ids, fields, excess)
        return self._row(ids, answer_ids, truncated=excess > 0)

    def _row(self, prompt_ids: list[int], answer_ids: list[int], *, truncated: bool) -> TextRow:
        before = self._bos + prompt_ids + self._sep
        ids = np.array(before + answer_ids + self._eos, dtype=np.int32)
        trained = np.ones(len(ids), dtype=np.bool_)
        if self.form.answer_only_loss:
            trained[: len(before)] = False
        row = TextRow(token_ids_n=ids, trained_n=trained, answer_start=len(before), truncated=truncated)
        if not answer_ids or row.num_trained == 0:
            raise SampleError(Reason.NO_ANSWER, "no token of the answer has one before it to be predicted from")
        return row

    def _cut(
        self, ids: list[int], owners: list[str | None], answer_ids: list[int], fields: Sequence[str], excess: int
    ) -> tuple[list[int], list[int]]:
        """Prompt and answer with `excess` tokens less: from the fields to cut, then from the answer's end."""
        names = self.form.cut_fields(fields)
        places = {name: [i for i, owner in enumerate(owners) if owner == name] for name in names}
        if fields[-1] in places:
            places[fields[-1]] = list(range(len(answer_ids) - 1))  # its own tokens; one stays
        shares = share_cut(excess, {name: len(at) for name, at in places.items()})
        shares.pop(fields[-1], None)
        from_answer = excess - sum(shares.values())
        if from_answer >= len(answer_ids):
            what = f"{len(answer_ids)} tokens of answer would have to give {from_answer}"
            raise SampleError(Reason.NO_ANSWER, f"nothing is left of the answer in the window: {what}")
        gone: set[int] = set()
        for name, count in shares.items():
            at = places[name]
            gone.update(at[len(at) - count :] if self.form.truncation_method == "right" else at[:count])
        kept = [token for i, token in enumerate(ids) if i not in gone]
        return kept, answer_ids[: len(answer_ids) - from_answer]


def _template_for(record: Mapping[str, object]) -> list[tuple[str, str | None]]:
    for prompt, answer in FIELD_PAIRS:
        if prompt in record and answer in record:
            return [("", prompt), (" ", answer)]
    known = ", ".join(f"{a}/{b}" for a, b in FIELD_PAIRS)
    has = ", ".join(sorted(map(repr, record)))[:100]
    raise SampleError(Reason.MISSING_FIELD, f"no prompt and answer among its fields {has}; known pairs: {known}")


def text_field(record: Mapping[str, object], name: str) -> str:
    """The text in a field. Raises SampleError if it is missing, no text, or no UTF-8."""
    if name not in record:
        raise SampleError(Reason.MISSING_FIELD, f"no {name!r}")
    value = record[name]
    if not isinstance(value, str):
        raise SampleError(Reason.WRONG_TYPE, f"{name!r} is a {type(value).__name__}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SampleError(Reason.BAD_TEXT, f"{name!r}: character {error.start} is half of a surrogate pair") from None
    return value


def _owners(starts: Sequence[int], pieces: Sequence[tuple[str | None, str]]) -> list[str | None]:
    """For each token the field that its first character is in; None for the template's own text."""
    names = [name for name, _ in pieces]
    ends = list(itertools.accumulate(len(text) for _, text in pieces))
    return [names[min(bisect.bisect_right(ends, start), len(names) - 1)] for start in starts]


def share_cut(excess: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """How many tokens each field gives: equal shares, a short field no more than it has. May be less than `excess`.

    >>> share_cut(9, {"context": 20, "question": 2})
    {'question': 2, 'context': 7}
    >>> share_cut(9, {"context": 5})
    {'context': 5}
    """
    shares: dict[str, int] = {}
    left = excess
    by_size = sorted(sizes, key=lambda name: sizes[name])
    for number, name in enumerate(by_size):
        shares[name] = min(sizes[name], left // (len(by_size) - number))
        left -= shares[name]
    return shares
