"""Batches on another device."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def moved(batch: T, device: torch.device | str, *, non_blocking: bool = False) -> T:
    """The dataclass `batch` with every tensor on `device`."""
    tensors = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in _tensors(batch)}
    return dataclasses.replace(batch, **tensors)  # type: ignore[type-var]


def pinned(batch: T) -> T:
    """The dataclass `batch` with every tensor in pinned memory, from where a GPU copies without waiting."""
    tensors = {name: tensor.pin_memory() for name, tensor in _tensors(batch)}
    return dataclasses.replace(batch, **tensors)  # type: ignore[type-var]


def tensors_of(batch: object) -> list[Tensor]:
    """All tensors of the dataclass `batch`."""
    return [tensor for _, tensor in _tensors(batch)]


def _tensors(batch: Any) -> list[tuple[str, Tensor]]:
    values = ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return [(name, value) for name, value in values if isinstance(value, Tensor)]
