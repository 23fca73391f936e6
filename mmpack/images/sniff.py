"""What a file is by its content; its name says nothing."""

from __future__ import annotations

from mmpack.errors import Reason, SampleError

VIDEO = "VIDEO"

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"qoif", "QOI"),
)
_NETPBM = tuple(
    b"P" + kind + space for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"f") for space in (b" ", b"\n", b"\r", b"\t")
)
_KNOWN_BUT_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"%!PS", "a PostScript file"),
    (b"8BPS", "a Photoshop file"),
    (b"\x00\x00\x01\x00", "a Windows icon"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (b"DDS ", "a DirectDraw texture"),
    (b"\x76\x2f\x31\x01", "an OpenEXR picture"),
    (b"#?RADIANCE", "a Radiance HDR picture"),
)
_AVIF_BRANDS = (b"avif", b"avis")
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_QUICKTIME_BRANDS = (b"qt  ",)
_MP4_BRANDS = (
    b"isom", b"iso2", b"iso4", b"iso5", b"iso6", b"mp41", b"mp42", b"avc1", b"dash", b"M4V ", b"MSNV",
    b"3gp4", b"3gp5", b"3gp6", b"mmp4", b"f4v ",
)  # fmt: skip
_ADVICE = "convert it to JPEG, PNG or WebP"
_LOOK_BYTES = 1024  # how far into a text the sniffing looks


def video_format(data: bytes) -> str | None:
    """The usual file name extension of a video, by its content; None for anything else.

    >>> video_format(b"\\x00\\x00\\x00\\x20ftypisom"), video_format(b"GIF89a")
    ('mp4', None)
    """
    if data[4:8] == b"ftyp":
        return {**dict.fromkeys(_MP4_BRANDS, "mp4"), **dict.fromkeys(_QUICKTIME_BRANDS, "mov")}.get(bytes(data[8:12]))
    if data[:4] == b"\x1aE\xdf\xa3":
        return "webm" if b"webm" in data[:64] else "mkv"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


def picture_format(data: bytes) -> str:
    """The picture's format: JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, JPEG2000, AVIF or QOI; VIDEO for a film.

    Raises:
        SampleError: NOT_AN_IMAGE, or IMAGE_UNSUPPORTED for a picture of a kind that is not read.

    >>> picture_format(b"GIF89a......")
    'GIF'
    """
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith(_NETPBM):
        return "PPM"
    if data[4:8] == b"ftyp":
        if data[8:12] in _AVIF_BRANDS:
            return "AVIF"
        if data[8:12] in _HEIF_BRANDS:
            # an AVIF may name a general brand first and its own among the compatible ones
            brands = data[16 : min(int.from_bytes(data[:4], "big"), 256)]
            if any(brand in brands for brand in _AVIF_BRANDS):
                return "AVIF"
            raise SampleError(Reason.IMAGE_UNSUPPORTED, f"a HEIC picture; {_ADVICE}")
    if video_format(data) is not None:
        return VIDEO
    for signature, what in _KNOWN_BUT_REFUSED:
        if data.startswith(signature):
            raise SampleError(Reason.IMAGE_UNSUPPORTED, f"{what}; {_ADVICE}")
    raise SampleError(Reason.NOT_AN_IMAGE, f"{_what_it_is(data)} instead of a picture")


def _what_it_is(data: bytes) -> str:
    """In words, what stands where a picture should be."""
    if not data:
        return "an empty file"
    if not data.strip(b"\x00"):
        return f"{len(data)} zero bytes"
    text = data[:_LOOK_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs.github.com/"):
        return "a Git LFS pointer (run 'git lfs pull' to get the file itself)"
    if b"<svg" in text and text.startswith(b"<"):
        return "an SVG text (render it to PNG first)"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if text.startswith(b"<?xml"):
        return "an XML text"
    if text.startswith((b"{", b"[")):
        return "a JSON text"
    return f"{len(data)} bytes of no known picture format"


_EXTENSIONS = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}


def image_extension(data: bytes) -> str:
    """The usual file name extension for what `data` is, in lower case. Raises SampleError as `picture_format` does.

    >>> image_extension(b"GIF89a......")
    'gif'
    """
    name = picture_format(data)
    if name == VIDEO:
        return video_format(data) or "mp4"
    return _EXTENSIONS.get(name, name.lower())
