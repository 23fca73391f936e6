"""The chunks and segments that JPEG, PNG and WebP files are made of, and the same files without their metadata.

Pillow parses metadata eagerly, and a broken colour profile, EXIF block or text chunk can make it warn, allocate or
fail although the pixels are sound. Pixels are therefore decoded from a `lean` copy; what matters of the metadata
(orientation, transparency) is read here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

# JPEG markers, ITU-T T.81 table B.1
SOS = 0xDA
FRAME_MARKERS = frozenset({*range(0xC0, 0xD0), 0xDE}) - {0xC4, 0xC8, 0xCC}
HUFFMAN_DCT_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
ARITHMETIC_FRAMES = frozenset({0xC9, 0xCA})
APP0, APP1, APP2, APP14, COM = 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
_WITHOUT_LENGTH = frozenset({0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)})
_JPEG_METADATA = (frozenset(range(0xE0, 0xF0)) | {COM}) - {APP0, APP14}  # these two decide the colour transform

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start of payload, end of payload) of each segment of a JPEG up to and with the first start of scan.

    Bytes that belong to no segment are stepped over, as decoders do. Ends without a start of scan if the file does.
    """
    size = len(data)
    at = 2
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= size:
            return
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        at += 2
        if marker == 0 or marker in _WITHOUT_LENGTH:
            continue
        if marker < 0xC0 or at + 2 > size:
            return
        end = at + max((data[at] << 8) | data[at + 1], 2)
        if end > size:
            return
        yield marker, at + 2, end
        if marker == SOS:
            return
        at = end


def lean_jpeg(data: bytes) -> bytes:
    """The JPEG `data` without comments and application segments, except JFIF's and Adobe's."""
    parts = [b"\xff\xd8"]
    for marker, start, end in jpeg_segments(data):
        if marker == SOS:
            parts.append(data[start - 4 :])
            return b"".join(parts)
        if marker not in _JPEG_METADATA:
            parts.append(data[start - 4 : end])
    return data


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of payload, length) of each whole chunk of a PNG, up to a chunk that is cut or to IEND."""
    at = len(PNG_SIGNATURE)
    size = len(data)
    while at + 12 <= size:
        length = int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        if at + 12 + length > size:
            return
        yield kind, at + 8, length
        if kind == b"IEND":
            return
        at += 12 + length


def lean_png(data: bytes, depth: int, colour: int) -> bytes:
    """The PNG `data` with only header, palette, transparency and pixels: of an animation, its default picture.

    A colour key is brought to the scale of the 8-bit samples that Pillow delivers: 2- and 4-bit grey is stretched
    to 0..255, 16-bit RGB is cut to its high bytes.
    """
    parts = [PNG_SIGNATURE]
    at = len(PNG_SIGNATURE)
    for kind, start, length in png_chunks(data):
        at = start + length + 4
        if kind == b"tRNS":
            parts.append(_png_transparency(data[start : start + length], depth, colour))
        elif kind in _PNG_PIXELS:
            parts.append(data[start - 8 : at])
    if data[at + 4 : at + 8] == b"IDAT":
        parts.append(data[at:])  # a chunk of pixels that is cut: what there is of it
    return b"".join(parts)


def _png_transparency(payload: bytes, depth: int, colour: int) -> bytes:
    """The tRNS chunk, whole. One that is too short for its colour type is left out."""
    if colour in (0, 2):
        num_samples = 1 if colour == 0 else 3
        if len(payload) < 2 * num_samples:
            return b""
        key = struct.unpack_from(f">{num_samples}H", payload)
        if colour == 0 and depth in (2, 4):
            key = tuple((value & ((1 << depth) - 1)) * 255 // ((1 << depth) - 1) for value in key)
        elif colour == 2 and depth == 16:
            key = tuple(value >> 8 for value in key)
        payload = struct.pack(f">{num_samples}H", *key)
    body = b"tRNS" + payload
    return struct.pack(">I", len(payload)) + body + struct.pack(">I", zlib.crc32(body))


def webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, payload) of each whole chunk of a WebP file."""
    at = 12
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + length > len(data):
            return
        yield data[at : at + 4], data[at + 8 : at + 8 + length]
        at += 8 + length + (length & 1)
