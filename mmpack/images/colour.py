"""Any mode that Pillow decodes to, as 8-bit RGB on a background."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmpack.errors import Reason, SampleError

RGB = tuple[int, int, int]

_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262
_WHITE_IS_ZERO = 0
_FLOAT_SLACK = 1e-4  # what rounding and ringing may add to values meant as 0..1


def to_rgb(picture: Image.Image, background: RGB) -> Image.Image:
    """`picture` as mode RGB: transparent parts show `background`, deep samples are scaled to 0..255.

    Raises:
        SampleError: IMAGE_UNSUPPORTED where the range of the samples is unknown (32-bit integers, floats outside
            0..1) or Pillow knows no way to RGB.
    """
    mode = picture.mode
    if mode.startswith("I;16"):
        return _from_16_bit(picture, background)
    if mode == "I":
        return _from_integers(picture)
    if mode == "F":
        return _from_floats(picture)
    if picture.has_transparency_data:
        return _composite(picture.convert("RGBA"), background)
    if mode == "RGB":
        return picture
    try:
        return picture.convert("RGB")
    except ValueError as error:
        raise SampleError(Reason.IMAGE_UNSUPPORTED, f"no way from colour mode {mode} to RGB") from error


def _composite(rgba: Image.Image, background: RGB) -> Image.Image:
    canvas = Image.new("RGB", rgba.size, background)
    canvas.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
    return canvas


def _grey(values_HW: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(values_HW).convert("RGB")


def _from_16_bit(picture: Image.Image, background: RGB) -> Image.Image:
    tags = getattr(picture, "tag_v2", {})
    bits = tags.get(_TIFF_BITS, 16)
    top = (1 << int(bits[0] if isinstance(bits, tuple) else bits)) - 1
    scale = np.rint(np.arange(65536).clip(0, top) * (255 / top)).astype(np.uint8)
    if tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO:
        scale = 255 - scale
    values_HW = np.asarray(picture).astype(np.uint16, copy=False)
    rgb = _grey(scale[values_HW])
    key = picture.info.get("transparency")
    if isinstance(key, int):
        mask = Image.fromarray(np.where(values_HW == key, 255, 0).astype(np.uint8))
        rgb.paste(background, mask=mask)
    return rgb


def _from_integers(picture: Image.Image) -> Image.Image:
    if picture.format != "PPM":  # Pillow scales Netpbm's deep samples to 0..65535; elsewhere the range is unknown
        raise SampleError(
            Reason.IMAGE_UNSUPPORTED, "32-bit integer samples, whose range is unknown; save as 8 or 16 bit"
        )
    values_HW = np.asarray(picture).clip(0, 65535)
    return _grey(np.rint(values_HW / 257).astype(np.uint8))


def _from_floats(picture: Image.Image) -> Image.Image:
    values_HW = np.asarray(picture)
    low, high = float(values_HW.min()), float(values_HW.max())
    if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # also catches NaN
        detail = f"float samples from {low:.3g} to {high:.3g}; 0..1 is read"
        raise SampleError(Reason.IMAGE_UNSUPPORTED, detail)
    return _grey(np.rint(values_HW.clip(0, 1) * 255).astype(np.uint8))
