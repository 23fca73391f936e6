"""Preference data: a prompt with an answer that was chosen and one that was rejected, kept together.

Forms of a record, those of TRL's preference data sets:

* ``{"prompt", "chosen", "rejected"}``, all three texts: put together as prompt-response records are, or, where a
  ``template`` is named, a question and its answer in that template;
* the same with lists of messages (``{"role", "content"}``): the prompt's, and those of either answer;
* ``{"chosen", "rejected"}`` alone, as lists of messages: what both begin with is the prompt.

Only the answers are learned, not what an assistant says within the prompt. A pair is never cut, since the two sides
would then answer different prompts: one that is too long is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import round_up
from mmpack.offline.conversations import ConversationEncoder
from mmpack.offline.records import PromptResponse, PromptResponseEncoder, RecordEncoder, TextLimit, parse_template
from mmpack.offline.tokens import TextRow
from mmpack.sample import SIDES
from mmpack.templates import Template


class PreferenceEncoder:
    """Encodes the records of this module.

    Args:
        tokenizer: a fast tokenizer of transformers.
        form: how a record of texts is put together. The last field of its template is the answer's, whichever it is.
        template: renders messages.
        as_turns: put texts through the template too.
        limit: how long one side may be; ``truncate`` means ``drop``.
        capacity: most positions of both sides together; None for no limit.
        sequence_multiple: of each side's room.
        add_bos: begin messages with the tokenizer's bos token, if it has one and the template does not write it.
    """

    def __init__(
        self,
        tokenizer: Any,
        form: PromptResponse,
        template: Template,
        limit: TextLimit,
        *,
        as_turns: bool = False,
        capacity: int | None = None,
        sequence_multiple: int = 1,
        add_bos: bool = True,
    ) -> None:
        self.limit = replace(limit, oversize="drop") if limit.oversize == "truncate" else limit
        self.capacity, self.sequence_multiple = capacity, sequence_multiple
        self._tokenizer, self._template, self._add_bos = tokenizer, template, add_bos
        self._as_turns = as_turns
        self._texts = PromptResponseEncoder(tokenizer, form, self.limit)
        fields = [] if form.prompt_template is None else parse_template(form.prompt_template)
        self._answer_field = str(fields[-1][1]) if fields else "response"

    @cached_property
    def _messages(self) -> ConversationEncoder:
        # built when the first messages come: texts need no control token of a template
        return ConversationEncoder(self._tokenizer, "openai", self._template, self.limit, add_bos=self._add_bos)

    def describe(self) -> str:
        """All that the template decides, as one line: a part of the cache key."""
        return self._template.describe()

    def encode(self, record: object) -> TextRow:
        """The chosen side alone; see `RecordEncoder`."""
        return self.encode_pair(record)[0]

    def encode_pair(self, record: object) -> tuple[TextRow, TextRow]:
        """The chosen and the rejected side. Raises as `RecordEncoder.encode` does."""
        if not isinstance(record, dict):
            raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {type(record).__name__}")
        prompt, answers = record.get("prompt"), [record.get(side) for side in SIDES]
        for name, value in zip(SIDES, answers, strict=True):
            if value is None:
                raise SampleError(Reason.MISSING_FIELD, f"no {name!r}; a pair has 'prompt', 'chosen' and 'rejected'")
        kinds = {type(value) for value in ([] if prompt is None else [prompt]) + answers}
        if kinds == {list}:
            chosen, rejected = (self._messages.encode(one) for one in _as_chats(record, prompt, *answers))
        elif kinds == {str}:
            chosen, rejected = (self._text(record, prompt, answer) for answer in answers)
        else:
            raise SampleError(
                Reason.WRONG_TYPE, "'prompt', 'chosen' and 'rejected' are neither all texts nor all lists of messages"
            )
        self._check_together(chosen, rejected)
        return chosen, rejected

    def _text(self, record: dict[str, Any], prompt: Any, answer: Any) -> TextRow:
        if self._as_turns:
            _needs_prompt(prompt)
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
            return self._messages.encode({"messages": turns})
        if self._texts.form.prompt_template is None:
            _needs_prompt(prompt)
            return self._texts.encode({"prompt": prompt, "response": answer})
        return self._texts.encode({**record, self._answer_field: answer})

    def _check_together(self, chosen: TextRow, rejected: TextRow) -> None:
        needed = sum(round_up(side.num_tokens, self.sequence_multiple) for side in (chosen, rejected))
        if self.capacity is None or needed <= self.capacity:
            return
        if self.limit.oversize == "raise":
            raise ConfigError(
                f"a pair needs {needed} positions, a pack has {self.capacity}; raise packed_sequence_size, or set "
                "oversize='drop'"
            )
        raise SampleError(Reason.OVERSIZE, f"the pair needs {needed} positions, a pack has {self.capacity}")


def rows_of_record(encoder: RecordEncoder, record: object) -> tuple[TextRow, ...]:
    """The rows of one record: one, or the two sides of a pair. Raises as `encoder` does."""
    return encoder.encode_pair(record) if isinstance(encoder, PreferenceEncoder) else (encoder.encode(record),)


def _needs_prompt(prompt: object) -> None:
    if prompt is None:
        raise SampleError(Reason.MISSING_FIELD, "no 'prompt'; only lists of messages may begin with it")


def _as_chats(record: dict[str, Any], prompt: Any, *answers: Any) -> list[dict[str, Any]]:
    """A chat of each side, in which nothing of the prompt is learned."""
    if prompt is None:
        common = takewhile(lambda pair: pair[0] == pair[1], zip(*(answer[:-1] for answer in answers), strict=False))
        prompt = [first for first, _ in common]
        answers = tuple(answer[len(prompt) :] for answer in answers)
    masked = [
        {**one, "weight": 0} if isinstance(one, dict) and str(one.get("role")).lower() == "assistant" else one
        for one in prompt
    ]
    rest = {name: value for name, value in record.items() if name not in ("prompt", *SIDES, "messages")}
    return [{**rest, "messages": masked + answer} for answer in answers]
