"""Awkward files, their expected outcomes, and pictures made on the spot."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CASES = Path(__file__).parents[1] / "cases" / "images"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))
QUADRANTS = {"tl": (0.25, 0.25), "tr": (0.25, 0.75), "bl": (0.75, 0.25), "br": (0.75, 0.75)}
SMALL_CASES = [name for name in EXPECTED if "bomb" not in name and "huge" not in name]
COLORS = {"tl": (255, 0, 0), "tr": (0, 255, 0), "bl": (0, 0, 255), "br": (255, 255, 255)}


def case(name: str) -> bytes:
    return (CASES / name).read_bytes()


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def quadrants(width_px: int = 64, height_px: int = 32) -> Image.Image:
    """Red, green, blue and white quarters."""
    picture = Image.new("RGB", (width_px, height_px))
    for name, (y, x) in QUADRANTS.items():
        left, top = (0 if x < 0.5 else width_px // 2), (0 if y < 0.5 else height_px // 2)
        picture.paste(COLORS[name], (left, top, left + width_px // 2, top + height_px // 2))
    return picture


def at(rgb_HWC: np.ndarray, quadrant: str) -> list[int]:
    y, x = QUADRANTS[quadrant]
    return [int(v) for v in rgb_HWC[int(y * rgb_HWC.shape[0]), int(x * rgb_HWC.shape[1])]]


def assert_near(rgb_HWC: np.ndarray, quadrant: str, want: Any, tolerance: int) -> None:
    got = at(rgb_HWC, quadrant)
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= tolerance, (quadrant, got, want)


def with_orientation(value: int, kind: int = 3) -> bytes:
    """A minimal EXIF block whose only entry is the orientation, as a field of type `kind`."""
    body = struct.pack(">HHHI", 1, 0x0112, kind, 1)
    return (
        b"Exif\x00\x00MM\x00*"
        + struct.pack(">I", 8)
        + body
        + struct.pack(">H2x" if kind == 3 else ">I", value)
        + b"\0" * 4
    )


def insert_chunk(png: bytes, kind: bytes, payload: bytes, *, before: bytes = b"IDAT") -> bytes:
    chunk = struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))
    place = png.index(before) - 4
    return png[:place] + chunk + png[place:]


def insert_segment(jpeg: bytes, payload: bytes, marker: int = 0xE1) -> bytes:
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + jpeg[2:]
