"""One picture, one tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, nearest
from mmpack.sample import TileGrid
from mmpack.tiling.pixels import RGB, new_tiles, place, place_planar, reduction, scaled_side
from mmpack.tiling.spec import TileSpec, rgb_color

Fit = Literal["pad", "square", "crop", "keep"]

# Pillow may take the two axes in either order, and sharp edges differ by a few grey levels between the orders. Up to
# these limits the tile is therefore made from the whole square or the whole resized picture, as other code makes it.
_MAX_SQUARE_SIDE_PX = 4096  # 50 MB
_MAX_PADDED_SIDE_PX = 65_535  # the longest side of a JPEG
_MAX_RESIZED_PX = 2**25  # 100 MB: at a tile of 336 px, a picture 297 times as long as wide


@dataclass(frozen=True, slots=True)
class SingleTile:
    """Every picture becomes one tile of S x S pixels.

    Args:
        spec: the tile.
        fit: ``pad`` pads to a centred square, then resizes (as LLaVA does); ``square`` resizes and takes no notice
            of the aspect; ``crop`` brings the shorter side to S and cuts the middle out (as CLIP does); ``keep``
            brings the longer side to S and pads at the right or bottom.
        pad_color: RGB of the padding; ``"mean"`` is the spec's mean, which the tower sees as zero, ``"background"``
            the spec's background.

    Raises:
        ConfigError: unknown fit or colour.
    """

    kind: ClassVar[Literal["tiles"]] = "tiles"

    spec: TileSpec
    fit: Fit = "pad"
    pad_color: RGB | Literal["mean", "background"] = "mean"

    def __post_init__(self) -> None:
        if self.fit not in get_args(Fit):
            raise ConfigError(f"unknown fit {self.fit!r} of tiling 'single'; {nearest(str(self.fit), get_args(Fit))}")
        if self.pad_color not in ("mean", "background"):
            object.__setattr__(self, "pad_color", rgb_color("pad_color ('mean', 'background' or RGB)", self.pad_color))

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """Always one tile."""
        assert min(width_px, height_px) >= 1, f"{width_px}x{height_px}"
        return TileGrid(columns=1, rows=1)

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """The embeddings of the one tile."""
        return grid.num_tiles * self.spec.embeddings_per_tile

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """The one tile, if it fits."""
        grid = self.grid(width_px, height_px)
        return grid if self.num_tokens(grid, width_px, height_px) <= max_tokens else None

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(1, 3, S, S) uint8."""
        assert grid.num_tiles == 1, f"{grid} is no grid of tiling 'single'"
        size = self.spec.tile_size_px
        tiles = new_tiles(1, size, out)
        if self.fit == "keep" or (self.fit == "pad" and self._pads_last(rgb_HWC)):
            _keep(rgb_HWC, self.spec, self._color(), centred=self.fit == "pad", out_CHW=tiles[0])
            return tiles
        if self.fit == "square":
            tile = self.spec.resize(rgb_HWC, size, size)
        elif self.fit == "crop":
            tile = _crop(rgb_HWC, self.spec)
        else:
            tile = _pad(rgb_HWC, self.spec, self._color())
        tiles[0] = tile.transpose(2, 0, 1)
        return tiles

    def _pads_last(self, rgb_HWC: NDArray[np.uint8]) -> bool:
        """Whether the picture is resized before it is padded to a square.

        The result is the same where the short side comes to whole pixels of even padding, and else up to half a pixel
        away.
        """
        return max(rgb_HWC.shape[:2]) > _MAX_PADDED_SIDE_PX or self.spec.decode == "fast"

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """By the side that is brought to S."""
        size = self.spec.tile_size_px
        if self.fit == "square":
            return reduction(width_px, height_px, size, size)
        side = min(width_px, height_px) if self.fit == "crop" else max(width_px, height_px)
        return reduction(side, side, size, size)

    def _color(self) -> RGB:
        if self.pad_color == "mean":
            return self.spec.mean_color
        if self.pad_color == "background":
            return self.spec.background
        return self.pad_color


def _crop(rgb_HWC: NDArray[np.uint8], spec: TileSpec) -> NDArray[np.uint8]:
    """Shorter side to S, then the middle S x S; of a long strip only the middle is computed."""
    size = spec.tile_size_px
    height_px, width_px, _ = rgb_HWC.shape
    short = min(height_px, width_px)
    full_width, full_height = size * width_px // short, size * height_px // short
    left, top = (full_width - size) // 2, (full_height - size) // 2
    if full_width * full_height <= _MAX_RESIZED_PX:
        return spec.resize(rgb_HWC, full_width, full_height)[top : top + size, left : left + size]
    per_x, per_y = width_px / full_width, height_px / full_height
    box = (left * per_x, top * per_y, min(width_px, (left + size) * per_x), min(height_px, (top + size) * per_y))
    return spec.resize(rgb_HWC, size, size, box=box)


def _keep(rgb_HWC: NDArray[np.uint8], spec: TileSpec, color: RGB, *, centred: bool, out_CHW: NDArray[np.uint8]) -> None:
    """Longer side to S, the rest filled with `color`."""
    size = spec.tile_size_px
    height_px, width_px, _ = rgb_HWC.shape
    longest = max(height_px, width_px)
    width, height = scaled_side(width_px, size, longest), scaled_side(height_px, size, longest)
    left, top = ((size - width) // 2, (size - height) // 2) if centred else (0, 0)
    place_planar(spec.resize(rgb_HWC, width, height), left, top, color, out_CHW=out_CHW)


def _pad(rgb_HWC: NDArray[np.uint8], spec: TileSpec, color: RGB) -> NDArray[np.uint8]:
    """Padded to a centred square, then resized to S.

    Of a large picture the long side is brought to S before there is any padding, so that the square itself is
    never made.
    """
    size = spec.tile_size_px
    height_px, width_px, _ = rgb_HWC.shape
    side = max(height_px, width_px)
    if side <= _MAX_SQUARE_SIDE_PX:
        left, top = (side - width_px) // 2, (side - height_px) // 2
        return spec.resize(place(rgb_HWC, side, side, left, top, color), size, size)
    if width_px >= height_px:
        narrow = spec.resize(rgb_HWC, size, height_px)
        padded = place(narrow, size, side, 0, (side - height_px) // 2, color)
    else:
        narrow = spec.resize(rgb_HWC, width_px, size)
        padded = place(narrow, side, size, (side - width_px) // 2, 0, color)
    return spec.resize(padded, size, size)
