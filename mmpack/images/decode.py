"""A picture's pixels: upright, RGB, uint8, whole or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from mmpack.errors import Reason, SampleError
from mmpack.images.colour import RGB, to_rgb
from mmpack.images.containers import lean_jpeg, lean_png
from mmpack.images.exif import SWAPPED
from mmpack.images.header import DEFAULT_MAX_PIXELS, Header, check_size, read_header
from mmpack.images.plugins import open_picture, sample_error, strict_pillow
from mmpack.images.scaled import decode_jpeg, reduced
from mmpack.images.sniff import VIDEO
from mmpack.images.video import decode_frame, video_header

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
# steps through rows and columns, once they have changed places in 5 to 8
_FLIPS = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}


def decode_image(
    data: bytes,
    *,
    background: RGB = (255, 255, 255),
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_aspect: float | None = None,
    lenient: bool = False,
    reduction: int = 1,
) -> NDArray[np.uint8]:
    """The pixels (H, W, 3) uint8 of a picture: upright, RGB, transparent parts on `background`.

    The format is found by content. An animation, a film or a file of several pictures gives its first one. Metadata
    other than orientation is ignored, broken or not. Any number of threads may call it.

    Args:
        data: the file's bytes.
        background: what shows through where the picture is transparent.
        max_pixels: a picture of more is refused from its header, before anything is allocated.
        max_aspect: as in `image_size`.
        lenient: of a file whose pixels are cut, return what there is, the rest grey or black.
        reduction: 2, 4 or 8 decodes a JPEG at that part of its size, sides rounded up, which is faster; other
            formats ignore it.

    Raises:
        SampleError: as `image_size`, and IMAGE_TRUNCATED for cut or damaged pixels, IMAGE_UNSUPPORTED for samples
            that cannot be shown as RGB without guessing.
    """
    data = bytes(data)  # the same object if it is bytes
    header = read_header(data, max_pixels=max_pixels, max_aspect=max_aspect)
    if header.format == VIDEO:
        return decode_frame(data, 0, video_header(data))
    try:
        with strict_pillow():
            rgb_HWC = _decode(data, header, background, max_pixels, lenient, reduction)
    except Exception as error:
        raise sample_error(error, header.format) from error
    width_px, height_px = header.upright_size
    if header.format == "JPEG":
        width_px, height_px = reduced(width_px, reduction), reduced(height_px, reduction)
    if rgb_HWC.shape != (height_px, width_px, 3):
        decoded = f"{rgb_HWC.shape[1]}x{rgb_HWC.shape[0]}"
        raise SampleError(Reason.IMAGE_TRUNCATED, f"decoded to {decoded}, the header says {width_px}x{height_px}")
    return rgb_HWC


def _decode(
    data: bytes, header: Header, background: RGB, max_pixels: int, lenient: bool, reduction: int
) -> NDArray[np.uint8]:
    if header.format == "JPEG":
        if not lenient and header.channels != 4:  # what CMYK and its inversions mean is for `to_rgb` to say
            rgb_HWC = decode_jpeg(data, header.width_px, header.height_px, reduction)
            if rgb_HWC is not None:
                return upright(rgb_HWC, header.orientation)
        data = lean_jpeg(data)
        if lenient:
            data += _END_OF_JPEG  # lets the decoder finish a picture that is cut
    elif header.format == "PNG":
        data = lean_png(data, header.depth, header.colour)
    with open_picture(data, header.format) as picture:
        check_size(*picture.size, max_pixels)
        if header.format == "JPEG" and reduction > 1:
            picture.draft(None, (header.width_px // reduction, header.height_px // reduction))
        _load(picture, lenient)
        rgb = to_rgb(picture, background)
    turn = _TURN.get(header.orientation)
    return np.array(rgb if turn is None else rgb.transpose(turn))  # a copy, so that it can be written to


def upright(rgb_HWC: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """A picture turned as EXIF's `orientation`, 1 to 8, says, contiguous."""
    if orientation in SWAPPED:
        rgb_HWC = rgb_HWC.transpose(1, 0, 2)
    flip_rows, flip_columns = _FLIPS.get(orientation, (1, 1))
    return np.ascontiguousarray(rgb_HWC[::flip_rows, ::flip_columns])


def _load(picture: ImageFile.ImageFile, lenient: bool) -> None:
    try:
        picture.load()
    except (OSError, SyntaxError):
        if not lenient or getattr(picture, "_im", None) is None:
            raise
        picture.tile = []  # keeps the rows that were decoded
