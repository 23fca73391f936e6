"""Qwen2.5-VL: Qwen2-VL with a tower whose attention stays within windows in all but a few layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError
from mmpack.model.families.qwen2_vl import Qwen2VLSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen25VLSpec(Qwen2VLSpec):
    """Sizes of a Qwen2.5-VL: those of a Qwen2-VL, and the tower's windows.

    Args:
        window_size_px: side of the squares within which most layers of the tower attend.
        full_attention_layers: layers of the tower that see the whole picture; by default the last one.

    Raises ConfigError at construction if the numbers do not fit each other.
    """

    family = "qwen2_5_vl"

    window_size_px: int = 56
    full_attention_layers: tuple[int, ...] | None = None

    def _check_family(self) -> None:
        Qwen2VLSpec._check_family(self)
        block = self.patch_size_px * self.merge_size
        if self.window_size_px % block:
            raise ConfigError(
                f"window_size_px={self.window_size_px} must be a multiple of patch_size_px x merge_size = {block}"
            )
        for layer in self.full_layers:
            if not 0 <= layer < self.vision_layers:
                raise ConfigError(
                    f"full_attention_layers={self.full_layers}; layers count from 0 to {self.vision_layers - 1}"
                )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Layers of the tower that see the whole picture."""
        return (self.vision_layers - 1,) if self.full_attention_layers is None else tuple(self.full_attention_layers)

    def transformers_config(self) -> Any:
        """The same as a transformers `Qwen2_5_VLConfig`."""
        from transformers import Qwen2_5_VLConfig

        sizes = {
            "hidden_size": self.vision_hidden_size,
            "intermediate_size": 2 * self.vision_hidden_size,
            "out_hidden_size": self.text_hidden_size,
            "window_size": self.window_size_px,
            "fullatt_block_indexes": list(self.full_layers),
        }
        return Qwen2_5_VLConfig(**self._qwen_arguments(sizes))

    def transformers_class(self) -> Any:
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration
