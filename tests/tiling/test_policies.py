"""What every entry of TILINGS promises, and the table itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.tiling import TILINGS, TileSpec, TilingPolicy, make_tiling

SPEC = TileSpec(tile_size_px=28, embeddings_per_tile=4, mean=(0.2, 0.4, 0.6), std=(0.5, 0.5, 0.5))
SIZES = [(28, 28), (56, 28), (1, 1), (1, 400), (400, 1), (31, 97), (83, 89), (84, 112), (27, 29), (640, 48)]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "single": [{"fit": fit} for fit in ("pad", "square", "crop", "keep")] + [{"pad_color": [1, 2, 3]}],
    "dynamic": [{}, {"thumbnail": False}, {"min_tiles": 3, "max_tiles": 6}, {"max_tiles": 1}],
    "anyres": [
        {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]},
        {"image_grid_pinpoints": ((56, 84),)},
    ],
    "native": [
        {"min_pixels": 3136, "max_pixels": 40_000},
        {"merge_size": 1, "temporal_patch_size": 1, "min_pixels": 1, "max_pixels": 20_000},
    ],
}
KINDS = {"single": "tiles", "dynamic": "tiles", "anyres": "anyres", "native": "patches"}
POLICIES = [(name, options) for name in TILINGS for options in OPTIONS.get(name, [{}])]


def picture(width_px: int, height_px: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


@pytest.fixture(params=POLICIES, ids=str)
def policy(request: pytest.FixtureRequest) -> TilingPolicy:
    name, options = request.param
    return make_tiling(name, SPEC, **options)


@pytest.mark.parametrize(("width_px", "height_px"), SIZES)
def test_a_cut_is_what_its_grid_planned(policy: TilingPolicy, width_px: int, height_px: int) -> None:
    rgb = picture(width_px, height_px)
    before = rgb.copy()
    if policy.kind == "patches" and max(width_px, height_px) > 200 * min(width_px, height_px):
        with pytest.raises(SampleError) as error:
            policy.grid(width_px, height_px)
        assert error.value.reason is Reason.IMAGE_ASPECT
        return
    grid = policy.grid(width_px, height_px)
    tiles = policy.cut(rgb, grid)
    assert min(grid.columns, grid.rows) >= 1
    assert grid.num_tiles == grid.columns * grid.rows + grid.thumbnail
    assert tiles.shape == (grid.num_tiles, 3, 28, 28)
    assert tiles.dtype == np.uint8
    assert tiles.flags.c_contiguous
    tokens = policy.num_tokens(grid, width_px, height_px)
    if policy.kind == "tiles":
        assert tokens == 4 * len(tiles)
    elif policy.kind == "patches":
        assert tokens * policy.merge_size**2 == len(tiles)
    else:  # overview, canvas, a newline for each of the canvas's rows of embeddings
        assert 4 <= tokens <= 4 * len(tiles) + 2 * grid.rows
    assert np.array_equal(rgb, before), "the picture was written to"
    assert policy.grid(width_px, height_px) == grid
    out = np.full_like(tiles, 77)
    assert policy.cut(rgb, grid, out=out) is out
    assert np.array_equal(out, tiles)


def test_a_picture_of_one_colour_stays_so_where_it_is(policy: TilingPolicy) -> None:
    rgb = np.full((40, 60, 3), (200, 100, 50), dtype=np.uint8)
    tiles = policy.cut(rgb, policy.grid(60, 40))
    assert np.abs(tiles[0, :, 10, 10].astype(int) - (200, 100, 50)).max() <= 1


def test_a_size_without_pixels_is_our_own_bug(policy: TilingPolicy) -> None:
    with pytest.raises(AssertionError):
        policy.grid(0, 5)


def test_policies_are_equal_by_value_and_say_what_they_are(policy: TilingPolicy) -> None:
    assert policy.spec is SPEC
    assert repr(SPEC) in repr(policy)
    assert hash(policy) == hash(policy)
    assert eval(repr(policy), {type(policy).__name__: type(policy), "TileSpec": TileSpec}) == policy


def test_equal_settings_have_equal_reprs_however_they_were_written() -> None:
    as_lists = make_tiling("anyres", SPEC, image_grid_pinpoints=[[28, 56], [56, 28]])
    as_tuples = make_tiling("anyres", SPEC, image_grid_pinpoints=((28, 56), (56, 28)))
    assert repr(as_lists) == repr(as_tuples)
    assert repr(as_lists) != repr(make_tiling("anyres", SPEC, image_grid_pinpoints=[[56, 28], [28, 56]]))


@pytest.mark.parametrize("name", list(TILINGS))
def test_every_policy_says_how_a_tower_takes_its_pixels(name: str) -> None:
    for options in OPTIONS[name]:
        assert make_tiling(name, SPEC, **options).kind == KINDS[name]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(POLICIES), st.integers(1, 150), st.integers(1, 150), st.integers(1, 60))
def test_a_smaller_grid_fits_and_can_be_cut(named: tuple[str, dict], width_px: int, height_px: int, most: int) -> None:
    policy = make_tiling(named[0], SPEC, **named[1])
    own = policy.grid(width_px, height_px)
    own_tokens = policy.num_tokens(own, width_px, height_px)
    assert own_tokens > 0
    smaller = policy.smaller(width_px, height_px, most)
    if smaller is None:
        assert own_tokens > most
        return
    assert 0 < policy.num_tokens(smaller, width_px, height_px) <= most
    assert (smaller == own) == (own_tokens <= most)
    tiles = policy.cut(picture(width_px, height_px), smaller)
    assert tiles.shape == (smaller.num_tiles, 3, 28, 28)


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (1, 150), (150, 1)])
def test_lines_of_one_pixel(policy: TilingPolicy, width_px: int, height_px: int) -> None:
    grid = policy.grid(width_px, height_px)
    assert len(policy.cut(picture(width_px, height_px), grid)) == grid.num_tiles
    assert policy.num_tokens(grid, width_px, height_px) > 0


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("dynamc", {}, "did you mean 'dynamic'"),
        ("dynamic", {"max_tile": 6}, "did you mean 'max_tiles'"),
        ("dynamic", {"max_tiles": 0}, "max_tiles=0"),
        ("dynamic", {"max_tiles": 2.0}, "max_tiles=2.0"),
        ("dynamic", {"min_tiles": 4, "max_tiles": 3}, "min_tiles=4 is above max_tiles=3"),
        ("dynamic", {"thumbnail": "no"}, "thumbnail='no'"),
        ("single", {"fit": "croop"}, "did you mean 'crop'"),
        ("single", {"pad_color": (1, 2)}, "pad_color"),
        ("single", {"pad_color": "white"}, "pad_color"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(name: str, options: dict[str, object], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint.replace("(", r"\(")):
        make_tiling(name, SPEC, **options)
