"""Native resolution: a picture keeps its size, rounded to whole blocks of patches, and every patch is a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import TileGrid
from mmpack.tiling.pixels import new_tiles, reduction
from mmpack.tiling.spec import TileSpec

MAX_ASPECT = 200  # what Qwen's own code accepts


@dataclass(frozen=True, slots=True)
class NativePatches:
    """Patches as Qwen2-VL and Qwen2.5-VL take them: P x P pixels, P = ``spec.tile_size_px``.

    M x M neighbouring patches become one embedding. Source: Wang et al., "Qwen2-VL", arXiv:2409.12191, section 2.1;
    the rounding is that of transformers' ``qwen2_vl``.

    Args:
        spec: the patch; its ``embeddings_per_tile`` is not used.
        merge_size: M.
        temporal_patch_size: frames that the tower expects in a patch. Patches are cut once: a picture's frames are
            equal, so whoever feeds the tower repeats them.
        min_pixels, max_pixels: bounds of the resized picture's area.

    Raises:
        ConfigError: a number below 1, or bounds that no picture can meet.
    """

    kind: ClassVar[Literal["patches"]] = "patches"

    spec: TileSpec
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        for name in ("merge_size", "temporal_patch_size", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r}; a whole number of at least 1")
        if self.min_pixels > self.max_pixels:
            raise ConfigError(f"min_pixels={self.min_pixels} is above max_pixels={self.max_pixels}")
        if self.max_pixels < self.block_px**2:
            raise ConfigError(
                f"max_pixels={self.max_pixels} holds no block of {self.merge_size}x{self.merge_size} patches of "
                f"{self.patch_size} px, which has {self.block_px**2}"
            )

    @property
    def patch_size(self) -> int:
        """P, in pixels."""
        return self.spec.tile_size_px

    @property
    def block_px(self) -> int:
        """The side in pixels of what becomes one embedding."""
        return self.spec.tile_size_px * self.merge_size

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """Columns and rows of patches, multiples of the merge size.

        Raises:
            SampleError: one side is more than 200 times the other.
        """
        return self._grid(width_px, height_px, self.max_pixels)

    def _grid(self, width_px: int, height_px: int, max_pixels: int) -> TileGrid:
        assert min(width_px, height_px) >= 1, f"{width_px}x{height_px}"
        if max(width_px, height_px) > MAX_ASPECT * min(width_px, height_px):
            raise SampleError(
                Reason.IMAGE_ASPECT,
                f"{width_px}x{height_px} px; for native resolution no side may be over {MAX_ASPECT} times the other",
            )
        columns, rows = blocks(width_px, height_px, self.block_px, self.min_pixels, max_pixels)
        return TileGrid(columns=columns * self.merge_size, rows=rows * self.merge_size)

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """One for every M x M patches."""
        return (grid.columns // self.merge_size) * (grid.rows // self.merge_size)

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(rows x columns, 3, P, P) uint8 in the tower's order: block by block, and row by row inside a block."""
        size, merge = self.patch_size, self.merge_size
        whole_blocks = grid.columns % merge == 0 and grid.rows % merge == 0 and not grid.thumbnail
        assert whole_blocks, f"{grid} is no grid of tiling 'native'"
        fitted = self.spec.resize(rgb_HWC, grid.columns * size, grid.rows * size)
        parts = fitted.reshape(grid.rows // merge, merge, size, grid.columns // merge, merge, size, 3)
        patches = parts.transpose(0, 3, 1, 4, 6, 2, 5)
        tiles = new_tiles(grid.num_tiles, size, out)
        tiles.reshape(patches.shape)[:] = patches
        return tiles

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """By the size of all patches together."""
        return reduction(width_px, height_px, grid.columns * self.patch_size, grid.rows * self.patch_size)

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """The grid under the highest `max_pixels` that fits; never under `min_pixels`."""

        def grid_if_fits(max_pixels: int) -> TileGrid | None:
            grid = self._grid(width_px, height_px, max_pixels)
            return grid if self.num_tokens(grid, width_px, height_px) <= max_tokens else None

        own = grid_if_fits(self.max_pixels)
        best = grid_if_fits(self.min_pixels)
        if own is not None or best is None:
            return own
        low, high = self.min_pixels, self.max_pixels
        while high - low > 1:  # a bound that bites gives more blocks the higher it is; one that does not gives `own`
            middle = (low + high) // 2
            found = grid_if_fits(middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
        return best


def blocks(width_px: int, height_px: int, block_px: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(columns, rows) of blocks for a picture: the nearest multiples, scaled where their area is out of bounds.

    A thin picture may stay above `max_pixels`, since no side has less than one block. Halves round to even and floats
    are taken in the order of Qwen's code, since a count must not differ by one.

    >>> blocks(639, 31, 28, 3136, 15680), blocks(1, 1, 28, 3136, 1003520)
    ((20, 1), (2, 2))
    """
    columns, rows = round(width_px / block_px), round(height_px / block_px)
    area = columns * rows * block_px * block_px
    if area > max_pixels:
        shrink = math.sqrt((height_px * width_px) / max_pixels)
        columns = max(1, math.floor(width_px / shrink / block_px))
        rows = max(1, math.floor(height_px / shrink / block_px))
    elif area < min_pixels:
        stretch = math.sqrt(min_pixels / (height_px * width_px))
        columns = math.ceil(width_px * stretch / block_px)
        rows = math.ceil(height_px * stretch / block_px)
    return columns, rows
