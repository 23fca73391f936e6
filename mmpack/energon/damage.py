"""What state a tar shard is in, and the sample in a stretch of it.

Energon reads a sample at the place that ``shard.tar.idx`` gives, and ends the run at the first one that is not
there. Whether a shard's index can be trusted is decided here from the shard's content alone, so a resumed run
decides alike.
"""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatron.energon.flavors.webdataset.config import skip_meta_re, split_name_re

from mmpack.energon.plain_tar import plain_members

_BLOCK = tarfile.BLOCKSIZE
_MOST_PADDING = 2 * tarfile.RECORDSIZE
_NUM_PROBES = 8  # samples of a shard that are looked at before its index is trusted
READ_FAULTS = (
    OSError,
    ValueError,
    OverflowError,  # a header's size may lead beyond any file
    EOFError,
    LookupError,
    RecursionError,
    tarfile.TarError,
    struct.error,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A tar file, and how many samples the dataset's metadata gives it."""

    name: str
    path: Path
    num_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardState:
    """What is wrong with a shard, if anything, and where its samples stand if its index does not say it."""

    problem: str | None = None
    offsets: Sequence[int] | None = None  # start of each sample, and the end of the last; None: the index is right


def inspect_shard(shard: Shard) -> ShardState:
    """Whether a shard can be read by its index. A few samples are looked at; the whole shard only if one is amiss.

    A shard that was rewritten after it was indexed is read by its own headers; one that is damaged, by its index.
    """
    if not shard.num_samples:
        return ShardState()
    try:
        size = shard.path.stat().st_size
    except OSError as error:
        return ShardState(problem=f"cannot be opened: {error.strerror or error}", offsets=())
    index = _index_of(shard)
    if index is not None and _fits(shard, index, size):
        return ShardState()
    found, complete = _scan(shard.path)
    if index is not None and tuple(found) == index:
        return ShardState()
    whole, cut = tuple(found), tuple(found[:-1])
    if index is not None and ((found and whole == index[: len(whole)]) or (not complete and cut == index[: len(cut)])):
        what = f"ends at byte {size}, its index at {index[-1]}" if size < index[-1] else "has damaged headers"
        return ShardState(problem=f"is damaged: it {what}")
    why = "has no index of its own" if index is None else "was changed after it was indexed"
    too = "" if complete else ", and is damaged"
    problem = f"{why}{too}; {max(len(found) - 1, 0)} samples found by their headers, {shard.num_samples} expected"
    return ShardState(problem=f"{problem}; prepare the dataset again", offsets=tuple(found))


def _index_of(shard: Shard) -> tuple[int, ...] | None:
    """The offsets in ``shard.tar.idx``; None if there is no index of as many samples as there should be."""
    try:
        data = shard.path.with_suffix(".tar.idx").read_bytes()
    except OSError:
        return None
    if len(data) != 8 * (shard.num_samples + 1):
        return None
    offsets = struct.unpack(f"<{shard.num_samples + 1}Q", data)
    return offsets if all(a < b for a, b in pairwise(offsets)) else None


def _fits(shard: Shard, index: Sequence[int], size: int) -> bool:
    """Whether the shard ends where its index does, and each of a few samples fills its range exactly."""
    if size < index[-1]:
        return False
    last = shard.num_samples - 1
    with shard.path.open("rb") as file:
        file.seek(index[-1])
        if any(file.read(_BLOCK)):
            return False
        for number in {last * i // (_NUM_PROBES - 1) for i in range(_NUM_PROBES)} if last >= 0 else ():
            file.seek(index[number])
            names = []
            try:
                with closing(_open_tar(file)) as tar:
                    tar.offset = index[number]
                    while tar.offset < index[number + 1]:
                        if (member := tar.next()) is None:
                            return False
                        names.append(_base_name(member))
                        tar.members.clear()
                    if tar.offset != index[number + 1] or len(set(filter(None, names))) != 1:
                        return False
            except READ_FAULTS:
                return False
    return True


def _open_tar(file: Any) -> _Tar:
    """A tar file that reads no member by itself; uncompressed only."""
    return _Tar(fileobj=file, mode="r")


class _Tar(tarfile.TarFile):
    """Reads from any place, and nothing before it is asked to."""

    members: list[tarfile.TarInfo]  # those met; they would pile up

    def __init__(self, *args: Any, **options: Any) -> None:
        self._ready = False
        super().__init__(*args, **options)
        self._ready = True

    def next(self) -> tarfile.TarInfo | None:
        if not self._ready:
            return None
        self.fileobj.seek(self.offset)
        return super().next()


def _base_name(member: tarfile.TarInfo) -> str | None:
    """The sample's name in a member's; None for what belongs to no sample."""
    if not member.isfile() or skip_meta_re.match(member.name):
        return None
    match = split_name_re.match(member.name)
    return match[1] if match else None


def _scan(path: Path) -> tuple[list[int], bool]:
    """Offsets of the samples that a shard's headers give, with the end; whether only padding is behind it."""
    offsets: list[int] = []
    before: str | None = None
    end = 0
    try:
        with path.open("rb") as file, closing(_open_tar(file)) as tar:
            size = path.stat().st_size
            while (member := tar.next()) is not None:
                tar.members.clear()
                if tar.offset > size:
                    return [*offsets, end], False
                name = _base_name(member)
                if name is not None and name != before:
                    offsets.append(member.offset)
                    before = name
                end = tar.offset
            file.seek(end)
            complete = size - end <= _MOST_PADDING and not any(file.read(_MOST_PADDING))
    except READ_FAULTS:
        complete = False
    return [*offsets, end] if offsets else [], complete


def _plain_sample(
    data: bytes, members: list[tuple[str, int, int]]
) -> tuple[str, dict[str, bytes], tuple[str, ...]] | None:
    """What `read_sample` gives for plain members of one sample; None where there is more to say."""
    base: str | None = None
    parts: dict[str, bytes] = {}
    for name, start, size in members:
        match = split_name_re.match(name)
        if match is None or skip_meta_re.match(name) or (base or match[1]) != match[1] or match[2] in parts:
            return None
        base = match[1]
        parts[match[2]] = data[start : start + size]
    return None if base is None else (base, parts, tuple(name for name, _, _ in members))


def read_sample(data: bytes) -> tuple[str, dict[str, bytes], tuple[str, ...]]:
    """Name, parts by extension, and member names of the sample whose headers and contents `data` is.

    Nothing outside `data` is read, no link is followed, and the parts are no larger than it.

    Raises:
        ValueError: it is not one whole sample; the text says why.
    """
    plain = plain_members(data)
    if plain is not None and (found := _plain_sample(data, plain)) is not None:
        return found
    base: str | None = None
    parts: dict[str, bytes] = {}
    names: list[str] = []
    try:
        with closing(_open_tar(io.BytesIO(data))) as tar:
            while tar.offset < len(data):
                place = tar.offset
                if (member := tar.next()) is None:
                    raise ValueError(f"no tar header at byte {place} of the sample")
                if tar.offset > len(data):
                    raise ValueError(f"member {member.name!r} goes beyond the sample")
                if (name := _base_name(member)) is None:
                    continue
                base = base or name
                extension = member.name[len(name) + 1 :]
                if name != base:
                    raise ValueError(f"holds members of {base!r} and of {name!r}: the index does not fit the shard")
                if extension in parts:
                    raise ValueError(f"member {member.name!r} stands twice")
                if member.issparse():
                    raise ValueError(f"member {member.name!r} is a sparse file")
                parts[extension] = data[member.offset_data : member.offset_data + member.size]
                names.append(member.name)
    except (tarfile.TarError, OverflowError, EOFError, LookupError, RecursionError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if base is None:
        raise ValueError("no member that belongs to a sample")
    return base, parts, tuple(names)
