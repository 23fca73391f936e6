"""`PackedBatch`: one pack of samples as a single THD row, and the checks that keep it honest."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX

if TYPE_CHECKING:
    from mmpack.batch.megatron import MegatronBatch


@dataclass(frozen=True, slots=True)
class PixelNorm:
    """How uint8 pixels become the floats a vision tower wants: ``(pixel / 255 - mean) / std`` per channel."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """`pixels` (N, 3, H, W) uint8 -> the same shape in `dtype`, on the same device."""
        mean = torch.tensor(self.mean, dtype=torch.float32, device=pixels.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float32, device=pixels.device).view(1, 3, 1, 1)
        return ((pixels.to(torch.float32) / 255.0 - mean) / std).to(dtype)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PackedBatch:
    """One pack. T positions, S segments (the samples, then at most one tail of padding), N image tiles.

    Offsets are int32 and stay on the CPU until `to` moves them. A segment is either one sample, in the
    order of `sample_keys`, or padding: no real token, so its two offsets in `cu_seqlens` are equal. Padding
    segments are the tail of a row of fixed length and the place of a sample that was lost after planning.
    """

    tokens: Tensor  # (1, T) int64, IMAGE_TOKEN_INDEX at every image embedding
    labels: Tensor  # (1, T) int64, already shifted: labels[t] is the token after t, or IGNORE_INDEX
    loss_weight: Tensor  # (1, T) float32, 0 where labels is IGNORE_INDEX
    position_ids: Tensor  # (1, T) int64, restarting at 0 in every segment
    cu_seqlens: Tensor  # (S + 1,) int32, offsets of the segments' real tokens if they stood without padding
    cu_seqlens_padded: Tensor  # (S + 1,) int32, offsets in the row; the last one is T
    max_seqlen: int  # longest padded segment
    padding_mask: Tensor  # (1, T) bool, True where a position holds no real token
    pixels: Tensor  # (N, 3, H, W) uint8
    pixel_norm: PixelNorm
    tiles_per_image: Tensor  # (number of images,) int32
    images_per_sample: Tensor  # (number of samples,) int32
    sample_keys: tuple[str, ...]
    sources: tuple[str, ...]  # dataset of each sample
    num_loss_tokens: int  # positions with a label; the trainer sums it over the global batch
    num_samples: int  # samples that contribute to the loss
    pack_index: int  # global number of this pack, counted from 0 over all streams
    stream_state: dict[str, Any] = field(default_factory=dict, repr=False)  # where its stream stands after it

    @property
    def num_tokens(self) -> int:
        """T: positions in the row."""
        return int(self.tokens.shape[1])

    @property
    def num_real_tokens(self) -> int:
        """Positions that hold a sample's text or image embeddings (no padding)."""
        return self.num_tokens - int(self.padding_mask.sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The same batch with every tensor on `device`."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=non_blocking)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **moved)

    def check(self) -> PackedBatch:
        """Raises AssertionError, naming the field, if the batch breaks one of its own promises; else itself."""
        row = (1, self.num_tokens)
        for name in ("tokens", "labels", "loss_weight", "position_ids", "padding_mask"):
            shape = tuple(getattr(self, name).shape)
            assert shape == row, f"{name} has shape {shape}, expected {row}"
        self._check_segments()
        self._check_labels()
        self._check_images()
        return self

    def _check_segments(self) -> None:
        cu, padded = self.cu_seqlens.tolist(), self.cu_seqlens_padded.tolist()
        assert self.cu_seqlens.dtype == self.cu_seqlens_padded.dtype == torch.int32, "offsets must be int32"
        assert self.cu_seqlens.data_ptr() != self.cu_seqlens_padded.data_ptr(), "offset tensors must be distinct"
        assert len(cu) == len(padded) >= 2, f"cu_seqlens has {len(cu)} offsets, cu_seqlens_padded {len(padded)}"
        assert cu[0] == padded[0] == 0, "offsets must start at 0"
        assert padded[-1] == self.num_tokens, f"cu_seqlens_padded ends at {padded[-1]}, the row has {self.num_tokens}"
        room = [b - a for a, b in itertools.pairwise(padded)]
        used = [b - a for a, b in itertools.pairwise(cu)]
        assert all(r > 0 for r in room), "empty segment"
        assert all(0 <= u <= r for u, r in zip(used, room, strict=True)), "a segment holds more tokens than its room"
        num_filled = sum(u > 0 for u in used)
        num_samples = len(self.sample_keys)
        assert num_filled == num_samples, f"{num_filled} segments hold tokens, {num_samples} samples"
        for start, real, end in zip(padded, used, padded[1:], strict=False):
            pad = self.padding_mask[0, start:end].cpu()
            assert int(pad.sum()) == len(pad) - real == int(pad[real:].sum()), (
                "padding_mask does not follow the offsets"
            )
        assert self.max_seqlen == max(room), f"max_seqlen is {self.max_seqlen}, longest segment {max(room)}"
        expected = torch.cat([torch.arange(r) for r in room]).unsqueeze(0)
        assert torch.equal(self.position_ids.cpu(), expected), "position_ids must restart at 0 in every segment"

    def _check_labels(self) -> None:
        labels, tokens = self.labels[0].cpu(), self.tokens[0].cpu()
        weight, pad = self.loss_weight[0].cpu(), self.padding_mask[0].cpu()
        trained = labels != IGNORE_INDEX
        assert not bool(trained[pad].any()), "a padding position has a label"
        assert bool((weight[~trained] == 0).all()), "loss_weight must be 0 where labels are ignored"
        assert bool((weight[trained] > 0).all()), "loss_weight must be positive where there is a label"
        assert int(trained.sum()) == self.num_loss_tokens, "num_loss_tokens does not count the labels"
        ends = self.cu_seqlens_padded[1:].cpu().long() - 1
        assert not bool(trained[ends].any()), "the last position of a segment predicts another segment's token"
        follow = torch.nonzero(trained).flatten()
        assert torch.equal(labels[follow], tokens[follow + 1]), "a label is not the next token"
        assert not bool((labels[follow] < 0).any()), "an image placeholder is a label"

    def _check_images(self) -> None:
        assert self.pixels.dtype == torch.uint8, f"pixels are {self.pixels.dtype}, expected uint8"
        assert self.pixels.ndim == 4, f"pixels have shape {tuple(self.pixels.shape)}, expected (N, 3, H, W)"
        num_tiles, num_images = int(self.tiles_per_image.sum()), int(self.images_per_sample.sum())
        assert num_tiles == self.pixels.shape[0], f"{num_tiles} tiles announced, {self.pixels.shape[0]} given"
        assert num_images == len(self.tiles_per_image), "images_per_sample does not add up to tiles_per_image"
        assert len(self.images_per_sample) == len(self.sample_keys) == len(self.sources), "one entry per sample"
        placeholders = int((self.tokens == IMAGE_TOKEN_INDEX).sum())
        assert (placeholders == 0) == (num_tiles == 0), f"{placeholders} image positions for {num_tiles} tiles"
        if num_tiles:
            assert placeholders % num_tiles == 0, f"{placeholders} image positions do not divide into {num_tiles} tiles"

    def to_megatron(self) -> MegatronBatch:
        """The batch under NeMo's and Megatron's key names; see `mmpack.batch.megatron`."""
        from mmpack.batch.megatron import to_megatron

        return to_megatron(self)

    def to_transformers(
        self, *, image_token_id: int, mask: str = "varlen", dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Keyword arguments for a transformers model; see `mmpack.batch.transformers` for each.

        Args:
            image_token_id: the id that the model takes for an image embedding (``model.config.image_token_id``).
            mask: ``varlen`` sends offsets, ``block_diagonal`` a dense mask for models that know nothing of packs.
            dtype: of the model's parameters.
        """
        from mmpack.batch.transformers import to_transformers

        return to_transformers(self, image_token_id=image_token_id, mask=mask, dtype=dtype)

    def __repr__(self) -> str:
        """A summary; the tensors themselves would fill screens."""
        what = f"{self.num_samples} samples, {self.num_tokens} tokens, pixels {tuple(self.pixels.shape)}"
        return f"PackedBatch(pack_index={self.pack_index}, {what})"
