"""Text -> token ids, and the tokenizer's own hash. Text is literal: control tokens come in by name only."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.encode.literal import literal_backend
from mmpack.errors import ConfigError
from mmpack.sample import PictureSlot
from mmpack.templates import Span, Text


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextRow:
    """One sequence: its token ids, and which of them the model must learn to produce."""

    token_ids_n: NDArray[np.int32]  # (n,)
    trained_n: NDArray[np.bool_]  # (n,)
    answer_start: int  # index of the first token of the (last) answer
    truncated: bool = False  # cut to the limit

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_n)

    @property
    def loss_mask_n(self) -> NDArray[np.uint8]:
        """(n,) 1 where the *next* token is a target: NeMo's packed mask, already shifted."""
        mask = np.zeros(len(self.trained_n), dtype=np.uint8)
        mask[:-1] = self.trained_n[1:]
        return mask

    @property
    def num_trained(self) -> int:
        """Targets: trained tokens that have a token before them to be predicted from."""
        return int(np.count_nonzero(self.trained_n[1:]))


def text_row(ids: Sequence[int], trained: Sequence[bool], *, truncated: bool = False) -> TextRow:
    """A row whose answer is the last run of trained tokens.

    >>> text_row([5, 6, 7, 8, 9], [False, True, False, True, True]).answer_start
    3
    """
    trained_n = np.array(trained, dtype=np.bool_)
    start = len(trained_n)
    if trained_n.any():
        start = int(np.flatnonzero(trained_n)[-1])
        while start and trained_n[start - 1]:
            start -= 1
    return TextRow(
        token_ids_n=np.array(ids, dtype=np.int32), trained_n=trained_n, answer_start=start, truncated=truncated
    )


class LiteralTokenizer:
    """A fast tokenizer of transformers that recognises no control token in text, whatever a user typed.

    The same rules as `mmpack.encode`: an answer is tokenized by itself, so that its tokens decode to exactly its text.

    Raises:
        ConfigError: the tokenizer is missing or slow.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"tokenizer {type(tokenizer).__name__} has no `tokenizers` backend; pass a fast one of transformers, "
                "e.g. AutoTokenizer.from_pretrained(folder)"
            )
        self.tokenizer = tokenizer
        self._literal = literal_backend(tokenizer)
        self.adds_blank = self._literal.encode("a", add_special_tokens=False).tokens[:1] not in ([], ["a"])

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        # the fast form leaves out where tokens stand in the text
        return [encoding.ids for encoding in self._literal.encode_batch_fast(texts, add_special_tokens=False)]

    def starts(self, text: str) -> list[int]:
        """For each token of `text` the character that it begins at."""
        return [start for start, _ in self._literal.encode(text, add_special_tokens=False).offsets]

    def control(self, token: str) -> int | None:
        """The id of a token by its name, or None if the vocabulary does not have it."""
        token_id = self.tokenizer.convert_tokens_to_ids(token)
        if token_id is None or (token_id == self.tokenizer.unk_token_id and token != self.tokenizer.unk_token):
            return None
        return int(token_id)

    def special(self, name: str, setting: str) -> int:
        """The id of the tokenizer's ``bos``, ``eos`` or ``sep`` token. Raises ConfigError if it has none."""
        token_id = getattr(self.tokenizer, f"{name}_token_id", None)
        if token_id is None:
            raise ConfigError(f"{setting}=True, but the tokenizer has no {name}_token; set one, or {setting}=False")
        return int(token_id)

    def row(self, spans: Sequence[Span]) -> TextRow:
        """The spans as one sequence; neighbouring texts that are both trained, or both not, are one string."""
        ids: list[int] = []
        trained: list[bool] = []
        merged = _merged(spans)
        texts = [
            self.before_answer(span.text) if isinstance(following, Text) else span.text
            for span, following in itertools.zip_longest(merged, merged[1:])
            if isinstance(span, Text)
        ]
        encoded = iter(self.ids(texts))
        for span in merged:
            if isinstance(span, Text):
                new = next(encoded)
            else:
                token_id = self.control(span.token)
                if token_id is None:
                    raise ConfigError(f"the tokenizer has no token {span.token!r}")
                new = [token_id]
            ids += new
            trained += [span.trained] * len(new)
        return text_row(ids, trained)

    def before_answer(self, text: str) -> str:
        """A text that another one follows: the last blank is the one that the tokenizer puts before the next."""
        return text[:-1] if self.adds_blank and text.endswith(" ") and text != " " else text


def _merged(spans: Sequence[Span]) -> list[Any]:
    merged: list[Any] = []
    for span in spans:
        assert not isinstance(span, PictureSlot), "text rows have no pictures"
        last = merged[-1] if merged else None
        if isinstance(span, Text) and not span.text:
            continue
        if isinstance(span, Text) and isinstance(last, Text) and last.trained == span.trained:
            merged[-1] = Text(last.text + span.text, span.trained)
        else:
            merged.append(span)
    return merged


def tokenizer_hash(tokenizer: Any) -> str:
    """A hash of everything in a fast tokenizer that changes token ids."""
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "pad", "unk")}
    template = getattr(tokenizer, "chat_template", None)
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()  # a caller's earlier calls may have left these switched on
    backend.no_padding()
    whole = json.dumps([backend.to_str(), special, template], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
