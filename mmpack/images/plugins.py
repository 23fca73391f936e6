"""Pillow's decoders, called one by one: its global limits, format guessing and warnings stay out of it."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image, ImageFile

from mmpack.errors import Reason, SampleError

# The class that reads each format. Going through it instead of Image.open takes the first picture of a two-picture
# JPEG, never guesses, and checks no limit but ours.
_PLUGINS = {
    "JPEG": "JpegImagePlugin:JpegImageFile",
    "PNG": "PngImagePlugin:PngImageFile",
    "WEBP": "WebPImagePlugin:WebPImageFile",
    "GIF": "GifImagePlugin:GifImageFile",
    "BMP": "BmpImagePlugin:BmpImageFile",
    "TIFF": "TiffImagePlugin:TiffImageFile",
    "PPM": "PpmImagePlugin:PpmImageFile",
    "JPEG2000": "Jpeg2KImagePlugin:Jpeg2KImageFile",
    "AVIF": "AvifImagePlugin:AvifImageFile",
    "QOI": "QoiImagePlugin:QoiImageFile",
}
_SILENT = frozenset({"JPEG", "PNG", "WEBP"})  # without metadata these never warn

_warning_lock = threading.RLock()  # warnings.catch_warnings swaps process-wide state
_strict_lock = threading.Lock()
_strict_users = 0
_strict_saved = False


@contextmanager
def open_picture(data: bytes, name: str) -> Iterator[ImageFile.ImageFile]:
    """An unloaded picture of format `name`, with Pillow's warnings held back while it is open."""
    module, _, attribute = _PLUGINS[name].partition(":")
    plugin: type[ImageFile.ImageFile] = getattr(importlib.import_module(f"PIL.{module}"), attribute)
    if name in _SILENT:
        yield plugin(BytesIO(data), "")
        return
    with _warning_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield plugin(BytesIO(data), "")


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Makes Pillow raise on cut files even in a process that has set `ImageFile.LOAD_TRUNCATED_IMAGES`.

    The flag is Pillow's only switch and global, so it is lowered while at least one thread decodes, and put back
    by the last. Where nobody has raised it, nothing is touched.
    """
    global _strict_users, _strict_saved
    with _strict_lock:
        if _strict_users == 0:
            _strict_saved = ImageFile.LOAD_TRUNCATED_IMAGES
            if _strict_saved:
                ImageFile.LOAD_TRUNCATED_IMAGES = False
        _strict_users += 1
    try:
        yield
    finally:
        with _strict_lock:
            _strict_users -= 1
            if _strict_users == 0 and _strict_saved:
                ImageFile.LOAD_TRUNCATED_IMAGES = True


def sample_error(error: Exception, name: str) -> SampleError:
    """The SampleError that stands for what Pillow raised on a file of format `name`."""
    if isinstance(error, SampleError):
        return error
    text = f"{name}: {type(error).__name__}: {str(error)[:120]}"
    if isinstance(error, (MemoryError, Image.DecompressionBombError)):
        return SampleError(Reason.IMAGE_TOO_LARGE, text)
    words = str(error).lower()
    if "not identified by this driver" in words:  # Pillow's answer to a side of 0
        return SampleError(Reason.IMAGE_ZERO_SIZE, f"a {name} header without a usable size")
    if isinstance(error, (ImportError, NotImplementedError)) or any(
        word in words for word in ("unsupported", "not supported", "unknown pixel", "support not installed")
    ):
        return SampleError(Reason.IMAGE_UNSUPPORTED, text)
    return SampleError(Reason.IMAGE_TRUNCATED, f"cut or damaged {text}")
