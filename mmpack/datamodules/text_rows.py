"""Sequences of a packed store one by one, in the order of their records, whatever packs they were put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmpack.offline import PackedStore, PackRow
from mmpack.offline.batches import samples_of
from mmpack.sample import EncodedPair, EncodedSample, PlannedSample


@dataclass(frozen=True, slots=True)
class StoredSequences:
    """The sequences of `store`, by number. Its sequence s is that of the s-th usable record of the file."""

    store: PackedStore
    source: str
    lengths: NDArray[np.int64] = field(init=False, repr=False, compare=False)  # (n,) tokens
    _places: NDArray[np.int64] = field(init=False, repr=False, compare=False)  # (n, 2) pack, place in it

    def __post_init__(self) -> None:
        # the files that mmpack.offline.store documents: reading every pack for its bounds would read all tokens
        folder = self.store.folder
        offsets = np.load(folder / "pack_offsets.npy")
        counts = np.load(folder / "pack_sequences.npy")
        starts = np.load(folder / "sequence_starts.npy").astype(np.int64)
        pack = np.repeat(np.arange(len(counts) - 1), np.diff(counts))
        begin = offsets[:-1][pack] + starts
        lengths = np.diff(np.append(begin, offsets[-1]))
        order = np.argsort(np.load(folder / "sequence_records.npy"), kind="stable")
        place = np.arange(len(starts)) - counts[:-1][pack]
        object.__setattr__(self, "lengths", lengths[order])
        object.__setattr__(self, "_places", np.stack([pack, place], axis=1)[order])

    def __len__(self) -> int:
        return len(self.lengths)

    def sample(self, index: int) -> PlannedSample:
        """Sequence number `index`."""
        pack, place = self._places[index].tolist()
        row: PackRow = self.store[pack]
        bounds = row.seq_bounds
        alone = PackRow(
            input_ids=row.input_ids[bounds[place] : bounds[place + 1]],
            loss_mask=row.loss_mask[bounds[place] : bounds[place + 1]],
            seq_start_ids=np.zeros(1, dtype=np.int32),
            record_ids=None if row.record_ids is None else row.record_ids[place : place + 1],
        )
        return samples_of(alone, self.source)[0]


@dataclass(frozen=True, slots=True)
class StoredPacks:
    """The packs of a store, or of NeMo's file, by number."""

    rows: Sequence[PackRow]
    source: str
    sequence_multiple: int = 1  # of the layout, for pairs

    def __len__(self) -> int:
        return len(self.rows)

    def samples(self, index: int) -> list[PlannedSample]:
        """The sequences of pack number `index`, or its pairs."""
        samples = samples_of(self.rows[index], self.source)
        if not holds_pairs(self.rows):
            return samples
        return [self._pair(*samples[i : i + 2]) for i in range(0, len(samples), 2)]

    def _pair(self, chosen: PlannedSample, rejected: PlannedSample) -> EncodedPair:
        # nothing is stored without a target, so neither is a lost one
        assert isinstance(chosen, EncodedSample)
        assert isinstance(rejected, EncodedSample)
        return EncodedPair.of(chosen, rejected, sequence_multiple=self.sequence_multiple)


def holds_pairs(rows: Sequence[PackRow]) -> bool:
    """Whether a store is of preference data: each two sequences are a pair."""
    return isinstance(rows, PackedStore) and rows.meta.get("record_format") == "preference"
