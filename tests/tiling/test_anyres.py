"""AnyresTiles against transformers' LLaVA-NeXT: its processor's tiles, its model's own count of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmpack.errors import ConfigError
from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, make_tiling, tiling_from_processor
from mmpack.tiling.anyres import PINPOINTS, AnyresTiles
from tests.tiling.pictures import CLIP_MEAN, CLIP_STD, distance, levels, sizes, smooth

SPEC = TileSpec(tile_size_px=336, embeddings_per_tile=576)
TILE = 28
SMALL_PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]


def processor(tile: int = 336, **changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    square = {"size": {"shortest_edge": tile}, "crop_size": {"height": tile, "width": tile}}
    return transformers.LlavaNextImageProcessorPil(**(square | changes))


def model(image_size: int, patch_size: int, pinpoints: list[list[int]]) -> Any:
    """A real LlavaNextModel with one tiny layer everywhere."""
    transformers = pytest.importorskip("transformers")
    tiny = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": image_size, "patch_size": patch_size, **tiny},
        text_config={"model_type": "llama", "vocab_size": 8, "num_key_value_heads": 1, **tiny},
        image_grid_pinpoints=pinpoints,
    )
    return transformers.models.llava_next.modeling_llava_next.LlavaNextModel(config)


def model_counts(model: Any, sizes: list[tuple[int, int]], tiles: list[int]) -> list[int]:
    """How many embeddings the model makes of pictures of those (width, height), with so many tiles each."""
    torch = pytest.importorskip("torch")
    vision = model.config.vision_config
    per_tile = (vision.image_size // vision.patch_size) ** 2
    counts = []
    for (width_px, height_px), num_tiles in zip(sizes, tiles, strict=True):
        features = torch.zeros(num_tiles, per_tile, 4)
        packed, lengths = model.pack_image_features(
            [features], torch.tensor([[height_px, width_px]]), "default", image_newline=torch.ones(4)
        )
        assert len(packed[0]) == int(lengths[0])
        counts.append(int(lengths[0]))
    return counts


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens", "columns", "rows"),
    [
        (480, 640, 2340, 2, 2),
        (640, 480, 2352, 2, 2),
        (336, 336, 1176, 2, 1),
        (1000, 200, 1656, 1, 3),
        (200, 1000, 1598, 3, 1),
        (427, 640, 2144, 2, 2),
        (672, 672, 2928, 2, 2),
    ],
)
def test_worked_examples(height_px: int, width_px: int, tokens: int, columns: int, rows: int) -> None:
    policy = make_tiling("anyres", SPEC)
    grid = policy.grid(width_px, height_px)
    assert grid == TileGrid(columns=columns, rows=rows, thumbnail=True)
    assert grid.num_tiles == columns * rows + 1
    assert policy.num_tokens(grid, width_px, height_px) == tokens


@pytest.mark.parametrize(
    ("tile", "patch", "pinpoints"),
    [(336, 14, [list(pinpoint) for pinpoint in PINPOINTS]), (42, 14, [[42, 84], [126, 42], [84, 84], [168, 252]])],
    ids=["24x24", "3x3"],
)
def test_tiles_and_tokens_are_those_of_processor_and_model(
    tile: int, patch: int, pinpoints: list[list[int]], tokenizer: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    pil = processor(tile, image_grid_pinpoints=pinpoints)
    whole = transformers.LlavaNextProcessor(
        image_processor=pil,
        tokenizer=tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    policy = tiling_from_processor(pil, embeddings_per_tile=(tile // patch) ** 2)
    count_tiles = transformers.models.llava_next.modeling_llava_next.image_size_to_num_patches
    asked = sizes(5, tile=tile, longest=3000)
    asked += [(20_000, 1), (1, 20_000), (3, 5000)]
    grids = [policy.grid(*size) for size in asked]
    ours = [policy.num_tokens(grid, *size) for grid, size in zip(grids, asked, strict=True)]
    as_height_width = [(height_px, width_px) for width_px, height_px in asked]
    assert [grid.num_tiles for grid in grids] == [count_tiles(size, pinpoints, tile) for size in as_height_width]
    assert ours == whole._get_num_multimodal_tokens(image_sizes=as_height_width)["num_image_tokens"]
    assert ours == model_counts(model(tile, patch, pinpoints), asked, [grid.num_tiles for grid in grids])


def test_pixels_are_those_of_the_processor() -> None:
    pil = processor(TILE, image_grid_pinpoints=SMALL_PINPOINTS)
    policy = tiling_from_processor(pil, embeddings_per_tile=4)
    for width_px, height_px in sizes(6, tile=TILE, longest=300):
        rgb = smooth(width_px, height_px)
        tiles = policy.cut(rgb, policy.grid(width_px, height_px))
        assert distance(tiles, levels(pil, rgb)[0]) <= 2, (width_px, height_px)


@pytest.mark.slow
def test_pixels_of_large_pictures_are_those_of_the_processor() -> None:
    policy = tiling_from_processor(processor(), embeddings_per_tile=576)
    for width_px, height_px in sizes(7, tile=336, longest=3000, number=100):
        rgb = smooth(width_px, height_px)
        tiles = policy.cut(rgb, policy.grid(width_px, height_px))
        assert distance(tiles, levels(processor(), rgb)[0]) <= 2, (width_px, height_px)


def test_normalised_tiles_are_what_the_processor_gives_its_model() -> None:
    pil = processor()
    policy = tiling_from_processor(pil, embeddings_per_tile=576)
    rgb = smooth(500, 210)
    want = np.asarray(pil(Image.fromarray(rgb), return_tensors="np")["pixel_values"][0], dtype=float)
    back = (want * np.reshape(CLIP_STD, (3, 1, 1)) + np.reshape(CLIP_MEAN, (3, 1, 1))) * 255
    assert np.abs(policy.cut(rgb, policy.grid(500, 210)) - back).max() <= 2


def test_the_overview_is_first_and_the_canvas_is_black_around_the_picture() -> None:
    policy = AnyresTiles(TileSpec(tile_size_px=TILE, embeddings_per_tile=4), SMALL_PINPOINTS)
    rgb = np.full((40, 40, 3), 200, dtype=np.uint8)
    tiles = policy.cut(rgb, TileGrid(columns=2, rows=1, thumbnail=True))
    assert tiles.shape == (3, 3, TILE, TILE)
    assert (tiles[0] == 200).all()
    canvas = np.concatenate([tiles[1], tiles[2]], axis=2)  # 28 px of picture between 14 px of black
    assert (canvas[:, :, :14] == 0).all()
    assert (canvas[:, :, 14:42] == 200).all()
    assert (canvas[:, :, 42:] == 0).all()


SIDE = st.integers(1, 3000)


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, st.integers(1, 3000))
def test_a_smaller_grid_fits_and_a_model_that_chooses_itself_agrees(width_px: int, height_px: int, most: int) -> None:
    policy = AnyresTiles(SPEC)
    own = policy.grid(width_px, height_px)
    smaller = policy.smaller(width_px, height_px, most)
    if smaller is None:
        assert policy.num_tokens(own, width_px, height_px) > most
        return
    tokens = policy.num_tokens(smaller, width_px, height_px)
    assert 0 < tokens <= most
    told = policy.model_size(smaller, width_px, height_px)
    assert policy.grid(*told) == smaller
    assert policy.num_tokens(smaller, *told) == tokens
    if policy.num_tokens(own, width_px, height_px) <= most:
        assert smaller == own
        assert told == (width_px, height_px)


def test_the_model_counts_a_smaller_grid_as_planned() -> None:
    policy = AnyresTiles(SPEC)
    told, tiles, tokens = [], [], []
    for width_px, height_px in sizes(8, tile=336, longest=2000):
        own = policy.grid(width_px, height_px)
        grid = policy.smaller(width_px, height_px, policy.num_tokens(own, width_px, height_px) - 1)
        if grid is not None:
            told.append(policy.model_size(grid, width_px, height_px))
            tiles.append(grid.num_tiles)
            tokens.append(policy.num_tokens(grid, width_px, height_px))
            assert grid.num_tiles <= own.num_tiles
    assert len(told) > 200
    assert model_counts(model(336, 14, [list(pinpoint) for pinpoint in PINPOINTS]), told, tiles) == tokens


def test_a_smaller_grid_is_the_best_of_those_that_fit() -> None:
    policy = AnyresTiles(SPEC)
    assert policy.smaller(640, 480, 2340) == policy.grid(640, 480)
    assert policy.smaller(640, 480, 2339) == TileGrid(columns=2, rows=1, thumbnail=True)
    assert policy.smaller(480, 640, 2000) == TileGrid(columns=1, rows=2, thumbnail=True)
    assert policy.smaller(640, 480, 1000) is None


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"image_grid_pinpoints": [[336, 670]]}, r"\[336, 670\]; .* multiples of the tile's 336 px"),
        ({"image_grid_pinpoints": [336, 672]}, "has 336"),
        ({"image_grid_pinpoints": [[336, 336, 336]]}, "each is"),
        ({"image_grid_pinpoints": [[0, 336]]}, "multiples"),
        ({"image_grid_pinpoints": []}, "at least one"),
        ({"image_grid_pinpoints": "336"}, "at least one"),
        ({"image_grid_pinpoint": [[336, 336]]}, "did you mean 'image_grid_pinpoints'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_tiling("anyres", SPEC, **options)


def test_embeddings_that_are_no_square_are_refused() -> None:
    with pytest.raises(ConfigError, match="embeddings_per_tile=577 is no square"):
        make_tiling("anyres", TileSpec(tile_size_px=336, embeddings_per_tile=577))
