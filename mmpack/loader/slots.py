"""How a pack travels from a worker to the trainer: its tensors in a slot of shared memory, the rest as a header.

The slots of a worker are one anonymous memory map made before the fork, so nothing needs a name and nothing is
left behind when a process is killed. A pack larger than a slot travels inside its header.
"""

from __future__ import annotations

import dataclasses
import mmap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmpack.batch import Batch

_ALIGN = 64  # bytes: a cache line


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Everything of a pack that is not in its slot.

    `kind` is the class of the batch. `slot` is None if the tensors travel in `fields` themselves; else `tensors` says
    where each one lies.
    """

    kind: type[Batch]
    slot: int | None
    tensors: list[tuple[str, torch.dtype, tuple[int, ...], int]]  # field, dtype, shape, offset in the slot
    fields: dict[str, Any]


class SlotMemory:
    """`num_slots` slots of `slot_bytes` each, shared with the processes forked after it was made."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = -(-max(slot_bytes, 1) // _ALIGN) * _ALIGN
        self._map = mmap.mmap(-1, self.num_slots * self.slot_bytes)

    def write(self, batch: Batch, slot: int) -> Header:
        """Copies the tensors of `batch` into `slot`."""
        fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        placed, end = [], 0
        for name, value in tensors.items():
            placed.append((name, value.dtype, tuple(value.shape), end))
            end += -(-value.nbytes // _ALIGN) * _ALIGN
        if end > self.slot_bytes:
            return Header(kind=type(batch), slot=None, tensors=[], fields=fields)
        for name, dtype, shape, offset in placed:
            self._view(slot, dtype, shape, offset).copy_(tensors[name])
        return Header(
            kind=type(batch), slot=slot, tensors=placed, fields={k: v for k, v in fields.items() if k not in tensors}
        )

    def read(self, header: Header) -> Batch:
        """The batch, copied out of its slot, which may then be reused."""
        if header.slot is None:
            return header.kind(**header.fields)
        views: dict[str, Any] = {
            name: self._view(header.slot, dtype, shape, at).clone() for name, dtype, shape, at in header.tensors
        }
        return header.kind(**header.fields, **views)

    def _view(self, slot: int, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        start = slot * self.slot_bytes + offset
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start).view(shape)
