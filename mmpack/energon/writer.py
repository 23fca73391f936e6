"""Writes Energon datasets: shards whose bytes depend on the samples alone, and energon's own indexes beside them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mmpack.energon import sample_loader
from mmpack.sample import Picture

META_FOLDER = ".nv-meta"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutSample:
    """A sample to be written: its key, its record (``"image"`` names the original files), and its pictures."""

    key: str
    record: Mapping[str, Any]
    pictures: tuple[Picture, ...]
    extensions: tuple[str, ...]  # of each picture, by content


class ShardWriter:
    """One tar file. The parts of a sample stand together: pictures, then the JSON."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self.num_samples = 0

    def add(self, sample: OutSample) -> None:
        """Appends `sample`. In its record, ``"image"`` becomes the list of its parts' names."""
        names = [f"{i}.{extension}" for i, extension in enumerate(sample.extensions)]
        record = dict(sample.record)
        if names:
            record["image_source"], record["image"] = record.get("image"), names
        for name, picture in zip(names, sample.pictures, strict=True):
            self._put(f"{sample.key}.{name}", picture.data)
        self._put(f"{sample.key}.json", strict_json(record))
        self.num_samples += 1

    def _put(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)  # its defaults carry no time, no owner: equal samples give equal bytes
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._tar.close()


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


def write_metadata(folder: Path, splits: Mapping[str, Sequence[str]], *, workers: int) -> None:
    """Indexes the shards of `folder` (names by split) so that energon opens it, media metadata included."""
    from megatron.energon import CrudeWebdataset
    from megatron.energon.media.extractor import MediaFilterConfig

    shards = [name for names in splits.values() for name in names]
    with _silence():
        CrudeWebdataset.prepare_dataset(
            folder,
            shards,
            split_parts_ratio=[(split, 1.0) for split in splits],
            shuffle_seed=None,
            workers=max(1, min(workers, len(shards))),
            media_filter=MediaFilterConfig.parse(glob=None, header=False, extension=True),
        )
    meta = folder / META_FOLDER
    split_parts = {split: list(names) for split, names in splits.items()}
    _write_yaml(meta / "split.yaml", {"split_parts": split_parts, "exclude": []})
    _write_yaml(
        meta / "dataset.yaml",
        {
            "sample_type": {"__module__": "megatron.energon", "__class__": "InterleavedSample"},
            "part_filter": "sample_loader.py:part_filter",
            "sample_loader": "sample_loader.py:sample_loader",
        },
    )
    assert sample_loader.__file__ is not None
    (meta / "sample_loader.py").write_bytes(Path(sample_loader.__file__).read_bytes())


def _write_yaml(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Energon's preparation prints what it does, and logs pictures without metadata that mmpack has counted."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
