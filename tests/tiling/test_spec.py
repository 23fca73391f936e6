"""TileSpec: what it refuses, and what it reads out of transformers image processors."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmpack.errors import ConfigError
from mmpack.tiling import TileSpec, resize


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"tile_size_px": 0}, "tile_size_px=0"),
        ({"tile_size_px": 3.5}, "tile_size_px=3.5"),
        ({"embeddings_per_tile": -1}, "embeddings_per_tile=-1"),
        ({"mean": (0.1, 0.2)}, "mean="),
        ({"mean": "abc"}, "mean="),
        ({"std": (1.0, 0.0, 1.0)}, "std="),
        ({"mean": (123.7, 116.3, 103.5)}, "these look like 0 to 255; divide them by 255"),
        ({"std": (58.4, 57.1, 57.4)}, "these look like 0 to 255"),
        ({"resample": "bicubik"}, "did you mean 'bicubic'"),
        ({"background": (0, 0, 256)}, "background="),
        ({"background": "white"}, "background="),
    ],
)
def test_values_that_cannot_work(changed: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        TileSpec(**{"tile_size_px": 14, "embeddings_per_tile": 1, **changed})


def test_lists_become_tuples() -> None:
    spec = TileSpec(tile_size_px=14, embeddings_per_tile=1, mean=[0, 1, 0], background=[1, 2, 3])  # type: ignore[arg-type]
    assert spec.mean == (0.0, 1.0, 0.0)
    assert spec.background == (1, 2, 3)
    assert hash(spec)


def processors() -> list[tuple[Any, int, str]]:
    import transformers as t

    return [
        (t.CLIPImageProcessorPil(), 224, "bicubic"),
        (t.CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}), 336, "bicubic"),
        (t.CLIPImageProcessorPil(size={"shortest_edge": 300}, crop_size=280), 280, "bicubic"),
        (t.CLIPImageProcessorPil(size={"height": 96, "width": 96}, do_center_crop=False, resample=2), 96, "bilinear"),
        (t.SiglipImageProcessorPil(size={"height": 384, "width": 384}), 384, "bicubic"),
        (t.LlavaImageProcessorPil(size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42}), 42, "bicubic"),
        (
            t.LlavaNextImageProcessorPil(size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42}),
            42,
            "bicubic",
        ),
        (t.Qwen2VLImageProcessorPil(patch_size=16, resample=2), 16, "bilinear"),
    ]


def test_processors_of_transformers() -> None:
    pytest.importorskip("transformers")
    for processor, size, resample in processors():
        spec = TileSpec.from_processor(processor, embeddings_per_tile=7)
        assert (spec.tile_size_px, spec.resample, spec.embeddings_per_tile) == (size, resample, 7), processor
        assert spec.mean == pytest.approx(tuple(processor.image_mean))
        assert spec.std == pytest.approx(tuple(processor.image_std))


@pytest.mark.parametrize(
    "changed",
    [{}, {"rescale_factor": 1 / 127.5}, {"do_rescale": False}, {"do_normalize": False}, {"rescale_factor": 1 / 256}],
    ids=str,
)
def test_normalising_by_the_spec_is_what_the_processor_does(changed: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    size = {"height": 8, "width": 8}
    processor = transformers.CLIPImageProcessorPil(size=size, crop_size=size, **changed)
    spec = TileSpec.from_processor(processor, embeddings_per_tile=1)
    rgb = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    want = np.asarray(processor(rgb, return_tensors="np", input_data_format="channels_last")["pixel_values"][0])
    got = (rgb / 255 - np.array(spec.mean)) / np.array(spec.std)
    assert got.transpose(2, 0, 1) == pytest.approx(want, rel=1e-5, abs=1e-5)


def fake(**changed: Any) -> SimpleNamespace:
    whole = {"size": {"height": 8, "width": 8}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    return SimpleNamespace(**{**whole, **changed})


def test_a_processor_by_its_attributes_alone() -> None:
    assert TileSpec.from_processor(fake(), embeddings_per_tile=1).tile_size_px == 8
    assert TileSpec.from_processor(fake(size=9), embeddings_per_tile=1).tile_size_px == 9
    by_object = fake(crop_size=SimpleNamespace(height=5, width=5))
    assert TileSpec.from_processor(by_object, embeddings_per_tile=1).tile_size_px == 5


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"size": None}, "size is None: no tile size"),
        ({"size": {"min_pixels": 3}}, "no tile size"),
        ({"size": {"height": 8, "width": 9}}, "9x8 px; tiles are square"),
        ({"image_mean": None}, "image_mean=None"),
        ({"image_std": [1, 2]}, "image_std="),
        ({"resample": None}, "resample is None"),
        ({"resample": 17}, "resample is 17"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        TileSpec.from_processor(fake(**changed), embeddings_per_tile=1)


def test_resize_refuses_what_it_cannot_do() -> None:
    rgb = np.zeros((4, 4, 3), dtype=np.uint8)
    with pytest.raises(ConfigError, match="0x4 px"):
        resize(rgb, 0, 4)
    with pytest.raises(ConfigError, match="bilinear"):
        resize(rgb, 4, 4, "bilinar")


def test_nothing_heavy_is_imported() -> None:
    ours = ", ".join(f"mmpack.tiling.{name}" for name in ("single", "dynamic", "anyres", "native"))
    code = f"import sys, mmpack.images, {ours}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
