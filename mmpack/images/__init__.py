"""Pictures: their size from the header alone, and their pixels as upright RGB.

`image_size` is what planning asks; `decode_image` is called once a picture's pack has been chosen. Both read the
same header and the same orientation, so the size that was planned is the size that comes out. Pillow decodes, but
none of its process-wide switches (`Image.MAX_IMAGE_PIXELS`, `ImageFile.LOAD_TRUNCATED_IMAGES`) decides anything here.
"""

from __future__ import annotations

from mmpack.images.decode import decode_image
from mmpack.images.header import DEFAULT_MAX_PIXELS, image_size
from mmpack.tiling import resize

__all__ = ["DEFAULT_MAX_PIXELS", "decode_image", "image_size", "resize"]
