"""InternVL: every tile by itself, four neighbouring patches shuffled into one embedding, into a Qwen2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError
from mmpack.model.pictures import PictureRules
from mmpack.model.spec import ModelSpec

MERGE = 2  # patches a side that become one embedding


@dataclass(frozen=True, kw_only=True, slots=True)
class InternVLSpec(ModelSpec):
    """Sizes of an InternVL.

    Args:
        image_size_px, patch_size_px: sides of the tower's tile and of its patches; an even number of patches a side.

    The others are those of `ModelSpec`. Raises ConfigError at construction if the numbers do not fit each other.
    """

    family = "internvl"
    tiling_name = "dynamic"

    image_size_px: int = 56
    patch_size_px: int = 14
    vision_hidden_size: int = 32
    vision_layers: int = 2
    vision_heads: int = 4

    def _check_family(self) -> None:
        self._check_divides("patch_size_px", "image_size_px")
        self._check_divides("vision_heads", "vision_hidden_size")
        if self.image_size_px // self.patch_size_px % MERGE:
            raise ConfigError(
                f"image_size_px={self.image_size_px} / patch_size_px={self.patch_size_px} is odd; {MERGE} x {MERGE} "
                "patches become one embedding"
            )

    @property
    def embeddings_per_tile(self) -> int:
        """Embeddings that the tower makes of one tile."""
        return (self.image_size_px // self.patch_size_px // MERGE) ** 2

    @property
    def pictures(self) -> PictureRules:
        return PictureRules(kind="tiles", tile_size_px=self.image_size_px, embeddings_per_tile=self.embeddings_per_tile)

    def transformers_config(self) -> Any:
        """The same as a transformers `InternVLConfig`."""
        from transformers import InternVLConfig, InternVLVisionConfig, Qwen2Config

        return InternVLConfig(
            vision_config=InternVLVisionConfig(
                image_size=self.image_size_px,
                patch_size=self.patch_size_px,
                hidden_size=self.vision_hidden_size,
                intermediate_size=2 * self.vision_hidden_size,
                num_hidden_layers=self.vision_layers,
                num_attention_heads=self.vision_heads,
            ),
            text_config=Qwen2Config(**self._text_sizes()),
            image_token_id=self.placeholder_id,
            image_seq_length=self.embeddings_per_tile,
            downsample_ratio=1 / MERGE,
            tie_word_embeddings=False,
        )

    def transformers_class(self) -> Any:
        from transformers import InternVLForConditionalGeneration

        return InternVLForConditionalGeneration
