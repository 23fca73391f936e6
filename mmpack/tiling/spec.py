"""What every tiling policy must know: the tile, and the vision tower that will see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, nearest
from mmpack.tiling.pixels import RESAMPLING, RGB, Box, resampling, resize

Decode = Literal["exact", "fast"]
Floats3 = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileSpec:
    """A tile of S x S pixels and what it costs.

    Args:
        tile_size_px: S.
        embeddings_per_tile: positions of the sequence that one tile takes.
        mean, std: of the vision tower, per channel, for pixels from 0 to 1: ``(pixel / 255 - mean) / std``.
        resample: filter for resizing, by Pillow's name in lower case.
        background: RGB that shows where a picture is transparent.
        decode: how pixels are made. ``exact``: the whole picture, resized by Pillow, as image processors do it.
            ``fast``: JPEGs at a half, quarter or eighth of their size where that is still larger than the tile, resized
            by torch, and padded afterwards. Photographs that are neither reduced nor padded differ by at most 2 grey
            levels.

    Raises:
        ConfigError: a value that cannot work.
    """

    tile_size_px: int
    embeddings_per_tile: int
    mean: Floats3 = (0.5, 0.5, 0.5)
    std: Floats3 = (0.5, 0.5, 0.5)
    resample: str = "bicubic"
    background: RGB = (255, 255, 255)
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        for name in ("tile_size_px", "embeddings_per_tile"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r}; a whole number of at least 1")
        resampling(self.resample)
        if self.decode not in get_args(Decode):
            raise ConfigError(f"decode={self.decode!r}; {nearest(str(self.decode), get_args(Decode))}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _floats3(name, getattr(self, name)))
        if min(self.std) <= 0:
            raise ConfigError(f"std={self.std}; each of the three above 0")
        if max(map(abs, self.mean + self.std)) > 2:
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: they are of colours from 0 to 1, and these look like 0 to 255; "
                "divide them by 255"
            )
        object.__setattr__(self, "background", rgb_color("background", self.background))

    def resize(
        self, rgb_HWC: NDArray[np.uint8], width_px: int, height_px: int, *, box: Box | None = None
    ) -> NDArray[np.uint8]:
        """`rgb_HWC` at another size, see `mmpack.tiling.pixels.resize`."""
        return resize(rgb_HWC, width_px, height_px, self.resample, box=box, by_torch=self.decode == "fast")

    @property
    def mean_color(self) -> RGB:
        """The colour that normalises to about zero, as LLaVA rounds it: down.

        >>> TileSpec(tile_size_px=4, embeddings_per_tile=1, mean=(0.48145466, 0.4578275, 0.40821073)).mean_color
        (122, 116, 104)
        """
        red, green, blue = (min(255, max(0, int(value * 255))) for value in self.mean)
        return red, green, blue

    @classmethod
    def from_processor(cls, image_processor: Any, *, embeddings_per_tile: int) -> TileSpec:
        """The spec of a transformers image processor: its tile is what it crops to or, without a crop, resizes to.

        Of a processor that merges patches (Qwen2-VL's) it is the patch.

        Mean and std are brought to pixels from 0 to 1, whatever ``rescale_factor`` the processor has.

        Raises:
            ConfigError: names the attribute that is missing, not square, or of no use.
        """
        kind = type(image_processor).__name__
        crops = getattr(image_processor, "do_center_crop", None)
        crop_size = getattr(image_processor, "crop_size", None)
        source = "crop_size" if crop_size is not None and crops is not False else "size"
        if getattr(image_processor, "merge_size", None) is not None:
            source = "patch_size"
        size = _square_side(kind, source, getattr(image_processor, source, None))
        mean: Sequence[float] = (0.0, 0.0, 0.0)
        std: Sequence[float] = (1.0, 1.0, 1.0)
        if getattr(image_processor, "do_normalize", True) is not False:
            mean = _floats3(f"{kind}.image_mean", getattr(image_processor, "image_mean", None))
            std = _floats3(f"{kind}.image_std", getattr(image_processor, "image_std", None))
        # the tower sees (pixel * factor - mean) / std = (pixel / 255 - mean / u) / (std / u) with u = 255 * factor
        factor = 1.0
        if getattr(image_processor, "do_rescale", True) is not False:
            factor = getattr(image_processor, "rescale_factor", None) or 1 / 255
        unit = 255 * float(factor)
        if abs(unit - 1) > 1e-6:
            mean, std = [value / unit for value in mean], [value / unit for value in std]
        return cls(
            tile_size_px=size,
            embeddings_per_tile=embeddings_per_tile,
            mean=cast(Floats3, tuple(mean)),
            std=cast(Floats3, tuple(std)),
            resample=_resample_name(kind, getattr(image_processor, "resample", None)),
        )


def rgb_color(name: str, value: object) -> RGB:
    """`value` as three whole numbers from 0 to 255. Raises ConfigError, naming `name`."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3:
        red, green, blue = value
        if all(isinstance(part, int) and 0 <= part <= 255 for part in value):
            return int(red), int(green), int(blue)
    raise ConfigError(f"{name}={value!r}; three whole numbers from 0 to 255: red, green, blue")


def _floats3(name: str, value: object) -> Floats3:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3:
        try:
            first, second, third = (float(part) for part in value)
        except (TypeError, ValueError):
            pass
        else:
            return first, second, third
    raise ConfigError(f"{name}={value!r}; three numbers, one per channel")


def _square_side(kind: str, attribute: str, value: Any) -> int:
    """The side in pixels from an int, a dict or an object with height and width, or with shortest_edge."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, dict):
        found = value
    else:
        found = {name: getattr(value, name, None) for name in ("height", "width", "shortest_edge", "longest_edge")}
    height, width = found.get("height"), found.get("width")
    if height is None and width is None:
        height = width = found.get("shortest_edge") or found.get("longest_edge")
    if height is None or width is None:
        raise ConfigError(
            f"{kind}.{attribute} is {value!r}: no tile size in it; give the processor a {attribute} with height and "
            "width, or pass an mmpack.tiling.TileSpec"
        )
    if height != width:
        raise ConfigError(f"{kind}.{attribute} is {width}x{height} px; tiles are square")
    return int(height)


def _resample_name(kind: str, value: object) -> str:
    if isinstance(value, str):
        return value.lower()
    for name, filter_ in RESAMPLING.items():
        if isinstance(value, int) and int(filter_) == int(value):
            return name
    raise ConfigError(f"{kind}.resample is {value!r}; one of Pillow's filters: {', '.join(RESAMPLING)}")
