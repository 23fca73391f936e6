"""One logical stream of a dataset: megatron-energon's own savable dataset, read without decoding anything.

The data is cut into `num_streams` logical streams. Stream l is what energon calls rank l of a world of that size
without workers, so its order depends on the seed and on l alone, never on how many processes read.
"""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    NoCachePool,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from megatron.energon.savable_loader import SimpleSavableDatasetWrapper

from mmpack.energon.draws import draw, number_draws
from mmpack.energon.faults import guard
from mmpack.energon.plain_state import from_plain, to_plain
from mmpack.energon.remote import local, shown
from mmpack.energon.text_decoder import TextDecoder
from mmpack.errors import ConfigError, DataError, StateError, StorageError
from mmpack.stream.contract import ReadFault

META_FOLDER = ".nv-meta"
_READING = threading.Lock()  # energon keeps in a global which dataset is reading
os.register_at_fork(before=_READING.acquire, after_in_parent=_READING.release, after_in_child=_READING.release)
RestoreKey = tuple[Any, ...]  # nested tuples of strings and integers, made and understood by energon
FaultHandler = Callable[[Exception, str], None]  # the error, and the name of what could not be read


@edataclass
class RawParts(Sample):  # type: ignore[misc]
    """A crude sample: its tar members by extension; texts are read, all else is bytes."""

    parts: dict[str, Any]


@stateless  # type: ignore[untyped-decorator]
def _keep_parts(sample: dict[str, Any]) -> RawParts:
    parts = {name: value for name, value in sample.items() if not name.startswith("__")}
    return RawParts(**basic_sample_keys(sample), parts=parts)


class _Undecoded(DefaultTaskEncoder):  # type: ignore[misc]
    """Hands samples on with their pictures as bytes: they are decoded after their pack has been chosen."""

    cookers = [Cooker(_keep_parts)]  # noqa: RUF012  (energon declares it so)
    decoder = TextDecoder()


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """Which data a stream reads, and in what order.

    Args:
        path: folder of an Energon dataset, or a metadataset's YAML file; ``msc://profile/bucket/path`` for one in a
            store, which is read through its copy (`mmpack.energon.remote`): `path` is that copy then.
        split: the split to read.
        training: shuffled reading (`repeat` decides whether it ends) or the split once, in order.
        repeat: read on for ever; energon demands it for weighted blends.
        seed: changes the order.
        shuffle_buffer_size: samples that one stream shuffles among, compressed; None for no buffer. There are many
            streams, so a small one is enough.
        max_samples_per_sequence: most samples read in a row from one place of a shard.
        max_sample_bytes: a sample that takes more of its shard counts as unreadable, and nothing is allocated for it.
        name: what errors and counters call it; None for the path.
    """

    path: Path | str
    split: str = "train"
    training: bool = True
    repeat: bool = True
    seed: int = 0
    shuffle_buffer_size: int | None = 20
    max_samples_per_sequence: int | None = 100
    max_sample_bytes: int = 1 << 30
    name: str | None = None

    @property
    def told(self) -> str:
        """What errors and counters call it."""
        return shown(self.path) if self.name is None else self.name

    def __post_init__(self) -> None:
        for name in ("shuffle_buffer_size", "max_samples_per_sequence", "max_sample_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1, or None for no such limit")
        path = str(self.path)
        if "msc:" not in path and "://" in path:
            return
        if (found := local(path)) != Path(path):
            object.__setattr__(self, "path", found)
            path = str(found)
        if not Path(path).exists():
            raise ConfigError(f"path={path!r} does not exist; convert data first with `mmpack convert`")
        if Path(path).is_dir() and not (Path(path) / META_FOLDER).is_dir():
            raise ConfigError(f"path={path!r} has no {META_FOLDER} folder, so it is not an Energon dataset; "
                              "make one with `mmpack convert`")  # fmt: skip


class Source:
    """Samples of one logical stream, with a state that can be saved after each of them.

    Args:
        config: what to read.
        stream, num_streams: which logical stream of how many.
        on_fault: told of every sample that cannot be read, with a `mmpack.stream.contract.ReadFault`; the stream goes
            on behind it.
    """

    def __init__(self, config: SourceConfig, *, stream: int, num_streams: int, on_fault: FaultHandler) -> None:
        self.config = config
        self._stream = stream
        self._on_fault = on_fault

        worker = WorkerConfig(
            rank=stream,
            world_size=num_streams,
            num_workers=0,
            seed_offset=config.seed,
        )
        try:
            dataset = self._open(worker)
        except Exception as error:
            what = f"split {config.split!r} of {config.told!r}"
            is_meta = Path(config.path).suffix in ("", ".yaml", ".yml")
            hint = "" if is_meta else "; a file of records becomes a dataset with `mmpack convert`"
            raise ConfigError(f"cannot open {what}: {_one_line(error)}{hint}") from error
        self.num_samples = len(dataset)  # of this stream
        self._lost_in_row = 0
        self.damaged_shards = guard(  # (path, what is wrong); looked at if this is the only stream
            dataset, self._lost, max_sample_bytes=config.max_sample_bytes, inspect=num_streams == 1
        )
        number_draws(dataset, config.seed, stream)
        self._dataset = SimpleSavableDatasetWrapper(dataset, worker, NoCachePool())
        self._reading: Iterator[tuple[int, int, Any]] | None = None
        self._in_epoch = False  # an epoch has begun, and not all of its samples have been handed out
        self._ahead: tuple[Any, RestoreKey] | None = None  # None: energon has no more samples in this epoch
        self._buffer: list[tuple[Any, RestoreKey]] = []  # (sample or None if not read again yet, key)
        self._num_drawn = 0

    def _lost(self, fault: ReadFault) -> None:
        self._on_fault(fault, fault.name)
        self._lost_in_row += 1
        if self._lost_in_row > 2 * self.num_samples and self.config.training and self.config.repeat:
            raise DataError(
                f"stream {self._stream} of {self.config.told!r}, split {self.config.split!r}: no sample can be "
                f"read, the last is {fault}; `mmpack check` lists all"
            )

    def _open(self, worker: WorkerConfig) -> Any:
        config = self.config
        if config.training:
            return get_train_dataset(
                config.path,
                split_part=config.split,
                worker_config=worker,
                batch_size=None,
                shuffle_buffer_size=None,
                max_samples_per_sequence=config.max_samples_per_sequence,
                task_encoder=_Undecoded(),
                repeat=config.repeat,
            )
        return get_val_dataset(
            config.path, split_part=config.split, worker_config=worker, batch_size=None, task_encoder=_Undecoded()
        )

    def __iter__(self) -> Iterator[tuple[Any, RestoreKey]]:
        """Samples and their restore keys, from where the state stands; ends where the epoch ends.

        The samples are drawn from a small shuffle buffer of our own: energon's forgets, when it is saved while it
        drains, that its source had ended. For the same reason one sample is always read ahead.
        """
        if not self._in_epoch:
            self._in_epoch = True
            self._ahead = self._read_next()
        while True:
            while self._ahead is not None and len(self._buffer) < (self.config.shuffle_buffer_size or 1):
                self._buffer.append(self._ahead)
                self._ahead = self._read_next()
            if not self._buffer:
                break
            place = draw(self.config.seed, self._stream, self._num_drawn) % len(self._buffer)
            self._num_drawn += 1
            self._buffer[place], self._buffer[-1] = self._buffer[-1], self._buffer[place]
            sample, key = self._buffer.pop()
            if sample is None:  # known from a restored state only
                try:
                    sample = self.read(key)
                except StorageError:
                    raise
                except Exception as error:  # energon passes on whatever its reader met
                    self._on_fault(error, error.name if isinstance(error, ReadFault) else str(key))
                    continue
            yield sample, key
        self._in_epoch = False

    def _read_next(self) -> tuple[Any, RestoreKey] | None:
        """The next sample in energon's own order; None at the end of its epoch."""
        if self.num_samples == 0:
            return None
        if self._reading is None:
            self._reading = iter(self._dataset)
        try:
            with _READING:
                for _, _, sample in self._reading:
                    self._lost_in_row = 0
                    return sample, sample.__restore_key__
        except (OSError, ValueError, tarfile.TarError) as error:
            raise DataError(
                f"{self.config.told!r}, split {self.config.split!r}: cannot be read on: "
                f"{type(error).__name__}: {_one_line(error)}"
            ) from error
        self._reading = None
        return None

    def read(self, key: RestoreKey) -> Any:
        """The sample that once came with `key`, read again."""
        with _READING:
            return self._dataset.restore_sample(key)

    def state(self) -> dict[str, Any]:
        """Where the stream stands, as plain dicts, lists, numbers and bytes."""
        return {
            "reader": to_plain(self._dataset.save_state()),
            "in_epoch": self._in_epoch,
            "num_drawn": self._num_drawn,
            "ahead": None if self._ahead is None else to_plain(self._ahead[1]),
            "buffer": [to_plain(key) for _, key in self._buffer],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Buffered samples are read again when they are drawn.

        Raises:
            StateError: the state was made by another kind of dataset.
        """
        try:
            self._dataset.restore_state(from_plain(state["reader"]))
            self._buffer = [(None, from_plain(key)) for key in state["buffer"]]
            self._ahead = None if state["ahead"] is None else (None, from_plain(state["ahead"]))
            self._in_epoch, self._num_drawn = state["in_epoch"], state["num_drawn"]
        except (AssertionError, KeyError, IndexError, TypeError) as error:
            raise StateError(
                f"the saved position does not fit {self.config.told!r} (split {self.config.split!r}): "
                f"{_one_line(error)}; resume with the dataset and settings that the state was made with"
            ) from error
        self._reading = None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
