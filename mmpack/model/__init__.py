"""The model that consumes a `PackedBatch`: transformers' own, run through packed attention, and the proof that a
packed step teaches it the same as an unpacked one."""

from mmpack.model.packed import PackedModel, PackedOutput, per_sample_loss
from mmpack.model.proof import Comparison, assert_loss_neutral, compare, unpack
from mmpack.model.spec import LlavaSpec, check_embeddings_per_tile, embeddings_per_tile
from mmpack.model.varlen import register_attention

__all__ = [
    "Comparison",
    "LlavaSpec",
    "PackedModel",
    "PackedOutput",
    "assert_loss_neutral",
    "check_embeddings_per_tile",
    "compare",
    "embeddings_per_tile",
    "per_sample_loss",
    "register_attention",
    "unpack",
]
