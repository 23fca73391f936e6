"""Every mode and every way to be transparent comes out as 8-bit RGB."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmpack.errors import Reason, SampleError
from mmpack.images import decode_image, image_size
from tests.images.pictures import (
    COLORS,
    assert_near,
    insert_chunk,
    quadrants,
    saved,
)


def ramp(mode: str) -> Image.Image:
    grey = Image.linear_gradient("L").resize((40, 24))
    if mode in ("I;16", "F", "I"):
        values = np.asarray(grey).astype(np.float32) / 255
        return Image.fromarray((values * 65535).astype(np.uint16) if mode == "I;16" else values)
    rgb = Image.merge("RGB", (grey, grey.transpose(Image.Transpose.ROTATE_180), grey))
    return grey.convert(mode) if mode in ("1", "L", "LA") else rgb.convert(mode)


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        *[(mode, "PNG", {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")],
        *[(mode, "TIFF", {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "F")],
        *[("RGB", "TIFF", {"compression": c}) for c in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")],
        *[(mode, "JPEG", {"quality": 100, "subsampling": 0}) for mode in ("L", "RGB", "CMYK")],
        ("RGB", "JPEG", {"progressive": True, "quality": 100, "subsampling": 0}),
        *[(mode, "BMP", {}) for mode in ("1", "L", "P", "RGB", "RGBA")],
        *[(mode, "GIF", {}) for mode in ("1", "L", "P")],
        *[(mode, "PPM", {}) for mode in ("1", "L", "RGB", "I;16")],
        ("RGB", "WEBP", {"lossless": True}),
        ("RGB", "JPEG2000", {}),
        ("RGB", "QOI", {}),
    ],
)
def test_every_mode_is_8_bit_rgb(mode: str, kind: str, options: dict[str, Any]) -> None:
    picture = ramp(mode)
    data = saved(picture, kind, **options)
    if mode in ("I;16", "F"):
        top = 65535 if mode == "I;16" else 1
        grey = np.rint(np.asarray(picture).astype(np.float64) / top * 255).astype(np.uint8)
        want = np.repeat(grey[:, :, None], 3, axis=2)
    else:
        want = np.asarray(picture.convert("RGB"))
    got = decode_image(data)
    assert image_size(data) == (40, 24)
    lossy = kind == "JPEG" or options.get("compression") == "jpeg" or mode == "YCbCr"
    assert np.abs(got.astype(int) - want).max() <= (40 if options.get("compression") == "jpeg" else 6 if lossy else 1)


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (Image.fromarray(np.full((4, 4), 1000.0, dtype=np.float32)), "TIFF"),
        (Image.fromarray(np.full((4, 4), np.nan, dtype=np.float32)), "TIFF"),
        (Image.fromarray(np.full((4, 4), 70000, dtype=np.int32)), "TIFF"),
    ],
)
def test_samples_of_unknown_range_are_refused(picture: Image.Image, kind: str) -> None:
    with pytest.raises(SampleError) as caught:
        decode_image(saved(picture, kind))
    assert caught.value.reason == Reason.IMAGE_UNSUPPORTED


def raw_png(width_px: int, depth: int, colour: int, rows: list[bytes], *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand, for pixel types that Pillow does not write."""
    header = struct.pack(">IIBBBBB", width_px, len(rows), depth, colour, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        *chunks,
        (b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
        (b"IEND", b""),
    ]
    body = b"".join(struct.pack(">I", len(p)) + k + p + struct.pack(">I", zlib.crc32(k + p)) for k, p in parts)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("png", "want"),
    [
        (raw_png(2, 1, 0, [b"\x40"], (b"tRNS", b"\0\1")), [[0, 0, 0], [9, 8, 7]]),
        (raw_png(2, 1, 0, [b"\x40"], (b"tRNS", b"\0\0")), [[9, 8, 7], [255, 255, 255]]),
        (raw_png(4, 2, 0, [b"\x1b"], (b"tRNS", b"\0\2")), [[0] * 3, [85] * 3, [9, 8, 7], [255] * 3]),
        (raw_png(2, 4, 0, [b"\x3c"], (b"tRNS", b"\0\x0c")), [[51] * 3, [9, 8, 7]]),
        (raw_png(2, 8, 0, [b"\x30\x31"], (b"tRNS", b"\0\x31")), [[48] * 3, [9, 8, 7]]),
        (raw_png(2, 16, 0, [b"\x80\x00\xff\xfe"], (b"tRNS", b"\xff\xfe")), [[128] * 3, [9, 8, 7]]),
        (raw_png(2, 8, 2, [b"\1\2\3\4\5\6"], (b"tRNS", b"\0\4\0\5\0\6")), [[1, 2, 3], [9, 8, 7]]),
        (raw_png(2, 16, 2, [b"\1\0\2\0\3\0\4\7\5\7\6\7"], (b"tRNS", b"\4\7\5\7\6\7")), [[1, 2, 3], [9, 8, 7]]),
        (raw_png(1, 16, 4, [b"\x12\x34\0\0"]), [[9, 8, 7]]),
        (raw_png(1, 16, 6, [b"\x12\x34\x56\x78\x9a\xbc\xff\xff"]), [[0x12, 0x56, 0x9A]]),
        (raw_png(2, 8, 0, [b"\x30\x31"], (b"tRNS", b"\0")), [[48] * 3, [49] * 3]),
        (raw_png(2, 8, 3, [b"\0\1"], (b"PLTE", b"\1\2\3\4\5\6"), (b"tRNS", b"\xff\0")), [[1, 2, 3], [9, 8, 7]]),
        (raw_png(2, 1, 3, [b"\x40"], (b"PLTE", b"\1\2\3\4\5\6"), (b"tRNS", b"\0")), [[9, 8, 7], [4, 5, 6]]),
    ],
)
def test_transparency_of_png(png: bytes, want: list[list[int]]) -> None:
    assert decode_image(png, background=(9, 8, 7))[0].tolist() == want


def test_half_transparent_is_mixed_with_the_background() -> None:
    data = saved(Image.new("RGBA", (3, 3), (200, 0, 100, 128)), "PNG")
    for background in ((255, 255, 255), (0, 0, 0), (10, 20, 30)):
        want = [(c * 128 + b * 127) / 255 for c, b in zip((200, 0, 100), background, strict=True)]
        assert decode_image(data, background=background)[1, 1] == pytest.approx(want, abs=1)


def test_white_is_zero_and_few_bits_in_tiff() -> None:
    values = np.array([[0, 65535, 0x8000]], dtype=np.uint16)
    data = saved(Image.fromarray(values), "TIFF", tiffinfo={262: 0})
    assert decode_image(data)[0, :, 0].tolist() == [255, 0, 127]


def test_cmyk_is_read_in_adobes_sense() -> None:
    data = saved(quadrants().convert("CMYK"), "JPEG", quality=95)
    for quadrant, color in COLORS.items():
        assert_near(decode_image(data), quadrant, color, 20)


def test_bmp_from_the_top_down() -> None:
    bmp = bytearray(saved(quadrants(), "BMP"))
    rows = np.frombuffer(bytes(bmp[54:]), dtype=np.uint8).reshape(32, -1)[::-1].tobytes()
    bmp[22:26] = struct.pack("<i", -32)
    data = bytes(bmp[:54]) + rows
    assert image_size(data) == (64, 32)
    assert np.array_equal(decode_image(data), np.asarray(quadrants()))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_the_first_picture_of_several(kind: str) -> None:
    frames = [Image.new("RGB", (30, 20), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    rgb = decode_image(data)
    assert rgb.shape == (20, 30, 3)
    assert np.abs(rgb.astype(int) - (250, 0, 0)).max() <= 6


def test_metadata_of_png_is_not_read() -> None:
    png = saved(quadrants(), "PNG")
    for kind, payload in (
        (b"iCCP", b"x\0\0broken"),
        (b"gAMA", b"\0"),
        (b"acTL", b"\0"),
        (b"fcTL", b"\0" * 26),
        (b"tEXt", b""),
    ):
        assert np.array_equal(decode_image(insert_chunk(png, kind, payload)), np.asarray(quadrants())), kind
    damaged = insert_chunk(png, b"tEXt", b"key\0value").replace(
        b"key\0value", b"key\0VALUE"
    )  # its checksum is wrong now
    assert np.array_equal(decode_image(damaged), np.asarray(quadrants()))
