"""`PaddedBatch`: one sample a row, padded to a common length. The baseline that packing is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmpack.batch.labels import check_labels
from mmpack.batch.moving import moved, pinned, tensors_of
from mmpack.batch.pictures import PixelNorm, check_pictures
from mmpack.sample import PixelKind


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PaddedBatch:
    """B samples in rows of T positions. A row of padding only is the place of a sample lost after planning.

    The picture fields are those of `mmpack.batch.PackedBatch`.
    """

    tokens: Tensor  # (B, T) int64, IMAGE_TOKEN_INDEX at every image embedding
    labels: Tensor  # (B, T) int64, already shifted
    loss_weight: Tensor  # (B, T) float32
    position_ids: Tensor  # (B, T) int64; (4, B, T) for M-RoPE
    lengths: Tensor  # (B,) int32 real tokens of each row
    padding_mask: Tensor  # (B, T) bool, True where a position holds no real token
    pixels: Tensor  # (N, 3, H, W) uint8
    pixel_norm: PixelNorm
    pixel_kind: PixelKind = "tiles"
    tiles_per_image: Tensor  # (number of images,) int32
    tokens_per_image: Tensor  # (number of images,) int32
    image_sizes: Tensor  # (number of images, 2) int32: upright height, width, as the model must see them
    image_grids: Tensor  # (number of images, 2) int32: rows, columns
    images_per_sample: Tensor  # (number of samples,) int32
    sample_keys: tuple[str, ...]
    sources: tuple[str, ...]
    num_loss_tokens: int
    num_samples: int
    pack_index: int
    stream_state: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_tokens(self) -> int:
        """B x T: positions, padding included."""
        return self.tokens.numel()

    @property
    def num_real_tokens(self) -> int:
        """Positions that hold a sample's text or image embeddings."""
        return int(self.lengths.sum())

    @property
    def text_position_ids(self) -> Tensor:
        """(B, T) positions from 0: `position_ids`, or their first row for M-RoPE."""
        return self.position_ids[0] if self.position_ids.ndim == 3 else self.position_ids

    @property
    def sum_len_squared(self) -> int:
        """Sum of the squared row lengths: what attention costs, up to a factor."""
        return int(self.tokens.shape[0] * self.tokens.shape[1] ** 2)

    @property
    def sample_lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [length for length in self.lengths.tolist() if length]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PaddedBatch:
        """The same batch with every tensor on `device`."""
        return moved(self, device, non_blocking=non_blocking)

    def pinned(self) -> PaddedBatch:
        """The same batch in pinned memory, for copies to a GPU that do not block."""
        return pinned(self)

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return tensors_of(self)

    def check(self) -> PaddedBatch:
        """Raises AssertionError, naming the field, if the batch breaks one of its own promises; else itself."""
        shape = tuple(self.tokens.shape)
        for name in ("labels", "loss_weight", "text_position_ids", "padding_mask"):
            own = tuple(getattr(self, name).shape)
            assert own == shape, f"{name} has shape {own}, expected {shape}"
        places = torch.arange(shape[1])
        expected = places[None, :] >= self.lengths.cpu()[:, None]
        assert torch.equal(self.padding_mask.cpu(), expected), "padding_mask does not follow lengths"
        assert torch.equal(self.text_position_ids.cpu(), places.expand(shape)), "position_ids must count from 0"
        filled = int((self.lengths > 0).sum())
        assert filled == len(self.sample_keys), f"{filled} rows hold tokens, {len(self.sample_keys)} samples"
        check_labels(self)
        check_pictures(self)
        return self

    def to_transformers(self, *, image_token_id: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """Keyword arguments for a transformers model; see `mmpack.batch.transformers`."""
        from mmpack.batch.transformers import to_transformers

        return to_transformers(self, image_token_id=image_token_id, dtype=dtype)

    def __repr__(self) -> str:
        """A summary; the tensors themselves would fill screens."""
        what = f"{self.num_samples} samples, rows of {self.tokens.shape[1]}, pixels {tuple(self.pixels.shape)}"
        return f"PaddedBatch(pack_index={self.pack_index}, {what})"
