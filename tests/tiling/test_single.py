"""SingleTile against Pillow and against the transformers processors whose rules it follows."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, make_tiling, tiling_from_processor
from mmpack.tiling.single import SingleTile
from tests.tiling.pictures import CLIP_MEAN, distance, levels, sizes, smooth

ONE = TileGrid(columns=1, rows=1)
FITS = {  # processor of transformers, its options, the policy that it gives
    "crop": ("CLIPImageProcessorPil", {}),
    "pad": ("LlavaImageProcessorPil", {"do_pad": True}),
    "square": ("SiglipImageProcessorPil", {}),
}


def spec(size: int = 60, resample: str = "bicubic") -> TileSpec:
    return TileSpec(tile_size_px=size, embeddings_per_tile=1, mean=CLIP_MEAN, std=(0.3, 0.3, 0.3), resample=resample)


def compare(fit: str, size: int, asked: list[tuple[int, int]]) -> None:
    transformers = pytest.importorskip("transformers")
    name, options = FITS[fit]
    square = {"height": size, "width": size}
    if fit != "square":
        options = {**options, "crop_size": square}
    shape = square if fit == "square" else {"shortest_edge": size}
    processor = getattr(transformers, name)(size=shape, **options)
    policy = tiling_from_processor(processor, embeddings_per_tile=1)
    assert policy == SingleTile(TileSpec.from_processor(processor, embeddings_per_tile=1), fit=fit)  # type: ignore[arg-type]
    for width_px, height_px in asked:
        rgb = smooth(width_px, height_px)
        tiles = policy.cut(rgb, policy.grid(width_px, height_px))
        assert distance(tiles, levels(processor, rgb)) <= 2, (width_px, height_px)


@pytest.mark.parametrize("fit", FITS)
def test_tiles_are_those_of_the_processor(fit: str) -> None:
    compare(fit, 60, sizes(1, tile=60, longest=320))


@pytest.mark.slow
@pytest.mark.parametrize("fit", FITS)
def test_tiles_of_large_pictures_are_those_of_the_processor(fit: str) -> None:
    thin = [(width_px, height_px) for width_px, height_px in sizes(2, tile=336, longest=4000, number=120)]
    compare(fit, 336, [size for size in thin if max(size) <= 250 * min(size)])


@pytest.mark.parametrize("fit", ["pad", "square", "crop", "keep"])
def test_one_tile_or_none(fit: str) -> None:
    policy = make_tiling("single", TileSpec(tile_size_px=28, embeddings_per_tile=4), fit=fit)
    assert policy.smaller(300, 20, 4) == ONE
    assert policy.smaller(300, 20, 3) is None


@pytest.mark.parametrize(
    ("width_px", "height_px", "inner"), [(90, 45, (60, 30)), (45, 90, (30, 60)), (60, 60, (60, 60))]
)
def test_keep_stands_at_the_top_left(width_px: int, height_px: int, inner: tuple[int, int]) -> None:
    rgb = smooth(width_px, height_px)
    policy = SingleTile(spec(), fit="keep", pad_color=(9, 8, 7))
    tile_HWC = policy.cut(rgb, ONE)[0].transpose(1, 2, 0)
    want = np.asarray(Image.fromarray(rgb).resize(inner, Image.Resampling.BICUBIC))
    assert np.array_equal(tile_HWC[: inner[1], : inner[0]], want)
    outside = np.ones((60, 60), dtype=bool)
    outside[: inner[1], : inner[0]] = False
    assert (tile_HWC[outside] == (9, 8, 7)).all()


@pytest.mark.parametrize("pad_color", ["mean", "background"])
def test_padding_is_centred_and_of_the_named_colour(pad_color: str) -> None:
    rgb = np.zeros((20, 60, 3), dtype=np.uint8)
    tile_HWC = make_tiling("single", spec(), fit="pad", pad_color=pad_color).cut(rgb, ONE)[0].transpose(1, 2, 0)
    color = {"mean": (122, 116, 104), "background": (255, 255, 255)}[pad_color]
    assert (tile_HWC[:20] == color).all()
    assert (tile_HWC[40:] == color).all()
    assert (tile_HWC[20:40] == 0).all()


@pytest.mark.parametrize(("width_px", "height_px"), [(5000, 700), (700, 5000)])
def test_a_large_picture_is_padded_as_its_square_would_be(width_px: int, height_px: int) -> None:
    rgb = np.asarray(Image.fromarray(smooth(40, 40)).resize((width_px, height_px)))
    square = Image.new("RGB", (5000, 5000), (122, 116, 104))
    square.paste(Image.fromarray(rgb), ((5000 - width_px) // 2, (5000 - height_px) // 2))
    want = np.asarray(square.resize((60, 60), Image.Resampling.BICUBIC)).astype(int)
    tile = SingleTile(spec(), fit="pad").cut(rgb, ONE)[0]
    assert np.abs(tile.transpose(1, 2, 0) - want).max() <= 2


@pytest.mark.parametrize("fit", ["pad", "square", "crop", "keep"])
@pytest.mark.parametrize(("width_px", "height_px"), [(200_000, 1), (1, 200_000)])
def test_a_line_of_pixels_makes_a_tile_without_making_its_square(fit: str, width_px: int, height_px: int) -> None:
    rgb = np.full((height_px, width_px, 3), 77, dtype=np.uint8)
    tile = make_tiling("single", spec(), fit=fit, pad_color="background").cut(rgb, ONE)
    assert tile.shape == (1, 3, 60, 60)
    assert abs(int(tile[0, 0, 0, 0]) - 77) <= 1 or fit == "pad"


@pytest.mark.parametrize("resample", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_the_named_filter_is_used(resample: str) -> None:
    rgb = smooth(97, 53)
    tile = SingleTile(spec(resample=resample), fit="square").cut(rgb, ONE)[0]
    want = np.asarray(Image.fromarray(rgb).resize((60, 60), Image.Resampling[resample.upper()]))
    assert np.array_equal(tile.transpose(1, 2, 0), want)
