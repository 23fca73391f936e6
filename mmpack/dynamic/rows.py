"""A batch as a dictionary of tensors and lists that hold one entry a sequence: choose, cut, join, reorder its rows."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from mmpack.errors import ConfigError


class Rows(UserDict[str, Any]):
    """Name -> tensor (B, ...) or list of B entries."""

    @classmethod
    def from_batches(
        cls, batches: Sequence[Mapping[str, Any]], pad_value_dict: Mapping[str, float] | None = None
    ) -> Self:
        """One batch of several: rows one after the other, tensors padded along dimension 1 to the longest.

        Args:
            batches: of the same keys.
            pad_value_dict: what to pad a key with; 0 where it is silent.

        Raises:
            ConfigError: no batch, or batches of different keys.
        """
        if not batches or any(set(batch) != set(batches[0]) for batch in batches):
            raise ConfigError(f"keys {[sorted(batch) for batch in batches]}; give batches that have the same keys")
        stacked = cls()
        for key, first in batches[0].items():
            values = [batch[key] for batch in batches]
            if isinstance(first, Tensor):
                stacked[key] = _stack(values, (pad_value_dict or {}).get(key, 0))
            else:
                stacked[key] = list(chain.from_iterable(values))
        return stacked

    @property
    def size(self) -> int:
        """B. Raises ConfigError if the entries differ in it."""
        sizes = {key: len(value) for key, value in self.data.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigError(f"entries of {sizes} rows; all must have one row a sequence")
        return next(iter(sizes.values()), 0)

    def get_dict(self) -> dict[str, Any]:
        """The dictionary itself."""
        return self.data

    def to(self, device: str | torch.device) -> Self:
        """Moves the tensors, in place."""
        for key, value in self.data.items():
            if isinstance(value, Tensor):
                self.data[key] = value.to(device)
        return self

    def select_indices(self, indices: Sequence[int]) -> Self:
        """The rows of these numbers, in this order."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        return type(self)(
            {
                key: value.index_select(0, rows.to(value.device))
                if isinstance(value, Tensor)
                else [value[i] for i in indices]
                for key, value in self.data.items()
            }
        )

    def slice(self, start: int, end: int) -> Self:
        """Rows `start` to `end`."""
        return type(self)({key: value[start:end] for key, value in self.data.items()})

    def truncate_tensors(self, dim: int, truncated_len: int) -> None:
        """Cuts every tensor that has dimension `dim` to this length, in place; one that is shorter stays."""
        for key, value in self.data.items():
            if isinstance(value, Tensor) and value.ndim > dim:
                self.data[key] = value.narrow(dim, 0, min(truncated_len, value.shape[dim]))

    def reorder_data(self, reordered_indices: Sequence[int]) -> None:
        """Puts rows back, in place: row k of now becomes row `reordered_indices[k]`. ConfigError if one lacks."""
        if sorted(reordered_indices) != list(range(self.size)):
            raise ConfigError(f"{len(reordered_indices)} indices for {self.size} rows; give every row's place once")
        now_at = sorted(range(self.size), key=reordered_indices.__getitem__)
        self.data = self.select_indices(now_at).data


def _stack(tensors: Sequence[Tensor], pad_value: float) -> Tensor:
    if tensors[0].ndim == 1:
        return torch.cat(list(tensors))
    width = max(tensor.shape[1] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = tensor.new_full((tensor.shape[0], width - tensor.shape[1], *tensor.shape[2:]), pad_value)
        padded.append(torch.cat([tensor, missing], dim=1))
    return torch.cat(padded)
