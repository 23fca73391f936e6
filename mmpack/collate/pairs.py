"""Packs that hold pairs of preference data: both sides become sequences, and the batch says which belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmpack.batch import PackedBatch
from mmpack.collate.packed import Collator
from mmpack.sample import EncodedPair, EncodedSample, LostSample, PlannedSample


@dataclass(frozen=True, kw_only=True, slots=True)
class PairCollator:
    """A `Collator` that takes pairs as well as single samples, and fills in `PackedBatch.pair_of_sample`.

    A pair's sides stand next to each other, the chosen one first.
    """

    inner: Collator

    def room(self, num_tokens: int) -> int:
        """Positions that a sample or pair of `num_tokens` takes in a row."""
        return self.inner.room(num_tokens)

    def collate(
        self, pack: Sequence[PlannedSample], *, pack_index: int, **options: Any
    ) -> tuple[PackedBatch, list[LostSample]]:
        """The batch, and the samples that were lost; `options` are those of `Collator.collate`."""
        sides: list[PlannedSample] = []
        pair_of_side: list[int] = []
        num_pairs = 0
        for sample in pack:
            if isinstance(sample, EncodedPair):
                # the row needs what was planned: the first side's room, and the rest for the second
                assert self.room(sample.num_tokens) == sum(map(self._room_of, (sample.chosen, sample.rejected)))
                sides += [sample.chosen, sample.rejected]
                pair_of_side += [num_pairs, num_pairs]
                num_pairs += 1
            else:
                sides.append(sample)
                pair_of_side.append(-1)
        batch, lost = self.inner.collate(sides, pack_index=pack_index, **options)
        gone = {(sample.source, sample.key) for sample in lost}
        kept = [pair for side, pair in zip(sides, pair_of_side, strict=True) if (side.source, side.key) not in gone]
        return dataclasses.replace(batch, pair_of_sample=tuple(kept) if num_pairs else ()), lost

    def filler(self, *, pack_index: int) -> PackedBatch:
        """A batch that teaches nothing."""
        return self.inner.filler(pack_index=pack_index)

    def _room_of(self, side: EncodedSample) -> int:
        return self.room(side.num_tokens)
