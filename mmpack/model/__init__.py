"""The model that consumes a `PackedBatch`: transformers' own, run through packed attention, and the proof that a
packed step teaches it the same as an unpacked one."""

from mmpack.model.families import MODELS, make_model_spec
from mmpack.model.families.internvl import InternVLSpec
from mmpack.model.families.llava import LlavaSpec
from mmpack.model.families.llava_next import LlavaNextSpec
from mmpack.model.families.qwen2_5_vl import Qwen25VLSpec
from mmpack.model.families.qwen2_vl import Qwen2VLSpec
from mmpack.model.packed import PackedModel, PackedOutput, per_sample_loss
from mmpack.model.pictures import PictureRules, check_embeddings_per_tile, embeddings_per_tile
from mmpack.model.proof import Comparison, assert_loss_neutral, compare, unpack
from mmpack.model.sequence_loss import Sequence, sequence_log_probs, sequence_losses
from mmpack.model.spec import ModelSpec
from mmpack.model.varlen import register_attention

__all__ = [
    "MODELS",
    "Comparison",
    "InternVLSpec",
    "LlavaNextSpec",
    "LlavaSpec",
    "ModelSpec",
    "PackedModel",
    "PackedOutput",
    "PictureRules",
    "Qwen2VLSpec",
    "Qwen25VLSpec",
    "Sequence",
    "assert_loss_neutral",
    "check_embeddings_per_tile",
    "compare",
    "embeddings_per_tile",
    "make_model_spec",
    "per_sample_loss",
    "register_attention",
    "sequence_log_probs",
    "sequence_losses",
    "unpack",
]
