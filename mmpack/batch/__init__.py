"""Batches: what the trainer receives. `PackedBatch` is one THD row; its views speak other libraries' names."""

from mmpack.batch.packed import PackedBatch, PixelNorm
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX

__all__ = ["IGNORE_INDEX", "IMAGE_TOKEN_INDEX", "PackedBatch", "PixelNorm"]
