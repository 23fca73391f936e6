"""Pictures are turned upright as Pillow turns them, and broken EXIF is ignored."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

from mmpack.images import decode_image, image_size
from tests.images.pictures import (
    insert_chunk,
    insert_segment,
    quadrants,
    saved,
    with_orientation,
)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"quality": 95}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("AVIF", {})],
)
def test_orientation_is_applied_as_pillow_does(kind: str, options: dict[str, Any], orientation: int) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow is built without AVIF")
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "a maker whose name is longer than four bytes"
    data = saved(quadrants(), kind, exif=exif.tobytes() if kind != "TIFF" else exif, **options)
    with Image.open(io.BytesIO(data)) as picture:
        want = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    assert image_size(data) == want.shape[1::-1]
    assert np.array_equal(decode_image(data), want)


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.mark.parametrize(
    "data",
    [
        insert_chunk(saved(quadrants(), "PNG"), b"eXIf", with_orientation(6)[6:], before=b"IEND"),
        insert_chunk(saved(quadrants(), "PNG"), b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP),
        insert_chunk(saved(quadrants(), "PNG"), b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP)),
        insert_chunk(
            saved(quadrants(), "PNG"),
            b"zTXt",
            b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n 40\n" + with_orientation(6).hex().encode()),
        ),
        insert_segment(saved(quadrants(), "JPEG"), b"http://ns.adobe.com/xap/1.0/\0" + XMP),
        insert_segment(saved(quadrants(), "JPEG"), with_orientation(6, kind=4)),
        insert_segment(saved(quadrants(), "JPEG"), b"Exif\0\0" + with_orientation(6)),
    ],
    ids=["eXIf at the end", "XMP", "packed XMP", "raw profile", "JPEG XMP", "a long", "prefix twice"],
)
def test_orientation_in_unusual_places(data: bytes) -> None:
    with Image.open(io.BytesIO(data)) as picture:
        assert ImageOps.exif_transpose(picture).size == (32, 64)
    assert image_size(data) == (32, 64)
    assert decode_image(data).shape == (64, 32, 3)


@given(st.binary(max_size=80), st.booleans(), st.integers(0, 60))
def test_broken_exif_never_loses_a_picture(noise: bytes, sound_start: bool, cut: int) -> None:
    block = (with_orientation(6)[:cut] + noise) if sound_start else b"Exif\0\0" + noise
    data = insert_segment(saved(quadrants(), "JPEG"), block)
    assert decode_image(data).shape[1::-1] == image_size(data)
