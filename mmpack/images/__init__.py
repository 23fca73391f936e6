"""Pictures: their size from the header alone, and their pixels as upright RGB.

`image_size` is what planning asks; `decode_image` is called once a picture's pack has been chosen. Both read the
same header and the same orientation, so the size that was planned is the size that comes out. Pillow decodes, but its
process-wide switches (`Image.MAX_IMAGE_PIXELS`, `ImageFile.LOAD_TRUNCATED_IMAGES`) decide nothing here, with one
exception: Pillow's WebP, GIF and TIFF readers refuse pictures of more than twice `Image.MAX_IMAGE_PIXELS` by
themselves, which counts as IMAGE_TOO_LARGE; raise that switch too where `max_pixels` is set above 178 million.
"""

from __future__ import annotations

from mmpack.images.decode import decode_image
from mmpack.images.header import DEFAULT_MAX_PIXELS, check_size, image_size
from mmpack.images.sniff import image_extension, video_format
from mmpack.images.video import VideoFrame, check_video_frames, frame_indices, video_header
from mmpack.tiling import resize

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "VideoFrame",
    "check_size",
    "check_video_frames",
    "decode_image",
    "frame_indices",
    "image_extension",
    "image_size",
    "resize",
    "video_format",
    "video_header",
]
