"""The folder of awkward files, refusals by the header, and files that are cut."""

from __future__ import annotations

import numpy as np
import pytest

from mmpack.errors import Reason, SampleError
from mmpack.images import decode_image, image_size
from tests.images.pictures import (
    CASES,
    EXPECTED,
    assert_near,
    case,
    quadrants,
    saved,
)


def test_every_file_has_its_expectation() -> None:
    assert {path.name for path in CASES.iterdir()} - {"expected.json", "README.md"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_file(name: str) -> None:
    data, want = case(name), EXPECTED[name]
    if "reason" in want:
        with pytest.raises(SampleError) as caught:
            decode_image(data)
        assert caught.value.reason == want["reason"]
        return
    rgb = decode_image(data)
    assert image_size(data) == tuple(want["size"])
    assert rgb.shape == (want["size"][1], want["size"][0], 3)
    assert rgb.dtype == np.uint8
    assert rgb.flags.c_contiguous
    assert rgb.flags.writeable
    for quadrant, color in want.get("quadrants", {}).items():
        assert_near(rgb, quadrant, color, want["tolerance"])


def test_grey_has_equal_channels_and_floats_are_not_black() -> None:
    grey = decode_image(case("jpeg_gray_64x64.jpg"))
    assert (grey == grey[:, :, :1]).all()
    assert decode_image(case("tiff_float32.tif")).max() >= 200


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (case("lfs_pointer.jpg"), Reason.NOT_AN_IMAGE, "LFS pointer"),
        (case("html_page.jpg"), Reason.NOT_AN_IMAGE, "HTML"),
        (case("svg_text.png"), Reason.NOT_AN_IMAGE, "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<svg/>", Reason.NOT_AN_IMAGE, "SVG"),
        (b'{"error": 404}', Reason.NOT_AN_IMAGE, "JSON"),
        (b"", Reason.NOT_AN_IMAGE, "empty"),
        (b"\x00" * 500, Reason.NOT_AN_IMAGE, "500 zero bytes"),
        (b"%PDF-1.7 ...", Reason.IMAGE_UNSUPPORTED, "PDF"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", Reason.IMAGE_UNSUPPORTED, "HEIC"),
        (b"\xff\xd8\xff", Reason.IMAGE_TRUNCATED, "JPEG header"),
        (case("ok_rgb_64x64.jpg")[:200], Reason.IMAGE_TRUNCATED, "JPEG header"),
        (case("ok_rgb_64x64.png")[:30], Reason.IMAGE_TRUNCATED, "PNG header"),
        (case("webp_truncated.webp")[:22], Reason.IMAGE_TRUNCATED, "WebP header"),
        (case("png_bomb_header_30000x30000.png"), Reason.IMAGE_TOO_LARGE, "900000000"),
        (case("png_bomb_12000x12000_1bit.png"), Reason.IMAGE_TOO_LARGE, "144000000"),
        (case("png_zero_width.png"), Reason.IMAGE_ZERO_SIZE, "0x16"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_the_header_alone_refuses(data: bytes, reason: Reason, words: str) -> None:
    for function in (image_size, decode_image):
        with pytest.raises(SampleError, match=words) as caught:
            function(data)
        assert caught.value.reason == reason


def test_lenient_returns_what_there_is() -> None:
    for name in ("jpeg_truncated_half.jpg", "jpeg_progressive_truncated.jpg", "png_truncated_data.png"):
        rgb = decode_image(case(name), lenient=True)
        assert rgb.shape[1::-1] == image_size(case(name))
        assert rgb.std() > 1, "nothing was decoded"
    whole = decode_image(case("ok_rgb_64x64.png"))
    assert np.array_equal(decode_image(case("ok_rgb_64x64.png"), lenient=True), whole)


def test_a_file_cut_anywhere_is_never_half_a_picture() -> None:
    reasons = set()
    for kind, options in (
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
    ):
        data = saved(quadrants(), kind, **options)
        whole = decode_image(data)
        for length in range(0, len(data), 7):
            try:
                rgb = decode_image(data[:length])
            except SampleError as error:
                reasons.add(error.reason)
            else:
                assert np.array_equal(rgb, whole), (kind, length)  # only bytes after the pixels were missing
    assert reasons <= {Reason.IMAGE_TRUNCATED, Reason.NOT_AN_IMAGE}
