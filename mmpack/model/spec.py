"""A LLaVA-style model described by plain numbers, and the count of embeddings its vision tower gives per tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mmpack.errors import ConfigError, nearest

if TYPE_CHECKING:
    from mmpack.model.packed import PackedModel

VISION_TOWERS = ("clip", "siglip")


def embeddings_per_tile(image_size_px: int, patch_size_px: int, *, keeps_class_token: bool = False) -> int:
    """Positions that one tile takes in the sequence: one per patch of a square tile.

    >>> embeddings_per_tile(336, 14), embeddings_per_tile(224, 32, keeps_class_token=True)
    (576, 50)
    """
    return (image_size_px // patch_size_px) ** 2 + int(keeps_class_token)


def check_embeddings_per_tile(from_tower: int, expected: int) -> None:
    """Raises ConfigError, with the remedy, if the data is planned for another number than the tower gives."""
    if from_tower != expected:
        raise ConfigError(
            f"num_image_embeddings_per_tile={expected}, but the vision tower gives {from_tower} embeddings per tile; "
            f"set num_image_embeddings_per_tile={from_tower}, or change the tower's image or patch size"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LlavaSpec:
    """Sizes of a LLaVA: a CLIP or SigLIP tower, a two-layer projector, a Llama.

    Args:
        vocab_size: ids of the tokenizer. The embedding table has one row more unless `image_token_id` lies inside.
        image_token_id: id that stands for an image embedding; by default `vocab_size`, which no text has.
        text_kv_heads: key/value heads; fewer than `text_heads` is grouped-query attention.

    Raises ConfigError at construction if the numbers do not fit each other.
    """

    vocab_size: int
    image_token_id: int | None = None
    vision: str = "clip"
    image_size_px: int = 56
    patch_size_px: int = 14
    vision_hidden_size: int = 32
    vision_layers: int = 3
    vision_heads: int = 4
    text_hidden_size: int = 64
    text_intermediate_size: int = 128
    text_layers: int = 2
    text_heads: int = 4
    text_kv_heads: int = 2
    max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if self.vision not in VISION_TOWERS:
            raise ConfigError(f"vision={self.vision!r}; {nearest(self.vision, VISION_TOWERS)}")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and value < (0 if name == "image_token_id" else 1):
                raise ConfigError(f"{name}={value}; it must be at least 1")
        self._check_divides("patch_size_px", "image_size_px")
        self._check_divides("vision_heads", "vision_hidden_size")
        self._check_divides("text_heads", "text_hidden_size")
        self._check_divides("text_kv_heads", "text_heads")
        if (self.text_hidden_size // self.text_heads) % 2:
            raise ConfigError(
                f"text_hidden_size={self.text_hidden_size} / text_heads={self.text_heads} is odd; rotary positions "
                "need an even head size"
            )
        if self.vision_layers < 2:
            raise ConfigError(f"vision_layers={self.vision_layers}; features are taken from the last but one, use 2+")

    def _check_divides(self, part: str, whole: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            raise ConfigError(f"{whole}={getattr(self, whole)} must be a multiple of {part}={getattr(self, part)}")

    @property
    def placeholder_id(self) -> int:
        """The id that stands for an image embedding."""
        return self.vocab_size if self.image_token_id is None else self.image_token_id

    @property
    def embeddings_per_tile(self) -> int:
        """Positions that one tile takes in the sequence. CLIP's class token is dropped, SigLIP has none."""
        return embeddings_per_tile(self.image_size_px, self.patch_size_px)

    def check_embeddings_per_tile(self, expected: int) -> None:
        """Raises ConfigError, with the remedy, if `expected` is not what the tower gives."""
        check_embeddings_per_tile(self.embeddings_per_tile, expected)

    def transformers_config(self) -> Any:
        """The same as a transformers `LlavaConfig`."""
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, SiglipVisionConfig

        tower = CLIPVisionConfig if self.vision == "clip" else SiglipVisionConfig
        return LlavaConfig(
            vision_config=tower(
                image_size=self.image_size_px,
                patch_size=self.patch_size_px,
                hidden_size=self.vision_hidden_size,
                intermediate_size=2 * self.vision_hidden_size,
                num_hidden_layers=self.vision_layers,
                num_attention_heads=self.vision_heads,
            ),
            text_config=LlamaConfig(
                vocab_size=max(self.vocab_size, self.placeholder_id + 1),
                hidden_size=self.text_hidden_size,
                intermediate_size=self.text_intermediate_size,
                num_hidden_layers=self.text_layers,
                num_attention_heads=self.text_heads,
                num_key_value_heads=self.text_kv_heads,
                max_position_embeddings=self.max_position_embeddings,
                bos_token_id=None,  # Llama's own special ids mean nothing to another tokenizer
                eos_token_id=None,
                pad_token_id=None,
            ),
            image_token_id=self.placeholder_id,
            image_seq_length=self.embeddings_per_tile,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default" if self.vision == "clip" else "full",
        )

    def build(
        self, *, seed: int = 0, attention: str = "auto", mask: str = "varlen", dtype: torch.dtype = torch.float32
    ) -> PackedModel:
        """The model with random weights that depend on `seed` alone; torch's global generator is left as it was."""
        from transformers import LlavaForConditionalGeneration

        from mmpack.model.packed import PackedModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlavaForConditionalGeneration._from_config(self.transformers_config(), dtype=dtype)
        return PackedModel(model, attention=attention, mask=mask)
