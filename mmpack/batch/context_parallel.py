"""A pack cut for context parallelism: what each rank holds of the row, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpack.batch.packed import PackedBatch
from mmpack.errors import ConfigError
from mmpack.layout import zigzag_indices
from mmpack.sample import IMAGE_TOKEN_INDEX


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ContextParallelSlice:
    """The part of a pack that one of C context-parallel ranks holds, in zigzag order; t = T / C.

    The offsets are those of the whole row, as attention kernels take them.
    """

    rank: int
    size: int
    indices: Tensor  # (t,) int64, places of these positions in the row
    tokens: Tensor  # (1, t) int64
    labels: Tensor  # (1, t) int64, already shifted in the whole row
    loss_weight: Tensor  # (1, t) float32
    position_ids: Tensor  # (1, t) int64, or (4, 1, t) for M-RoPE
    padding_mask: Tensor  # (1, t) bool
    picture_positions: Tensor  # (image embeddings of this rank,) int64, which of the pack's embeddings, in order
    cu_seqlens: Tensor  # (S + 1,) int32, of the whole row
    cu_seqlens_padded: Tensor  # (S + 1,) int32, of the whole row
    max_seqlen: int
    num_loss_tokens: int  # of this rank; a loss is divided by the sum over ranks


def context_parallel_slice(batch: PackedBatch, *, rank: int, size: int) -> ContextParallelSlice:
    """What rank `rank` of `size` holds of the pack.

    Every rank sends the pictures through the vision tower (or its share of them), and takes the embeddings of
    `picture_positions` for its own placeholders.

    Raises:
        ConfigError: a rank that does not exist, or segments that cannot be cut; the text says which multiple to set.
    """
    if not 0 <= rank < size:
        raise ConfigError(f"rank={rank} is not in 0..{size - 1} (context_parallel={size})")
    indices = torch.from_numpy(zigzag_indices(batch.cu_seqlens_padded.tolist(), size)[rank]).to(batch.tokens.device)
    is_image = batch.tokens[0] == IMAGE_TOKEN_INDEX
    order = is_image.long().cumsum(0) - 1
    loss_weight = batch.loss_weight[:, indices]
    return ContextParallelSlice(
        rank=rank,
        size=size,
        indices=indices,
        tokens=batch.tokens[:, indices],
        labels=batch.labels[:, indices],
        loss_weight=loss_weight,
        position_ids=batch.position_ids[..., indices],
        padding_mask=batch.padding_mask[:, indices],
        picture_positions=order[indices][is_image[indices]],
        cu_seqlens=batch.cu_seqlens,
        cu_seqlens_padded=batch.cu_seqlens_padded,
        max_seqlen=batch.max_seqlen,
        num_loss_tokens=int((loss_weight > 0).sum()),
    )


def gather_slices(parts: Sequence[Tensor], cu_seqlens_padded: Tensor, *, dim: int = -1) -> Tensor:
    """The whole row again from what the ranks hold, in rank order: the inverse of the cut.

    Args:
        parts: one tensor of every rank, equal in shape, with the row's positions along `dim`.
        cu_seqlens_padded: (S + 1,) of the whole row.
    """
    joined = torch.cat(list(parts), dim=dim)
    order = torch.from_numpy(zigzag_indices(cu_seqlens_padded.tolist(), len(parts)).reshape(-1)).to(joined.device)
    return joined.index_select(dim, torch.argsort(order))
