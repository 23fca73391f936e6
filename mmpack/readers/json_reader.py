"""Files of JSON records: lists and lines, one or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.readers.contract import FoundSample, Place, and_more
from mmpack.sources.json_files import Record, record_in, scan_records

Change = Callable[[Record], Record]


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFile:
    """A file of records as it lies on disk now, and what it is called."""

    path: Path
    name: str
    cut: str = ""  # why it ends early, if it does


def _as_it_is(record: Record) -> Record:
    return record


class JsonReader:
    """Records of JSON files.

    Args:
        files: in order; of several, each record's place names its file, and an empty file is noted.
        change: what becomes of each record.
        unit: what a record's number counts; None for ``entry`` or ``line``, whichever it is.
        what: the source is called in reports.
    """

    def __init__(
        self, files: Sequence[JsonFile], *, change: Change = _as_it_is, unit: str | None = None, what: str = "JSON"
    ) -> None:
        self.what = what if len(files) == 1 else f"{len(files)} {what} files"
        self.notes: list[str] = []
        self._files = list(files)
        self._change = change
        self._unit = unit
        self._units = [unit or ""] * len(files)

    def scan(self) -> Iterator[FoundSample]:
        num_found = 0
        for number, file in enumerate(self._files):
            for sample in self._scan_file(number, file):
                num_found += 1
                yield sample
        if not num_found and len(self._files) > 1:
            raise ConfigError(f"no samples in {and_more([file.name for file in self._files])}")

    def _scan_file(self, number: int, file: JsonFile) -> Iterator[FoundSample]:
        if len(self._files) > 1 and not file.path.stat().st_size:
            self.notes.append(f"{file.name} is empty")
            return
        end = count = 0
        for found in scan_records(file.path, name=file.name):
            unit = self._units[number] = self._unit or found.record.place.partition(" ")[0]
            end, count = found.start + found.size, found.number
            record = replace(found.record, place=self._place(number, unit, found.number))
            place = Place(number, found.start, found.size, found.number)
            yield FoundSample(place=place, record=self._change(record))
        if file.cut:
            error = SampleError(Reason.UNREADABLE, f"{file.name}: {file.cut}")
            place = Place(number, end, 0, count + 1)
            yield FoundSample(place=place, record=Record(place=file.name, data=None, error=error))

    def _place(self, file: int, unit: str, number: int) -> str:
        return f"{unit} {number}" if len(self._files) == 1 else f"{self._files[file].name} {unit} {number}"

    def fetch(self, places: Sequence[Place]) -> Iterator[FoundSample]:
        descriptor, opened = -1, -1
        try:
            for place in places:
                if place.file != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                    descriptor, opened = os.open(self._files[place.file].path, os.O_RDONLY), place.file
                yield FoundSample(place=place, record=self._change(self._read(descriptor, place)))
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _read(self, descriptor: int, place: Place) -> Record:
        name = self._place(place.file, self._units[place.file], place.number)
        content = b""
        while len(content) < place.size:
            piece = os.pread(descriptor, place.size - len(content), place.start + len(content))
            if not piece:
                break
            content += piece
        record = record_in(content.strip(b" \t\r\n"), name)
        if record.error is not None:
            error = SampleError(Reason.UNREADABLE, "the file changed while it was converted")
            return replace(record, error=error)
        return record
