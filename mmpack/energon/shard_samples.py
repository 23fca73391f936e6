"""Samples of tar shards whatever state the shards are in: a damaged shard costs its damaged samples, no others.

Each sample is read by itself, from its own stretch of the shard and no further.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from megatron.energon.source_info import SourceInfo

from mmpack.energon.damage import READ_FAULTS, Shard, ShardState, inspect_shard, read_sample
from mmpack.open_file import OpenFile
from mmpack.stream.contract import ReadFault

_MAX_OPEN = 8  # files of a dataset and stream: a shard and its index, for some shards that are read in turn

_log = logging.getLogger(__name__)
_named: set[tuple[str, str]] = set()  # what the log has said already, in this process and those it was forked from


class ShardSamples:
    """Samples of a local dataset by their number, as energon counts them.

    Args:
        dataset: its folder, as energon names it.
        shards: of the split, in order.
        part_filter, sample_filter: energon's: which parts are read, and which samples (``shard.tar/key``) are.
        max_sample_bytes: a sample that takes more of its shard is not read.
        fetch: makes a shard of a remote dataset be there, by its name; called before the shard is first read.
    """

    def __init__(
        self,
        dataset: Any,
        shards: Sequence[Shard],
        *,
        part_filter: Callable[[str], bool] | None,
        sample_filter: Callable[[str], bool] | None,
        max_sample_bytes: int,
        fetch: Callable[[str], None] | None = None,
    ) -> None:
        self.base_path, self._shards = dataset, shards
        self._part_filter, self._sample_filter = part_filter, sample_filter
        self._max_sample_bytes, self._fetch = max_sample_bytes, fetch
        self._starts = [0, *accumulate(shard.num_samples for shard in shards)]
        self._states: dict[str, ShardState] = {}
        self._open: dict[Path, OpenFile] = {}

    def inspect(self) -> list[tuple[str, str]]:
        """Looks at every shard now: (path, what is wrong) of the damaged ones, which the log names too.

        Shards that are still to be fetched are looked at when they have come.
        """
        here = [shard for shard in self._shards if self._fetch is None or shard.path.exists()]
        states = [(str(shard.path), self._state(shard).problem) for shard in here]
        return [(path, problem) for path, problem in states if problem is not None]

    def _state(self, shard: Shard) -> ShardState:
        if shard.name not in self._states:
            if self._fetch is not None:
                self._fetch(shard.name)
            state = self._states[shard.name] = inspect_shard(shard)
            if state.problem is not None and (str(shard.path), state.problem) not in _named:
                _named.add((str(shard.path), state.problem))
                _log.warning("dataset %r shard %r %s", last_part(str(self.base_path)), shard.name, state.problem)
        return self._states[shard.name]

    def __getitem__(self, number: int) -> dict[str, Any] | None:
        """The sample as energon's reader gives it; None if it is left out. Raises ReadFault if it cannot be read."""
        place = bisect_right(self._starts, number) - 1
        shard, inside = self._shards[place], number - self._starts[place]
        ordinal = f"{shard.name}/#{inside}"
        if self._sample_filter is not None and not self._sample_filter(ordinal):
            return None
        state = self._state(shard)
        try:
            start, end = self._range(shard, state, inside)
            base, parts, names = read_sample(self._bytes(shard, start, end))
        except READ_FAULTS as error:
            name = self._known_name(shard, state, inside)
            if name is not None and self._sample_filter is not None and not self._sample_filter(name):
                return None
            cause = " ".join(str(error).split())[:200]
            folder = str(self.base_path)
            raise ReadFault(
                cause, source=last_part(folder), shard=shard.name, name=name or ordinal, folder=folder
            ) from None
        if self._sample_filter is not None and not self._sample_filter(f"{shard.name}/{base}"):
            return None
        if self._part_filter is not None:
            parts = {part: data for part, data in parts.items() if self._part_filter(part)}
            names = tuple(name for name in names if name[len(base) + 1 :] in parts)
        source = SourceInfo(dataset_path=self.base_path, index=number, shard_name=shard.name, file_names=names)
        own = {"__key__": base, "__shard__": shard.name, "__restore_key__": ("Webdataset", number)}
        return {**own, "__sources__": (source,), **parts}

    def _range(self, shard: Shard, state: ShardState, inside: int) -> tuple[int, int]:
        if state.offsets is not None:
            if inside + 1 >= len(state.offsets):
                raise ValueError(state.problem)
            return state.offsets[inside], state.offsets[inside + 1]
        start, end = struct.unpack("<2Q", self._read(shard.path.with_suffix(".tar.idx"), 8 * inside, 16))
        return start, end

    def _bytes(self, shard: Shard, start: int, end: int) -> bytes:
        if end - start > self._max_sample_bytes:
            raise ValueError(f"takes {end - start} bytes of its shard; max_sample_bytes={self._max_sample_bytes}")
        data = self._read(shard.path, start, end - start)
        if len(data) < end - start:
            raise ValueError(f"the shard ends at byte {shard.path.stat().st_size}, the sample at {end}")
        return data

    def _read(self, path: Path, start: int, size: int) -> bytes:
        """`size` bytes from `start`, or as many as there are. The files read last stay open."""
        file = self._open.get(path)
        if file is not None:
            try:
                return file.read(start, size)
            except OSError:  # a remote file that was replaced has to be opened anew
                del self._open[path]
        file = self._open[path] = OpenFile(path)
        if len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]
        return file.read(start, size)

    def _known_name(self, shard: Shard, state: ShardState, inside: int) -> str | None:
        """``shard.tar/key`` of a sample that cannot be read, from energon's index; None if that does not know it."""
        if state.offsets:
            return None
        folder = Path(str(self.base_path)) / ".nv-meta"
        with suppress(OSError, ValueError, LookupError, sqlite3.Error):
            shards = list(json.loads((folder / ".info.json").read_bytes())["shard_counts"])
            with closing(sqlite3.connect(f"file:{folder / 'index.sqlite'}?mode=ro", uri=True)) as rows:
                query = "SELECT sample_key FROM samples WHERE tar_file_id = ? AND sample_index = ?"
                found = rows.execute(query, (shards.index(shard.name), inside)).fetchone()
            return f"{shard.name}/{found[0]}" if found else None
        return None


def last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
