"""Planned samples -> a batch: `Collator` lays them out as one THD row, `PaddedCollator` as padded rows; `PairCollator`
packs pairs of preference data."""

from mmpack.collate.packed import Collator
from mmpack.collate.padded import PaddedCollator
from mmpack.collate.pairs import PairCollator
from mmpack.collate.rows import LOSS_WEIGHTS

__all__ = ["LOSS_WEIGHTS", "Collator", "PaddedCollator", "PairCollator"]
