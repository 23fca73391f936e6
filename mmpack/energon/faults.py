"""Makes energon's datasets go on behind a sample that they cannot read or make, and tell of it in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron.energon import SkipSample
from megatron.energon.errors import ErrorContext
from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader
from megatron.energon.flavors.webdataset.sample_loader import RawSampleData, WebdatasetSampleLoaderDataset

from mmpack.energon.damage import Shard
from mmpack.energon.remote import fetcher
from mmpack.energon.shard_samples import ShardSamples, last_part
from mmpack.errors import MmpackError, StorageError
from mmpack.stream.contract import ReadFault

OnLost = Callable[[ReadFault], None]
_DEFECTS = (NameError, ImportError, SyntaxError, MemoryError)  # of code or machine, not of a sample


def guard(dataset: Any, on_lost: OnLost, *, max_sample_bytes: int, inspect: bool) -> list[tuple[str, str]]:
    """Changes the datasets in a tree of energon's wrappers, in place.

    A sample that cannot be read or made is left out, as energon leaves out excluded ones: the order of the others and
    the saved state are what they would be. Only `on_lost` hears of it; energon prints and gives up after 100 in a row.

    Args:
        dataset: what `get_train_dataset` or `get_val_dataset` returned.
        on_lost: told of each.
        max_sample_bytes: most bytes that are read for a sample.
        inspect: look at every shard that is on this machine now, and name the damaged ones.

    Returns:
        (path, what is wrong) of each damaged shard, if they were looked at.
    """
    damaged: list[tuple[str, str]] = []
    if isinstance(dataset, WebdatasetSampleLoaderDataset):
        damaged += _guard_reading(dataset, on_lost, max_sample_bytes, inspect)
    for name, value in list(vars(dataset).items()):
        if isinstance(value, ErrorContext):
            setattr(dataset, name, _Quiet(on_lost))
    for inner in getattr(dataset, "datasets", ()):
        damaged += guard(inner, on_lost, max_sample_bytes=max_sample_bytes, inspect=inspect)
    return damaged


def _guard_reading(dataset: Any, on_lost: OnLost, max_sample_bytes: int, inspect: bool) -> list[tuple[str, str]]:
    readers = [_robust(reader, max_sample_bytes) for reader in dataset.join_readers]

    def read(number: int) -> Any:
        data = tuple(reader[number] for reader in readers)
        return RawSampleData(__restore_key__=("Webdataset", number), data=data)

    def read_or_leave_out(number: int) -> Any:
        try:
            return read(number)
        except (StorageError, *_DEFECTS):
            raise
        except Exception as error:  # whatever a reader or a remote store raises
            on_lost(_fault(error, str(number), source=_dataset_of(readers[0])))
            return RawSampleData(__restore_key__=("Webdataset", number), data=(None,) * len(readers))

    dataset._get_sample = read_or_leave_out
    dataset.restore_sample = lambda key: read(key[1])
    ours = [reader for reader in readers if isinstance(reader, ShardSamples)] if inspect else []
    return [damaged for reader in ours for damaged in reader.inspect()]


def _robust(reader: Any, max_sample_bytes: int) -> Any:
    """A reader of our own for local shards; energon's for all else."""
    if type(reader) is not ShardInfosITarReader or not all(shard.path.is_local() for shard in reader.shard_infos):
        return reader
    return ShardSamples(
        reader.base_path,
        [Shard(name=s.name, path=Path(s.path.local_path()), num_samples=s.count) for s in reader.shard_infos],
        part_filter=reader.part_filter,
        sample_filter=reader.sample_filter,
        max_sample_bytes=max_sample_bytes,
        fetch=fetcher(Path(reader.base_path.local_path())),
    )


class _Quiet:
    """In place of energon's `ErrorContext`: neither prints nor ends the run."""

    def __init__(self, on_lost: OnLost) -> None:
        self._on_lost = on_lost

    def reset(self) -> None:
        pass

    @contextmanager
    def handle_errors(self, sample: Any) -> Iterator[None]:
        try:
            yield
        except (MmpackError, *_DEFECTS):
            raise
        except SkipSample:
            pass
        except Exception as error:
            source, shard, name = _origin(sample)
            self._on_lost(_fault(error, name, source=source, shard=shard))


def _fault(error: Exception, name: str, *, source: str, shard: str = "") -> ReadFault:
    if isinstance(error, ReadFault):
        return error
    cause = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return ReadFault(cause, source=source, shard=shard, name=name)


def _dataset_of(reader: Any) -> str:
    return last_part(str(getattr(reader, "base_path", "?")))


def _origin(sample: Any) -> tuple[str, str, str]:
    """Dataset, shard and name of what energon was working on, wherever it keeps them."""
    raw = sample.data[0] if isinstance(sample, RawSampleData) and sample.data else sample
    fields = raw if isinstance(raw, dict) else {n: getattr(raw, n, None) for n in ("__key__", "__sources__")}
    key, sources = fields.get("__key__"), fields.get("__sources__")
    shard = sources[0].shard_name or "" if sources else ""
    dataset = last_part(str(sources[0].dataset_path)) if sources else "?"
    return dataset, shard, f"{shard}/{key}" if shard else str(key)
