"""Attention over packed sequences: one contract, several backends, and the choice among them.

A pack is one row of T tokens; `cu_seqlens` says where its segments start. A backend attends within each segment
and never across. Shapes carry their letters: ``q_THD`` is (tokens, query heads, head size), ``k_THD`` and
``v_THD`` may have fewer heads (grouped-query attention: H_q is a multiple of H_kv).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from mmpack.errors import ConfigError
from mmpack.registry import Registry


class Attend(Protocol):
    """What a backend computes: softmax(q k^T x scale) v within each segment."""

    def __call__(
        self,
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
        """The output, shaped and typed like `q_THD`.

        Args:
            q_THD: (T_q, H_q, D); `k_THD` and `v_THD`: (T_k, H_kv, D), H_q a multiple of H_kv.
            cu_seqlens_q: (S + 1,) int32 offsets of the segments in `q_THD`, from 0 to T_q; empty segments are
                allowed. `cu_seqlens_k` likewise for `k_THD`.
            max_seqlen_q: length of the longest segment; `max_seqlen_k` likewise.
            causal: a query sees no later key. Where a segment has another number of keys than of queries, the
                last query is aligned with the last key (as in flash-attention since 2.1).
            scale: factor on the scores before the softmax, usually D ** -0.5.
        """
        ...


Supports = Callable[[torch.device, torch.dtype, int, bool], str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One implementation.

    `supports(device, dtype, head_dim, needs_grad)` is None if it can run there, else the reason in words.
    """

    name: str
    attend: Attend
    supports: Supports


BACKENDS: Registry[Backend] = Registry(
    "attention backend",
    {
        "reference": "mmpack.attention.reference:BACKEND",
        "sdpa_loop": "mmpack.attention.sdpa_loop:BACKEND",
        "flex": "mmpack.attention.flex:BACKEND",
        "torch_varlen": "mmpack.attention.torch_varlen:BACKEND",
        "flash_attn": "mmpack.attention.flash_attn:BACKEND",
    },
)

AUTO = "auto"
AUTO_ORDER = ("flash_attn", "torch_varlen", "flex", "sdpa_loop")  # fastest first; the last one runs anywhere


def choose(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int, needs_grad: bool) -> Backend:
    """The backend called `name`, or with ``auto`` the first of `AUTO_ORDER` that supports the request.

    Raises ConfigError, with the backend's own reason, if a named backend cannot run there.

    >>> choose("auto", device=torch.device("cpu"), dtype=torch.float32, head_dim=64, needs_grad=True).name
    'sdpa_loop'
    """
    if name == AUTO:
        reasons = {}
        for candidate in AUTO_ORDER:
            backend = BACKENDS.get(candidate)
            reason = backend.supports(device, dtype, head_dim, needs_grad)
            if reason is None:
                return backend
            reasons[candidate] = reason
        raise ConfigError(f"no attention backend for {dtype} on {device}: {reasons}")
    backend = BACKENDS.get(name)
    reason = backend.supports(device, dtype, head_dim, needs_grad)
    if reason is not None:
        where = f"{dtype} on {device}, head size {head_dim}"
        raise ConfigError(f"attention backend {name!r} cannot run for {where}: {reason}; use 'auto' or 'sdpa_loop'")
    return backend


def segment_lengths(cu_seqlens: Tensor) -> list[int]:
    """Lengths of the segments between offsets.

    >>> segment_lengths(torch.tensor([0, 3, 3, 7], dtype=torch.int32))
    [3, 0, 4]
    """
    offsets = cu_seqlens.tolist()
    return [end - start for start, end in pairwise(offsets)]


__all__ = ["AUTO", "AUTO_ORDER", "BACKENDS", "Attend", "Backend", "Supports", "choose", "segment_lengths"]
