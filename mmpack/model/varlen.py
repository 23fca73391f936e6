"""mmpack's attention backends under names that transformers models can be told to use.

They are registered with transformers' attention table only, not with its table of masks: transformers then
builds no T x T mask, and the seams of the pack travel as `cu_seq_lens_q`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from mmpack.attention import AUTO, BACKENDS, Backend, choose
from mmpack.errors import ConfigError


@cache
def register_attention(backend: str = AUTO) -> str:
    """The name to give a model as `attn_implementation`; registered on the first call.

    ``auto`` is called ``mmpack_varlen`` and chooses by device and precision at each call; a named backend is
    ``mmpack_<name>`` and is used or refused. Raises ConfigError for an unknown backend.
    """
    if backend != AUTO:
        BACKENDS.get(backend)
    from transformers import AttentionInterface

    name = "mmpack_varlen" if backend == AUTO else f"mmpack_{backend}"
    AttentionInterface.register(name, partial(_attend, backend=backend))
    return name


_choose = cache(choose)  # it is asked at every layer of every step


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    backend: str,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **other: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: `query` (1, H_q, T, D), `key`, `value` (1, H_kv, T, D) -> (1, T, H_q, D)."""
    if cu_seq_lens_q is None or cu_seq_lens_k is None or max_length_q is None or max_length_k is None:
        raise ConfigError(
            "packed attention was called without cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k: it "
            "serves the forward pass of a PackedBatch only. To generate, or to run unpacked input, load the model "
            "with attn_implementation='sdpa'"
        )
    _refuse_unsupported(query, key, cu_seq_lens_q, attention_mask, dropout, max_length_q, other)
    q_THD, k_THD, v_THD = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    chosen: Backend = _choose(
        backend, device=query.device, dtype=query.dtype, head_dim=query.shape[-1], needs_grad=needs_grad
    )
    out_THD = chosen.attend(
        q_THD,
        k_THD,
        v_THD,
        cu_seq_lens_q,
        cu_seq_lens_k,
        max_length_q,
        max_length_k,
        causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
    )
    return out_THD.unsqueeze(0).contiguous(), None


def _refuse_unsupported(
    query: Tensor,
    key: Tensor,
    cu_seqlens: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    max_length: int,
    other: dict[str, Any],
) -> None:
    """Raises ConfigError for what the backends would ignore, because ignoring it would change the result."""
    num_tokens = query.shape[2]
    if query.shape[0] != 1 or key.shape[2] != num_tokens:
        raise ConfigError(
            f"packed attention takes one row and no cache; got {query.shape[0]} rows, {num_tokens} queries and "
            f"{key.shape[2]} keys"
        )
    if attention_mask is not None:
        raise ConfigError("packed attention takes no attention_mask: the seams are in cu_seq_lens_q")
    if dropout:
        raise ConfigError(f"packed attention has no dropout; set the text model's attention_dropout={dropout} to 0")
    window = other.get("sliding_window")
    if window is not None and window < max_length:
        raise ConfigError(f"packed attention has no sliding window; the model's {window} is below {max_length}")
    for name in ("softcap", "s_aux"):
        if other.get(name) is not None:
            raise ConfigError(f"packed attention does not support {name}, which this model needs")
    # reading an offset back from a GPU would stall it at every layer, so there the batch's own check must do
    if cu_seqlens.device.type == "cpu" and int(cu_seqlens[-1]) != num_tokens:
        raise ConfigError(f"cu_seq_lens_q ends at {int(cu_seqlens[-1])}, the row has {num_tokens} tokens")
