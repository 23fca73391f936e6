"""The flash-attn package (extra ``flash``): the fastest on CUDA where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from mmpack.attention import Backend


def _kernel() -> Callable[..., Tensor]:
    """Imported on use: the package needs CUDA and takes seconds to load."""
    from flash_attn import flash_attn_varlen_func

    return cast("Callable[..., Tensor]", flash_attn_varlen_func)


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
    """See `mmpack.attention.Attend`. The kernel knows grouped heads from the shapes."""
    return _kernel()(
        q_THD,
        k_THD,
        v_THD,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
    )


def supports(device: torch.device, dtype: torch.dtype, head_dim: int, needs_grad: bool) -> str | None:
    """CUDA from compute capability 8.0, half precision, heads up to 256."""
    if device.type != "cuda":
        return f"flash-attn needs a CUDA device, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn computes in float16 or bfloat16, not {dtype}"
    if head_dim > 256 or head_dim % 8:
        return f"flash-attn takes head sizes that are multiples of 8 up to 256, not {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "flash-attn 2 needs compute capability 8.0 (Ampere) or newer"
    if importlib.util.find_spec("flash_attn") is None:
        return "the package flash-attn is not installed (pip install 'mmpack[flash]')"
    return None


BACKEND = Backend(name="flash_attn", attend=attend, supports=supports)
