"""Dynamic tiles: a picture becomes the grid of tiles whose aspect ratio is closest to its own, plus an overview."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError
from mmpack.sample import TileGrid
from mmpack.tiling.pixels import new_tiles, reduction, split
from mmpack.tiling.spec import TileSpec


@dataclass(frozen=True, slots=True)
class DynamicTiles:
    """InternVL's dynamic resolution: columns x rows tiles of S x S pixels, then an overview tile.

    Source: Chen et al., "How Far Are We to GPT-4V?", arXiv:2404.16821, section 3.3.

    Args:
        spec: the tile.
        min_tiles, max_tiles: bounds of columns x rows; the overview is not counted.
        thumbnail: whether a picture of more than one tile gets an overview tile, as its last.

    Raises:
        ConfigError: bounds that no grid fulfils.
    """

    kind: ClassVar[Literal["tiles"]] = "tiles"

    spec: TileSpec
    min_tiles: int = 1
    max_tiles: int = 12
    thumbnail: bool = True

    def __post_init__(self) -> None:
        for name in ("min_tiles", "max_tiles"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r}; a whole number of at least 1")
        if not isinstance(self.thumbnail, bool):
            raise ConfigError(f"thumbnail={self.thumbnail!r}; true or false")
        if self.min_tiles > self.max_tiles:
            raise ConfigError(f"min_tiles={self.min_tiles} is above max_tiles={self.max_tiles}")

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """The grid for a picture of that size."""
        return self._grid(width_px, height_px, self.max_tiles)

    def _grid(self, width_px: int, height_px: int, max_tiles: int) -> TileGrid:
        assert min(width_px, height_px) >= 1, f"{width_px}x{height_px}"
        columns, rows = closest_grid(width_px, height_px, self.spec.tile_size_px, self.min_tiles, max_tiles)
        return TileGrid(columns=columns, rows=rows, thumbnail=self.thumbnail and columns * rows > 1)

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """The embeddings of all tiles, the overview's included."""
        return grid.num_tiles * self.spec.embeddings_per_tile

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """The grid under the highest bound below `max_tiles` that fits; never fewer than `min_tiles`."""
        highest = min(self.max_tiles, max_tokens // self.spec.embeddings_per_tile)
        for max_tiles in range(highest, self.min_tiles - 1, -1):
            grid = self._grid(width_px, height_px, max_tiles)
            if self.num_tokens(grid, width_px, height_px) <= max_tokens:
                return grid
        return None

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(columns x rows [+ 1], 3, S, S) uint8, row by row, the overview last."""
        size, num_parts = self.spec.tile_size_px, grid.columns * grid.rows
        tiles = new_tiles(grid.num_tiles, size, out)
        fitted = self.spec.resize(rgb_HWC, grid.columns * size, grid.rows * size)
        split(fitted, grid.columns, grid.rows, out=tiles[:num_parts])
        if grid.thumbnail:
            split(self.spec.resize(rgb_HWC, size, size), 1, 1, out=tiles[num_parts:])
        return tiles

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """By the size of all tiles together."""
        size = self.spec.tile_size_px
        return reduction(width_px, height_px, grid.columns * size, grid.rows * size)


def closest_grid(width_px: int, height_px: int, tile_size_px: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows) whose ratio is closest to the picture's, by absolute difference.

    Of grids that are equally close the first in order of tiles wins, unless the picture has more than half of the
    pixels of a later one: then that one, so that only large pictures are spread over many tiles.

    >>> closest_grid(800, 400, 448, 1, 12), closest_grid(1800, 900, 448, 1, 12)
    ((2, 1), (4, 2))
    """
    ratio = width_px / height_px
    pixels_halves = 2 * width_px * height_px
    best, best_distance = (1, 1), float("inf")
    for columns, rows, grid_ratio in _candidates(min_tiles, max_tiles):
        distance = abs(ratio - grid_ratio)
        if distance < best_distance:
            best, best_distance = (columns, rows), distance
        elif distance == best_distance and pixels_halves > tile_size_px * tile_size_px * columns * rows:
            best = columns, rows
    return best


@lru_cache(maxsize=64)
def _candidates(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int, float], ...]:
    """Every (columns, rows, columns / rows) within the bounds, by number of tiles, then columns."""
    grids = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if columns * rows >= min_tiles
    ]
    grids.sort(key=lambda grid: (grid[0] * grid[1], grid[0]))
    return tuple((columns, rows, columns / rows) for columns, rows in grids)
