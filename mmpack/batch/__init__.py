"""Batches: what the trainer receives. `PackedBatch` is one THD row; its views speak other libraries' names."""

from mmpack.batch.packed import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch, PixelNorm

__all__ = ["IGNORE_INDEX", "IMAGE_TOKEN_INDEX", "PackedBatch", "PixelNorm"]
