"""In which precision a model computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from mmpack.errors import ConfigError


def compute_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward passes: bfloat16 where it was asked for, or else as the weights are.

    Raises:
        ConfigError: the device has no bfloat16.
    """
    has_it = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_bf16_supported())
    if precision == "32" or (precision == "auto" and (device.type == "cpu" or not has_it)):
        return nullcontext()
    if not has_it:
        raise ConfigError(f"precision={precision!r}: {device} has no bfloat16; use precision='32' or 'auto'")
    return torch.autocast(device.type, dtype=torch.bfloat16)
