"""Samples of tar archives, where they stand; see `mmpack.readers.tar_samples` for what makes a sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.readers.contract import MAX_PART_BYTES, FoundSample, Place, and_more
from mmpack.readers.tar_members import BLOCK_BYTES, Damage, Note, looks_like_tar, scan_members
from mmpack.readers.tar_samples import TarSample, picture_named, read_member, record_of, samples_of
from mmpack.sources.json_files import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class TarFile:
    """An archive as it lies on disk now, and what it is called."""

    path: Path
    name: str
    cut: str = ""  # why it ends early, if it does
    problem: str = ""  # why it cannot be read at all, if it cannot


class TarReader:
    """Samples of tar archives in order. Of several, one that cannot be read at all is one bad record."""

    def __init__(self, files: Sequence[TarFile]) -> None:
        self.what = "1 tar file" if len(files) == 1 else f"{len(files)} tar files"
        self.notes: list[str] = []
        self._files = list(files)

    def scan(self) -> Iterator[FoundSample]:
        num_found = 0
        for number, file in enumerate(self._files):
            for sample in self._scan_file(number, file):
                num_found += sample.record.data is not None
                yield sample
        if not num_found:
            raise ConfigError(f"no samples in {and_more([file.name for file in self._files])}")

    def _scan_file(self, number: int, file: TarFile) -> Iterator[FoundSample]:
        if file.problem:
            yield _damaged(file, number, 0, file.problem)
            return
        size = file.path.stat().st_size
        num_found = num_regrouped = 0
        dotted = ""
        with file.path.open("rb") as archive:
            if not looks_like_tar(archive.read(BLOCK_BYTES)):
                if len(self._files) == 1:
                    raise ConfigError(f"{file.name} is not a tar file: {'it is empty' if not size else 'no header'}")
                yield _damaged(file, number, 0, f"not a tar file ({size} bytes)")
                return
            for found in samples_of(scan_members(archive, 0, size)):
                if isinstance(found, Note):
                    self.notes.append(f"{file.name}: {found.what}")
                elif isinstance(found, Damage):
                    rest = "; nothing behind it was read" if found.fatal else "; read on at the next header"
                    yield _damaged(file, number, found.start, f"byte {found.start}: {found.what}{rest}")
                else:
                    num_found += 1
                    num_regrouped += found.regrouped
                    dotted = found.key if found.regrouped and not dotted else dotted
                    yield _found(archive, file, number, found)
        if file.cut:
            yield _damaged(file, number, size, file.cut)
        if not num_found:
            self.notes.append(f"{file.name} holds no samples")
        if num_regrouped:
            self.notes.append(
                f"{file.name}: {num_regrouped} samples have dots in their names, as {dotted[:100]!r} has; WebDataset's "
                "rule is to cut names at the first dot, here they were cut at the last"
            )

    def fetch(self, places: Sequence[Place]) -> Iterator[FoundSample]:
        for number, of_file in itertools.groupby(places, key=lambda place: place.file):
            file = self._files[number]
            with file.path.open("rb") as archive:
                for place in of_file:
                    end = place.start + place.size
                    there = [s for s in samples_of(scan_members(archive, place.start, end)) if isinstance(s, TarSample)]
                    if len(there) <= place.number:
                        yield _damaged(file, number, place.start, "the archive changed while it was converted")
                    else:
                        yield _found(archive, file, number, there[place.number])


def _found(archive: IO[bytes], file: TarFile, number: int, sample: TarSample) -> FoundSample:
    name = f"{file.name} sample {sample.key[:200]!r}"
    place = Place(number, sample.start, sample.end - sample.start, sample.number)
    try:
        record = Record(place=name, data=record_of(archive, sample))
    except SampleError as error:
        return FoundSample(place=place, record=Record(place=name, data={"id": sample.key}, error=error))
    named = _names_of(record.data)

    def read_picture(picture: str) -> bytes:
        member = picture_named(sample, picture, len(named) or len(sample.picture_parts))
        return read_member(archive, member, MAX_PART_BYTES)

    return FoundSample(
        place=place,
        record=record,
        picture_parts=sample.picture_parts,
        read_picture=read_picture,
        own_pictures=True,
        holds=sample.listed,
    )


def _names_of(record: object) -> list[object]:
    """The pictures that a record names in a list of its own."""
    names = (record.get("image") or record.get("images")) if isinstance(record, dict) else None
    return names if isinstance(names, list) else [names] if names else []


def _damaged(file: TarFile, number: int, start: int, what: str) -> FoundSample:
    error = SampleError(Reason.UNREADABLE, what)
    record = Record(place=file.name, data=None, error=error)
    return FoundSample(place=Place(number, start, 0, 0), record=record)
