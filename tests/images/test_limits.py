"""The pixel limit, Pillow's switches, threads, memory, and any bytes at all."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from mmpack.errors import Reason, SampleError
from mmpack.images import decode_image, image_size, resize
from tests.images.pictures import (
    CASES,
    EXPECTED,
    SMALL_CASES,
    case,
    quadrants,
    saved,
)


def test_the_pixel_limit_is_exact_and_ours() -> None:
    data = saved(quadrants(), "PNG")
    assert image_size(data, max_pixels=2048) == (64, 32)
    for function in (image_size, decode_image):
        with pytest.raises(SampleError, match="64x32 px are 2048 pixels; max_pixels=2047"):
            function(data, max_pixels=2047)


def test_the_aspect_limit_is_for_both_directions() -> None:
    for size in ((64, 16), (16, 64)):
        data = saved(Image.new("RGB", size), "PNG")
        assert image_size(data, max_aspect=4) == size
        for function in (image_size, decode_image):
            with pytest.raises(SampleError, match=f"{size[0]}x{size[1]} px; max_aspect=3.9") as caught:
                function(data, max_aspect=3.9)
            assert caught.value.reason == Reason.IMAGE_ASPECT
    assert image_size(case("png_4000x1.png")) == (4000, 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM", "TIFF"])
def test_nothing_is_decoded_above_the_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(quadrants(), kind)

    def fail(*_: object) -> None:
        raise AssertionError("pixels were allocated")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert image_size(data) == (64, 32)
    with pytest.raises(SampleError, match="max_pixels=9"):
        decode_image(data, max_pixels=9)


def test_pillows_switches_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for kind in ("JPEG", "PNG"):
        assert decode_image(saved(quadrants(), kind)).shape == (32, 64, 3)
    for name in ("jpeg_truncated_half.jpg", "png_truncated_data.png"):
        with pytest.raises(SampleError) as caught:
            decode_image(case(name))
        assert caught.value.reason == Reason.IMAGE_TRUNCATED
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_many_threads_get_what_one_gets() -> None:
    files = [case(name) for name in SMALL_CASES]

    def outcome(data: bytes) -> object:
        try:
            return decode_image(data).tobytes()
        except SampleError as error:
            return str(error)

    alone = [outcome(data) for data in files]
    filters, names = list(warnings.filters), [t.name for t in threading.enumerate()]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(outcome, files * 5)) == alone * 5
    assert list(warnings.filters) == filters
    assert [t.name for t in threading.enumerate()] == names


def test_bombs_take_no_memory() -> None:
    code = (
        "import resource, sys\nfrom mmpack.errors import SampleError\nfrom mmpack.images import decode_image\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in sys.argv[1:]:\n    try: decode_image(open(name, 'rb').read())\n    except SampleError: pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    names = [str(CASES / name) for name in EXPECTED if "bomb" in name or "huge" in name]
    assert len(names) == 3
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 40, "MB"


def pillow_size(data: bytes) -> tuple[int, int] | None:
    """What Pillow makes of a file: the upright size, or nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as picture:
                return ImageOps.exif_transpose(picture).size
        except Exception:
            return None


def outcomes(data: bytes) -> tuple[object, object]:
    """(image_size, decoded size), each a size or the error's reason; any other exception escapes."""
    found: list[object] = []
    for function in (image_size, lambda d, **k: decode_image(d, **k).shape[1::-1]):
        try:
            found.append(function(data, max_pixels=300_000))
        except SampleError as error:
            found.append(error.reason)
    return found[0], found[1]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(
        [("JPEG", m) for m in ("L", "RGB", "CMYK")]
        + [("PNG", m) for m in ("1", "L", "P", "LA", "RGB", "RGBA", "I;16")]
        + [("WEBP", m) for m in ("RGB", "RGBA")]
        + [("GIF", "P"), ("BMP", "RGB"), ("TIFF", "RGB"), ("PPM", "L")]
    ),
    st.integers(0, 9),
)
def test_sizes_are_pillows(width_px: int, height_px: int, kind_mode: tuple[str, str], orientation: int) -> None:
    kind, mode = kind_mode
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    data = saved(Image.new(mode, (width_px, height_px)), kind, **options)
    want = pillow_size(data)
    assert want is not None
    assert outcomes(data) == (want, want)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from(
        [
            b"",
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a",
            b"BM",
            b"P6 ",
            b"qoif",
            b"RIFF\0\0\0\0WEBPVP8 ",
            b"RIFF\0\0\0\0WEBPVP8X",
            b"\0\0\0\x20ftypavif",
        ]
    ),
)
def test_random_bytes_only_ever_raise_sample_errors(noise: bytes, start: bytes) -> None:
    size, decoded = outcomes(start + noise)
    assert not isinstance(decoded, tuple) or decoded == size


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_give_pillows_size_or_a_sample_error(data: st.DataObject) -> None:
    names = [name for name in SMALL_CASES if not name.endswith(".tif")]  # libtiff complains on stderr by itself
    damaged = bytearray(case(data.draw(st.sampled_from(names))))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, min(len(damaged), 400) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    size, decoded = outcomes(bytes(damaged[:length]))
    if isinstance(decoded, tuple):
        assert decoded == size
        assert pillow_size(bytes(damaged[:length])) in (None, decoded)


def test_resize_is_pillows() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    want = np.asarray(Image.fromarray(rgb).resize((20, 50), Image.Resampling.BICUBIC))
    assert np.array_equal(resize(rgb, 20, 50, "bicubic"), want)
    assert np.array_equal(resize(rgb, 53, 37), rgb)


def test_bytes_of_any_kind() -> None:
    data = case("ok_rgb_64x64.png")
    assert image_size(memoryview(data)) == image_size(bytearray(data)) == (64, 64)  # type: ignore[arg-type]
    assert np.array_equal(decode_image(bytearray(data)), decode_image(data))  # type: ignore[arg-type]
