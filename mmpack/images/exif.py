"""Orientation: how a stored picture must be turned to stand upright."""

from __future__ import annotations

import re

_ORIENTATION_TAG = 0x0112
_WHOLE_NUMBER_BYTES = {3: 2, 4: 4, 6: 1, 8: 2, 9: 4, 13: 4}  # by field type (TIFF 6.0, p. 15)
_IFD_ENTRY_BYTES = 12
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_EXIF_PREFIX = b"Exif\x00\x00"

UPRIGHT = 1
SWAPPED = frozenset({5, 6, 7, 8})  # orientations whose width and height trade places


def orientation(exif: bytes | None, xmp: bytes | None = None) -> int:
    """Orientation 1..8 from an EXIF block or, where that has no such tag, from an XMP packet; 1 if neither is sound.

    `exif` is a TIFF structure (EXIF 2.32, 4.5.2), with or without the ``Exif\\0\\0`` in front. A block that cannot be
    parsed is ignored: a picture is not lost for its metadata.

    >>> orientation(bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000"))
    6
    >>> orientation(b"Exif\\x00\\x00garbage"), orientation(None, b'<x tiff:Orientation="8"/>')
    (1, 8)
    """
    found = _from_exif(exif) if exif else None
    if found is None and xmp and (match := _XMP_ORIENTATION.search(xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else UPRIGHT


def _from_exif(exif: bytes) -> int | None:
    for _ in range(2):  # some writers put the prefix twice
        exif = exif.removeprefix(_EXIF_PREFIX)
    head = exif[:4]
    if head in (b"II*\x00", b"II\x00*"):
        little = True
    elif head in (b"MM\x00*", b"MM*\x00"):
        little = False
    else:
        return None
    directory = _number(exif, 4, 4, little)
    if directory + 2 > len(exif):
        return None
    num_entries = _number(exif, directory, 2, little)
    first = directory + 2
    last = min(first + num_entries * _IFD_ENTRY_BYTES, len(exif) - _IFD_ENTRY_BYTES + 1)
    for at in range(first, last, _IFD_ENTRY_BYTES):
        if _number(exif, at, 2, little) != _ORIENTATION_TAG:
            continue
        kind, count = _number(exif, at + 2, 2, little), _number(exif, at + 4, 4, little)
        size = _WHOLE_NUMBER_BYTES.get(kind, 0)
        if not size or not count:
            return UPRIGHT  # the tag is there but says nothing usable
        value_at = at + 8
        if size * count > 4:  # too long for the entry: the entry says where it is
            value_at = _number(exif, value_at, 4, little)
            if value_at + size * count > len(exif):
                return None
        return _number(exif, value_at, size, little)
    return None


def _number(data: bytes, at: int, size: int, little: bool) -> int:
    return int.from_bytes(data[at : at + size], "little" if little else "big")
