"""tiling_from_processor: which policy a processor of transformers gives, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.tiling import TileSpec, TilingPolicy, check_follows, tiling_from_processor
from mmpack.tiling.anyres import AnyresTiles
from mmpack.tiling.dynamic import DynamicTiles
from mmpack.tiling.native import NativePatches
from mmpack.tiling.single import SingleTile

SQUARE = {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}}
PINPOINTS = [[42, 84], [84, 84]]


def build(name: str, **options: Any) -> Any:
    return getattr(pytest.importorskip("transformers"), name)(**options)


def tiling(processor: Any, **options: Any) -> TilingPolicy:
    return tiling_from_processor(processor, **({"embeddings_per_tile": 9} | options))


def test_llava_next() -> None:
    processor = build("LlavaNextImageProcessorPil", image_grid_pinpoints=PINPOINTS, **SQUARE)
    policy = tiling(processor)
    assert policy == AnyresTiles(TileSpec.from_processor(processor, embeddings_per_tile=9), ((42, 84), (84, 84)))
    assert policy.spec.tile_size_px == 42
    assert tiling(processor, image_grid_pinpoints=[[42, 42]]).grid(80, 80).num_tiles == 2
    assert tiling(processor, name="anyres") == policy


def test_qwen2_vl() -> None:
    processor = build("Qwen2VLImageProcessorPil", patch_size=16, merge_size=3, min_pixels=5000, max_pixels=90_000)
    policy = tiling(processor)
    spec = TileSpec.from_processor(processor, embeddings_per_tile=1)
    assert spec.tile_size_px == 16
    assert policy == NativePatches(spec, merge_size=3, min_pixels=5000, max_pixels=90_000)
    assert tiling(processor, max_pixels=50_000) == NativePatches(spec, merge_size=3, min_pixels=5000, max_pixels=50_000)
    default = tiling(build("Qwen2VLImageProcessorPil"))
    assert isinstance(default, NativePatches)
    assert default == NativePatches(default.spec)
    assert (default.patch_size, default.merge_size, default.temporal_patch_size) == (14, 2, 2)


@pytest.mark.parametrize(
    ("name", "options", "fit"),
    [
        ("CLIPImageProcessorPil", SQUARE, "crop"),
        ("LlavaImageProcessorPil", SQUARE, "crop"),
        ("LlavaImageProcessorPil", {**SQUARE, "do_pad": True}, "pad"),
        ("SiglipImageProcessorPil", {"size": {"height": 42, "width": 42}}, "square"),
        ("GotOcr2ImageProcessorPil", {"size": {"height": 42, "width": 42}}, "square"),
    ],
)
def test_plain_processors_give_a_single_tile(name: str, options: dict[str, Any], fit: str) -> None:
    processor = build(name, **options)
    policy = tiling(processor)
    assert isinstance(policy, SingleTile)
    assert (policy.fit, policy.spec.tile_size_px, policy.spec.embeddings_per_tile) == (fit, 42, 9)
    assert tiling(processor, name="single") == SingleTile(policy.spec)
    assert tiling(processor, fit="keep") == SingleTile(policy.spec, fit="keep")
    assert tiling(processor, name="dynamic", max_tiles=3) == DynamicTiles(policy.spec, max_tiles=3)


def test_internvl() -> None:
    processor = build("GotOcr2ImageProcessorPil", size={"height": 42, "width": 42}, crop_to_patches=True, max_patches=6)
    policy = tiling(processor)
    assert policy == DynamicTiles(policy.spec, max_tiles=6)


def test_a_processor_with_a_rule_of_its_own_is_not_guessed() -> None:
    onevision = build("LlavaOnevisionImageProcessorPil", size={"height": 384, "width": 384})
    with pytest.raises(ConfigError, match=r"LlavaOnevisionImageProcessorPil .* may count otherwise; .* name='anyres'"):
        tiling(onevision)
    with pytest.raises(ConfigError, match=r"Glm4vImageProcessorPil .* name='native'"):
        tiling(build("Glm4vImageProcessorPil"))
    assert isinstance(tiling(onevision, name="anyres", image_grid_pinpoints=[[384, 768]]), AnyresTiles)


@pytest.mark.parametrize(
    ("name", "options", "changed", "hint"),
    [
        ("Qwen2VLImageProcessorPil", {}, {"name": "single"}, "cuts patches of native resolution; tiling 'single'"),
        ("CLIPImageProcessorPil", SQUARE, {"name": "native"}, "has no patch_size and merge_size; tiling 'native'"),
        ("CLIPImageProcessorPil", SQUARE, {"name": "anyress"}, "did you mean 'anyres'"),
        ("CLIPImageProcessorPil", SQUARE, {"max_tiles": 3}, "tiling 'single' has no option 'max_tiles'"),
        ("Qwen2VLImageProcessorPil", {"do_resize": False}, {}, "do_resize is False"),
        ("LlavaNextImageProcessorPil", SQUARE, {}, r"image_grid_pinpoints has .* multiples of the tile's 42 px"),
        ("LlavaNextImageProcessorPil", {**SQUARE, "size": {"shortest_edge": 56}}, {}, "differ; anyres tiles are never"),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, options: dict[str, Any], changed: dict[str, Any], hint: str
) -> None:
    if name == "LlavaNextImageProcessorPil":
        options = {**options, "image_grid_pinpoints": [[42, 80]]}
    with pytest.raises(ConfigError, match=hint):
        tiling(build(name, **options), **changed)


def test_pinpoints_must_be_a_list() -> None:
    fake = SimpleNamespace(size=42, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3, image_grid_pinpoints=7)
    with pytest.raises(ConfigError, match="image_grid_pinpoints is 7"):
        tiling(fake, name="anyres")


@pytest.mark.parametrize(
    ("name", "options", "met"),
    [
        ("CLIPImageProcessorPil", {**SQUARE, "size": {"shortest_edge": 48}}, "pixels differ"),
        ("CLIPImageProcessorPil", {**SQUARE, "size": {"height": 42, "width": 42}}, "pixels differ"),
        ("CLIPImageProcessorPil", {**SQUARE, "do_resize": False}, "pixels differ"),
        ("CLIPImageProcessorPil", {**SQUARE, "do_center_crop": False}, "array of shape"),
        ("Idefics2ImageProcessorPil", {}, "pixels differ"),
        ("MllamaImageProcessorPil", {}, "array of shape"),
        ("PixtralImageProcessorPil", {"size": {"longest_edge": 64}}, "array of shape"),
        ("SmolVLMImageProcessorPil", {}, "array of shape"),
        ("DeepseekOcr2ImageProcessorPil", {"size": {"height": 64, "width": 64}}, "array of shape|pixels differ"),
    ],
)
def test_a_processor_that_no_policy_follows_is_refused_not_imitated(
    name: str, options: dict[str, Any], met: str
) -> None:
    processor = build(name, **options)
    with pytest.raises(ConfigError, match=rf"{name} would be followed .*({met}).* choose a tiling by name"):
        tiling(processor)
    assert isinstance(tiling(processor, name="single"), SingleTile)


def test_a_tile_that_is_padded_is_compared_on_squares_only() -> None:
    crops = build("CLIPImageProcessorPil", **SQUARE)
    padded = tiling(crops, name="single")
    check_follows(crops, padded, square_only=True)
    with pytest.raises(ConfigError, match="pixels differ"):
        check_follows(crops, padded)
    larger = build("CLIPImageProcessorPil", **{**SQUARE, "size": {"shortest_edge": 84}})
    with pytest.raises(ConfigError, match="61x61 px otherwise: its pixels differ"):
        check_follows(larger, tiling(larger, name="single"), square_only=True)


def test_a_processor_that_cannot_be_called_is_taken_at_its_word() -> None:
    fake = SimpleNamespace(size=42, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3, do_center_crop=True)
    assert tiling(fake) == SingleTile(TileSpec.from_processor(fake, embeddings_per_tile=9), fit="crop")
