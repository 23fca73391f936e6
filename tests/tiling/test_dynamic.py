"""DynamicTiles against the rule worked out in fractions, against transformers, and pixel by pixel against Pillow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, tiling_from_processor
from mmpack.tiling.dynamic import DynamicTiles, closest_grid
from tests.tiling.pictures import distance, levels, sizes, smooth

SPEC = TileSpec(tile_size_px=448, embeddings_per_tile=256)
SMALL = TileSpec(tile_size_px=14, embeddings_per_tile=1)


def slow_grids(width_px: int, height_px: int, size: int, low: int, high: int) -> list[tuple[int, int]]:
    """Number of tiles by number of tiles: exact distances, then the rule for equally close grids.

    One grid, except where two different ratios are equally far: there the published code lets rounding decide.
    """
    ratio = Fraction(width_px, height_px)
    grids = [(c, n // c) for n in range(low, high + 1) for c in range(1, n + 1) if n % c == 0]
    nearest = min(abs(ratio - Fraction(c, r)) for c, r in grids)
    close = [(c, r) for c, r in grids if abs(ratio - Fraction(c, r)) == nearest]
    if len({Fraction(c, r) for c, r in close}) > 1:
        return close
    chosen = close[0]
    for c, r in close[1:]:
        if Fraction(width_px * height_px) > Fraction(size * size * c * r, 2):
            chosen = (c, r)
    return [chosen]


SIZES = sizes(20, tile=448, longest=5000)


@pytest.mark.parametrize(("low", "high"), [(1, 12), (1, 1), (1, 6), (4, 12), (6, 6), (7, 7), (1, 40)])
def test_grids_are_those_of_the_rule(low: int, high: int) -> None:
    assert len(SIZES) == 500
    num_decided = 0
    for width_px, height_px in SIZES:
        got = closest_grid(width_px, height_px, 448, low, high)
        want = slow_grids(width_px, height_px, 448, low, high)
        assert got in want, (width_px, height_px)
        num_decided += len(want) == 1
    assert num_decided > 480


def test_grids_are_those_of_transformers() -> None:
    pil = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    for width_px, height_px in SIZES:
        want = pil.get_optimal_tiled_canvas((height_px, width_px), (448, 448), 1, 12)
        assert closest_grid(width_px, height_px, 448, 1, 12) == want


@pytest.mark.parametrize(("low", "high"), [(1, 12), (2, 7)])
def test_tiles_are_those_of_the_processor(low: int, high: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=low, max_patches=high
    )
    policy = tiling_from_processor(processor, embeddings_per_tile=4)
    assert policy == DynamicTiles(policy.spec, min_tiles=low, max_tiles=high)
    for width_px, height_px in sizes(21, tile=28, longest=320):
        rgb = smooth(width_px, height_px)
        grid = policy.grid(width_px, height_px)
        assert grid.num_tiles == processor.get_number_of_image_patches(height_px, width_px)
        assert distance(policy.cut(rgb, grid), levels(processor, rgb)) <= 2, (width_px, height_px)


@pytest.mark.slow
def test_tiles_of_large_pictures_are_those_of_the_processor() -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True)
    policy = tiling_from_processor(processor, embeddings_per_tile=256)
    for width_px, height_px in sizes(22, tile=448, longest=4000, number=100):
        rgb = smooth(width_px, height_px)
        tiles = policy.cut(rgb, policy.grid(width_px, height_px))
        assert distance(tiles, levels(processor, rgb)) <= 2, (width_px, height_px)


def test_a_smaller_grid_is_that_of_a_lower_bound() -> None:
    policy = DynamicTiles(SPEC)
    assert policy.grid(800, 600) == TileGrid(columns=4, rows=3, thumbnail=True)
    assert policy.smaller(800, 600, 13 * 256) == policy.grid(800, 600)
    assert policy.smaller(800, 600, 12 * 256) == TileGrid(columns=3, rows=2, thumbnail=True)
    assert policy.smaller(1800, 900, 8 * 256) == TileGrid(columns=2, rows=1, thumbnail=True)
    assert policy.smaller(800, 600, 255) is None
    assert DynamicTiles(SPEC, min_tiles=4).smaller(800, 600, 4 * 256) is None  # 4 tiles and the overview
    assert DynamicTiles(SPEC, min_tiles=4, thumbnail=False).smaller(800, 600, 4 * 256) == TileGrid(columns=2, rows=2)


@pytest.mark.parametrize(
    ("width_px", "height_px", "grid"),
    [
        (448, 448, (1, 1)),
        (896, 896, (2, 2)),  # four tiles' worth of pixels, more than half of 2x2
        (1344, 1344, (3, 3)),
        (600, 600, (1, 1)),  # fewer pixels than half of 2x2
        (10_000, 1, (12, 1)),
        (1, 10_000, (1, 12)),
        (800, 600, (4, 3)),
    ],
)
def test_worked_examples(width_px: int, height_px: int, grid: tuple[int, int]) -> None:
    got = DynamicTiles(SPEC).grid(width_px, height_px)
    assert (got.columns, got.rows) == grid
    assert got.thumbnail == (grid != (1, 1))


def test_tiles_go_row_by_row_and_the_overview_is_last() -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    grid = TileGrid(columns=3, rows=2, thumbnail=True)
    tiles = DynamicTiles(SMALL).cut(rgb, grid)
    picture = Image.fromarray(rgb)
    fitted = picture.resize((3 * 14, 2 * 14), Image.Resampling.BICUBIC)
    for row in range(2):
        for column in range(3):
            box = (column * 14, row * 14, column * 14 + 14, row * 14 + 14)
            want = np.asarray(fitted.crop(box)).transpose(2, 0, 1)
            assert np.array_equal(tiles[row * 3 + column], want)
    overview = np.asarray(picture.resize((14, 14), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.array_equal(tiles[6], overview)


def test_without_overview_there_is_none() -> None:
    policy = DynamicTiles(SMALL, thumbnail=False, max_tiles=4)
    grid = policy.grid(60, 30)
    assert grid == TileGrid(columns=2, rows=1, thumbnail=False)
    assert policy.num_tokens(grid, 60, 30) == 2
