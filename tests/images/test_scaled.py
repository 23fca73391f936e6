"""JPEGs through libjpeg-turbo: Pillow's pixels bit for bit, or a part of the size that Pillow's own scaling gives."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmpack.errors import Reason, SampleError
from mmpack.images import decode, decode_image, scaled
from mmpack.images.scaled import decode_jpeg, reduced


def photo(width_px: int, height_px: int, mode: str = "RGB", *, waves: bool = True) -> Image.Image:
    """Smooth with some detail, as photographs are; without `waves` smooth at any size."""
    x, y = np.meshgrid(np.arange(width_px), np.arange(height_px))
    channels = [127 + 120 * np.sin(3 * x / width_px + 2 * y / height_px + k) for k in range(3)]
    if waves:
        channels = [127 + 90 * np.sin(x / 17 + k) * np.cos(y / 23) + 20 * np.sin((x + 2 * y) / 7) for k in range(3)]
    return Image.fromarray(np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)).convert(mode)


def jpeg(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", **{"quality": 92, **options})
    return out.getvalue()


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


@pytest.fixture(params=["simplejpeg", "pillow"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(scaled, "_simplejpeg", lambda: None)
    return str(request.param)


KINDS = [
    {},
    {"subsampling": 0},
    {"progressive": True},
    {"quality": 30, "optimize": True},
]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("size", [(64, 48), (63, 47), (1, 1), (9, 200), (160, 33)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_whole_picture_is_pillows_bit_for_bit(options: dict, size: tuple[int, int], mode: str, library: str) -> None:
    data = jpeg(photo(*size, mode), **options)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode_image(data), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_reduced_pictures_stand_upright_and_look_like_the_whole(orientation: int, reduction: int, library: str) -> None:
    data = jpeg(photo(208, 120), exif=exif(orientation))
    whole = decode_image(data)
    small = decode_image(data, reduction=reduction)
    assert small.shape == (reduced(whole.shape[0], reduction), reduced(whole.shape[1], reduction), 3)
    assert small.flags.c_contiguous
    assert small.flags.writeable
    padded = np.pad(whole, [(0, -whole.shape[0] % reduction), (0, -whole.shape[1] % reduction), (0, 0)], mode="edge")
    blocks = padded.reshape(small.shape[0], reduction, small.shape[1], reduction, 3).mean(axis=(1, 3))
    assert np.abs(small[:-1, :-1].astype(float) - blocks[:-1, :-1]).mean() < 3


def test_both_libraries_reduce_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    data = jpeg(photo(333, 250))
    ours = [decode_image(data, reduction=r) for r in (2, 4, 8)]
    monkeypatch.setattr(scaled, "_simplejpeg", lambda: None)
    pillows = [decode_image(data, reduction=r) for r in (2, 4, 8)]
    for one, other in zip(ours, pillows, strict=True):
        assert np.array_equal(one, other)


def test_other_formats_and_cmyk_come_whole_or_by_pillow(library: str) -> None:
    out = io.BytesIO()
    photo(40, 30).save(out, "PNG")
    assert decode_image(out.getvalue(), reduction=4).shape == (30, 40, 3)
    cmyk = jpeg(photo(40, 30).convert("CMYK"))
    assert decode_image(cmyk).shape == (30, 40, 3)
    assert decode_image(cmyk, reduction=2).shape == (15, 20, 3)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_cut_picture_is_lost_as_pillow_says(kept: float, library: str) -> None:
    data = jpeg(photo(300, 200))
    data = data[: int(kept * len(data))]
    for reduction in (1, 2):
        with pytest.raises(SampleError) as caught:
            decode_image(data, reduction=reduction)
        assert caught.value.reason is Reason.IMAGE_TRUNCATED
        assert decode_image(data, lenient=True).shape == (200, 300, 3)


def test_what_simplejpeg_does_not_like_is_left_to_pillow() -> None:
    pytest.importorskip("simplejpeg")
    data = jpeg(photo(30, 20))
    assert decode_jpeg(data[: len(data) // 2], 30, 20, 1) is None
    assert decode_jpeg(data, 31, 20, 1) is None
    junk = data[:-2] + b"\x00\x00\x11" + data[-2:]  # bytes that belong to nothing before the end: Pillow bears them
    assert np.array_equal(decode_image(junk), decode_image(data))


def test_turning_arrays_is_turning_pictures() -> None:
    stored = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    for orientation, transpose in decode._TURN.items():
        turned = np.asarray(Image.fromarray(stored).transpose(transpose))
        assert np.array_equal(decode.upright(stored, orientation), turned)
