"""A picture's size and orientation from its header: no pixel is decoded, nothing of the picture's size allocated."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from mmpack.errors import Reason, SampleError
from mmpack.images.containers import (
    APP1,
    ARITHMETIC_FRAMES,
    FRAME_MARKERS,
    HUFFMAN_DCT_FRAMES,
    SOS,
    jpeg_segments,
    png_chunks,
    webp_chunks,
)
from mmpack.images.exif import SWAPPED, UPRIGHT, orientation
from mmpack.images.plugins import open_picture, sample_error
from mmpack.images.sniff import VIDEO, picture_format
from mmpack.images.video import video_header

DEFAULT_MAX_PIXELS = 89_478_485  # where Pillow begins to suspect a decompression bomb: 256 MB of RGB

_PNG_PIXEL_TYPES = frozenset(
    {(d, 0) for d in (1, 2, 4, 8, 16)} | {(d, 3) for d in (1, 2, 4, 8)} | {(d, c) for d in (8, 16) for c in (2, 4, 6)}
)
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MAX_TEXT_BYTES = 1 << 20  # no more of a compressed text is unpacked


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a picture's header says. Width and height are as stored, before it is turned upright."""

    format: str
    width_px: int
    height_px: int
    orientation: int = UPRIGHT  # 1..8, as EXIF counts
    depth: int = 8  # PNG: bits per sample
    colour: int = 2  # PNG: colour type
    channels: int = 3  # JPEG: 1, 3 or 4

    @property
    def upright_size(self) -> tuple[int, int]:
        """(width, height) once upright."""
        if self.orientation in SWAPPED:
            return self.height_px, self.width_px
        return self.width_px, self.height_px


def image_size(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, max_aspect: float | None = None
) -> tuple[int, int]:
    """Width and height in pixels of an upright picture, from its header alone.

    Args:
        data: the file's bytes.
        max_pixels: a picture of more is refused.
        max_aspect: a picture whose long side is more than so many times its short one is refused; None for no limit.

    Raises:
        SampleError: NOT_AN_IMAGE, IMAGE_UNSUPPORTED, IMAGE_ZERO_SIZE, IMAGE_TOO_LARGE, IMAGE_ASPECT, or
            IMAGE_TRUNCATED where the header itself is cut or damaged.
    """
    return read_header(data, max_pixels=max_pixels, max_aspect=max_aspect).upright_size


def read_header(data: bytes, *, max_pixels: int, max_aspect: float | None = None) -> Header:
    """The checked header of a picture. Raises as `image_size` does."""
    data = bytes(data)  # the same object if it is bytes
    name = picture_format(data)
    if name == "JPEG":
        header = _jpeg(data)
    elif name == "PNG":
        header = _png(data)
    elif name == "WEBP":
        header = _webp(data)
    elif name == VIDEO:
        film = video_header(data)
        header = Header(format=name, width_px=film.width_px, height_px=film.height_px)
    else:
        header = _by_pillow(data, name)
    check_size(header.width_px, header.height_px, max_pixels)
    sides = sorted(header.upright_size)
    if max_aspect is not None and sides[1] > max_aspect * sides[0]:
        detail = f"{header.width_px}x{header.height_px} px; max_aspect={max_aspect:g}"
        raise SampleError(Reason.IMAGE_ASPECT, detail)
    return header


def check_size(width_px: int, height_px: int, max_pixels: int) -> None:
    """Raises SampleError for a picture without pixels, or with more than `max_pixels`."""
    if width_px <= 0 or height_px <= 0:
        raise SampleError(Reason.IMAGE_ZERO_SIZE, f"the header says {width_px}x{height_px} px")
    if width_px * height_px > max_pixels:
        raise SampleError(
            Reason.IMAGE_TOO_LARGE,
            f"{width_px}x{height_px} px are {width_px * height_px} pixels; max_pixels={max_pixels}",
        )


def _cut(what: str) -> SampleError:
    return SampleError(Reason.IMAGE_TRUNCATED, f"the {what} header is cut or damaged")


def _jpeg(data: bytes) -> Header:
    """Size from the frame header (ITU-T T.81, B.2.2), orientation from APP1."""
    frame: tuple[int, int, int] | None = None
    marker = 0
    exif = xmp = b""
    for marker, start, end in jpeg_segments(data):
        if marker in FRAME_MARKERS:
            if end - start < 6:
                raise _cut("JPEG")
            bits, height_px, width_px, num_channels = struct.unpack_from(">BHHB", data, start)
            if bits != 8 or num_channels not in (1, 3, 4):
                detail = f"JPEG of {num_channels} channels of {bits} bits; 1, 3 or 4 of 8 are read"
                raise SampleError(Reason.IMAGE_UNSUPPORTED, detail)
            if marker not in HUFFMAN_DCT_FRAMES and marker not in ARITHMETIC_FRAMES:
                detail = (
                    f"JPEG of process {marker - 0xC0} (lossless or hierarchical); baseline and progressive are read"
                )
                raise SampleError(Reason.IMAGE_UNSUPPORTED, detail)
            frame = width_px, height_px, num_channels
        elif marker == APP1:
            if data.startswith(b"Exif\x00\x00", start):
                exif += data[start + 6 : end]  # long blocks are continued in further segments
            elif data.startswith(b"http://ns.adobe.com/xap/1.0/\x00", start):
                xmp = data[start:end]
    if frame is None or marker != SOS:
        raise _cut("JPEG")
    turned = orientation(exif, xmp) if exif or xmp else UPRIGHT
    return Header(format="JPEG", width_px=frame[0], height_px=frame[1], channels=frame[2], orientation=turned)


def _png(data: bytes) -> Header:
    """Size from IHDR (PNG 11.2.2), orientation from eXIf, wherever it stands, or the texts that tools write it to."""
    if len(data) < 33:
        raise _cut("PNG")
    if data[8:16] != b"\x00\x00\x00\rIHDR":
        raise SampleError(Reason.IMAGE_UNSUPPORTED, f"a PNG that begins with {data[12:16]!r} instead of IHDR")
    width_px, height_px, depth, colour, _, filtering, _, crc = struct.unpack_from(">IIBBBBBI", data, 16)
    if crc != zlib.crc32(data[12:29]):
        raise _cut("PNG")
    if (depth, colour) not in _PNG_PIXEL_TYPES or filtering:
        raise SampleError(Reason.IMAGE_UNSUPPORTED, f"PNG of colour type {colour} with {depth} bits a sample")
    exif = profile = xmp = b""
    for kind, start, length in png_chunks(data):
        if kind == b"IDAT":
            continue
        if kind == b"eXIf":
            exif = data[start : start + length]
        elif kind in _PNG_TEXTS:
            if data.startswith(b"Raw profile type exif\x00", start):
                profile = _profile_bytes(_png_text(kind, data[start : start + length]))
            elif data.startswith(b"XML:com.adobe.xmp\x00", start):
                xmp = _png_text(kind, data[start : start + length])
    exif = exif or profile
    turned = orientation(exif, xmp) if exif or xmp else UPRIGHT
    return Header(format="PNG", width_px=width_px, height_px=height_px, orientation=turned, depth=depth, colour=colour)


def _png_text(kind: bytes, payload: bytes) -> bytes:
    """The text of a tEXt, zTXt or iTXt chunk (PNG 11.3.3), the first megabyte of a compressed one; empty if broken."""
    text = payload.partition(b"\x00")[2]
    compressed = kind == b"zTXt"
    if kind == b"iTXt":
        compressed = text[:1] != b"\x00"
        text = text[2:].partition(b"\x00")[2].partition(b"\x00")[2]  # after language and translated keyword
    elif compressed:
        text = text[1:]
    if not compressed:
        return text
    try:
        return zlib.decompressobj().decompress(text, _MAX_TEXT_BYTES)
    except zlib.error:
        return b""


def _profile_bytes(text: bytes) -> bytes:
    """The block that ImageMagick writes as hexadecimal lines after a name and a length; empty if it is not one."""
    try:
        return bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:]))
    except ValueError:
        return b""


def _webp(data: bytes) -> Header:
    """Size from the first chunk of a WebP container (RFC 9649, 2.5 to 2.7)."""
    if len(data) < 30 and data[12:16] != b"VP8L":
        raise _cut("WebP")
    kind = data[12:16]
    exif = xmp = b""
    if kind == b"VP8X":
        width_px = 1 + int.from_bytes(data[24:27], "little")
        height_px = 1 + int.from_bytes(data[27:30], "little")
        has_exif, has_xmp = data[20] & 0x08, data[20] & 0x04
        for chunk, payload in webp_chunks(data) if has_exif or has_xmp else ():
            if chunk == b"EXIF" and has_exif:
                exif = exif or payload
            elif chunk == b"XMP " and has_xmp:
                xmp = xmp or payload
    elif kind == b"VP8L":
        if len(data) < 25 or data[20] != 0x2F:
            raise _cut("WebP")
        bits = int.from_bytes(data[21:25], "little")
        width_px, height_px = 1 + (bits & 0x3FFF), 1 + ((bits >> 14) & 0x3FFF)
    elif kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise _cut("WebP")
        width_px = int.from_bytes(data[26:28], "little") & 0x3FFF
        height_px = int.from_bytes(data[28:30], "little") & 0x3FFF
    else:
        raise SampleError(Reason.IMAGE_UNSUPPORTED, f"a WebP that begins with {kind!r}")
    return Header(format="WEBP", width_px=width_px, height_px=height_px, orientation=orientation(exif, xmp))


def _by_pillow(data: bytes, name: str) -> Header:
    """The rarer formats, whose files Pillow opens without decoding."""
    try:
        with open_picture(data, name) as picture:
            turned = UPRIGHT
            if name != "TIFF":  # Pillow turns TIFF pictures upright itself
                try:
                    turned = picture.getexif().get(0x0112, UPRIGHT)
                except Exception:
                    turned = UPRIGHT  # broken metadata is ignored
            if turned not in range(1, 9):
                turned = UPRIGHT
            width_px, height_px = picture.size
    except Exception as error:
        raise sample_error(error, name) from error
    return Header(format=name, width_px=width_px, height_px=height_px, orientation=turned)
