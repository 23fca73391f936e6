"""Tiles of mock pictures: as many as the picture has cells, so that any number of tiles can be asked for."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, resize
from mmpack.tiling.pixels import new_tiles

CELL_PX = 4


@dataclass(frozen=True, slots=True)
class CellTiles:
    """Every cell of `CELL_PX` x `CELL_PX` pixels of a picture becomes a tile."""

    kind: ClassVar[Literal["tiles"]] = "tiles"

    spec: TileSpec

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """One tile a cell."""
        return TileGrid(columns=max(1, width_px // CELL_PX), rows=max(1, height_px // CELL_PX))

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """The embeddings of all tiles."""
        return grid.num_tiles * self.spec.embeddings_per_tile

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """None: a mock picture has the tiles that were asked for."""
        return None

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """Cells are wanted as they are."""
        return 1

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(grid.num_tiles, 3, S, S) uint8, row by row."""
        size = self.spec.tile_size_px
        tiles = new_tiles(grid.num_tiles, size, out)
        for number in range(grid.num_tiles):
            top, left = (CELL_PX * part for part in divmod(number, grid.columns))
            cell = rgb_HWC[top : top + CELL_PX, left : left + CELL_PX]
            tiles[number] = resize(cell, size, size, self.spec.resample).transpose(2, 0, 1)
        return tiles


def cells_png(content: bytes, num_cells: int) -> bytes:
    """A PNG of `num_cells` cells in a row; `content` are its CELL_PX x CELL_PX x num_cells x 3 colour values."""
    width = CELL_PX * num_cells
    stride = 3 * width
    assert len(content) == stride * CELL_PX, f"{len(content)} bytes for {num_cells} cells"
    rows = b"".join(b"\0" + content[row * stride : (row + 1) * stride] for row in range(CELL_PX))
    header = struct.pack(">IIBBBBB", width, CELL_PX, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
