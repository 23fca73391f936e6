"""torch's compiled flex_attention with a block mask built from the offsets: CUDA in any precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from mmpack.attention import Backend

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@cache
def _kernel() -> Callable[..., Tensor]:
    """Compiled once; `dynamic` because packs differ in their number of tokens."""
    from torch.nn.attention.flex_attention import flex_attention

    return cast("Callable[..., Tensor]", torch.compile(flex_attention, dynamic=True))


def _block_mask(mask_mod: MaskMod, num_q: int, num_k: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mask_mod, None, None, num_q, num_k, device=str(device))


def segment_mask(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, causal: bool) -> MaskMod:
    """Which query sees which key, as flex_attention asks: by (batch, head, query index, key index)."""
    segment_q, before_end_q = _place(cu_seqlens_q)
    segment_k, before_end_k = _place(cu_seqlens_k)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same = segment_q[q] == segment_k[k]
        # counted from the segment's end, so that the last query is aligned with the last key
        return same & (before_end_q[q] <= before_end_k[k]) if causal else same

    return visible


def _place(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Per token: the number of its segment, and how many tokens of the segment follow it."""
    offsets = cu_seqlens.long()
    lengths = offsets.diff()
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)
    token = torch.arange(len(segment), device=offsets.device)
    return segment, offsets[1:][segment] - 1 - token


def attend(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    """See `mmpack.attention.Attend`."""
    if q_THD.shape[0] == 0 or k_THD.shape[0] == 0:
        return torch.zeros_like(q_THD)
    mask_mod = segment_mask(cu_seqlens_q, cu_seqlens_k, causal=causal)
    block_mask = _block_mask(mask_mod, q_THD.shape[0], k_THD.shape[0], q_THD.device)
    q_1HTD, k_1HTD, v_1HTD = (x.transpose(0, 1).unsqueeze(0) for x in (q_THD, k_THD, v_THD))
    grouped = q_THD.shape[1] != k_THD.shape[1]
    out = _kernel()(q_1HTD, k_1HTD, v_1HTD, block_mask=block_mask, scale=scale, enable_gqa=grouped)
    return out.squeeze(0).transpose(0, 1)


def supports(device: torch.device, dtype: torch.dtype, head_dim: int, needs_grad: bool) -> str | None:
    """CUDA only: on CPU flex_attention has no backward and does not compile for every length."""
    if device.type != "cuda":
        return f"flex_attention is offered on CUDA only: on {device.type} it has no backward pass"
    if not dtype.is_floating_point or dtype == torch.float64:
        return f"flex_attention computes in float32, float16 or bfloat16, not {dtype}"
    if head_dim < 16 or head_dim & (head_dim - 1):
        return f"flex_attention takes head sizes that are powers of two from 16, not {head_dim}"
    return None


BACKEND = Backend(name="flex", attend=attend, supports=supports)
