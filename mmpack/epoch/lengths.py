"""The length index: how long every sample of a data set is, found once, kept on disk, mapped into memory.

It holds three small numbers a sample and is valid for one data set, tokenizer, template, tiling and length limit: their
description names its folder. Layout and pack size are no part of it; they are applied when an epoch is planned.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, DataError, SampleError, WorkerError
from mmpack.indexed.contract import IndexedDataset
from mmpack.ledger import DropLedger
from mmpack.processes import end_with_parent, quiet_fork
from mmpack.sample import EncodedSample
from mmpack.stream.packs import Encoder

INDEX_VERSION = 1
_CHUNK = 256  # samples that a worker measures at a time
_COLUMNS = ("num_tokens", "num_tiles", "num_images")
Progress = Callable[[int, int], None]  # samples measured, samples in all


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LengthIndex:
    """Sizes of N samples: those of the data sets one behind the other."""

    folder: Path
    num_tokens: NDArray[np.int32]  # (N,) 0: left out; below 0: as long as its absolute value, and gets its own pack
    num_tiles: NDArray[np.int32]  # (N,)
    num_images: NDArray[np.int32]  # (N,)
    starts: tuple[int, ...]  # of each data set, and N
    drops: DropLedger  # what was left out

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def num_usable(self) -> int:
        """Samples that are not left out."""
        return int(np.count_nonzero(self.num_tokens))


def index_folder(cache: Path, datasets: Sequence[IndexedDataset], settings: Mapping[str, Any]) -> Path:
    """Where the index of these data sets with these settings lies: a name that all that decides it decides."""
    return cache / hashlib.sha256(_described(datasets, settings).encode()).hexdigest()[:24]


def _described(datasets: Sequence[IndexedDataset], settings: Mapping[str, Any]) -> str:
    content = {
        "version": INDEX_VERSION,
        "datasets": [dataset.describe() for dataset in datasets],
        "settings": dict(settings),
    }
    return json.dumps(content, sort_keys=True, default=str)


def load_length_index(
    cache: Path, datasets: Sequence[IndexedDataset], settings: Mapping[str, Any]
) -> LengthIndex | None:
    """The index if it was built; None if not.

    Raises:
        DataError: its files are damaged.
    """
    folder = index_folder(cache, datasets, settings)
    if not (folder / "index.json").is_file():
        return None
    starts = (0, *accumulate(map(len, datasets)))
    try:
        content = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}
        if any(len(column) != starts[-1] for column in columns.values()):
            raise ValueError(f"{[len(column) for column in columns.values()]} entries for {starts[-1]} samples")
        return LengthIndex(folder=folder, starts=starts, drops=DropLedger.from_dict(content["drops"]), **columns)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"the length index {folder} is damaged ({error}); delete the folder and build it again"
        ) from None


def build_length_index(
    datasets: Sequence[IndexedDataset],
    encoder: Encoder,
    *,
    cache: Path,
    settings: Mapping[str, Any],
    num_workers: int = 0,
    progress: Progress = lambda done, total: None,
    rebuild: bool = False,
) -> LengthIndex:
    """Measures every sample once, from its text and its pictures' headers; or returns the index that lies in `cache`.

    Args:
        datasets: opened before; workers inherit them.
        encoder: the length oracle that will also encode for training.
        cache: folder for indexes; it is made.
        settings: all that decides an encoded sample's length, as plain values.
        num_workers: processes; 0 measures in this one.
        progress: told now and then.
        rebuild: measure although there is an index.

    Raises:
        ConfigError: an empty data set, no usable sample, `cache` cannot be written, or a sample is too long and the
            encoder's policy is to raise.
        DataError: a shard cannot be read.
        WorkerError: a worker died.
    """
    if not rebuild and (found := load_length_index(cache, datasets, settings)) is not None:
        return found
    with _alone(cache):  # the ranks of one machine: the first measures, the others find it done
        if not rebuild and (found := load_length_index(cache, datasets, settings)) is not None:
            return found
        return _build(datasets, encoder, cache, settings, num_workers, progress)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """No other process is within for the same `cache`, where the file system can tell."""
    descriptor = None
    with contextlib.suppress(OSError):  # no locks there, or the folder cannot be written: that is told later
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _build(
    datasets: Sequence[IndexedDataset],
    encoder: Encoder,
    cache: Path,
    settings: Mapping[str, Any],
    num_workers: int,
    progress: Progress,
) -> LengthIndex:
    total = sum(map(len, datasets))
    columns = {name: np.zeros(total, dtype=np.int32) for name in _COLUMNS}
    drops = DropLedger()
    for first, sizes, dropped in _measured(datasets, encoder, num_workers):
        for name, column in columns.items():
            column[first : first + len(sizes)] = sizes[:, _COLUMNS.index(name)]
        drops.merge(DropLedger.from_dict(dropped))
        progress(first + len(sizes), total)
    if not columns["num_tokens"].any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in drops.counts().items())
        names = " + ".join(dataset.name for dataset in datasets)
        raise ConfigError(f"none of the {total} samples of {names} is usable ({reasons or 'there are none'})")
    folder = index_folder(cache, datasets, settings)
    _write(folder, columns, {"described": json.loads(_described(datasets, settings)), "drops": drops.to_dict()})
    index = load_length_index(cache, datasets, settings)
    assert index is not None
    return index


def _write(folder: Path, columns: Mapping[str, NDArray[np.int32]], content: Mapping[str, Any]) -> None:
    """All files or none. Whoever comes second, of two that build at once, replaces equal files by equal ones."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(
            f"the length index cannot be written to {folder.parent}: {error}; name another folder"
        ) from None
    try:
        for name, column in columns.items():
            np.save(partial / f"{name}.npy", column)
        (partial / "index.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        os.chmod(partial, 0o755)  # mkdtemp's are for one user only
        with contextlib.suppress(OSError):
            os.rename(folder, partial / "old")
        os.rename(partial, folder)
        shutil.rmtree(folder / "old", ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


_Measured = tuple[int, NDArray[np.int32], Any]  # number of the first sample, (n, 3) sizes, what was left out


def _measured(datasets: Sequence[IndexedDataset], encoder: Encoder, num_workers: int) -> Iterator[_Measured]:
    chunks = [
        (number, first, min(first + _CHUNK, len(dataset)))
        for number, dataset in enumerate(datasets)
        for first in range(0, len(dataset), _CHUNK)
    ]
    starts = (0, *accumulate(map(len, datasets)))
    if num_workers == 0:
        _share(datasets, encoder, 0)
        for number, first, last in chunks:
            yield (starts[number] + first, *_measure(number, first, last))
        return
    # An executor, since it notices the death of a worker; a Pool would wait for ever.
    with (
        quiet_fork(),
        ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_share,
            initargs=(datasets, encoder, os.getpid()),
        ) as workers,
    ):
        running: list[tuple[int, Future[tuple[NDArray[np.int32], Any]]]] = []
        try:
            for number, first, last in chunks:
                running.append((starts[number] + first, workers.submit(_measure, number, first, last)))
                if len(running) > 4 * num_workers:  # results in order, and only some of them waiting
                    start, done = running.pop(0)
                    yield (start, *done.result())
            for start, done in running:
                yield (start, *done.result())
        except BrokenProcessPool:
            raise WorkerError(
                "a process that measured samples died (often the kernel's answer to a lack of memory); nothing was "
                "written: try again with fewer workers"
            ) from None
        finally:
            workers.shutdown(wait=True, cancel_futures=True)


_shared: list[Any] = []  # what this process measures with: forked workers inherit it


def _share(datasets: Sequence[IndexedDataset], encoder: Encoder, parent: int) -> None:
    _shared[:] = [datasets, encoder]
    if parent:
        end_with_parent(parent)


def _measure(number: int, first: int, last: int) -> tuple[NDArray[np.int32], Any]:
    """Sizes of samples `first` to `last` of a data set, and what was left out."""
    datasets, encoder = _shared
    dataset: IndexedDataset = datasets[number]
    sizes = np.zeros((last - first, len(_COLUMNS)), dtype=np.int32)
    drops = DropLedger()
    for index in range(first, last):
        try:
            sample = dataset.sample(index)
            encoded = sample if isinstance(sample, EncodedSample) else encoder.encode(sample)
        except SampleError as error:
            drops.count(dataset.name, error.reason, error.key or dataset.key(index), detail=error.detail)
            continue
        length = -encoded.num_tokens if encoded.own_pack else encoded.num_tokens
        sizes[index - first] = (length, encoded.num_tiles, len(encoded.pictures))
    return sizes, drops.to_dict()
