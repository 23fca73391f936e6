"""One planned pack -> PackedBatch: pictures are decoded now, after their pack has been chosen.

A picture that turns out to be damaged does not change the plan: its whole sample becomes padding of the planned
length, with weight 0, and is counted. So the order of everything else never depends on faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mmpack.batch import PackedBatch, PixelNorm
from mmpack.errors import ConfigError, SampleError, nearest
from mmpack.images import decode_image
from mmpack.layout import Layout
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX, EncodedSample, LostSample, PlannedSample
from mmpack.tiling import TilingPolicy

LOSS_WEIGHTS = ("token", "sample", "sqrt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Collator:
    """Lays a pack out as one THD row.

    Args:
        tiling: cuts decoded pictures into the tiles that were counted when the pack was planned.
        layout: multiples and fixed length of the row.
        pad_token_id: what padding positions hold.
        loss_weight: weight of a label in a sample with n of them: ``token`` 1, ``sample`` 1/n, ``sqrt`` 1/sqrt(n).
    """

    tiling: TilingPolicy
    layout: Layout
    pad_token_id: int = 0
    loss_weight: str = "token"

    def __post_init__(self) -> None:
        if self.loss_weight not in LOSS_WEIGHTS:
            raise ConfigError(f"loss_weight={self.loss_weight!r}; {nearest(self.loss_weight, LOSS_WEIGHTS)}")

    def collate(self, pack: Sequence[PlannedSample], *, pack_index: int) -> tuple[PackedBatch, list[LostSample]]:
        """The batch, and the samples of the pack that were lost after planning (already known ones included)."""
        tiles: list[NDArray[np.uint8]] = []
        rows: list[_Row] = []
        lost: list[LostSample] = []
        kept: list[EncodedSample] = []
        for sample in pack:
            room = self.layout.room(sample.num_tokens)
            own_tiles = self._tiles(sample)
            if isinstance(own_tiles, LostSample):
                lost.append(own_tiles)
                rows.append(_Row.padding(room, self.pad_token_id))
                continue
            assert isinstance(sample, EncodedSample)
            tiles += own_tiles
            kept.append(sample)
            rows.append(self._row(sample, room))
        offsets = self.layout.offsets([row.num_tokens for row in rows], [len(row.tokens_t) for row in rows])
        tail = offsets.total - sum(len(row.tokens_t) for row in rows)
        if tail:
            rows.append(_Row.padding(tail, self.pad_token_id))
        labels = np.concatenate([row.labels_t for row in rows])
        size = self.tiling.spec.tile_size_px
        pixels = np.concatenate(tiles) if tiles else np.zeros((0, 3, size, size), dtype=np.uint8)
        batch = PackedBatch(
            tokens=torch.from_numpy(np.concatenate([row.tokens_t for row in rows])).unsqueeze(0),
            labels=torch.from_numpy(labels).unsqueeze(0),
            loss_weight=torch.from_numpy(np.concatenate([row.weight_t for row in rows])).unsqueeze(0),
            position_ids=torch.from_numpy(offsets.position_ids()).unsqueeze(0),
            cu_seqlens=torch.tensor(offsets.cu_seqlens, dtype=torch.int32),
            cu_seqlens_padded=torch.tensor(offsets.cu_seqlens_padded, dtype=torch.int32),
            max_seqlen=offsets.max_seqlen,
            padding_mask=torch.from_numpy(offsets.padding_mask()).unsqueeze(0),
            pixels=torch.from_numpy(pixels),
            pixel_norm=PixelNorm(self.tiling.spec.mean, self.tiling.spec.std),
            tiles_per_image=torch.tensor([p.num_tiles for s in kept for p in s.pictures], dtype=torch.int32),
            images_per_sample=torch.tensor([len(s.pictures) for s in kept], dtype=torch.int32),
            sample_keys=tuple(s.key for s in kept),
            sources=tuple(s.source for s in kept),
            num_loss_tokens=int(np.count_nonzero(labels != IGNORE_INDEX)),
            num_samples=len(kept),
            pack_index=pack_index,
        )
        return batch, lost

    def _tiles(self, sample: PlannedSample) -> list[NDArray[np.uint8]] | LostSample:
        """One array (n, 3, S, S) per picture, or what is left of the sample if one cannot be decoded."""
        if isinstance(sample, LostSample):
            return sample
        tiles = []
        for planned in sample.pictures:
            try:
                rgb = decode_image(planned.picture.data, background=self.tiling.spec.background)
            except SampleError as error:
                named = SampleError(error.reason, f"{planned.picture.name}: {error.detail}", key=sample.key)
                return LostSample(key=sample.key, source=sample.source, num_tokens=sample.num_tokens, error=named)
            tiles.append(self.tiling.cut(rgb, planned.grid))
        return tiles

    def _row(self, sample: EncodedSample, room: int) -> _Row:
        """One sample with every placeholder expanded to its picture's embeddings, padded to `room`."""
        is_picture = sample.token_ids_n == IMAGE_TOKEN_INDEX
        counts = np.ones(len(sample.token_ids_n), dtype=np.int64)
        counts[is_picture] = [picture.num_tokens for picture in sample.pictures]
        tokens = np.repeat(sample.token_ids_n, counts)
        trained = np.repeat(sample.trained_n, counts)
        assert len(tokens) == sample.num_tokens, f"{sample.key}: planned {sample.num_tokens}, got {len(tokens)}"
        row = _Row.padding(room, self.pad_token_id, num_tokens=len(tokens))
        row.tokens_t[: len(tokens)] = tokens
        row.labels_t[: len(tokens) - 1] = np.where(trained[1:], tokens[1:], IGNORE_INDEX)
        num_targets = int(np.count_nonzero(trained[1:]))
        weight = {"token": 1.0, "sample": 1.0 / num_targets, "sqrt": num_targets**-0.5}[self.loss_weight]
        row.weight_t[: len(tokens) - 1] = np.where(trained[1:], np.float32(weight), np.float32(0))
        return row


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Row:
    """One segment: arrays of its room, of which the first `num_tokens` positions are real."""

    num_tokens: int
    tokens_t: NDArray[np.int64]
    labels_t: NDArray[np.int64]
    weight_t: NDArray[np.float32]

    @classmethod
    def padding(cls, room: int, pad_token_id: int, *, num_tokens: int = 0) -> _Row:
        return cls(
            num_tokens=num_tokens,
            tokens_t=np.full(room, pad_token_id, dtype=np.int64),
            labels_t=np.full(room, IGNORE_INDEX, dtype=np.int64),
            weight_t=np.zeros(room, dtype=np.float32),
        )
