"""SingleTile against Pillow and against the transformers processors whose rules it follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmpack.sample import TileGrid
from mmpack.tiling import TileSpec, make_tiling
from mmpack.tiling.single import SingleTile

ONE = TileGrid(columns=1, rows=1)
SIZES = [(640, 480), (480, 640), (97, 31), (31, 97), (336, 336), (20, 20), (1000, 37), (37, 1000), (1, 25)]


def smooth(width_px: int, height_px: int) -> np.ndarray:
    """A picture with structure at several scales, noise included."""
    rng = np.random.default_rng(width_px * 10007 + height_px)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width_px, height_px))
    noise = rng.integers(-30, 30, (height_px, width_px, 3))
    return (np.asarray(coarse).astype(int) + noise).clip(0, 255).astype(np.uint8)


def levels(processor: Any, rgb_HWC: np.ndarray) -> np.ndarray:
    """The processor's tile before normalisation: (3, S, S) grey levels."""
    values = processor(Image.fromarray(rgb_HWC), do_rescale=False, do_normalize=False, return_tensors="np")
    return np.asarray(values["pixel_values"][0], dtype=int)


def spec(size: int = 60, resample: str = "bicubic") -> TileSpec:
    clip_mean = (0.48145466, 0.4578275, 0.40821073)
    return TileSpec(tile_size_px=size, embeddings_per_tile=1, mean=clip_mean, std=(0.3, 0.3, 0.3), resample=resample)


@pytest.mark.parametrize(("width_px", "height_px"), SIZES)
def test_crop_is_clips(width_px: int, height_px: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 60}, crop_size={"height": 60, "width": 60})
    rgb = smooth(width_px, height_px)
    tile = SingleTile(TileSpec.from_processor(processor, embeddings_per_tile=1), fit="crop").cut(rgb, ONE)[0]
    assert np.abs(tile.astype(int) - levels(processor, rgb)).max() <= 2


@pytest.mark.parametrize(("width_px", "height_px"), SIZES)
def test_pad_is_llavas(width_px: int, height_px: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.LlavaImageProcessorPil(
        size={"shortest_edge": 60}, crop_size={"height": 60, "width": 60}, do_pad=True
    )
    rgb = smooth(width_px, height_px)
    tile = SingleTile(TileSpec.from_processor(processor, embeddings_per_tile=1)).cut(rgb, ONE)[0]
    assert np.abs(tile.astype(int) - levels(processor, rgb)).max() <= 2


@pytest.mark.parametrize(("width_px", "height_px"), SIZES)
def test_square_is_siglips(width_px: int, height_px: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.SiglipImageProcessorPil(size={"height": 60, "width": 60})
    rgb = smooth(width_px, height_px)
    policy = make_tiling("single", TileSpec.from_processor(processor, embeddings_per_tile=1), fit="square")
    assert np.abs(policy.cut(rgb, ONE)[0].astype(int) - levels(processor, rgb)).max() <= 2


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
