"""A stand-in for flash-attn on CPU: the real package's calls, computed by mmpack's reference backend.

It exists so that transformers' FlashAttention-2 path runs in tests. `CALLS` records what that path asked for.
"""

import torch

from mmpack.attention.reference import attend

__version__ = "2.8.3"
CALLS: list[tuple[str, list[int], bool]] = []  # (kind, offsets, causal)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert int(cu_seqlens_q[-1]) == q.shape[0], "rows past the last offset are undefined in the real kernel"
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert dropout_p == 0.0
    assert tuple(window_size) == (-1, -1)
    CALLS.append(("varlen", cu_seqlens_q.tolist(), causal))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return attend(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, scale=scale)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    batch, length = q.shape[:2]
    cu = torch.arange(batch + 1, dtype=torch.int32) * length
    CALLS.append(("dense", cu.tolist(), causal))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    return attend(*flat, cu, cu, length, length, causal=causal, scale=scale).view_as(q)


def flash_attn_with_kvcache(*args, **kwargs):
    raise NotImplementedError
