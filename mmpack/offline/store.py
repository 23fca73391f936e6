"""A pack on disk: a folder of plain NumPy files, memory-mapped, read by index in constant time and memory.

``meta.json``              settings, counts, the cache key
``tokens-00000.npy``       int32, the packs of one shard on end
``targets-00000.npy``      uint8, 1 where the next token is a target
``shards.npy``             (shards + 1,) int64, the first pack of each shard
``pack_offsets.npy``       (packs + 1,) int64, where each pack's tokens begin, counted over all shards
``pack_sequences.npy``     (packs + 1,) int64, where each pack's sequences begin in the next two
``sequence_starts.npy``    (sequences,) int32, where a sequence begins within its pack
``sequence_records.npy``   (sequences,) int64, the number of its record in the input file, counted from 0
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, DataError

META_NAME = "meta.json"
FORMAT = "mmpack packed text 1"
_MAPS_KEPT = 8  # shards held open at a time, so that a store of any size takes few file handles


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackRow:
    """One pack of S sequences on end, without padding.

    `loss_mask` is NeMo's: 1 where the *next* token is a target, so 0 at the end of every sequence.
    """

    input_ids: NDArray[np.int32]  # (T,)
    loss_mask: NDArray[np.uint8]  # (T,)
    seq_start_ids: NDArray[np.int32]  # (S,) where each sequence begins; the first is 0
    record_ids: NDArray[np.int64] | None = None  # (S,) number of each sequence's record in the input file

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def seq_bounds(self) -> list[int]:
        """S + 1 offsets: where each sequence begins, and the end of the last."""
        return [*map(int, self.seq_start_ids), self.num_tokens]


class PackedStore(Sequence[PackRow]):
    """Packs by index. Made by `PackedStore.open`; may be used in several processes and pickled."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.meta = meta
        self._load()

    @classmethod
    def open(cls, folder: str | Path) -> PackedStore:
        """Opens a folder that `write_store` made.

        Raises:
            ConfigError: it is no such folder, or one of a format that this version does not know.
            DataError: files are missing or do not fit each other.
        """
        folder = Path(folder)
        return cls(folder, read_meta(folder))

    def _load(self) -> None:
        try:
            self._shards = np.load(self.folder / "shards.npy")
            self._offsets = np.load(self.folder / "pack_offsets.npy", mmap_mode="r")
            self._sequences = np.load(self.folder / "pack_sequences.npy", mmap_mode="r")
            self._starts = _mapped(self.folder / "sequence_starts.npy")
            self._records = _mapped(self.folder / "sequence_records.npy")
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{self.folder}: the packed store is damaged ({error}); make it again") from None
        if len(self._offsets) != self.meta["num_packs"] + 1 or len(self._sequences) != len(self._offsets):
            raise DataError(f"{self.folder}: its files do not fit {META_NAME}; make it again")
        self._maps: dict[int, tuple[NDArray[np.int32], NDArray[np.uint8]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder, self.meta = state["folder"], state["meta"]
        self._load()

    def __len__(self) -> int:
        return int(self.meta["num_packs"])

    def __getitem__(self, index: Any) -> Any:
        """Pack `index`; a negative one counts from the end. Raises IndexError beyond the ends."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"pack {index} of {len(self)}")
        shard = int(np.searchsorted(self._shards, place, side="right")) - 1
        base = int(self._offsets[self._shards[shard]])
        start, end = (int(offset) - base for offset in self._offsets[place : place + 2])
        first, last = (int(offset) for offset in self._sequences[place : place + 2])
        tokens, targets = self._shard(shard)
        return PackRow(
            input_ids=np.array(tokens[start:end]),
            loss_mask=np.array(targets[start:end]),
            seq_start_ids=np.array(self._starts[first:last]),
            record_ids=np.array(self._records[first:last]),
        )

    def __iter__(self) -> Iterator[PackRow]:
        return (self[i] for i in range(len(self)))

    def _shard(self, shard: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        if shard not in self._maps:
            while len(self._maps) >= _MAPS_KEPT:
                del self._maps[next(iter(self._maps))]
            try:
                pair = (
                    _mapped(self.folder / f"tokens-{shard:05d}.npy"),
                    _mapped(self.folder / f"targets-{shard:05d}.npy"),
                )
            except (OSError, ValueError, EOFError) as error:
                raise DataError(f"{self.folder}: shard {shard} cannot be read ({error}); make it again") from None
            self._maps[shard] = pair
        return self._maps[shard]

    @property
    def num_sequences(self) -> int:
        return int(self.meta["num_sequences"])

    @property
    def packed_sequence_size(self) -> int:
        return int(self.meta["packed_sequence_size"])


def _mapped(path: Path) -> Any:
    return np.load(path, mmap_mode="r")


def read_meta(folder: Path) -> dict[str, Any]:
    """What ``meta.json`` says. Raises ConfigError if the folder is no packed store."""
    try:
        meta = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{folder} is no packed store: {META_NAME}: {what}; make one with `mmpack pack`") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise ConfigError(f"{folder} has format {found!r}, this version reads {FORMAT!r}; pack the data again")
    return meta


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenPool:
    """All rows on end, before they are packed; may be memory-mapped."""

    token_ids_t: NDArray[np.int32]
    loss_mask_t: NDArray[np.uint8]
    lengths_n: NDArray[np.int64]
    record_n: NDArray[np.int64]


def write_store(
    folder: Path, pool: TokenPool, packs: Sequence[Sequence[int]], meta: dict[str, Any], *, max_tokens_per_shard: int
) -> None:
    """Writes the rows of `pool` into an empty `folder`, pack by pack; ``meta.json`` last."""
    begins = np.concatenate([[0], np.cumsum(pool.lengths_n)])
    sizes = np.array([int(pool.lengths_n[list(pack)].sum()) for pack in packs], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    shards = shard_bounds(sizes.tolist(), max_tokens_per_shard)
    starts: list[NDArray[np.int32]] = []
    for number, (first, last) in enumerate(itertools.pairwise(shards)):
        total = (int(offsets[last] - offsets[first]),)
        tokens = np.lib.format.open_memmap(folder / f"tokens-{number:05d}.npy", "w+", dtype=np.int32, shape=total)
        targets = np.lib.format.open_memmap(folder / f"targets-{number:05d}.npy", "w+", dtype=np.uint8, shape=total)
        at = 0
        for pack in packs[first:last]:
            start = at
            within = []
            for sequence in pack:
                length = int(pool.lengths_n[sequence])
                source = slice(int(begins[sequence]), int(begins[sequence]) + length)
                tokens[at : at + length] = pool.token_ids_t[source]
                targets[at : at + length] = pool.loss_mask_t[source]
                within.append(at - start)
                at += length
            starts.append(np.array(within, dtype=np.int32))
        tokens.flush()
        targets.flush()
        del tokens, targets
    counts = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    order = np.fromiter((i for pack in packs for i in pack), dtype=np.int64, count=int(counts[-1]))
    np.save(folder / "shards.npy", np.array(shards, dtype=np.int64))
    np.save(folder / "pack_offsets.npy", offsets)
    np.save(folder / "pack_sequences.npy", counts)
    np.save(folder / "sequence_starts.npy", np.concatenate(starts) if starts else np.zeros(0, dtype=np.int32))
    np.save(folder / "sequence_records.npy", pool.record_n[order])
    whole = {"format": FORMAT, **meta, "num_packs": len(packs), "num_sequences": len(order)}
    (folder / META_NAME).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def shard_bounds(sizes: Sequence[int], max_tokens: int) -> list[int]:
    """The first pack of each shard, and the number of packs: shards of at most `max_tokens`, at least one pack.

    >>> shard_bounds([4, 4, 4, 9, 1], 8)
    [0, 2, 3, 4, 5]
    """
    bounds = [0]
    total = 0
    for place, size in enumerate(sizes):
        if total and total + size > max_tokens:
            bounds.append(place)
            total = 0
        total += size
    return [*bounds, len(sizes)]
