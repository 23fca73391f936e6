"""Files compressed with gzip, unpacked beside the output so that any place in them can be read again."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path

from mmpack.errors import ConfigError
from mmpack.sources.json_files import GZIP_MAGIC

_CHUNK_BYTES = 1 << 14  # deflate makes at most 1,032 times as much of it


def is_gzip(path: Path) -> bool:
    """Whether the file at `path` is compressed with gzip.

    Raises:
        ConfigError: it is, and its name does not say so.
    """
    with path.open("rb") as file:
        if file.read(2) != GZIP_MAGIC:
            return False
    if path.suffix.lower() not in (".gz", ".tgz", ".gzip"):
        raise ConfigError(
            f"{path} looks gzip-compressed (it begins with gzip's magic bytes); unpack it, or give it a name in .gz"
        )
    return True


def unpack(path: Path, out: Path) -> str:
    """Writes what `path` holds to `out`, member after member; says why it ended early, or "".

    Raises:
        ConfigError: there is no room for it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("rb") as packed, out.open("wb") as plain:
            unpacker = zlib.decompressobj(wbits=31)
            while data := packed.read(_CHUNK_BYTES):
                while data:
                    if unpacker.eof:  # another member, or padding, or something else
                        data = data.lstrip(b"\0")
                        if not data:
                            break
                        if not data.startswith(GZIP_MAGIC[: len(data)]):
                            return "other data stands behind the gzip data"
                        unpacker = zlib.decompressobj(wbits=31)
                    try:
                        plain.write(unpacker.decompress(data))
                    except zlib.error as error:
                        return f"the gzip data is damaged ({error}); what stands before it was read"
                    data = unpacker.unused_data
            return "" if unpacker.eof else "the gzip data is cut; what stands before the cut was read"
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ConfigError(f"no room to unpack {path} to {out.parent}; unpack it elsewhere first") from None
        raise
