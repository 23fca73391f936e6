"""A picture's pixels: upright, RGB, uint8, whole or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from mmpack.errors import Reason, SampleError
from mmpack.images.colour import RGB, to_rgb
from mmpack.images.containers import lean_jpeg, lean_png
from mmpack.images.header import DEFAULT_MAX_PIXELS, Header, check_size, read_header
from mmpack.images.plugins import open_picture, sample_error, strict_pillow

_END_OF_JPEG = b"\xff\xd9"
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(
    data: bytes,
    *,
    background: RGB = (255, 255, 255),
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_aspect: float | None = None,
    lenient: bool = False,
) -> NDArray[np.uint8]:
    """The pixels (H, W, 3) uint8 of a picture: upright, RGB, transparent parts on `background`.

    The format is found by content. An animation or a file of several pictures gives its first one. Metadata other
    than orientation is ignored, broken or not. Any number of threads may call it.

    Args:
        data: the file's bytes.
        background: what shows through where the picture is transparent.
        max_pixels: a picture of more is refused from its header, before anything is allocated.
        max_aspect: as in `image_size`.
        lenient: of a file whose pixels are cut, return what there is, the rest grey or black.

    Raises:
        SampleError: as `image_size`, and IMAGE_TRUNCATED for cut or damaged pixels, IMAGE_UNSUPPORTED for samples
            that cannot be shown as RGB without guessing.
    """
    data = bytes(data)  # the same object if it is bytes
    header = read_header(data, max_pixels=max_pixels, max_aspect=max_aspect)
    try:
        with strict_pillow():
            rgb = _decode(data, header, background, max_pixels, lenient)
        rgb_HWC = np.array(rgb)  # a copy, so that it can be written to
    except Exception as error:
        raise sample_error(error, header.format) from error
    width_px, height_px = header.upright_size
    if rgb_HWC.shape != (height_px, width_px, 3):
        decoded = f"{rgb_HWC.shape[1]}x{rgb_HWC.shape[0]}"
        raise SampleError(Reason.IMAGE_TRUNCATED, f"decoded to {decoded}, the header says {width_px}x{height_px}")
    return rgb_HWC


def _decode(data: bytes, header: Header, background: RGB, max_pixels: int, lenient: bool) -> Image.Image:
    if header.format == "JPEG":
        data = lean_jpeg(data)
        if lenient:
            data += _END_OF_JPEG  # lets the decoder finish a picture that is cut
    elif header.format == "PNG":
        data = lean_png(data, header.depth, header.colour)
    with open_picture(data, header.format) as picture:
        check_size(*picture.size, max_pixels)
        _load(picture, lenient)
        rgb = to_rgb(picture, background)
    turn = _TURN.get(header.orientation)
    return rgb if turn is None else rgb.transpose(turn)


def _load(picture: ImageFile.ImageFile, lenient: bool) -> None:
    try:
        picture.load()
    except (OSError, SyntaxError):
        if not lenient or getattr(picture, "_im", None) is None:
            raise
        picture.tile = []  # keeps the rows that were decoded
