"""Qwen2-VL: patches of native resolution through a tower that knows their places, M-RoPE in the text model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError
from mmpack.model.pictures import PictureRules
from mmpack.model.spec import ModelSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen2VLSpec(ModelSpec):
    """Sizes of a Qwen2-VL.

    Args:
        patch_size_px: side of a patch.
        merge_size: patches a side that become one embedding.
        temporal_patch_size: frames of a patch; a picture's are equal.
        mrope_section: how many of the head's frequencies turn with time, height and width; by default split as
            Qwen2-VL splits its 64, into 16, 24 and 24.

    The others are those of `ModelSpec`. Raises ConfigError at construction if the numbers do not fit each other.
    """

    family = "qwen2_vl"
    tiling_name = "native"

    patch_size_px: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    vision_hidden_size: int = 32
    vision_layers: int = 2
    vision_heads: int = 2
    mrope_section: tuple[int, int, int] | None = None

    def _check_family(self) -> None:
        self._check_divides("vision_heads", "vision_hidden_size")
        if (self.vision_hidden_size // self.vision_heads) % 4:
            raise ConfigError(
                f"vision_hidden_size={self.vision_hidden_size} / vision_heads={self.vision_heads} must be a multiple "
                "of 4: half of a head turns with a patch's row, half with its column"
            )
        section = self.sections
        if len(section) != 3 or min(section) < 1 or sum(section) != self.head_dim // 2:
            raise ConfigError(
                f"mrope_section={section}; three numbers of at least 1 with the sum {self.head_dim // 2}, half of "
                f"text_hidden_size / text_heads = {self.head_dim}"
            )

    @property
    def sections(self) -> tuple[int, int, int]:
        """Frequencies for time, height and width."""
        if self.mrope_section is not None:
            return self.mrope_section
        half = self.head_dim // 2
        time = half // 4
        height = (half - time) // 2
        return time, height, half - time - height

    @property
    def pictures(self) -> PictureRules:
        return PictureRules(
            kind="patches",
            tile_size_px=self.patch_size_px,
            merge_size=self.merge_size,
            frames_per_patch=self.temporal_patch_size,
        )

    def transformers_config(self) -> Any:
        """The same as a transformers `Qwen2VLConfig`."""
        from transformers import Qwen2VLConfig

        sizes = {"embed_dim": self.vision_hidden_size, "hidden_size": self.text_hidden_size, "mlp_ratio": 2}
        return Qwen2VLConfig(**self._qwen_arguments(sizes))

    def transformers_class(self) -> Any:
        from transformers import Qwen2VLForConditionalGeneration

        return Qwen2VLForConditionalGeneration

    def _qwen_arguments(self, vision: dict[str, Any]) -> dict[str, Any]:
        """What the configs of both Qwens take; `vision` are the tower's own sizes."""
        unused = self.placeholder_id + 1  # ids of videos and brackets, which a pack never holds
        return {
            "vision_config": {
                "depth": self.vision_layers,
                "num_heads": self.vision_heads,
                "patch_size": self.patch_size_px,
                "spatial_merge_size": self.merge_size,
                "temporal_patch_size": self.temporal_patch_size,
                **vision,
            },
            "text_config": {
                **self._text_sizes(),
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1_000_000.0,
                    "mrope_section": list(self.sections),
                },
            },
            "image_token_id": self.placeholder_id,
            "video_token_id": unused,
            "vision_start_token_id": unused,
            "vision_end_token_id": unused,
            "tie_word_embeddings": False,
        }
