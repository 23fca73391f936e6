"""The two forms of a sample: a `Conversation` as it was written, an `EncodedSample` as it will be packed.

Neither holds pixels. A picture travels as its compressed bytes (`Picture`) until its pack has been chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import Reason, SampleError
from mmpack.layout import round_up

IMAGE_MARK = "<image>"  # the word that stands for a picture in the text of a LLaVA-style record
IMAGE_TOKEN_INDEX = -200  # token id of a picture's placeholder (LLaVA's and NeMo's; no tokenizer uses negative ids)
SIDES = ("chosen", "rejected")  # of a pair of preference data, in this order
IGNORE_INDEX = -100  # label of a position that teaches nothing (what torch's cross entropy ignores by default)


# How a family of vision towers takes pictures: tiles (LLaVA, InternVL), anyres (LLaVA-NeXT), patches (Qwen2-VL)
PixelKind = Literal["tiles", "anyres", "patches"]


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One picture, still compressed.

    `name` is the file or tar member it came from (for messages), `data` its bytes as stored.
    """

    name: str
    data: bytes

    @property
    def num_bytes(self) -> int:
        """What it takes while it waits for its pack."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class PictureSlot:
    """The place of picture number `index` (counted from 0 within the conversation) inside a turn."""

    index: int


Part = str | PictureSlot


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one speaker says: text and pictures in order. Text is literal: no mark in it means anything."""

    role: Role
    parts: tuple[Part, ...]
    masked: bool = False  # an answer that the model should read but not learn

    @property
    def trained(self) -> bool:
        """Whether the model must learn to produce this turn."""
        return self.role is Role.ASSISTANT and not self.masked

    @property
    def text(self) -> str:
        """The turn with `<image>` where a picture stands."""
        return "".join(p if isinstance(p, str) else IMAGE_MARK for p in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A sample as its source wrote it, checked: roles known, one slot per picture, at least one answer."""

    key: str  # unique within its dataset
    turns: tuple[Turn, ...]
    pictures: tuple[Picture, ...] = ()
    source: str = ""  # the dataset it came from; counters are kept per source


@dataclass(frozen=True, kw_only=True, slots=True)
class TileGrid:
    """How one picture is cut: `columns` x `rows` tiles, plus one overview tile if `thumbnail`."""

    columns: int
    rows: int
    thumbnail: bool = False

    @property
    def num_tiles(self) -> int:
        return self.columns * self.rows + int(self.thumbnail)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPicture:
    """A picture whose cost is known from its header alone."""

    picture: Picture
    width_px: int  # upright
    height_px: int
    grid: TileGrid
    num_tokens: int  # embeddings it takes in the sequence = num_tiles x embeddings per tile

    @property
    def num_tiles(self) -> int:
        return self.grid.num_tiles


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EncodedSample:
    """A sample ready to be planned: token ids with one placeholder per picture, and its exact length.

    `num_tokens` is the number of positions it takes once every placeholder is expanded to its picture's
    embeddings; `trained_n[i]` says whether token i is one the model must learn to produce.
    """

    key: str
    source: str
    token_ids_n: NDArray[np.int64]  # (n,) one placeholder per picture
    trained_n: NDArray[np.bool_]  # (n,)
    pictures: tuple[PlannedPicture, ...]
    num_tokens: int
    changed: Reason | None = None  # why it is not the whole sample, if it was cut or its pictures got fewer tiles
    own_pack: bool = False  # longer than a pack may be: it gets one of its own

    @property
    def num_tiles(self) -> int:
        return sum(p.num_tiles for p in self.pictures)

    @property
    def num_trained(self) -> int:
        """Targets: trained tokens that have a token before them to be predicted from."""
        return int(np.count_nonzero(self.trained_n[1:]))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EncodedPair(EncodedSample):
    """A chosen and a rejected answer to one prompt (text only): planned as one, so that both are in one pack.

    Each becomes a sequence of its own (`mmpack.collate.PairCollator`); the arrays are those of both on end, and
    `num_tokens` is what both take, the first one's room rounded up.
    """

    chosen: EncodedSample
    rejected: EncodedSample

    @classmethod
    def of(cls, chosen: EncodedSample, rejected: EncodedSample, *, sequence_multiple: int = 1) -> EncodedPair:
        """The pair of two samples of one key; `sequence_multiple` is the layout's.

        Their keys get the name of their side: ``7/chosen``, ``7/rejected``.
        """
        assert chosen.key == rejected.key, f"{chosen.key} and {rejected.key} are no pair"
        assert not chosen.pictures + rejected.pictures, "a pair has text only"
        return cls(
            key=chosen.key,
            source=chosen.source,
            token_ids_n=np.concatenate([chosen.token_ids_n, rejected.token_ids_n]),
            trained_n=np.concatenate([chosen.trained_n, rejected.trained_n]),
            pictures=(),
            num_tokens=round_up(chosen.num_tokens, sequence_multiple) + rejected.num_tokens,
            chosen=replace(chosen, key=f"{chosen.key}/{SIDES[0]}"),
            rejected=replace(rejected, key=f"{rejected.key}/{SIDES[1]}"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LostSample:
    """A sample that was planned and can no longer be read: it keeps its place as padding of `num_tokens`."""

    key: str
    source: str
    num_tokens: int
    error: SampleError


PlannedSample = EncodedSample | LostSample
