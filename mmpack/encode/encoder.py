"""Conversation -> EncodedSample: the text becomes tokens, every picture becomes a number of tokens. No pixels.

This is the length oracle: planner, collator and model all count with what `SampleEncoder.encode` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.encode.limit import LengthLimit
from mmpack.encode.literal import literal_backend
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.images import (
    DEFAULT_MAX_PIXELS,
    VideoFrame,
    check_size,
    check_video_frames,
    frame_indices,
    image_size,
    video_format,
    video_header,
)
from mmpack.sample import IMAGE_TOKEN_INDEX, Conversation, EncodedSample, Picture, PictureSlot, PlannedPicture
from mmpack.templates import Span, Template, Text
from mmpack.tiling import TilingPolicy


class SampleEncoder:
    """Encodes conversations with one tokenizer, one template and one tiling policy.

    Args:
        tokenizer: a fast tokenizer of transformers; its backend encodes user text without recognising control tokens.
        template: renders the turns; its control tokens must be in the vocabulary.
        tiling: says how a picture of some size is cut and how many embeddings that gives.
        limit: how long a sample may be.
        add_bos: begin every sample with the tokenizer's begin-of-sequence token, if it has one.
        video_frames: which frames of a video become pictures in its place: "first", "middle", "last", or so many,
            evenly spread; None leaves samples with videos out.

    Raises:
        ConfigError: the tokenizer is missing, slow, or without a control token that the template writes; an unknown
            choice of frames, or no PyAV to read them with.
    """

    def __init__(
        self,
        *,
        tokenizer: Any,
        template: Template,
        tiling: TilingPolicy,
        limit: LengthLimit,
        add_bos: bool = True,
        video_frames: int | str | None = None,
    ) -> None:
        check_tokenizer(tokenizer)
        check_video_frames(video_frames)
        self.video_frames = video_frames
        self.tokenizer = tokenizer
        self.template = template
        self.tiling = tiling
        self.limit = limit
        bos = getattr(tokenizer, "bos_token_id", None)
        self.bos_token_ids = [int(bos)] if add_bos and bos is not None and not template.renders_bos else []
        self._control_ids: dict[str, int] = {}
        self._literal = literal_backend(tokenizer)
        self._adds_blank = self._literal.encode("a", add_special_tokens=False).tokens[:1] not in ([], ["a"])

        for token in getattr(template, "needed_controls", ()):
            self._control_id(token)  # says now which one is missing, rather than at the first sample

    def encode(self, conversation: Conversation) -> EncodedSample:
        """The sample with its exact length. Raises SampleError with the sample's key."""
        try:
            conversation = self._with_frames(conversation)
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
        return self.limit.apply(sample, self.tiling)

    def _with_frames(self, conversation: Conversation) -> Conversation:
        """The same with the chosen frames in the place of each video."""
        if all(video_format(picture.data) is None for picture in conversation.pictures):
            return conversation
        pictures: list[Picture] = []
        slots: list[range] = []  # for each of the old pictures its new numbers
        for picture in conversation.pictures:
            start = len(pictures)
            pictures += [picture] if video_format(picture.data) is None else self._frames(picture)
            slots.append(range(start, len(pictures)))
        turns = tuple(
            replace(
                turn,
                parts=tuple(
                    new
                    for part in turn.parts
                    for new in (map(PictureSlot, slots[part.index]) if isinstance(part, PictureSlot) else (part,))
                ),
            )
            for turn in conversation.turns
        )
        return replace(conversation, turns=turns, pictures=tuple(pictures))

    def _frames(self, video: Picture) -> list[Picture]:
        try:
            if self.video_frames is None:
                raise SampleError(Reason.VIDEO_FRAMES_UNSET, "a video; say how many frames to take with video_frames")
            header = video_header(video.data)
        except SampleError as error:
            raise SampleError(error.reason, f"video {video.name!r}: {error.detail}") from None
        return [
            VideoFrame(name=video.name, video=video.data, index=index, header=header)
            for index in frame_indices(self.video_frames, header.num_frames)
        ]

    def _plan(self, picture: Picture) -> PlannedPicture:
        try:
            width_px, height_px = _size_px(picture)
        except SampleError as error:
            raise SampleError(error.reason, f"picture {picture.name!r}: {error.detail}") from None
        grid = self.tiling.grid(width_px, height_px)
        return PlannedPicture(
            picture=picture,
            width_px=width_px,
            height_px=height_px,
            grid=grid,
            num_tokens=self.tiling.num_tokens(grid, width_px, height_px),
        )

    def _tokenize(self, spans: Sequence[Span]) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[int]]:
        """Token ids with one placeholder per picture, the trained mask, and the pictures in reading order.

        Neighbouring texts are tokenized as one string while they are both trained or both not. So no token
        straddles the border of an answer: its tokens are what a model produces after the prompt's.
        """
        merged = _merge_texts(spans)
        if self._adds_blank:
            merged = _without_doubled_blanks(merged)
        encoded = iter(self._encode_literally([span.text for span in merged if isinstance(span, Text)]))
        ids: list[int] = list(self.bos_token_ids)
        trained: list[bool] = [False] * len(ids)
        order: list[int] = []
        for span in merged:
            if isinstance(span, PictureSlot):
                ids.append(IMAGE_TOKEN_INDEX)
                trained.append(False)
                order.append(span.index)
                continue
            new = next(encoded) if isinstance(span, Text) else [self._control_id(span.token)]
            ids += new
            trained += [span.trained] * len(new)
        return np.array(ids, dtype=np.int64), np.array(trained, dtype=np.bool_), order

    def _encode_literally(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text. No control token is recognised in them, whatever a user typed."""
        return [encoding.ids for encoding in self._literal.encode_batch_fast(texts, add_special_tokens=False)]

    def _control_id(self, token: str) -> int:
        if token not in self._control_ids:
            token_id = self.tokenizer.convert_tokens_to_ids(token)
            unknown = self.tokenizer.unk_token_id
            if token_id is None or (token_id == unknown and token != self.tokenizer.unk_token):
                style = getattr(self.template, "style", None)
                name = getattr(style, "name", type(self.template).__name__)
                raise ConfigError(
                    f"template {name!r} needs the control token {token!r}, which the tokenizer "
                    "does not have; choose another template, such as v1 or, where the tokenizer brings one, hf; or set "
                    "stop_string to one of its special tokens"
                )
            self._control_ids[token] = int(token_id)
        return self._control_ids[token]


def _size_px(picture: Picture) -> tuple[int, int]:
    """Width and height from the picture's header, or from that of the video it is in."""
    if not isinstance(picture, VideoFrame):
        return image_size(picture.data)
    check_size(picture.header.width_px, picture.header.height_px, DEFAULT_MAX_PIXELS)
    return picture.header.width_px, picture.header.height_px


def check_tokenizer(tokenizer: Any) -> None:
    """Raises ConfigError unless it is a fast tokenizer of transformers."""
    if tokenizer is None:
        raise ConfigError("tokenizer is None; pass one, e.g. transformers.AutoTokenizer.from_pretrained(folder)")
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"tokenizer {type(tokenizer).__name__} has no `tokenizers` backend; pass a fast one "
            "(AutoTokenizer.from_pretrained gives one where a tokenizer.json exists)"
        )


def _merge_texts(spans: Sequence[Span]) -> list[Span]:
    """Joins neighbouring texts of equal `trained`, and leaves empty ones out.

    >>> _merge_texts([Text("a"), Text("b"), Text("", True), Text("c", True), PictureSlot(0)])
    [Text(text='ab', trained=False), Text(text='c', trained=True), PictureSlot(index=0)]
    """
    merged: list[Span] = []
    for span in spans:
        if not isinstance(span, Text):
            merged.append(span)
        elif span.text:
            last = merged[-1] if merged else None
            if isinstance(last, Text) and last.trained == span.trained:
                merged[-1] = Text(last.text + span.text, span.trained)
            else:
                merged.append(span)
    return merged


def _without_doubled_blanks(spans: Sequence[Span]) -> list[Span]:
    """For tokenizers that put a blank before every text (SentencePiece): a prompt's last blank is the answer's first.

    >>> _without_doubled_blanks([Text("ASSISTANT: "), Text("yes", True)])
    [Text(text='ASSISTANT:', trained=False), Text(text='yes', trained=True)]
    """
    result = list(spans)
    for i, (span, following) in enumerate(itertools.pairwise(spans)):
        if isinstance(span, Text) and isinstance(following, Text) and span.text.endswith(" "):
            result[i] = Text(span.text[:-1], span.trained)
    return [span for span in result if not (isinstance(span, Text) and not span.text)]
