"""`PackedBatch` under the key names that NeMo's NeVA data step reads, with Megatron-core's `PackedSeqParams`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from mmpack.batch.packed import PackedBatch
from mmpack.batch.pictures import flat_patches
from mmpack.errors import ConfigError, nearest
from mmpack.sample import IMAGE_TOKEN_INDEX

LAYOUTS = ("expanded", "compact")


class MegatronBatch(TypedDict):
    """What the data and forward steps of NeMo's NeVA and LLaVA-NeXT take out of a batch.

    T' is T in the layout ``expanded``, and the number of tokens with one placeholder per picture in ``compact``.
    """

    tokens: Tensor  # (1, T') int64, -200 (NeMo's IMAGE_TOKEN_INDEX) at pictures; the model's input_ids
    labels: Tensor  # (1, T') int64, already shifted, -100 where nothing is learnt
    loss_mask: Tensor  # (1, T') float32, the loss weights; 0 where labels are ignored
    position_ids: Tensor  # (1, T') int64, restarting in every segment, padding included; (3, 1, T) for M-RoPE, expanded
    attention_mask: None  # the seams are in packed_seq_params
    media: Tensor  # (N, 3, S, S) normalised floats; the model's images. Flat patches (N, 3 * frames * P * P) of those
    num_media_tiles: Tensor  # (number of pictures,) int32; the model's num_image_tiles
    packed_seq_params: Any  # megatron.core's PackedSeqParams, or the equal dataclass below
    image_sizes: NotRequired[Tensor]  # (number of pictures, 2) int64 height, width; of "anyres" pictures
    image_grid_thw: NotRequired[Tensor]  # (number of pictures, 3) int64 frames, rows, columns; of "patches"


@dataclass(kw_only=True, slots=True)
class PackedSeqParams:
    """The fields of ``megatron.core.packed_seq_params.PackedSeqParams`` that a THD row needs.

    Not frozen, as Megatron's is not: NeMo moves the offsets to the GPU by assigning them.
    """

    qkv_format: str
    cu_seqlens_q: Tensor  # (S + 1,) int32 offsets of the real tokens
    cu_seqlens_kv: Tensor
    cu_seqlens_q_padded: Tensor  # (S + 1,) int32 offsets in the row
    cu_seqlens_kv_padded: Tensor
    max_seqlen_q: int
    max_seqlen_kv: int


@cache
def _params_class() -> Any:
    try:
        from megatron.core.packed_seq_params import PackedSeqParams as Installed
    except ImportError:
        return PackedSeqParams
    return Installed


def packed_seq_params(batch: PackedBatch) -> Any:
    """The offsets of `batch` as Megatron-core's class if it is installed, else as `PackedSeqParams`.

    Four tensors of their own: NeVA writes into the padded offsets in place.
    """
    return _params_class()(
        qkv_format="thd",
        cu_seqlens_q=batch.cu_seqlens.clone(),
        cu_seqlens_kv=batch.cu_seqlens.clone(),
        cu_seqlens_q_padded=batch.cu_seqlens_padded.clone(),
        cu_seqlens_kv_padded=batch.cu_seqlens_padded.clone(),
        max_seqlen_q=batch.max_seqlen,
        max_seqlen_kv=batch.max_seqlen,
    )


def to_megatron(batch: PackedBatch, *, image_token_layout: str = "expanded") -> MegatronBatch:
    """The batch under NeMo's names; see `MegatronBatch`.

    Args:
        image_token_layout: ``expanded`` has a placeholder for every image embedding; ``compact`` one per picture,
            for models such as NeVA that expand by themselves. The offsets describe the expanded row either way.

    Raises ConfigError for another layout.
    """
    if image_token_layout not in LAYOUTS:
        raise ConfigError(f"image_token_layout={image_token_layout!r}; {nearest(image_token_layout, LAYOUTS)}")
    rows = [batch.tokens, batch.labels, batch.loss_weight]
    positions = batch.position_ids[1:] if batch.position_ids.ndim == 3 else batch.position_ids
    if image_token_layout == "compact":
        kept = _compact_positions(batch)
        rows = [row[:, kept] for row in rows]
        positions = _restarting(batch, kept)
    tokens, labels, loss_mask = rows
    view = MegatronBatch(
        tokens=tokens,
        labels=labels,
        loss_mask=loss_mask,
        position_ids=positions,
        attention_mask=None,
        media=batch.pixel_norm(batch.pixels),
        num_media_tiles=batch.tiles_per_image,
        packed_seq_params=packed_seq_params(batch),
    )
    if batch.pixel_kind == "anyres":
        view["image_sizes"] = batch.image_sizes.long()
    elif batch.pixel_kind == "patches":
        view["media"], view["image_grid_thw"] = flat_patches(batch, batch.pixel_norm, torch.float32)
    return view


def _compact_positions(batch: PackedBatch) -> Tensor:
    """Text positions and the last position of every picture, whose label is the first token after it."""
    is_image = batch.tokens[0] == IMAGE_TOKEN_INDEX
    keep = ~is_image
    ends = torch.cumsum(batch.tokens_per_image.long(), dim=0) - 1  # among the image positions
    keep[torch.nonzero(is_image).flatten()[ends]] = True
    return torch.nonzero(keep).flatten()


def _restarting(batch: PackedBatch, kept: Tensor) -> Tensor:
    """(1, T') positions that count the kept tokens of each segment from 0."""
    segment = torch.searchsorted(batch.cu_seqlens_padded[1:].long(), kept, right=True)
    place = torch.arange(len(kept), device=kept.device)
    is_first = torch.ones_like(kept, dtype=torch.bool)
    is_first[1:] = segment[1:] != segment[:-1]
    start = torch.cummax(torch.where(is_first, place, torch.zeros_like(place)), dim=0).values
    return (place - start).unsqueeze(0)
