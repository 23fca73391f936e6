"""JPEG, the format of nearly all large pictures: decoded by libjpeg-turbo, smaller if smaller is wanted.

Scaling by 1/2, 1/4 or 1/8 happens inside the inverse cosine transform, which then has less to do. Other eighths have no
fast path in libjpeg-turbo and take longer than the whole picture.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

REDUCTIONS = (8, 4, 2, 1)


def reduced(side_px: int, reduction: int) -> int:
    """Pixels of a side that is decoded at one `reduction`-th, as libjpeg rounds: up.

    >>> reduced(481, 2), reduced(7, 8)
    (241, 1)
    """
    return -(-side_px // reduction)


def decode_jpeg(data: bytes, width_px: int, height_px: int, reduction: int) -> NDArray[np.uint8] | None:
    """Pixels (H, W, 3) of a JPEG of that stored size, not yet turned upright; bit for bit Pillow's.

    None if the package ``simplejpeg`` is not installed, or does not like the file: Pillow knows what to say of it.
    """
    library = _simplejpeg()
    if library is None:
        return None
    wanted = (reduced(height_px, reduction), reduced(width_px, reduction), 3)
    try:
        rgb: NDArray[np.uint8] = library.decode_jpeg(data, "RGB", min_height=wanted[0], min_width=wanted[1])
    except (ValueError, MemoryError):
        return None
    return rgb if rgb.shape == wanted else None


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
