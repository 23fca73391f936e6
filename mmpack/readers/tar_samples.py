"""Samples of tar archives in WebDataset's layout: the members that stand together and share a name up to its first dot.

Rules:

* ``folder/KEY.PART``: the key is folder and name up to the first dot, the part is the rest, in lower case. Members of
  other names (no dot, or none before it) and WebDataset's own (``__index__.json``) belong to no sample.
* Names are used for nothing but grouping, so ``..`` and absolute ones harm nobody. Links, devices and sparse files are
  not followed: such a part is missing.
* Parts of one sample stand side by side; where another sample stands between them there are two, each incomplete.
  A part that stands twice makes its sample unreadable, since nobody knows which one is meant.
* If all parts of a group have dots and one of them ends in ``.json`` or a caption's ending, the dots belong to the
  names (``22.05.jpg``, ``22.05.json``): the group is cut at the last dots instead, and noted.
* The record is the part ``json``; a part ``txt``, ``text`` or ``caption`` beside it, or alone, is a caption where the
  JSON is no record of a known format. A record without an ``"id"`` gets the key as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from mmpack.errors import Reason, SampleError
from mmpack.readers.contract import MAX_PART_BYTES, MAX_RECORD_BYTES, and_more
from mmpack.readers.settle import by_number, is_picture
from mmpack.readers.tar_members import Damage, Member, Note
from mmpack.sources import detect

CAPTION_PARTS = ("txt", "text", "caption")


@dataclass(frozen=True, kw_only=True, slots=True)
class TarSample:
    """The members of one sample by part, in the order of the archive."""

    key: str
    members: tuple[tuple[str, Member], ...]  # (part, member)
    start: int  # of the stretch of the archive in which its members stand
    end: int
    number: int = 0  # among the samples of that stretch
    regrouped: bool = False  # cut at last dots

    @property
    def parts(self) -> dict[str, Member]:
        """Parts that can be read."""
        return {part: member for part, member in self.members if member.kind == "file"}

    @property
    def picture_parts(self) -> tuple[str, ...]:
        """The pictures' names, numbers in them by value."""
        return tuple(sorted((part for part in self.parts if is_picture(part)), key=by_number))

    @property
    def listed(self) -> str:
        """Its parts in words."""
        names = [part if member.kind == "file" else f"{part} (a {member.kind})" for part, member in self.members]
        return and_more(sorted(names), 20)


def samples_of(members: Iterator[Member | Damage | Note]) -> Iterator[TarSample | Damage | Note]:
    """The samples that `members` make; what is no member is passed on in its place."""
    key: str | None = None
    group: list[tuple[str, Member]] = []
    num_ignored = 0
    for member in members:
        named = _key_and_part(member.name) if isinstance(member, Member) and member.kind != "folder" else None
        if isinstance(member, Member) and named is None:
            num_ignored += member.kind != "folder"
            continue
        if named is None or named[0] != key:
            if key is not None:
                yield from _cut(key, group)
            key, group = (None if named is None else named[0]), []
        if isinstance(member, Member):
            assert named is not None
            group.append((named[1], member))
        else:
            yield member
    if key is not None:
        yield from _cut(key, group)
    if num_ignored:
        yield Note(what=f"{num_ignored} members belong to no sample by their names")


def _key_and_part(name: str) -> tuple[str, str] | None:
    """
    >>> _key_and_part("a.b/0001.First.JPG"), _key_and_part("README"), _key_and_part("a/.hidden")
    (('a.b/0001', 'first.jpg'), None, None)
    """
    while name.startswith("./"):
        name = name[2:]
    folder, slash, base = name.rpartition("/")
    stem, dot, part = base.partition(".")
    if not stem or not dot or (name.startswith("__") and name.partition("/")[0].endswith("__")):
        return None
    return f"{folder}{slash}{stem}", part.lower()


def _cut(key: str, group: Sequence[tuple[str, Member]]) -> Iterator[TarSample]:
    """The sample of a group, or several if the dots belong to their names."""
    start, end = group[0][1].start, group[-1][1].end
    dotted = [part.rpartition(".") for part, _ in group]
    if not all(dot for _, dot, _ in dotted) or not any(part in ("json", *CAPTION_PARTS) for _, _, part in dotted):
        yield TarSample(key=key, members=tuple(group), start=start, end=end)
        return
    by_stem: dict[str, list[tuple[str, Member]]] = {}
    for (stem, _, part), (_, member) in zip(dotted, group, strict=True):
        by_stem.setdefault(stem, []).append((part, member))
    for number, (stem, parts) in enumerate(by_stem.items()):
        yield TarSample(key=f"{key}.{stem}", members=tuple(parts), start=start, end=end, number=number, regrouped=True)


def record_of(file: IO[bytes], sample: TarSample) -> object:
    """The sample's record, read from its text parts.

    Raises:
        SampleError: a part stands twice, there is no text, or it cannot be read.
    """
    names = [part for part, _ in sample.members]
    if len(set(names)) < len(names):
        twice = next(part for part in names if names.count(part) > 1)
        member = dict(sample.members)[twice].name[:200]
        raise SampleError(Reason.UNREADABLE, f"part {twice!r} stands twice (member {member!r})")
    parts = sample.parts
    captions = [name for name in CAPTION_PARTS if name in parts]
    if "json" in parts:
        record = _json(read_member(file, parts["json"], MAX_RECORD_BYTES))
        if len(captions) != 1 or detect(record) is not None:
            return _with_id(record, sample.key)
    if len(captions) == 1:
        try:
            text = read_member(file, parts[captions[0]], MAX_RECORD_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SampleError(Reason.BAD_TEXT, f".{captions[0]} part: byte {error.start} is not UTF-8") from None
        return {"id": sample.key, "text": text}
    raise SampleError(Reason.MISSING_FIELD, f"no .json part and no caption; the sample has {sample.listed}")


def read_member(file: IO[bytes], member: Member, max_bytes: int) -> bytes:
    """A member's content. Raises SampleError if it is too large, or not there any more."""
    if member.size > max_bytes:
        reason = (
            Reason.IMAGE_TOO_LARGE if max_bytes == MAX_PART_BYTES and is_picture(member.name) else Reason.UNREADABLE
        )
        raise SampleError(reason, f"{member.name[:200]!r} has {member.size} bytes; at most {max_bytes} are read")
    file.seek(member.content)
    data = file.read(member.size)
    if len(data) < member.size:
        raise SampleError(Reason.UNREADABLE, f"the archive ends inside {member.name[:200]!r}")
    return data


def picture_named(sample: TarSample, name: str, num_named: int) -> Member:
    """The picture that a record of `num_named` pictures calls `name`. Raises SampleError if there is none."""
    part = name.lower()
    parts = sample.parts
    if part not in parts:  # the whole name of a member
        part = part.rpartition("/")[2].removeprefix(f"{sample.key.rpartition('/')[2].lower()}.")
    if part not in parts and num_named == 1:
        only = sample.picture_parts
        if len(only) == 1 and "." not in only[0]:
            part = only[0]
    if part not in parts:
        raise SampleError(Reason.IMAGE_MISSING, f"no part {name[:200]!r}; the sample has {sample.listed}")
    return parts[part]


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SampleError(Reason.BROKEN_JSON, f".json part: {str(error)[:200]}") from None


def _with_id(record: object, key: str) -> object:
    return {**record, "id": key} if isinstance(record, dict) and record.get("id") is None else record
