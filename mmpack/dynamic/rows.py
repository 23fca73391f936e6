"""A batch as a dictionary of tensors and lists that hold one entry a sequence: choose, cut, join, reorder its rows."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from mmpack.errors import ConfigError, check_whole, whole_number


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
        if isinstance(batches, (Mapping, str)) or not all(isinstance(batch, Mapping) for batch in _listed(batches)):
            raise ConfigError(f"batches of kind {type(batches).__name__}; give a list of dictionaries, one a shard")
        if not batches or any(set(batch) != set(batches[0]) for batch in batches):
            raise ConfigError(f"keys {[sorted(batch) for batch in batches]}; give batches that have the same keys")
        stacked = cls()
        for key, first in batches[0].items():
            values = [batch[key] for batch in batches]
            if isinstance(first, Tensor):
                stacked[key] = _stack(key, values, (pad_value_dict or {}).get(key, 0))
            else:
                stacked[key] = list(chain.from_iterable(_checked(key, value) for value in values))
        return stacked

    @property
    def size(self) -> int:
        """B. Raises ConfigError if the entries differ in it, or one has no rows."""
        sizes = {key: len(_checked(key, value)) for key, value in self.data.items()}
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
        """The rows of these numbers, in this order. ConfigError for a number that no row has."""
        size = self.size
        indices = [check_row("indices", i, size) for i in _listed(indices)]
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
        """Rows `start` to `end`; those behind the last are not there."""
        check_whole("start", start, 0)
        check_whole("end", end, 0)
        return type(self)({key: value[start:end] for key, value in self.data.items()})

    def truncate_tensors(self, dim: int, truncated_len: int) -> None:
        """Cuts every tensor that has dimension `dim` to this length, in place; one that is shorter stays.

        Raises:
            ConfigError: `dim` is not at least 1, so that rows would be lost, or the length is below 0.
        """
        check_whole("dim", dim)
        check_whole("truncated_len", truncated_len, 0)
        for key, value in self.data.items():
            if isinstance(value, Tensor) and value.ndim > dim:
                self.data[key] = value.narrow(dim, 0, min(truncated_len, value.shape[dim]))

    def reorder_data(self, reordered_indices: Sequence[int]) -> None:
        """Puts rows back, in place: row k of now becomes row `reordered_indices[k]`. ConfigError if one lacks."""
        size = self.size
        reordered_indices = [check_row("reordered_indices", i, size) for i in _listed(reordered_indices)]
        if sorted(reordered_indices) != list(range(size)):
            raise ConfigError(f"{len(reordered_indices)} indices for {size} rows; give every row's place once")
        now_at = sorted(range(self.size), key=reordered_indices.__getitem__)
        self.data = self.select_indices(now_at).data


def check_row(name: str, number: object, size: int) -> int:
    """`number`, one of `size` counted from 0. Raises ConfigError for anything else."""
    found = whole_number(number)
    if found is None or not 0 <= found < size:
        allowed = f"whole numbers from 0 to {size - 1} are allowed" if size else "there are none"
        raise ConfigError(f"{name} has {number!r}; {allowed}")
    return found


def _listed(values: object) -> list[Any]:
    if isinstance(values, Tensor) and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ConfigError(f"{type(values).__name__} in place of a list; give a list, one entry a row")
    return list(values)


def _checked(key: object, value: Any) -> Any:
    """An entry that has rows. Raises ConfigError for one that has none."""
    if isinstance(value, Tensor):
        if value.ndim == 0:
            raise ConfigError(f"entry {key!r} is a tensor without dimensions; give one of shape (B, ...)")
    elif isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise ConfigError(
            f"entry {key!r} is of kind {type(value).__name__}; give a tensor (B, ...) or a list, one entry a sequence"
        )
    return value


def _stack(key: object, tensors: Sequence[Any], pad_value: float) -> Tensor:
    kinds = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in tensors]
    first = _checked(key, tensors[0])
    if any(
        not isinstance(t, Tensor) or t.ndim != first.ndim or t.shape[2:] != first.shape[2:] or t.device != first.device
        for t in tensors
    ):
        raise ConfigError(
            f"entry {key!r} is {kinds} in these batches; all must be tensors on one device whose shapes differ in "
            "dimensions 0 and 1 alone"
        )
    if first.ndim == 1:
        return torch.cat(list(tensors))
    width = max(tensor.shape[1] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = tensor.new_full((tensor.shape[0], width - tensor.shape[1], *tensor.shape[2:]), pad_value)
        padded.append(torch.cat([tensor, missing], dim=1))
    return torch.cat(padded)
