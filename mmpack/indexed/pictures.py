"""Pictures by name: files below a folder, or members of a tar file. Only bytes are read."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from array import array
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.open_file import OpenFile
from mmpack.sources.inline import path_of

_BLOCK_BYTES = 512  # of a tar file: every member's content begins at a multiple of it


class PictureStore(Protocol):
    """Where the pictures of records lie."""

    def read(self, name: str) -> bytes:
        """The bytes of the picture that a record calls `name`. Raises SampleError (IMAGE_MISSING)."""
        ...

    def describe(self) -> str: ...


def open_pictures(place: Path) -> PictureStore:
    """The pictures in a folder or a tar file. Raises ConfigError if `place` is neither."""
    if place.is_dir():
        return FolderPictures(place)
    if place.is_file():
        return TarPictures(place)
    raise ConfigError(f"image_folder={str(place)!r} does not exist; give a folder of pictures or a .tar file of them")


def _inside(name: str, where: str) -> str:
    """`name` without detours. Raises SampleError if it leads out of its folder."""
    inside = os.path.normpath(name)
    if os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir:
        raise SampleError(Reason.IMAGE_MISSING, f"{name!r} leads out of the {where}")
    return inside


class FolderPictures:
    """Files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes:
        """The file's content."""
        place = path_of(name)
        if os.path.isabs(place):  # as in records with file: URLs
            place = os.path.relpath(place, os.path.abspath(self.folder))
        path = self.folder / _inside(place, "image folder")
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
                raise SampleError(Reason.IMAGE_MISSING, f"{name!r} is not a file")
            return path.read_bytes()
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SampleError(Reason.IMAGE_MISSING, f"{name!r}: {what}") from None

    def describe(self) -> str:
        return "folder"


class TarPictures:
    """Members of the tar file `path`, which is read through once; 20 bytes of memory a member.

    Raises:
        ConfigError: it is no tar file, compressed, or cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        hashes, blocks, sizes = array("Q"), array("I"), array("Q")
        try:
            with tarfile.open(path, "r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                    if member.isfile():
                        hashes.append(_hash_of(os.path.normpath(member.name)))
                        blocks.append(member.offset_data // _BLOCK_BYTES)
                        sizes.append(member.size)
        except (tarfile.TarError, OSError) as error:
            raise ConfigError(
                f"image_folder={str(path)!r} is not a tar file that can be read in place ({error}); give a folder or "
                "an uncompressed .tar"
            ) from None
        order = np.argsort(np.frombuffer(hashes, dtype=np.uint64), kind="stable")
        self._hashes: NDArray[np.uint64] = np.frombuffer(hashes, dtype=np.uint64)[order]
        self._blocks = np.frombuffer(blocks, dtype=np.uint32)[order]
        self._sizes = np.frombuffer(sizes, dtype=np.uint64)[order]
        self._file = OpenFile(path)

    def __len__(self) -> int:
        return len(self._hashes)

    def read(self, name: str) -> bytes:
        """The member's content; of several of one name the last, as tar unpacks them."""
        wanted = np.uint64(_hash_of(_inside(path_of(name), "tar file")))
        place = int(np.searchsorted(self._hashes, wanted, side="right")) - 1
        if place < 0 or self._hashes[place] != wanted:
            raise SampleError(Reason.IMAGE_MISSING, f"{name!r} is not in {self.path.name}")
        size, start = int(self._sizes[place]), int(self._blocks[place]) * _BLOCK_BYTES
        data = self._file.read(start, size)
        if len(data) < size:
            raise SampleError(Reason.IMAGE_MISSING, f"{name!r}: {self.path.name} ends within it")
        return data

    def describe(self) -> str:
        return f"tar of {len(self)} members"


def _hash_of(name: str) -> int:
    """64 bits of a name: among 5 million of them the odds of two alike are one in a million."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
