"""Tiles with ``decode="fast"``: near Pillow's, from pictures that are decoded smaller where that loses nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmpack.errors import ConfigError
from mmpack.images import decode_image
from mmpack.tiling import TileSpec, make_tiling
from mmpack.tiling.pixels import resize
from tests.images.test_scaled import jpeg, photo

EXACT = TileSpec(tile_size_px=28, embeddings_per_tile=4)
FAST = replace(EXACT, decode="fast")
POLICIES = {
    "single": [{"fit": fit} for fit in ("pad", "square", "crop", "keep")],
    "dynamic": [{}],
    "anyres": [{"image_grid_pinpoints": ((28, 56), (56, 28), (56, 56), (84, 28))}],
    "native": [{}],
}
CASES = [(name, options) for name, found in POLICIES.items() for options in found]


def policy(name: str, spec: TileSpec, options: dict[str, Any]) -> Any:
    if name == "native":
        spec = replace(spec, tile_size_px=14, embeddings_per_tile=1)
    return make_tiling(name, spec, **options)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 120), st.integers(1, 120)),
    st.sampled_from(["bilinear", "bicubic"]),
    st.integers(0, 2**31),
)
def test_torch_resizes_as_pillow_does(source: tuple[int, int], target: tuple[int, int], name: str, seed: int) -> None:
    if name == "bilinear":
        picture = np.random.default_rng(seed).integers(0, 256, (*source, 3), dtype=np.uint8)
    else:  # of noise, bicubic leaves 0..255 between the axes, and the two take the axes in different orders
        picture = np.asarray(photo(*source))
    pillows, torchs = resize(picture, *target, name), resize(picture, *target, name, by_torch=True)
    assert torchs.dtype == np.uint8
    assert torchs.shape == pillows.shape
    assert np.abs(torchs.astype(int) - pillows.astype(int)).max() <= 2


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("size", [(50, 31), (28, 28), (90, 200), (1, 40), (57, 56)])
def test_pictures_that_are_not_reduced_give_nearly_the_same_tiles(
    name: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    exact, fast = policy(name, EXACT, options), policy(name, FAST, options)
    rgb = np.asarray(photo(*size))
    grid = exact.grid(*size)
    assert fast.grid(*size) == grid
    one, other = exact.cut(rgb, grid), fast.cut(rgb, grid)
    assert other.shape == one.shape
    assert other.flags.c_contiguous
    if options.get("fit") == "pad" and size[0] != size[1]:  # padded after resizing: up to half a pixel away
        assert np.abs(one.astype(int) - other.astype(int)).mean() < 10
        return
    far = np.abs(one.astype(int) - other.astype(int)) > 2
    assert far.mean() <= (0.02 if "fit" in options else 0)  # a sharp border may overshoot in one order of the axes only


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("size", [(640, 480), (333, 1000), (1200, 300), (61, 900)])
def test_a_reduced_picture_is_still_at_least_as_large_as_its_tiles_and_looks_alike(
    name: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    exact, fast = policy(name, EXACT, options), policy(name, FAST, options)
    data = jpeg(photo(*size, waves=False))
    grid = fast.grid(*size)
    part = fast.reduction(grid, *size)
    assert part in (1, 2, 4, 8)
    one = exact.cut(decode_image(data), grid)
    other = fast.cut(decode_image(data, reduction=part), grid)
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).mean() < 8


def test_the_largest_reduction_is_taken() -> None:
    tiling = policy("single", FAST, {"fit": "pad"})
    sides = {28: 1, 55: 1, 56: 2, 111: 2, 112: 4, 223: 4, 224: 8, 5000: 8}
    assert {side: tiling.reduction(tiling.grid(side, 10), side, 10) for side in sides} == sides
    assert policy("single", FAST, {"fit": "crop"}).reduction(tiling.grid(224, 60), 224, 60) == 2


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode='fats'; did you mean 'fast'"):
        replace(EXACT, decode="fats")


def test_a_batch_is_decoded_at_the_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmpack.batch.memory import on_heap
    from mmpack.collate import pictures

    asked: list[int] = []

    def spy(data: bytes, *, reduction: int, **options: Any) -> Any:
        asked.append(reduction)
        return decode_image(data, reduction=reduction, **options)

    monkeypatch.setattr(pictures, "decode_image", spy)
    from mmpack.sample import EncodedSample, Picture, PlannedPicture

    out = io.BytesIO()
    Image.fromarray(np.asarray(photo(640, 480))).save(out, "JPEG")
    for spec in (EXACT, FAST):
        tiling = policy("single", spec, {})
        grid = tiling.grid(640, 480)
        planned = PlannedPicture(
            picture=Picture(name="a.jpg", data=out.getvalue()), width_px=640, height_px=480, grid=grid, num_tokens=4
        )
        ids = np.array([5, -200, 7])
        sample = EncodedSample(
            key="a", source="s", token_ids_n=ids, trained_n=ids == 7, pictures=(planned,), num_tokens=6
        )
        pixels = pictures.Pixels([sample], tiling, on_heap)
        assert pixels.decode(sample) is sample
        assert pixels.tiles.shape == (1, 3, 28, 28)
    assert asked == [1, 8]


def test_the_task_encoder_passes_it_on(tokenizer: Any) -> None:
    from mmpack.datamodules import MultiModalTaskEncoder

    for decode, expected in ((None, "exact"), ("fast", "fast")):
        encoder = MultiModalTaskEncoder(
            tokenizer=tokenizer,
            image_processor=EXACT,
            packed_sequence_size=64,
            num_image_embeddings_per_tile=4,
            decode=decode,  # type: ignore[arg-type]
        )
        assert encoder.build_tiling().spec.decode == encoder.build_collator().tiling.spec.decode == expected
    with pytest.raises(ConfigError, match="decode='quick'"):
        replace(encoder, decode="quick")
