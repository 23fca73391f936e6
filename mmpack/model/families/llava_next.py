"""LLaVA-NeXT: an overview tile and a grid of tiles, put together again with a newline embedding behind each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError
from mmpack.model.families.llava import LlavaSpec
from mmpack.model.pictures import PictureRules


@dataclass(frozen=True, kw_only=True, slots=True)
class LlavaNextSpec(LlavaSpec):
    """Sizes of a LLaVA-NeXT: those of a LLaVA, and the canvases that it cuts pictures from.

    Args:
        image_grid_pinpoints: canvases as (height, width) in pixels, whole numbers of tiles; by default 1 x 2, 2 x 1,
            2 x 2, 3 x 1 and 1 x 3 tiles, as in LLaVA-NeXT's own models.

    Raises ConfigError at construction if the numbers do not fit each other.
    """

    family = "llava_next"
    tiling_name = "anyres"

    image_grid_pinpoints: tuple[tuple[int, int], ...] | None = None

    def _check_family(self) -> None:
        LlavaSpec._check_family(self)
        if self.image_grid_pinpoints is not None:  # config files write lists
            object.__setattr__(self, "image_grid_pinpoints", tuple(map(tuple, self.image_grid_pinpoints)))
        for pinpoint in self.pinpoints:
            if len(pinpoint) != 2 or any(side < 1 or side % self.image_size_px for side in pinpoint):
                raise ConfigError(
                    f"image_grid_pinpoints has {pinpoint!r}; each is (height, width), and both are multiples of "
                    f"image_size_px={self.image_size_px}"
                )
        if not self.pinpoints:
            raise ConfigError("image_grid_pinpoints is empty; give at least one canvas (height, width) in pixels")

    @property
    def pinpoints(self) -> tuple[tuple[int, int], ...]:
        """The canvases (height, width) in pixels."""
        if self.image_grid_pinpoints is None:
            size = self.image_size_px
            return tuple((rows * size, columns * size) for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)))
        return self.image_grid_pinpoints

    @property
    def pictures(self) -> PictureRules:
        return PictureRules(
            kind="anyres",
            tile_size_px=self.image_size_px,
            embeddings_per_tile=self.embeddings_per_tile,
            pinpoints=self.pinpoints,
        )

    def transformers_config(self) -> Any:
        """The same as a transformers `LlavaNextConfig`."""
        from transformers import LlavaNextConfig

        pinpoints = [list(pinpoint) for pinpoint in self.pinpoints]
        return LlavaNextConfig(**self._llava_arguments(), image_grid_pinpoints=pinpoints)

    def transformers_class(self) -> Any:
        from transformers import LlavaNextForConditionalGeneration

        return LlavaNextForConditionalGeneration
