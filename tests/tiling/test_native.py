"""NativePatches against transformers' Qwen2-VL: sizes, order of patches, pixels and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, make_tiling, tiling_from_processor
from mmpack.tiling.native import NativePatches, blocks
from tests.tiling.pictures import distance, levels, sizes, smooth

SPEC = TileSpec(tile_size_px=14, embeddings_per_tile=1)
LIMITS = [{}, {"min_pixels": 3136, "max_pixels": 15_680}, {"min_pixels": 50_000, "max_pixels": 200_000}]


def processor(**options: Any) -> Any:
    return pytest.importorskip("transformers").Qwen2VLImageProcessorPil(**options)


def is_thin(width_px: int, height_px: int) -> bool:
    return max(width_px, height_px) > 200 * min(width_px, height_px)


def unmerged(patches: np.ndarray, grid: TileGrid, merge: int) -> np.ndarray:
    """The picture (H, W, 3), put together patch by patch from where the order of blocks says that each belongs."""
    size = patches.shape[-1]
    picture = np.zeros((grid.rows * size, grid.columns * size, 3), dtype=patches.dtype)
    number = 0
    for block_row in range(grid.rows // merge):
        for block_column in range(grid.columns // merge):
            for row in range(block_row * merge, (block_row + 1) * merge):
                for column in range(block_column * merge, (block_column + 1) * merge):
                    place = (slice(row * size, (row + 1) * size), slice(column * size, (column + 1) * size))
                    picture[place] = patches[number].transpose(1, 2, 0)
                    number += 1
    assert number == len(patches)
    return picture


@pytest.mark.parametrize(
    ("width_px", "height_px", "max_pixels", "height_width"),
    [
        (31, 639, 15_680, (560, 28)),
        (639, 31, 15_680, (28, 560)),
        (1, 1, 1_003_520, (56, 56)),
        (448, 448, 1_003_520, (448, 448)),
        (14, 14, 1_003_520, (56, 56)),
        (42, 70, 1_003_520, (56, 56)),  # 1.5 and 2.5 blocks: halves go to the even side
        (2000, 1000, 1_003_520, (700, 1400)),
    ],
)
def test_worked_examples(width_px: int, height_px: int, max_pixels: int, height_width: tuple[int, int]) -> None:
    grid = make_tiling("native", SPEC, min_pixels=3136, max_pixels=max_pixels).grid(width_px, height_px)
    assert (grid.rows * 14, grid.columns * 14) == height_width
    assert not grid.thumbnail


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize(("patch", "merge"), [(14, 2), (16, 2), (14, 1), (8, 3)])
def test_sizes_and_tokens_are_those_of_the_processor(limits: dict[str, int], patch: int, merge: int) -> None:
    pil = processor(patch_size=patch, merge_size=merge, **limits)
    policy = tiling_from_processor(pil, embeddings_per_tile=256)
    num_thin = 0
    for width_px, height_px in sizes(9, tile=patch * merge, longest=3000):
        if is_thin(width_px, height_px):
            num_thin += 1
            with pytest.raises(ValueError, match="aspect ratio"):
                pil.get_number_of_image_patches(height_px, width_px)
            with pytest.raises(SampleError) as error:
                policy.grid(width_px, height_px)
            assert error.value.reason is Reason.IMAGE_ASPECT
            continue
        grid = policy.grid(width_px, height_px)
        want = pil.get_number_of_image_patches(height_px, width_px)
        assert grid.num_tiles == want, (width_px, height_px)
        assert policy.num_tokens(grid, width_px, height_px) == want // merge**2
    assert 0 < num_thin < 60


def test_counts_are_those_of_the_whole_processor() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    for width_px, height_px in sizes(10, tile=28, longest=2000):
        if not is_thin(width_px, height_px):
            columns, rows = blocks(width_px, height_px, 28, 3136, 1_003_520)
            assert (rows * 28, columns * 28) == smart_resize(height_px, width_px, 28, 3136, 1_003_520)


@pytest.mark.parametrize("merge", [1, 2])
def test_patches_are_those_of_the_processor(merge: int) -> None:
    pil = processor(merge_size=merge, max_pixels=100_000)
    policy = tiling_from_processor(pil, embeddings_per_tile=1)
    assert isinstance(policy, NativePatches)
    for width_px, height_px in sizes(11, tile=28, longest=350, number=500 if merge == 2 else 50):
        if is_thin(width_px, height_px):
            continue
        rgb = smooth(width_px, height_px)
        grid = policy.grid(width_px, height_px)
        patches = policy.cut(rgb, grid)
        want = levels(pil, rgb).reshape(grid.num_tiles, 3, policy.temporal_patch_size, 14, 14)
        for frame in range(policy.temporal_patch_size):
            assert distance(patches, want[:, :, frame]) <= 2, (width_px, height_px)


@pytest.mark.slow
def test_patches_of_large_pictures_are_those_of_the_processor() -> None:
    pil = processor()
    policy = tiling_from_processor(pil, embeddings_per_tile=1)
    for width_px, height_px in sizes(12, tile=28, longest=4000, number=100):
        if not is_thin(width_px, height_px):
            rgb = smooth(width_px, height_px)
            grid = policy.grid(width_px, height_px)
            want = levels(pil, rgb).reshape(grid.num_tiles, 3, 2, 14, 14)
            assert distance(policy.cut(rgb, grid), want[:, :, 0]) <= 2, (width_px, height_px)


def test_normalised_and_doubled_they_are_the_models_input() -> None:
    pil = processor()
    policy = tiling_from_processor(pil, embeddings_per_tile=1)
    assert isinstance(policy, NativePatches)
    rgb = smooth(300, 211)
    given = pil(Image.fromarray(rgb), return_tensors="np")
    grid = policy.grid(300, 211)
    patches = policy.cut(rgb, grid)
    mean, std = (np.reshape(value, (3, 1, 1)) for value in (policy.spec.mean, policy.spec.std))
    frames = np.stack([(patches / 255 - mean) / std] * policy.temporal_patch_size, axis=2)
    assert given["image_grid_thw"].tolist() == [[1, grid.rows, grid.columns]]
    assert np.abs(frames.reshape(len(patches), -1) - given["pixel_values"]).max() < 1e-5


@pytest.mark.parametrize("merge", [1, 2, 3])
def test_patches_go_block_by_block(merge: int) -> None:
    policy = NativePatches(TileSpec(tile_size_px=4, embeddings_per_tile=1), merge_size=merge, min_pixels=1)
    grid = TileGrid(columns=3 * merge, rows=2 * merge)
    rgb = np.random.default_rng(0).integers(0, 256, (grid.rows * 4, grid.columns * 4, 3), dtype=np.uint8)
    assert np.array_equal(unmerged(policy.cut(rgb, grid), grid, merge), rgb)


SIDE = st.integers(1, 3000)


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, st.integers(1, 1500), st.sampled_from(LIMITS))
def test_a_smaller_grid_is_the_largest_that_a_lower_bound_gives(
    width_px: int, height_px: int, most: int, limits: dict[str, int]
) -> None:
    policy = NativePatches(SPEC, **limits)
    if is_thin(width_px, height_px):
        with pytest.raises(SampleError):
            policy.smaller(width_px, height_px, most)
        return
    smaller = policy.smaller(width_px, height_px, most)
    bounds = np.linspace(policy.min_pixels, policy.max_pixels, 400).astype(int).tolist()
    by_bound = [blocks(width_px, height_px, 28, policy.min_pixels, bound) for bound in bounds]
    fitting = [columns * rows for columns, rows in by_bound if columns * rows <= most]
    if smaller is None:
        assert not fitting
        return
    tokens = policy.num_tokens(smaller, width_px, height_px)
    assert 0 < tokens <= most
    own = policy.num_tokens(policy.grid(width_px, height_px), width_px, height_px)
    assert tokens == own if own <= most else tokens >= max(fitting)


def test_smaller_by_example() -> None:
    policy = NativePatches(SPEC)
    assert policy.smaller(448, 448, 256) == TileGrid(columns=32, rows=32)
    assert policy.smaller(448, 448, 255) == TileGrid(columns=30, rows=30)
    assert policy.smaller(1, 1, 4) == TileGrid(columns=4, rows=4)
    assert policy.smaller(448, 448, 3) is None  # under min_pixels


def test_a_thin_picture_is_a_fault_of_its_sample() -> None:
    policy = NativePatches(SPEC)
    assert policy.grid(200, 1).num_tiles > 0
    with pytest.raises(SampleError, match=r"image_aspect: 1x201 px; .* over 200 times"):
        policy.grid(1, 201)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"merge_size": 0}, "merge_size=0"),
        ({"temporal_patch_size": True}, "temporal_patch_size=True"),
        ({"min_pixels": 5000, "max_pixels": 4000}, "min_pixels=5000 is above max_pixels=4000"),
        ({"min_pixels": 1, "max_pixels": 783}, "max_pixels=783 holds no block of 2x2 patches of 14 px, which has 784"),
        ({"max_pixel": 5}, "did you mean 'max_pixels'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_tiling("native", SPEC, **options)
