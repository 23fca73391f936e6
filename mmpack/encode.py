"""Conversation -> EncodedSample: the text becomes tokens, every picture becomes a number of tokens. No pixels.

This is the length oracle: planner, collator and model all count with what `SampleEncoder.encode` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, Reason, SampleError, nearest
from mmpack.images import image_size
from mmpack.sample import IMAGE_TOKEN_INDEX, Conversation, EncodedSample, Picture, PictureSlot, PlannedPicture
from mmpack.templates import Control, Span, Template, Text
from mmpack.tiling import TilingPolicy

OVERSIZE_POLICIES = ("raise", "drop")


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthLimit:
    """How long one sample may be, and what becomes of a longer one.

    Args:
        seq_length: most tokens of one sample, pictures counted in full.
        oversize: ``"raise"`` stops the run and says what to change; ``"drop"`` leaves the sample out and counts it.
        setting: the name of the setting that `seq_length` came from, for the error text.
    """

    seq_length: int
    oversize: str = "raise"
    setting: str = "seq_length"

    def __post_init__(self) -> None:
        if self.seq_length < 1:
            raise ConfigError(f"{self.setting}={self.seq_length}; it must be at least 1")
        if self.oversize not in OVERSIZE_POLICIES:
            raise ConfigError(f"oversize={self.oversize!r} is unknown; {nearest(self.oversize, OVERSIZE_POLICIES)}")

    def check(self, sample: EncodedSample) -> None:
        """Raises SampleError (drop) or ConfigError (raise) if the sample is too long."""
        if sample.num_tokens <= self.seq_length:
            return
        in_pictures = sum(p.num_tokens for p in sample.pictures)
        needs = f"{sample.num_tokens} tokens ({sample.num_tiles} tiles = {in_pictures}, text {sample.num_tokens - in_pictures})"
        if self.oversize == "raise":
            raise ConfigError(
                f"{self.setting}={self.seq_length}: sample {sample.key!r} of {sample.source!r} needs {needs}; "
                f"raise {self.setting} or set oversize='drop'"
            )
        raise SampleError(Reason.OVERSIZE, f"needs {needs}, allowed {self.seq_length}", key=sample.key)


class SampleEncoder:
    """Encodes conversations with one tokenizer, one template and one tiling policy.

    Args:
        tokenizer: a fast tokenizer of transformers (offsets are needed to mark the answers' tokens).
        template: renders the turns; its control tokens must be in the vocabulary.
        tiling: says how a picture of some size is cut and how many embeddings that gives.
        limit: how long a sample may be.
        add_bos: begin every sample with the tokenizer's begin-of-sequence token, if it has one.

    Raises:
        ConfigError: the tokenizer is missing or slow.
    """

    def __init__(
        self, *, tokenizer: Any, template: Template, tiling: TilingPolicy, limit: LengthLimit, add_bos: bool = True
    ) -> None:
        if tokenizer is None:
            raise ConfigError("tokenizer is None; pass one, e.g. transformers.AutoTokenizer.from_pretrained(folder)")
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"tokenizer {type(tokenizer).__name__} has no character offsets; pass a fast tokenizer "
                "(AutoTokenizer.from_pretrained gives one where a tokenizer.json exists)"
            )
        self.tokenizer = tokenizer
        self.template = template
        self.tiling = tiling
        self.limit = limit
        bos = getattr(tokenizer, "bos_token_id", None)
        self.bos_token_ids = [int(bos)] if add_bos and bos is not None else []
        self._control_ids: dict[str, int] = {}

    def encode(self, conversation: Conversation) -> EncodedSample:
        """The sample with its exact length. Raises SampleError with the sample's key."""
        try:
            pictures = tuple(self._plan(picture) for picture in conversation.pictures)
            spans = self.template.render(conversation.turns)
            token_ids, trained, order = self._tokenize(spans)
        except SampleError as error:
            raise error.with_key(conversation.key) from None
        sample = EncodedSample(
            key=conversation.key,
            source=conversation.source,
            token_ids_n=token_ids,
            trained_n=trained,
            pictures=tuple(pictures[i] for i in order),
            num_tokens=len(token_ids) - len(order) + sum(pictures[i].num_tokens for i in order),
        )
        if sample.num_trained == 0:
            raise SampleError(Reason.NO_ANSWER, "no token of the conversation is an answer's", key=sample.key)
        self.limit.check(sample)
        return sample

    def _plan(self, picture: Picture) -> PlannedPicture:
        width_px, height_px = image_size(picture.data)
        grid = self.tiling.grid(width_px, height_px)
        return PlannedPicture(
            picture=picture,
            width_px=width_px,
            height_px=height_px,
            grid=grid,
            num_tokens=self.tiling.num_tokens(grid),
        )

    def _tokenize(self, spans: Sequence[Span]) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[int]]:
        """Token ids with one placeholder per picture, the trained mask, and the pictures in reading order."""
        ids: list[int] = list(self.bos_token_ids)
        trained: list[bool] = [False] * len(ids)
        order: list[int] = []
        run: list[Text] = []
        for span in [*spans, None]:
            if isinstance(span, Text):
                run.append(span)
                continue
            self._tokenize_run(run, ids, trained)
            run.clear()
            if isinstance(span, Control):
                ids.append(self._control_id(span.token))
                trained.append(span.trained)
            elif isinstance(span, PictureSlot):
                ids.append(IMAGE_TOKEN_INDEX)
                trained.append(False)
                order.append(span.index)
        return np.array(ids, dtype=np.int64), np.array(trained, dtype=np.bool_), order

    def _tokenize_run(self, run: Sequence[Text], ids: list[int], trained: list[bool]) -> None:
        """Tokenizes neighbouring texts as one string, so that seams between spans cost no token.

        A token is trained if it holds a character of a trained span: one that straddles the border between a
        prompt's blank and the answer's first word is what the model must produce first.
        """
        text = "".join(span.text for span in run)
        if not text:
            return
        encoding = self._encode_literally(text)
        ids.extend(encoding.ids)
        is_trained = np.zeros(len(text), dtype=np.bool_)
        start = 0
        for span in run:
            is_trained[start : start + len(span.text)] = span.trained
            start += len(span.text)
        count = np.concatenate([[0], np.cumsum(is_trained)])
        trained.extend(bool(count[end] > count[begin]) for begin, end in encoding.offsets)

    def _encode_literally(self, text: str) -> Any:
        """Encodes `text` so that no control token is recognised in it, whatever a user typed."""
        backend = self.tokenizer.backend_tokenizer
        before = backend.encode_special_tokens
        backend.encode_special_tokens = True
        try:
            return backend.encode(text, add_special_tokens=False)
        finally:
            backend.encode_special_tokens = before

    def _control_id(self, token: str) -> int:
        if token not in self._control_ids:
            token_id = self.tokenizer.convert_tokens_to_ids(token)
            unknown = self.tokenizer.unk_token_id
            if token_id is None or (token_id == unknown and token != self.tokenizer.unk_token):
                raise ConfigError(
                    f"template {type(self.template).__name__} needs the control token {token!r}, which the tokenizer "
                    "does not have; choose another template or set stop_string to one of its special tokens"
                )
            self._control_ids[token] = int(token_id)
        return self._control_ids[token]
