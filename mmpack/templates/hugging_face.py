"""Any chat template of transformers: the Jinja source that a tokenizer carries.

The source is run on marks instead of the texts: each text is one mark of private-use characters, and so is each
generation block's begin and end. What stands between the marks is the template's own writing. So a text is never
read for control tokens, its place is known exactly, and what a *shape* of conversation (roles and kinds of parts)
renders to is worked out once and then only filled in.

Two consequences. A template that strips or cuts a message's text finds a mark, so texts are kept exactly as they are.
And a template that looks into a text (for ``</think>``, say) does not find anything there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Part, PictureSlot, Role, Turn
from mmpack.templates import Control, Span, Text, added_tokens
from mmpack.templates.marks import Mark, Piece, Writing, fix_date, mark_generation, mark_of, picture_token

MAX_SHAPES = 4096
# Templates that write today's date get this one: a sample's text must not depend on the day it is read.
# It is the date that Llama 3's own template falls back to.
FIXED_DATE = datetime(2024, 7, 26)

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Filled:
    """The place of a turn's text in what was rendered: text number `number` of the conversation."""

    number: int
    trained: bool


class HuggingFaceTemplate:
    """Renders conversations with a tokenizer's chat template.

    The spans together are what ``tokenizer.apply_chat_template(messages, tokenize=False)`` gives, with the
    vocabulary's added tokens as control tokens. Learned is what the template's ``{% generation %}`` blocks hold; where
    a block ends with the answer's last character, the control token behind it too. Without such blocks, learned is the
    answer up to and including the first control token behind it, or all that its turn writes behind it if there is
    none; this asks that the conversation cut behind an answer begins as the whole one does.

    A template that takes pictures as parts (``{"type": "image"}``) writes its own mark for them, which becomes the
    picture's place, with the tokens around it kept. In any other, pictures stand where they stand in the text.

    Args:
        tokenizer: of transformers.
        system: prompt for conversations without a system turn; None or ``""`` for what the template itself does.
        chat_template: the Jinja source, or the name of one of the tokenizer's; None for its default.
        image_token: what the template writes for a picture, where it cannot be told from the names of its tokens.
        options: variables for the template, such as ``{"enable_thinking": False}``.
        append_eos: end every conversation with the tokenizer's end-of-sequence token, learned, if the template
            does not (NeMo's fine-tuning data sets do so).

    Raises:
        ConfigError: there is no chat template, or it does not say clearly where an answer ends.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        system: str | None = None,
        chat_template: str | None = None,
        image_token: str | None = None,
        options: Mapping[str, Any] | None = None,
        append_eos: bool = False,
    ) -> None:
        if tokenizer is None:
            raise ConfigError("tokenizer is None; a chat template belongs to one, so pass one")
        self.source = _source(tokenizer, chat_template)
        self.system = system or ""
        self.options = dict(options or {})
        self.append_eos = append_eos
        self._run_source, self._has_generation = mark_generation(fix_date(self.source, FIXED_DATE))
        self._special_tokens: dict[str, Any] = dict(tokenizer.special_tokens_map)
        self._vocabulary = added_tokens(tokenizer)
        self._shapes: dict[object, tuple[Span | Filled, ...]] = {}
        self._takes_text = self._writes(mark_of(0))
        self._takes_parts = self._writes([_text_part(0)])
        self.image_token = self._probe_picture(image_token, getattr(tokenizer, "image_token", None))
        try:
            if not self._takes_text and not self._takes_parts:
                self._run(_question("text"), False)  # a template that cannot run says why
                raise ConfigError("the chat template leaves out what messages say; pass another chat_template")
            self.renders_bos = self._probe_bos(tokenizer)
            self.render([Turn(role=role, parts=("x",)) for role in (Role.USER, Role.ASSISTANT) * 2])
        except SampleError as error:
            refused = f" with system={system!r}" if self.system else ""
            raise ConfigError(f"no plain conversation{refused} can be rendered: {error.detail}") from None

    def describe(self) -> str:
        """A hash of the template's source and vocabulary, and the options, as JSON."""
        described = {
            "template": "chat_template",
            "source": hashlib.sha256(self.source.encode()).hexdigest(),
            "special_tokens": {name: str(token) for name, token in self._special_tokens.items()},
            "controls": hashlib.sha256("\0".join(sorted(self._vocabulary)).encode()).hexdigest(),
            "system": self.system,
            "image_token": self.image_token,
            "options": {name: repr(value) for name, value in self.options.items()},
            "append_eos": self.append_eos,
            "renders_bos": self.renders_bos,
        }
        return json.dumps(described, sort_keys=True)

    def render(self, turns: Sequence[Turn]) -> list[Span]:
        """The conversation as spans.

        Raises:
            SampleError: the template itself refuses this order of roles.
            ConfigError: the template cannot render a conversation of this shape, or its answers cannot be told.
        """
        if self.system and not (turns and turns[0].role is Role.SYSTEM):
            turns = [Turn(role=Role.SYSTEM, parts=(self.system,)), *turns]
        texts: list[str] = []
        slots: list[PictureSlot] = []
        shape: list[object] = []
        for turn in turns:
            kinds = []
            for part in _parts(turn):
                kinds.append(isinstance(part, str))
                if isinstance(part, str):
                    texts.append(part)
                else:
                    slots.append(part)
            shape.append((turn.role, turn.trained, *kinds))
        key = tuple(shape)
        outline = self._shapes.get(key)
        if outline is None:
            outline = self._outline(turns)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = outline
        return [
            Text(texts[piece.number], piece.trained)
            if isinstance(piece, Filled)
            else slots[piece.index]
            if isinstance(piece, PictureSlot)
            else piece
            for piece in outline
        ]

    def _outline(self, turns: Sequence[Turn]) -> tuple[Span | Filled, ...]:
        """What conversations of this shape render to; a slot's index is its number among the pictures."""
        messages, marks, num_pictures = self._messages(turns)
        rendered = self._run(messages, False)
        writing = Writing(rendered, marks, turns, controls=self._vocabulary, picture=self.image_token)
        if self._has_generation:
            writing.train_generation_blocks()
        else:
            self._train_by_prefixes(writing, messages)
        outline = [_outlined(piece) for piece in writing.pieces]
        found = [piece.index for piece in outline if isinstance(piece, PictureSlot)]
        if found != list(range(num_pictures)):
            raise ConfigError(
                f"the chat template writes {len(found)} pictures where {num_pictures} were given; it must write each "
                "once and in order, so pass another chat_template"
            )
        eos = self._special_tokens.get("eos_token")
        if self.append_eos and eos is not None and outline[-1:] not in ([Control(eos)], [Control(eos, True)]):
            outline.append(Control(str(eos), turns[-1].trained))
        return tuple(outline)

    def _train_by_prefixes(self, writing: Writing, messages: Messages) -> None:
        """Marks each answer and its stop by rendering the conversation up to its turn without and with it."""
        for i, turn in enumerate(writing.turns):
            if not turn.trained:
                continue
            with_turn = self._run(messages[: i + 1], False)
            prompt = self._run(messages[:i], True) if i else ""
            if not writing.rendered.startswith(with_turn) or not with_turn.startswith(prompt):
                raise ConfigError(
                    "the chat template has no {% generation %} blocks and is not prefix-stable: it writes turn "
                    f"{i + 1} of {len(messages)} differently when the conversation is cut there, so where the answer "
                    "begins and ends cannot be told; put {% generation %} and {% endgeneration %} around what an "
                    "answer writes"
                )
            writing.train_answer(i, len(with_turn))

    def _messages(self, turns: Sequence[Turn]) -> tuple[Messages, list[Mark], int]:
        """Messages with marks in place of their texts, what the marks stand for, and the number of pictures."""
        messages: Messages = []
        marks: list[Mark] = []
        num_texts = num_pictures = 0
        for i, turn in enumerate(turns):
            content: list[dict[str, Any]] = []
            for part in _parts(turn):
                is_picture = isinstance(part, PictureSlot)
                if is_picture and self.image_token is not None:
                    content.append({"type": "image"})
                else:
                    content.append(_text_part(len(marks)))
                    marks.append(Mark(num_pictures if is_picture else num_texts, i, is_picture))
                num_pictures += is_picture
                num_texts += not is_picture
            is_text = self._takes_text and all(item["type"] == "text" for item in content)
            messages.append(
                {"role": turn.role.value, "content": "".join(item["text"] for item in content) if is_text else content}
            )
        return messages, marks, num_pictures

    def _run(self, messages: Messages, add_generation_prompt: bool) -> str:
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        variables: dict[str, Any] = {**self._special_tokens, **self.options}
        try:
            rendered, _ = render_jinja_template(
                [messages], chat_template=self._run_source, add_generation_prompt=add_generation_prompt, **variables
            )
        except Exception as error:
            if type(error) is TemplateError:  # what raise_exception() in a template raises: it refuses the messages
                raise SampleError(Reason.ROLE_ORDER, f"the chat template says: {error}") from None
            raise ConfigError(
                f"the chat template cannot render {json.dumps([m['role'] for m in messages])}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return str(rendered[0])

    def _writes(self, content: object) -> bool:
        """Whether a question whose text is a mark can be given as `content`."""
        try:
            rendered = self._run(_question(content), False)
        except (ConfigError, SampleError):
            return False
        return mark_of(0) in rendered and "{'type'" not in rendered and '"type"' not in rendered

    def _probe_picture(self, given: str | None, tokenizers_own: str | None) -> str | None:
        """What the template writes for a picture that is a part of its own; None if it takes text only."""
        without = [_text_part(0)]
        pictured = [*without, {"type": "image"}]
        if not self._takes_parts or not self._writes(pictured):
            if given is not None:
                raise ConfigError(f"image_token={given!r}: the chat template takes no pictures as parts; leave it out")
            return None
        return picture_token(
            self._run(_question(without), False),
            self._run(_question(pictured), False),
            controls=self._vocabulary,
            given=given,
            tokenizers_own=tokenizers_own,
        )

    def _probe_bos(self, tokenizer: Any) -> bool:
        """False only where the tokenizer begins texts with its begin token and the template leaves that to it."""
        bos = getattr(tokenizer, "bos_token", None)
        content = mark_of(0) if self._takes_text else [_text_part(0)]
        if bos is None or self._run(_question(content), False).startswith(bos):
            return True
        return list(tokenizer("x")["input_ids"])[:1] != [tokenizer.bos_token_id]


def _source(tokenizer: Any, chat_template: str | None) -> str:
    try:
        return str(tokenizer.get_chat_template(chat_template))
    except ValueError as error:
        raise ConfigError(
            f"tokenizer {type(tokenizer).__name__} has no chat template to use ({error}); pass chat_template= or "
            "choose a template by name"
        ) from None


def _question(content: object) -> Messages:
    return [{"role": Role.USER.value, "content": content}]


def _text_part(mark: int) -> dict[str, str]:
    return {"type": "text", "text": mark_of(mark)}


def _parts(turn: Turn) -> list[Part]:
    """The parts with neighbouring texts joined and empty ones left out; an answer has at least one text."""
    parts: list[Part] = []
    for part in turn.parts:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    if turn.role is Role.ASSISTANT and not any(isinstance(part, str) for part in parts):
        parts.append("")
    return parts


def _outlined(piece: Piece) -> Span | Filled:
    if piece.mark is None:
        return Control(piece.written, piece.trained) if piece.control else Text(piece.written, piece.trained)
    return PictureSlot(piece.mark.number) if piece.mark.is_picture else Filled(piece.mark.number, piece.trained)
