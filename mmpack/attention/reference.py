"""The definition of attention, spelt out per segment in float32 or better. Slow; it judges the other backends."""

from __future__ import annotations

import torch
from torch import Tensor

from mmpack.attention import Backend, segment_lengths


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
    lengths_q, lengths_k = segment_lengths(cu_seqlens_q), segment_lengths(cu_seqlens_k)
    segments = zip(
        q_THD.split_with_sizes(lengths_q),
        k_THD.split_with_sizes(lengths_k),
        v_THD.split_with_sizes(lengths_k),
        strict=True,
    )
    return torch.cat([_one_segment(q, k, v, causal=causal, scale=scale) for q, k, v in segments])


def _one_segment(q_qHD: Tensor, k_kHD: Tensor, v_kHD: Tensor, *, causal: bool, scale: float) -> Tensor:
    num_q, num_heads, head_dim = q_qHD.shape
    num_k, num_kv_heads, _ = k_kHD.shape
    if num_q == 0 or num_k == 0:
        return torch.zeros_like(q_qHD)  # a query that sees nothing gives nothing
    exact = torch.promote_types(q_qHD.dtype, torch.float32)
    q = q_qHD.to(exact).reshape(num_q, num_kv_heads, num_heads // num_kv_heads, head_dim)
    k, v = k_kHD.to(exact), v_kHD.to(exact)
    scores = torch.einsum("qhgd,khd->hgqk", q, k) * scale
    if causal:
        last_key = torch.arange(num_q, device=q.device) + (num_k - num_q)
        hidden = torch.arange(num_k, device=q.device) > last_key[:, None]
        blind = hidden.all(dim=-1)[:, None]  # a softmax over nothing is NaN: attend uniformly, then write zeros
        weights = torch.softmax(scores.masked_fill(hidden & ~blind, float("-inf")), dim=-1).masked_fill(blind, 0.0)
    else:
        weights = torch.softmax(scores, dim=-1)
    out = torch.einsum("hgqk,khd->qhgd", weights, v)
    return out.reshape(num_q, num_heads, head_dim).to(q_qHD.dtype)


def supports(device: torch.device, dtype: torch.dtype, head_dim: int, needs_grad: bool) -> str | None:
    """Runs anywhere, for any floating point type."""
    return None if dtype.is_floating_point else f"needs a floating point type, not {dtype}"


BACKEND = Backend(name="reference", attend=attend, supports=supports)
