"""The pictures that a record names: found, read, and looked at."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mmpack.errors import Reason, SampleError
from mmpack.images import decode_image, image_size
from mmpack.readers.contract import MAX_PART_BYTES, FoundSample
from mmpack.sample import Picture
from mmpack.sources.inline import inline_picture, path_of, short_name

_TAIL_BYTES = 1 << 12


def find_picture(sample: FoundSample, name: str, image_root: Path) -> Picture:
    """The picture that a record calls `name`: held by its source, written into the record itself, or a file.

    Raises:
        SampleError: it is not there, too large, or no picture whose pixels can be read.
    """
    data = sample.read_picture(name)
    if data is None:
        data = inline_picture(name)
    if data is None:
        if sample.own_pictures:
            raise SampleError(Reason.IMAGE_MISSING, f"{name[:200]!r} is not in the source")
        data = _read(image_root, name)
    picture = Picture(name=short_name(name), data=data)
    try:
        image_size(data)
        if not seems_whole(data):
            decode_image(data)
    except SampleError as error:
        raise SampleError(error.reason, f"{picture.name[:200]}: {error.detail}") from None
    return picture


def _read(image_root: Path, name: str) -> bytes:
    root = os.path.abspath(image_root)
    inside = os.path.normpath(os.path.join(root, path_of(name)))
    if not inside.startswith(root.rstrip(os.sep) + os.sep):
        raise SampleError(Reason.IMAGE_MISSING, f"{name[:200]!r} leads out of the image folder")
    try:
        facts = os.stat(inside)
        if not stat.S_ISREG(facts.st_mode):  # reading a pipe would wait for ever
            raise SampleError(Reason.IMAGE_MISSING, f"{name[:200]!r} is not a file")
        if facts.st_size > MAX_PART_BYTES:
            detail = f"{name[:200]!r} has {facts.st_size} bytes; at most {MAX_PART_BYTES} are read"
            raise SampleError(Reason.IMAGE_TOO_LARGE, detail)
        return Path(inside).read_bytes()
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SampleError(Reason.IMAGE_MISSING, f"{name[:200]!r}: {what}") from None


def seems_whole(data: bytes) -> bool:
    """Whether a picture ends as its format says. If not, it is worth decoding: it may be cut.

    Of the rare formats nothing is known, so they are decoded. Damage in the middle of a file is not seen.

    >>> seems_whole(b"GIF89a" + bytes(20) + b";"), seems_whole(b"GIF89a" + bytes(20))
    (True, False)
    """
    if data.startswith(b"\xff\xd8"):
        return data.endswith(b"\xff\xd9") or data[-_TAIL_BYTES:].rstrip(b"\0").endswith(b"\xff\xd9")
    if data.startswith(b"\x89PNG"):
        return data.endswith(b"IEND\xaeB`\x82")
    if data.startswith(b"GIF8"):
        return data.endswith(b";")
    if data.startswith(b"RIFF"):
        return int.from_bytes(data[4:8], "little") + 8 <= len(data)
    if data.startswith(b"BM"):
        return int.from_bytes(data[2:6], "little") <= len(data)
    return False
