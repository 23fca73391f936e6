"""torch's own variable-length flash attention (torch >= 2.12): on CUDA without installing anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from mmpack.attention import Backend

_NEEDED_ARGUMENTS = {"scale", "window_size", "enable_gqa"}  # the call changed between torch 2.10 and 2.12


def _kernel() -> Callable[..., Tensor]:
    from torch.nn.attention.varlen import varlen_attn

    return cast("Callable[..., Tensor]", varlen_attn)


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
    return _kernel()(
        q_THD,
        k_THD,
        v_THD,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),  # how this function spells causal
        enable_gqa=q_THD.shape[1] != k_THD.shape[1],
    )


def supports(device: torch.device, dtype: torch.dtype, head_dim: int, needs_grad: bool) -> str | None:
    """CUDA from compute capability 8.0, half precision, heads up to 256."""
    if device.type != "cuda":
        return f"torch's varlen attention has no kernel for {device.type}, only for CUDA"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"torch's varlen attention computes in float16 or bfloat16, not {dtype}"
    if head_dim > 256 or head_dim % 8:
        return f"torch's varlen attention takes head sizes that are multiples of 8 up to 256, not {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "torch's varlen attention needs compute capability 8.0 (Ampere) or newer"
    try:
        known = set(inspect.signature(_kernel()).parameters)
    except ImportError:
        return f"torch {torch.__version__} has no varlen attention; it needs 2.12 or newer"
    if missing := _NEEDED_ARGUMENTS - known:
        return f"torch {torch.__version__}'s varlen attention lacks {sorted(missing)}; it needs 2.12 or newer"
    return None


BACKEND = Backend(name="torch_varlen", attend=attend, supports=supports)
