"""How the pictures of the demo data are stored: sizes and formats that a decoder meets in real sets."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

from PIL import Image

from .packages import Cache, qt_resource

Photo = dict[str, Any]


def read_photo(photo: Photo, cache: Cache, opened: dict[str, Any]) -> Image.Image:
    """The photograph as its package has it. `opened` keeps what has been unpacked."""
    package, member = photo["package"], photo["member"]
    if package == "gcompris-qt-data":
        resource = member.split("/")[0]
        if resource not in opened:
            path = cache.debian(package) / f"usr/share/gcompris-qt/rcc/{resource}.rcc"
            opened[resource] = dict(qt_resource(path.read_bytes()))
        return Image.open(io.BytesIO(opened[resource][f"gcompris/src/activities/{member}"]))
    if package == "scikit-image":
        wheel: zipfile.ZipFile = opened.setdefault(package, cache.wheel(package))
        return Image.open(io.BytesIO(wheel.read(member)))
    return Image.open(cache.debian(package) / member)


def _flat(image: Image.Image) -> Image.Image:
    """RGB on white."""
    image = image.convert("RGBA")
    ground = Image.new("RGBA", image.size, "white")
    ground.alpha_composite(image)
    return ground.convert("RGB")


def store(image: Image.Image, form: str, path: Path, side_px: int | None = None) -> None:
    """Writes the picture as `form`, its longer side scaled to `side_px`.

    Forms: jpg, jpg-gray, jpg-exif (stored on its side, with the orientation tag that turns it upright), png,
    png-l, png-la, png-p (palette), png-rgba.
    """
    kind, _, mode = form.partition("-")
    alpha = mode in ("la", "rgba") or (mode == "p" and "A" in image.getbands())
    image = image.convert("RGBA") if alpha else _flat(image)
    if side_px:
        scale = side_px / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    if kind == "jpg":
        exif = Image.Exif()
        if mode == "gray":
            image = image.convert("L")
        if mode == "exif":
            image = image.transpose(Image.Transpose.ROTATE_90)
            exif[0x0112] = 6  # "turn by 90 degrees clockwise to show"
        image.save(path, "JPEG", quality=78, optimize=True, exif=exif)
        return
    if mode == "p":
        image = image.quantize(64, method=Image.Quantize.FASTOCTREE)
    elif mode in ("l", "la"):
        image = image.convert(mode.upper())
    image.save(path, "PNG", optimize=True)


def name_of(stem: str, form: str) -> str:
    """File name for a picture stored as `form`."""
    return f"{stem}.{form.partition('-')[0]}"
