"""LLaVA: every tile by itself through a CLIP or SigLIP tower and a two-layer projector, into a Llama."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError, nearest
from mmpack.model.pictures import PictureRules, check_embeddings_per_tile, embeddings_per_tile
from mmpack.model.spec import ModelSpec

VISION_TOWERS = ("clip", "siglip")


@dataclass(frozen=True, kw_only=True, slots=True)
class LlavaSpec(ModelSpec):
    """Sizes of a LLaVA: a CLIP or SigLIP tower, a two-layer projector, a Llama.

    Args:
        vision: ``clip`` or ``siglip``.
        image_size_px, patch_size_px: sides of the tower's tile and of its patches.
        vision_layers: features are taken from the last but one.

    The others are those of `ModelSpec`. Raises ConfigError at construction if the numbers do not fit each other.
    """

    family = "llava"
    tiling_name = "single"

    vision: str = "clip"
    image_size_px: int = 56
    patch_size_px: int = 14
    vision_hidden_size: int = 32
    vision_layers: int = 3
    vision_heads: int = 4

    def _check_family(self) -> None:
        if self.vision not in VISION_TOWERS:
            raise ConfigError(f"vision={self.vision!r}; {nearest(self.vision, VISION_TOWERS)}")
        self._check_divides("patch_size_px", "image_size_px")
        self._check_divides("vision_heads", "vision_hidden_size")
        if self.vision_layers < 2:
            raise ConfigError(f"vision_layers={self.vision_layers}; features are taken from the last but one, use 2+")

    @property
    def embeddings_per_tile(self) -> int:
        """Embeddings that the tower makes of one tile. CLIP's class token is dropped, SigLIP has none."""
        return embeddings_per_tile(self.image_size_px, self.patch_size_px)

    @property
    def pictures(self) -> PictureRules:
        return PictureRules(kind="tiles", tile_size_px=self.image_size_px, embeddings_per_tile=self.embeddings_per_tile)

    def check_embeddings_per_tile(self, expected: int) -> None:
        """Raises ConfigError, with the remedy, if `expected` is not what the tower gives."""
        check_embeddings_per_tile(self.embeddings_per_tile, expected)

    def transformers_config(self) -> Any:
        """The same as a transformers `LlavaConfig`."""
        from transformers import LlavaConfig

        return LlavaConfig(**self._llava_arguments())

    def transformers_class(self) -> Any:
        from transformers import LlavaForConditionalGeneration

        return LlavaForConditionalGeneration

    def _llava_arguments(self) -> dict[str, Any]:
        """What LLaVA's and LLaVA-NeXT's configs both take."""
        from transformers import CLIPVisionConfig, LlamaConfig, SiglipVisionConfig

        tower = CLIPVisionConfig if self.vision == "clip" else SiglipVisionConfig
        return {
            "vision_config": tower(
                image_size=self.image_size_px,
                patch_size=self.patch_size_px,
                hidden_size=self.vision_hidden_size,
                intermediate_size=2 * self.vision_hidden_size,
                num_hidden_layers=self.vision_layers,
                num_attention_heads=self.vision_heads,
            ),
            "text_config": LlamaConfig(**self._text_sizes()),
            "image_token_id": self.placeholder_id,
            "image_seq_length": self.embeddings_per_tile,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default" if self.vision == "clip" else "full",
        }
