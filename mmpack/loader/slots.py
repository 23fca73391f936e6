"""How a pack travels from a worker to the trainer: its tensors in a slot of shared memory, the rest as a header.

The slots of a worker are one anonymous memory map made before the fork, so nothing needs a name and nothing is
left behind when a process is killed. The worker cuts pictures into tiles right in the slot, and the trainer works with
views of it: a slot is free again when the last tensor of its pack is gone. So that a trainer that keeps its packs does
not stop its workers, only `LENT` packs of a worker are lent at a time; further ones are copied. A pack larger than a
slot travels inside its header.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmpack.batch import B
from mmpack.batch.memory import on_heap
from mmpack.loader.work import Stopwatch

LENT = 2  # the pack of this step and, until it is replaced, that of the step before
_ALIGN = 64  # bytes: a cache line


@dataclass(frozen=True, kw_only=True, slots=True)
class Header(Generic[B]):
    """Everything of a pack that is not in its slot.

    `kind` is the class of the batch. `slot` is None if the tensors travel in `fields` themselves; else `tensors` says
    where each one lies.
    """

    kind: type[B]
    slot: int | None
    tensors: list[tuple[str, torch.dtype, tuple[int, ...], int]]  # field, dtype, shape, offset in the slot
    fields: dict[str, Any]
    cpu_s: float  # what making it took
    wall_s: float


class SlotMemory:
    """`num_slots` slots of `slot_bytes` each, shared with the processes forked after it was made."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = _aligned(max(slot_bytes, 1))
        self._map = mmap.mmap(-1, self.num_slots * self.slot_bytes)
        self.num_made = np.frombuffer(mmap.mmap(-1, 8), dtype=np.int64)  # (1,) packs that the worker has sent

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """A new array over the memory of `slot`; it keeps the map alive."""
        return np.frombuffer(self._map, dtype=np.uint8, count=self.slot_bytes, offset=slot * self.slot_bytes)


class SlotWriter:
    """The worker's end: the pack that is being made has a slot, and its pixels are made there."""

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._slot = 0
        self._bytes = memory.bytes_of(0)
        self._given = 0  # bytes
        self._watch = Stopwatch()

    def begin(self, slot: int) -> None:
        """The next pack goes into `slot`, which nobody else uses."""
        self._slot, self._bytes, self._given = slot, self._memory.bytes_of(slot), 0
        self._watch = Stopwatch()

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory for the pixels of the pack: in the slot, once and if they fit."""
        if self._given or num_bytes > len(self._bytes):
            return on_heap(num_bytes)
        self._given = num_bytes
        return self._bytes[:num_bytes]

    def finish(self, batch: B) -> Header[B]:
        """Puts what is not there yet into the slot."""
        fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(cast(Any, batch))}
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        offsets = {name: at for name, value in tensors.items() if (at := self._offset(value)) is not None}
        end = _aligned(self._given)
        to_copy = [name for name in tensors if name not in offsets]
        for name in to_copy:
            offsets[name] = end
            end += _aligned(tensors[name].nbytes)
        if end > self._memory.slot_bytes:
            cpu_s, wall_s = self._watch.read()
            return Header(kind=type(batch), slot=None, tensors=[], fields=fields, cpu_s=cpu_s, wall_s=wall_s)
        for name in to_copy:
            _tensor(self._bytes, tensors[name].dtype, tuple(tensors[name].shape), offsets[name]).copy_(tensors[name])
        cpu_s, wall_s = self._watch.read()
        return Header(
            kind=type(batch),
            slot=self._slot,
            tensors=[(name, value.dtype, tuple(value.shape), offsets[name]) for name, value in tensors.items()],
            fields={name: value for name, value in fields.items() if name not in tensors},
            cpu_s=cpu_s,
            wall_s=wall_s,
        )

    def _offset(self, value: Tensor) -> int | None:
        """Where in the slot a tensor lies already; None if elsewhere."""
        at = value.data_ptr() - self._bytes.ctypes.data
        inside = value.nbytes > 0 and at >= 0 and at + value.nbytes <= len(self._bytes)
        return at if inside and value.is_contiguous() else None


class SlotReader:
    """The trainer's end: packs as views of their slots, and the slots that are free again."""

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._away = 0  # slots that were read and not taken back
        self._returned: deque[int] = deque()  # tensors may be freed in any thread

    def read(self, header: Header[B]) -> B:
        """The pack of `header`: its tensors are the slot's memory, or a copy of it if too many slots are lent."""
        if header.slot is None:
            return header.kind(**header.fields)
        memory = self._memory.bytes_of(header.slot)
        views: dict[str, Any] = {name: _tensor(memory, dtype, shape, at) for name, dtype, shape, at in header.tensors}
        if self._away < LENT:
            weakref.finalize(memory, self._returned.append, header.slot).atexit = False
        else:
            views = {name: view.clone() for name, view in views.items()}
            self._returned.append(header.slot)
        self._away += 1
        return header.kind(**header.fields, **views)

    def take_returned(self) -> list[int]:
        """Slots that have become free since the last call."""
        slots = []
        while self._returned:
            slots.append(self._returned.popleft())
        self._away -= len(slots)
        return slots


def _tensor(memory: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    """A tensor at `offset` of `memory`, which lives as long as the tensor does."""
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN
