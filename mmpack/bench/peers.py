"""Who is measured beside mmpack: packers that can be installed, and exact simulations of two that pack inside NeMo.

Each is a function from (lengths, capacity, buffer) to packs, run the way its users run it: a buffer is filled, packed
and emptied, again and again; a buffer of None is the whole set. Nothing here is imported until it is asked for.
"""

from __future__ import annotations

import importlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from mmpack.packing import pack_lengths

PackBuffers = Callable[[Sequence[Sequence[int]], int], list[list[int]]]  # (lengths of each buffer, capacity) -> packs


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One packer that works on full buffers."""

    pack_buffers: PackBuffers  # packs of places in all buffers together, buffer after buffer
    packages: tuple[str, ...] = ()  # what must be installed
    whole_sets: bool = True  # whether its users pack whole sets with it

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        for package in self.packages:
            try:
                importlib.import_module(package)
            except ImportError as error:
                return f"{package} cannot be imported ({error}); pip install {' '.join(self.packages)}"
        return None


def buffers(lengths: Sequence[int], samples: int | None, tokens: int | None) -> Iterator[Sequence[int]]:
    """The stream cut into buffers that are full with so many samples, or so many tokens; the last may not be.

    >>> [list(buffer) for buffer in buffers([5, 1, 4, 2], samples=None, tokens=6)]
    [[5, 1], [4, 2]]
    """
    start = held = 0
    for end, length in enumerate(lengths, start=1):
        held += length
        if (samples is not None and end - start >= samples) or (tokens is not None and held >= tokens):
            yield lengths[start:end]
            start, held = end, 0
    if start < len(lengths):
        yield lengths[start:]


def _each(pack: Callable[[Sequence[int], int], list[list[int]]]) -> PackBuffers:
    def pack_buffers(parts: Sequence[Sequence[int]], capacity: int) -> list[list[int]]:
        packs: list[list[int]] = []
        start = 0
        for part in parts:
            packs += [[start + i for i in chosen] for chosen in pack(part, capacity)]
            start += len(part)
        return packs

    return pack_buffers


def _first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    return pack_lengths(lengths, capacity, algorithm="first_fit_decreasing")


def _scanning_first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """First fit that looks at every open pack in turn."""
    packs: list[list[int]] = []
    rooms: list[int] = []
    for i, length in enumerate(lengths):
        for p, room in enumerate(rooms):
            if length <= room:
                packs[p].append(i)
                rooms[p] -= length
                break
        else:
            packs.append([i])
            rooms.append(capacity - length)
    return packs


def _binpacking(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    library: Any = importlib.import_module("binpacking")
    return [list(chosen) for chosen in library.to_constant_volume(dict(enumerate(lengths)), capacity)]


def _trl(parts: Sequence[Sequence[int]], capacity: int) -> list[list[int]]:
    """TRL's public function on a dataset of tokens; which samples a pack has is read off the lengths it reports."""
    arrow: Any = importlib.import_module("pyarrow")
    datasets: Any = importlib.import_module("datasets")
    trl: Any = importlib.import_module("trl")
    datasets.disable_progress_bars()
    packs: list[list[int]] = []
    start = 0
    for same in _runs_of_one_size(parts):  # one call packs buffers of one number of samples
        lengths = np.concatenate([np.asarray(part) for part in same])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = arrow.LargeListArray.from_arrays(offsets, arrow.array(np.zeros(offsets[-1], np.uint8)))
        table = datasets.Dataset(arrow.table({"input_ids": tokens}))
        options = {"batch_size": len(same[0]), "keep_in_memory": True, "load_from_cache_file": False}
        packed = trl.pack_dataset(table, capacity, strategy="bfd", map_kwargs=options)
        reported = iter(packed.data.column("seq_lengths").to_pylist())
        for part in same:
            waiting: dict[int, deque[int]] = defaultdict(deque)
            for place, length in enumerate(part, start=start):
                waiting[length].append(place)
            emitted = 0
            while emitted < len(part):
                packs.append([waiting[length].popleft() for length in next(reported)])
                emitted += len(packs[-1])
            start += len(part)
    return packs


def _runs_of_one_size(parts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    rest = iter(parts)
    while run := list(islice(rest, 1)):
        for part in rest:
            if len(part) != len(run[0]):
                yield run
                run = []
            run.append(part)
        yield run


PEERS: dict[str, Peer] = {
    # energon fills a buffer, lets the encoder choose and flushes it; NeMo's encoder chooses by first fit decreasing
    "energon_ffd": Peer(pack_buffers=_each(_first_fit_decreasing), whole_sets=False),
    "trl_bfd": Peer(pack_buffers=_trl, packages=("trl", "datasets", "pyarrow")),
    "binpacking": Peer(pack_buffers=_each(_binpacking), packages=("binpacking",)),
    # what NeMo's offline packing does with packing_algorithm=first_fit
    "nemo_first_fit": Peer(pack_buffers=_each(_scanning_first_fit)),
}
