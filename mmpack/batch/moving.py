"""Batches on another device."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def moved(batch: T, device: torch.device | str, *, non_blocking: bool = False) -> T:
    """The dataclass `batch` with every tensor on `device`."""
    tensors: dict[str, Any] = {
        field.name: value.to(device, non_blocking=non_blocking)
        for field in dataclasses.fields(batch)  # type: ignore[arg-type]
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return dataclasses.replace(batch, **tensors)  # type: ignore[type-var]
