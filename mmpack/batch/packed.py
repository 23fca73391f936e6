"""`PackedBatch`: one pack of samples as a single THD row, and the checks that keep it honest."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmpack.batch.labels import check_labels
from mmpack.batch.moving import moved, pinned, tensors_of
from mmpack.batch.pictures import PixelNorm, check_pictures
from mmpack.sample import IGNORE_INDEX, PixelKind

if TYPE_CHECKING:
    from mmpack.batch.megatron import MegatronBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PackedBatch:
    """One pack. T positions, S segments (the samples, then at most one tail of padding), N image tiles.

    Offsets are int32 and stay on the CPU until `to` moves them. A segment is either one sample, in the
    order of `sample_keys`, or padding: no real token, so its two offsets in `cu_seqlens` are equal. Padding
    segments are the tail of a row of fixed length and the place of a sample that was lost after planning.
    With ``layout.cu_seqlens_size`` segments of no length follow, so that S is the same for every pack.
    """

    tokens: Tensor  # (1, T) int64, IMAGE_TOKEN_INDEX at every image embedding
    labels: Tensor  # (1, T) int64, already shifted: labels[t] is the token after t, or IGNORE_INDEX
    loss_weight: Tensor  # (1, T) float32, 0 where labels is IGNORE_INDEX
    position_ids: Tensor  # (1, T) int64, restarting at 0 in every segment; (4, 1, T) for M-RoPE: these, then t, h, w
    cu_seqlens: Tensor  # (S + 1,) int32, offsets of the segments' real tokens if they stood without padding
    cu_seqlens_padded: Tensor  # (S + 1,) int32, offsets in the row; the last one is T
    max_seqlen: int  # longest padded segment; T where S is the same for every pack
    padding_mask: Tensor  # (1, T) bool, True where a position holds no real token
    pixels: Tensor  # (N, 3, H, W) uint8: tiles, or the patches of `pixel_kind` "patches"
    pixel_norm: PixelNorm
    pixel_kind: PixelKind = "tiles"  # which family of vision towers the pixels are for
    tiles_per_image: Tensor  # (number of images,) int32
    tokens_per_image: Tensor  # (number of images,) int32: embeddings that the model will put in
    image_sizes: Tensor  # (number of images, 2) int32: upright height, width, as the model must see them
    image_grids: Tensor  # (number of images, 2) int32: rows, columns of tiles or patches, overview tile not counted
    images_per_sample: Tensor  # (number of samples,) int32
    sample_keys: tuple[str, ...]
    sources: tuple[str, ...]  # dataset of each sample
    num_loss_tokens: int  # positions with a label; the trainer sums it over the global batch
    num_samples: int  # samples that contribute to the loss
    pair_of_sample: tuple[int, ...] = ()  # preference data: which pair each sample is of, -1 for none; chosen first
    pack_index: int  # global number of this pack, counted from 0 over all streams
    stream_state: dict[str, Any] = field(default_factory=dict, repr=False)  # where its stream stands after it

    @property
    def num_tokens(self) -> int:
        """T: positions in the row."""
        return int(self.tokens.shape[1])

    @property
    def text_position_ids(self) -> Tensor:
        """(1, T) positions that restart in every segment: `position_ids`, or their first row for M-RoPE."""
        return self.position_ids[0] if self.position_ids.ndim == 3 else self.position_ids

    @property
    def sum_len_squared(self) -> int:
        """Sum of the squared lengths of the segments: what attention costs, up to a factor."""
        return int((self.cu_seqlens_padded.diff().double() ** 2).sum())

    @property
    def sample_lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [length for length in self.cu_seqlens.diff().tolist() if length]

    @property
    def num_real_tokens(self) -> int:
        """Positions that hold a sample's text or image embeddings (no padding)."""
        return self.num_tokens - int(self.padding_mask.sum())

    @property
    def pairs(self) -> Tensor:
        """(number of pairs, 2) int64: places among the samples of each chosen answer and of the one rejected for it."""
        pair = torch.tensor(self.pair_of_sample, dtype=torch.int64)
        chosen = torch.nonzero((pair[:-1] == pair[1:]) & (pair[:-1] >= 0))
        return torch.cat([chosen, chosen + 1], dim=1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The same batch with every tensor on `device`."""
        return moved(self, device, non_blocking=non_blocking)

    def pinned(self) -> PackedBatch:
        """The same batch in pinned memory, for copies to a GPU that do not block."""
        return pinned(self)

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return tensors_of(self)

    def check(self) -> PackedBatch:
        """Raises AssertionError, naming the field, if the batch breaks one of its own promises; else itself."""
        row = (1, self.num_tokens)
        for name in ("tokens", "labels", "loss_weight", "text_position_ids", "padding_mask"):
            shape = tuple(getattr(self, name).shape)
            assert shape == row, f"{name} has shape {shape}, expected {row}"
        self._check_segments()
        self._check_labels()
        check_pictures(self)
        paired = [pair for pair in self.pair_of_sample if pair >= 0]
        assert len(self.pair_of_sample) in (0, len(self.sample_keys)), "pair_of_sample must name every sample"
        assert paired == sorted([*range(len(self.pairs))] * 2), "a pair is not whole, or its sides stand apart"
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
        num_segments = sum(r > 0 for r in room)
        assert all(r > 0 for r in room[:num_segments]), "empty segment before the last"
        assert all(0 <= u <= r for u, r in zip(used, room, strict=True)), "a segment holds more tokens than its room"
        num_filled = sum(u > 0 for u in used)
        num_samples = len(self.sample_keys)
        assert num_filled == num_samples, f"{num_filled} segments hold tokens, {num_samples} samples"
        for start, real, end in zip(padded[:num_segments], used, padded[1:], strict=False):
            pad = self.padding_mask[0, start:end].cpu()
            assert int(pad.sum()) == len(pad) - real == int(pad[real:].sum()), (
                "padding_mask does not follow the offsets"
            )
        allowed = (max(room), self.num_tokens)
        assert self.max_seqlen in allowed, f"max_seqlen is {self.max_seqlen}, longest segment {max(room)}"
        expected = torch.cat([torch.arange(r) for r in room]).unsqueeze(0)
        assert torch.equal(self.text_position_ids.cpu(), expected), "position_ids must restart at 0 in every segment"

    def _check_labels(self) -> None:
        check_labels(self)
        trained = self.labels[0].cpu() != IGNORE_INDEX
        ends = self.cu_seqlens_padded[1:].cpu().long() - 1
        assert not bool(trained[ends].any()), "the last position of a segment predicts another segment's token"

    def to_megatron(self, *, image_token_layout: str = "expanded") -> MegatronBatch:
        """The batch under NeMo's and Megatron's key names; see `mmpack.batch.megatron`.

        Args:
            image_token_layout: ``expanded``, or ``compact`` for models that expand the placeholder themselves.
        """
        from mmpack.batch.megatron import to_megatron

        return to_megatron(self, image_token_layout=image_token_layout)

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
