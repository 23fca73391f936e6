"""Writes Energon datasets: shards whose bytes depend on the samples alone, and energon's indexes beside them.

The index is built from what is known while a shard is written. Energon's own preparation reads every shard again and
decodes every picture in it, which takes many times as long as writing and gives up on a whole shard at one picture
that is damaged behind its header.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import tarfile
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from mmpack.energon import sample_loader
from mmpack.errors import SampleError
from mmpack.images.containers import APP2, jpeg_segments
from mmpack.images.header import DEFAULT_MAX_PIXELS, read_header
from mmpack.sample import Picture
from mmpack.sources import AUTO

META_FOLDER = ".nv-meta"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutSample:
    """A sample to be written: its key, its record (``"image"`` names the original files), and its pictures."""

    key: str
    record: Mapping[str, Any]
    pictures: tuple[Picture, ...]
    extensions: tuple[str, ...]  # of each picture, by content


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One tar member's content: where it is, and what a picture's header says of it as energon stores that."""

    name: str
    offset_bytes: int
    size_bytes: int
    media_json: str | None


@dataclass(frozen=True, slots=True)
class StoredSample:
    """Where a sample stands in its shard, headers included."""

    key: str
    offset_bytes: int
    size_bytes: int
    parts: tuple[StoredPart, ...]


Part = tuple[str, bytes, str | None]  # name, content, and what energon stores of a picture


def sample_parts(sample: OutSample) -> list[Part]:
    """What is written of a sample: its pictures, then its record, whose ``"image"`` lists their names."""
    names = [f"{i}.{extension}" for i, extension in enumerate(sample.extensions)]
    record = dict(sample.record)
    if names:
        record["image_source"], record["image"] = record.get("image"), names
    pictures = zip(names, sample.pictures, strict=True)
    parts: list[Part] = [(name, picture.data, _media_json(picture.data)) for name, picture in pictures]
    return [*parts, ("json", strict_json(record), None)]


def stored_bytes(parts: Sequence[Part]) -> int:
    """What the parts of a sample take in a tar file.

    >>> stored_bytes([("0.jpg", bytes(513), None), ("json", b"", None)])
    2048
    """
    return sum(tarfile.BLOCKSIZE * (1 - (-len(data) // tarfile.BLOCKSIZE)) for _, data, _ in parts)


class ShardWriter:
    """One tar file and its ``.idx``. The parts of a sample stand together: pictures, then the JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self.samples: list[StoredSample] = []

    @property
    def num_bytes(self) -> int:
        """Of the shard so far, without its end."""
        return int(self._tar.offset)

    def add(self, sample: OutSample) -> None:
        """Appends `sample`. In its record, ``"image"`` becomes the list of its parts' names."""
        self.put(sample.key, sample_parts(sample))

    def put(self, key: str, named_parts: Sequence[Part]) -> None:
        """Appends the sample that `sample_parts` made the parts of."""
        start = self._tar.offset
        parts = [self._put(key, *part) for part in named_parts]
        self.samples.append(StoredSample(key, start, self._tar.offset - start, tuple(parts)))

    def _put(self, key: str, name: str, data: bytes, media_json: str | None) -> StoredPart:
        info = tarfile.TarInfo(f"{key}.{name}")  # its defaults carry no time, no owner: equal samples, equal bytes
        info.size = len(data)
        content = self._tar.offset + tarfile.BLOCKSIZE
        header = info.tobuf(tarfile.USTAR_FORMAT)
        # what `TarFile.addfile` writes, in one piece and without its copies
        self._file.write(b"".join((header, data, bytes(-len(data) % tarfile.BLOCKSIZE))))
        self._tar.offset = self._file.tell()
        return StoredPart(name, content, len(data), media_json)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the file and writes its index."""
        end = self._tar.offset
        self._tar.close()
        self._file.close()
        offsets = [sample.offset_bytes for sample in self.samples]
        self._path.with_suffix(".tar.idx").write_bytes(struct.pack(f"<{len(offsets) + 1}Q", *offsets, end))


def _media_json(data: bytes) -> str | None:
    """What energon's media metadata says of a picture, from the header alone; None if Pillow cannot say it."""
    if (found := _jpeg_media(data)) is not None:  # what Pillow would say, in a tenth of the time
        return json.dumps(found, separators=(",", ":"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as picture:
                width_px, height_px = picture.size
                fields = {"width": width_px, "height": height_px, "format": picture.format, "mode": picture.mode}
    except Exception:
        return None
    return json.dumps(fields, separators=(",", ":"))


def _jpeg_media(data: bytes) -> dict[str, int | str] | None:
    """The same of a JPEG of one picture; None for anything else."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        header = read_header(data, max_pixels=DEFAULT_MAX_PIXELS)
    except SampleError:
        return None
    if header.format != "JPEG" or any(m == APP2 and data.startswith(b"MPF\0", at) for m, at, _ in jpeg_segments(data)):
        return None  # of several pictures in one file Pillow gives the format MPO
    modes = {1: "L", 3: "RGB", 4: "CMYK"}
    return {
        "width": header.width_px,
        "height": header.height_px,
        "format": "JPEG",
        "mode": modes[header.channels],
    }


def strict_json(record: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON that every parser reads: NaN and infinities become null, half surrogates U+FFFD."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)
    return re.sub("[\ud800-\udfff]", "\ufffd", text).encode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class DatasetIndex:
    """Makes the shards of a folder an Energon dataset, media metadata included. Add every shard, then finish."""

    def __init__(self, folder: Path, splits: Sequence[str]) -> None:
        from megatron.energon.epathlib import EPath
        from megatron.energon.flavors.webdataset.indexing import SqliteIndexWriter
        from megatron.energon.media.extractor import MediaFilterConfig

        self._meta = folder / META_FOLDER
        self._meta.mkdir()
        self._rows = SqliteIndexWriter(EPath(self._meta / "index.sqlite"), enable_media_metadata=True)
        media = MediaFilterConfig.parse(glob=None, header=True, extension=False)
        self._rows.append_media_filter(strategy=media.strategy.value, patterns="")
        self._splits: dict[str, list[str]] = {split: [] for split in splits}
        self._counts: dict[str, int] = {}

    def add(self, split: str, name: str, samples: Sequence[StoredSample]) -> None:
        """Indexes the next shard of `split`."""
        from megatron.energon.flavors.webdataset.prepare import IndexMediaMetadata, IndexSample, IndexSamplePart

        file = len(self._counts)
        self._counts[name] = len(samples)
        self._splits[split].append(name)
        parts = [(i, sample.key, part) for i, sample in enumerate(samples) for part in sample.parts]
        self._rows.append_samples(
            [
                IndexSample(
                    tar_file_id=file,
                    sample_key=sample.key,
                    sample_index=i,
                    byte_offset=sample.offset_bytes,
                    byte_size=sample.size_bytes,
                )
                for i, sample in enumerate(samples)
            ]
        )
        self._rows.append_parts(
            [
                IndexSamplePart(
                    tar_file_id=file,
                    sample_index=i,
                    part_name=part.name,
                    content_byte_offset=part.offset_bytes,
                    content_byte_size=part.size_bytes,
                )
                for i, _, part in parts
            ]
        )
        self._rows.append_media_metadata_batch(
            [
                IndexMediaMetadata(entry_key=f"{key}.{part.name}", metadata_type="image", metadata_json=part.media_json)
                for _, key, part in parts
                if part.media_json is not None
            ]
        )

    def close(self) -> None:
        """Lets go of the index file; safe to call twice."""
        if self._rows.db is not None:
            self._rows.close()

    def finish(self, record_format: str) -> None:
        """Writes what says which shards there are, how energon makes samples of them, and the records' format."""
        from megatron.energon import __version__

        self.close()
        info = {"energon_version": __version__, "shard_counts": self._counts}
        (self._meta / ".info.json").write_text(json.dumps(info, indent=2), encoding="utf-8")
        (self._meta / "index.uuid").write_text(str(uuid.uuid4()), encoding="utf-8")
        _write_yaml(self._meta / "split.yaml", {"split_parts": self._splits, "exclude": []})
        _write_yaml(
            self._meta / "dataset.yaml",
            {
                "sample_type": {"__module__": "megatron.energon", "__class__": "InterleavedSample"},
                "part_filter": "sample_loader.py:part_filter",
                "sample_loader": "sample_loader.py:sample_loader",
                **({} if record_format == AUTO else {"subflavors": {"format": record_format}}),
            },
        )
        assert sample_loader.__file__ is not None
        (self._meta / "sample_loader.py").write_bytes(Path(sample_loader.__file__).read_bytes())


def _write_yaml(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
