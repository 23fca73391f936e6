"""Any resolution: the picture whole as one tile, and once more as a grid of tiles that the model puts together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError
from mmpack.sample import TileGrid
from mmpack.tiling.pixels import RGB, new_tiles, place, reduction, split
from mmpack.tiling.spec import TileSpec

Pinpoint = tuple[int, int]  # height, width in pixels, as transformers writes them
PINPOINTS: tuple[Pinpoint, ...] = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
BLACK: RGB = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class AnyresTiles:
    """LLaVA-NeXT's tiles: an overview of S x S pixels first, then columns x rows tiles of a canvas, row by row.

    The picture keeps its aspect on the canvas, centred, with black at the sides. The model puts the embeddings of the
    canvas together, leaves out the rows or columns that are padding, and ends each row that is left with one newline
    embedding. Source: Liu et al., "LLaVA-NeXT", 2024; canvas and counts as in transformers' ``llava_next``.

    Args:
        spec: the tile; ``embeddings_per_tile`` is the square of the tower's patches along a side.
        image_grid_pinpoints: canvases to choose from, as (height, width) in pixels; whole numbers of tiles.

    Raises:
        ConfigError: embeddings that are no square, or a canvas that is not made of whole tiles.
    """

    kind: ClassVar[Literal["anyres"]] = "anyres"

    spec: TileSpec
    image_grid_pinpoints: Iterable[Sequence[int]] = PINPOINTS

    def __post_init__(self) -> None:
        embeddings, size = self.spec.embeddings_per_tile, self.spec.tile_size_px
        if math.isqrt(embeddings) ** 2 != embeddings:
            raise ConfigError(
                f"embeddings_per_tile={embeddings} is no square; tiling 'anyres' puts tiles together by rows and "
                "columns of embeddings, e.g. 24 x 24 = 576"
            )
        pinpoints = tuple(_pinpoint(value, size) for value in _listed(self.image_grid_pinpoints))
        object.__setattr__(self, "image_grid_pinpoints", pinpoints)

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """The canvas that shows most of the picture's pixels and, of those, has least area to spare."""
        assert min(width_px, height_px) >= 1, f"{width_px}x{height_px}"
        return self._grid(best_canvas(width_px, height_px, self._canvases()))

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """The overview's embeddings, those of the canvas without its padding, and a newline for each row."""
        side = math.isqrt(self.spec.embeddings_per_tile)
        columns, rows = unpadded(width_px, height_px, grid.columns * side, grid.rows * side)
        return self.spec.embeddings_per_tile + rows * (columns + 1)

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(1 + columns x rows, 3, S, S) uint8, the overview first."""
        assert grid.thumbnail, f"{grid} is no grid of tiling 'anyres'"
        size = self.spec.tile_size_px
        height_px, width_px, _ = rgb_HWC.shape
        canvas_width, canvas_height = grid.columns * size, grid.rows * size
        width, height = fitted(width_px, height_px, canvas_width, canvas_height)
        left, top = (canvas_width - width) // 2, (canvas_height - height) // 2
        canvas = place(self.spec.resize(rgb_HWC, width, height), canvas_width, canvas_height, left, top, BLACK)
        tiles = new_tiles(grid.num_tiles, size, out)
        split(self.spec.resize(rgb_HWC, size, size), 1, 1, out=tiles[:1])
        split(canvas, grid.columns, grid.rows, out=tiles[1:])
        return tiles

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """By the picture's size on the canvas, or the overview's where that is larger."""
        size = self.spec.tile_size_px
        width, height = fitted(width_px, height_px, grid.columns * size, grid.rows * size)
        return reduction(width_px, height_px, max(width, size), max(height, size))

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """The best of the canvases that fit, as if no other had been offered.

        Only canvases that `model_size` can name, so that a model that chooses the canvas itself chooses the same.
        """
        own = self.grid(width_px, height_px)
        if self.num_tokens(own, width_px, height_px) <= max_tokens:
            return own
        fitting = []
        for canvas in self._canvases():
            grid = self._grid(canvas)
            if self.num_tokens(grid, width_px, height_px) <= max_tokens and self._named(grid, width_px, height_px):
                fitting.append(canvas)
        return self._grid(best_canvas(width_px, height_px, fitting)) if fitting else None

    def model_size(self, grid: TileGrid, width_px: int, height_px: int) -> tuple[int, int]:
        """The (width, height) to give to a model that derives the canvas and its padding from the picture's size.

        It is the picture's own size, unless `grid` came from `smaller`: then the size the picture has on the canvas,
        which leads to the same canvas and the same number of tokens.
        """
        size = self._named(grid, width_px, height_px)
        assert size is not None, f"{grid} is no grid of tiling 'anyres' for {width_px}x{height_px}"
        return size

    def _named(self, grid: TileGrid, width_px: int, height_px: int) -> tuple[int, int] | None:
        if grid == self.grid(width_px, height_px):
            return width_px, height_px
        size, tokens = self.spec.tile_size_px, self.num_tokens(grid, width_px, height_px)
        width, height = fitted(width_px, height_px, grid.columns * size, grid.rows * size)
        # the fitted side is rounded up, which may show one row of embeddings more than the picture itself
        shorter = (max(1, width - 1), height) if height == grid.rows * size else (width, max(1, height - 1))
        for told in ((width, height), shorter):
            if self.grid(*told) == grid and self.num_tokens(grid, *told) == tokens:
                return told
        return None

    def _canvases(self) -> list[tuple[int, int]]:
        return [(width, height) for height, width in self.image_grid_pinpoints]

    def _grid(self, canvas: tuple[int, int]) -> TileGrid:
        size = self.spec.tile_size_px
        return TileGrid(columns=canvas[0] // size, rows=canvas[1] // size, thumbnail=True)


def best_canvas(width_px: int, height_px: int, canvases: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The canvas (width, height) on which most pixels of the picture show; then the smallest; then the first.

    >>> best_canvas(640, 480, [(672, 336), (336, 672), (672, 672)])
    (672, 672)
    """

    def merit(canvas: tuple[int, int]) -> tuple[int, int]:
        scale = min(canvas[0] / width_px, canvas[1] / height_px)
        shown = min(int(width_px * scale) * int(height_px * scale), width_px * height_px)
        return shown, -canvas[0] * canvas[1]

    return max(canvases, key=merit)


def fitted(width_px: int, height_px: int, canvas_width: int, canvas_height: int) -> tuple[int, int]:
    """The picture's (width, height) when it fills the canvas in one direction, whole pixels rounded up.

    >>> fitted(640, 480, 672, 672), fitted(1, 4000, 336, 1008)
    ((672, 504), (1, 1008))
    """
    by_width, by_height = canvas_width / width_px, canvas_height / height_px
    if by_width < by_height:
        return canvas_width, min(math.ceil(height_px * by_width), canvas_height)
    return min(math.ceil(width_px * by_height), canvas_width), canvas_height


def unpadded(width_px: int, height_px: int, columns: int, rows: int) -> tuple[int, int]:
    """What is left of `columns` x `rows` embeddings without those that saw only padding. A thin line leaves none.

    The same number goes from both ends, hence one embedding of padding may stay. Floats and their rounding are those
    of transformers, since a count must not differ by one.

    >>> unpadded(640, 480, 48, 48), unpadded(1, 4000, 24, 72)
    ((48, 36), (0, 72))
    """
    if width_px / height_px > columns / rows:
        inner = int(round(height_px * (columns / width_px), 7))
        return columns, rows - 2 * ((rows - inner) // 2)
    inner = int(round(width_px * (rows / height_px), 7))
    return columns - 2 * ((columns - inner) // 2), rows


def _listed(value: object) -> list[object]:
    listed = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []
    if not listed:
        raise ConfigError(f"image_grid_pinpoints={value!r}; a list of (height, width) in pixels, at least one")
    return listed


def _pinpoint(value: object, size: int) -> Pinpoint:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        height, width = value
        whole = all(isinstance(side, int) and side >= 1 and side % size == 0 for side in value)
        if whole:
            return int(height), int(width)
    raise ConfigError(
        f"image_grid_pinpoints has {value!r}; each is (height, width), and both are multiples of the tile's {size} px"
    )
