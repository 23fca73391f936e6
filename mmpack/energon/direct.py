"""Samples of a local Energon dataset by number, straight from its shards.

Beside every shard lies ``<shard>.tar.idx``: 64-bit offsets of its samples. So sample i is one read of a few kilobytes,
in any order, from any number of processes. What energon makes of a sample's members (field maps, sample loaders,
excluded samples, subsets, blends, subflavors) is energon's own work here too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from megatron.energon import WorkerConfig, load_dataset
from megatron.energon.flavors.crude import CrudeWebdataset
from megatron.energon.flavors.webdataset.base_webdataset import BaseWebdatasetFactory
from megatron.energon.metadataset.loader_interface import DatasetBlendMode, LoadedDataset
from megatron.energon.source_info import SourceInfo
from numpy.typing import NDArray

from mmpack.energon.cook import to_conversation
from mmpack.energon.damage import read_sample
from mmpack.energon.reader import META_FOLDER, SourceConfig, _keep_parts, _one_line
from mmpack.energon.remote import local
from mmpack.energon.source import Cook
from mmpack.energon.text_decoder import TextDecoder
from mmpack.errors import ConfigError, DataError, Reason, SampleError
from mmpack.sample import Conversation

_MAX_OPEN_SHARDS = 64


class DirectDataset:
    """One dataset of a split, its samples in the order of the shards: a `mmpack.indexed.IndexedDataset`.

    May be opened before worker processes are forked: files are opened when they are first read, and read by position.

    Raises:
        ConfigError: the dataset is no folder of tar shards on a local disk.
        DataError: a shard or its index is missing, or they do not fit each other.
    """

    def __init__(self, factory: Any, *, cook: Cook = to_conversation) -> None:
        path = str(getattr(factory, "path", "?"))
        if not isinstance(factory, BaseWebdatasetFactory):
            kind = type(factory).__name__
            raise ConfigError(
                f"{path!r} is a {kind}: samples can be read by number from tar shards only (no joins, no JSONL); "
                "leave the global plan mode off for it"
            )
        if any(not shard.path.is_local() for shard in factory.shards):
            raise ConfigError(
                f"{path!r} is not on a local disk; copy it there, or leave the global plan mode off for it"
            )
        self.path = Path(str(factory.path.local_path()))
        self.name = path.rstrip("/").rpartition("/")[2]
        self._factory, self._cook = factory, cook
        self._shards = [Path(str(shard.path.local_path())) for shard in factory.shards]
        self._names = [shard.name for shard in factory.shards]
        self._offsets = [_offsets(path, shard.count) for path, shard in zip(self._shards, factory.shards, strict=True)]
        self._ends = list(accumulate(shard.count for shard in factory.shards))
        total = self._ends[-1] if self._ends else 0
        self._start: int = 0
        stop: int = total
        if factory.subset is not None:
            self._start, stop = factory.subset.compute_subset(total)
        self._open: OrderedDict[int, int] = OrderedDict()  # shard -> file descriptor
        self._opened_by = os.getpid()
        excluded = [place - self._start for place in self._excluded_places() if self._start <= place < stop]
        self._size = stop - self._start - len(excluded)
        self._skips = [place - count for count, place in enumerate(excluded)]  # a sample behind n of them moves by n

    def __len__(self) -> int:
        return self._size

    def key(self, index: int) -> str:
        """The place of sample `index`: its shard and its number in it. Its own name is known once it is read."""
        shard, number = self._find(index)
        return f"{self._names[shard]}#{number}"

    def sample(self, index: int) -> Conversation:
        """Sample `index`. Raises SampleError; DataError if a shard is gone."""
        shard, number = self._find(index)
        try:
            name, members = self._members(shard, number)
        except ValueError as error:
            raise SampleError(Reason.UNREADABLE, _one_line(error), key=self.key(index)) from None
        raw = {
            "__key__": name,
            "__shard__": self._names[shard],
            "__restore_key__": ("Webdataset", index),
            "__sources__": (self._source_info(shard, index, name, members),),
            **members,
        }
        try:
            loaded = self._factory.load_sample(raw)
            if isinstance(self._factory, CrudeWebdataset):
                loaded = _keep_parts(loaded)
            return self._cook(loaded)
        except SampleError as error:
            raise (error if error.key is not None else error.with_key(name)) from None
        except (ConfigError, MemoryError):
            raise
        except Exception as error:  # a field map or sample loader of the dataset's own may raise anything
            raise SampleError(Reason.UNREADABLE, f"{type(error).__name__}: {_one_line(error)}", key=name) from error

    def describe(self) -> str:
        """What decides which sample has which number: shards, their samples and offsets, what is left out."""
        factory = self._factory
        total = hashlib.sha256()
        for name, offsets in zip(self._names, self._offsets, strict=True):
            total.update(f"{name} {len(offsets)}".encode() + offsets.tobytes())
        meta = self.path / META_FOLDER
        for file in sorted((*meta.glob("dataset*.yaml"), *meta.glob("*.py"), meta / "index.uuid")):
            total.update(file.read_bytes() if file.is_file() else b"")
        rest = [self._skips, self._start, self._size, dict(factory.subflavors or {})]
        total.update(json.dumps(rest, sort_keys=True, default=str).encode())
        return f"{self.name} {self._size} samples {total.hexdigest()[:16]}"

    def _find(self, index: int) -> tuple[int, int]:
        assert 0 <= index < self._size, f"sample {index} of {self._size}"
        place = self._start + index + bisect_right(self._skips, index)
        shard = bisect_right(self._ends, place)
        return shard, place - (self._ends[shard - 1] if shard else 0)

    def _excluded_places(self) -> list[int]:
        """Places of samples that split.yaml excludes by name; only shards that it names are looked through."""
        excludes: set[str] = self._factory.sample_excludes
        places: list[int] = []
        for shard in sorted(
            {self._names.index(e.rpartition("/")[0]) for e in excludes if e.rpartition("/")[0] in self._names}
        ):
            first = self._ends[shard - 1] if shard else 0
            for number in range(self._ends[shard] - first):
                with contextlib.suppress(ValueError):  # told when it is read as a sample
                    if f"{self._names[shard]}/{self._members(shard, number)[0]}" in excludes:
                        places.append(first + number)
        return places

    def _members(self, shard: int, number: int) -> tuple[str, dict[str, bytes]]:
        """The sample's name, and its members by extension; by the rules of energon's reader."""
        start, end = (int(offset) for offset in self._offsets[shard][number : number + 2])
        data = os.pread(self._descriptor(shard), end - start, start)
        if len(data) < end - start:
            raise ValueError(f"{self._names[shard]} ends at byte {start + len(data)}, the sample at {end}")
        try:
            base, parts, _ = read_sample(data)
        except ValueError as error:
            raise ValueError(f"{self._names[shard]} at byte {start}: {error}") from None
        wanted = self._factory.part_filter
        return base, {name: part for name, part in parts.items() if wanted is None or wanted(name)}

    def _source_info(self, shard: int, index: int, name: str, members: dict[str, bytes]) -> SourceInfo:
        return SourceInfo(
            dataset_path=self._factory.path,
            index=index,
            shard_name=self._names[shard],
            file_names=tuple(f"{name}.{extension}" for extension in members),
        )

    def _descriptor(self, shard: int) -> int:
        if self._opened_by != os.getpid():
            self._open, self._opened_by = OrderedDict(), os.getpid()  # the parent's are the parent's to close
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        try:
            self._open[shard] = os.open(self._shards[shard], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"shard {str(self._shards[shard])!r} cannot be read: {_one_line(error)}") from None
        if len(self._open) > _MAX_OPEN_SHARDS:
            os.close(self._open.popitem(last=False)[1])
        return self._open[shard]

    def close(self) -> None:
        """Closes the shards that this process opened; they are opened again when needed."""
        if self._opened_by == os.getpid():
            for descriptor in self._open.values():
                os.close(descriptor)
        self._open.clear()

    def __del__(self) -> None:
        if hasattr(self, "_opened_by"):
            self.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectPart:
    """A dataset of a split, and how many of its samples an epoch draws: all, unless a blend says otherwise."""

    dataset: DirectDataset
    per_epoch: int


def open_direct(config: SourceConfig, *, cook: Cook = to_conversation) -> list[DirectPart]:
    """The datasets that a split is made of, to be read by number.

    Of a metadataset, ``blend_epochized`` draws each dataset its number of repetitions, and ``blend`` draws as many
    samples as all datasets have together, shared by weight.

    Raises:
        ConfigError: the dataset cannot be opened, or is no tar dataset.
        DataError: a shard or its index is missing or damaged.
    """
    try:
        loaded = load_dataset(local(config.path, whole=True)).get_datasets(
            training=False,
            split_part=config.split,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            decoder=TextDecoder(),
        )
    except (ConfigError, DataError):
        raise
    except Exception as error:
        what = f"split {config.split!r} of {str(config.path)!r}"
        raise ConfigError(f"cannot open {what}: {_one_line(error)}") from error
    datasets = [DirectDataset(entry.dataset, cook=cook) for entry in loaded.datasets]
    total = sum(map(len, datasets))
    return [
        DirectPart(dataset=dataset, per_epoch=_draws(entry, loaded.blend_mode, len(dataset), total))
        for dataset, entry in zip(datasets, loaded.datasets, strict=True)
    ]


def _draws(entry: LoadedDataset, mode: DatasetBlendMode, size: int, total: int) -> int:
    if mode is DatasetBlendMode.SAMPLE_REPETITIONS:
        return round(size * float(entry.repetitions))
    if mode is DatasetBlendMode.DATASET_WEIGHT:
        return round(total * float(entry.weight))
    return size


def _offsets(shard: Path, count: int) -> NDArray[np.uint64]:
    """Where the samples of a shard begin, and where the last one ends."""
    index = shard.with_suffix(".tar.idx")
    try:
        offsets = np.fromfile(index, dtype="<u8")
        num_bytes = shard.stat().st_size
    except OSError as error:
        raise DataError(f"shard {str(shard)!r} cannot be read: {_one_line(error)}") from None
    rising = len(offsets) == count + 1 and bool((offsets[1:] > offsets[:-1]).all())
    if not rising or int(offsets[-1]) > num_bytes:
        raise DataError(
            f"{index} has {len(offsets)} offsets up to {int(offsets[-1]) if len(offsets) else 0}; the shard has "
            f"{count} samples and {num_bytes} bytes; make the index again with `energon prepare`"
        )
    return offsets.astype(np.uint64)
