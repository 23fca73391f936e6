"""Batches: what the trainer receives. `PackedBatch` is one THD row, `PaddedBatch` padded rows; both have views under
other libraries' names."""

from typing import TypeVar

from mmpack.batch.packed import PackedBatch
from mmpack.batch.padded import PaddedBatch
from mmpack.batch.pictures import PixelNorm
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PixelKind

Batch = PackedBatch | PaddedBatch
B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)

__all__ = [
    "IGNORE_INDEX", "IMAGE_TOKEN_INDEX", "B", "B_co", "Batch", "PackedBatch", "PaddedBatch", "PixelKind", "PixelNorm",
]  # fmt: skip
