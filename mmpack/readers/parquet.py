"""Parquet files, read in batches of a few rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.readers.contract import FoundSample, Place, and_more
from mmpack.readers.extras import library
from mmpack.readers.rows import checked_row
from mmpack.sources.json_files import Record

_BATCH_BYTES = 1 << 23
_MOST_ROWS = 256  # in a batch
_BUFFER_BYTES = 1 << 20
_LARGE_GROUP_BYTES = 1 << 26  # a row group of more, and of several batches, is cut before it is read many times
_SMALL_GROUP_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one row group, which is read in batches of `batch_rows`."""

    number: int
    first_row: int  # in the file
    num_rows: int
    batch_rows: int


class ParquetReader:
    """Rows of parquet files.

    Any row can be read again by reading its row group up to it. Files whose row groups are large are copied to
    `spool` with small ones first, so that no row is read more than a few times. Memory is that of a few pages and
    dictionaries of the file, whatever its size.

    Raises:
        ConfigError: pyarrow is not installed, or a file is no parquet file or holds none of a record's columns.
    """

    def __init__(self, paths: Sequence[Path], spool: Path) -> None:
        self._parquet = library("pyarrow.parquet", "a parquet file")
        self._arrow = library("pyarrow", "a parquet file")
        self.what = "1 parquet file" if len(paths) == 1 else f"{len(paths)} parquet files"
        self.notes: list[str] = []
        self._names = [str(path) if len(paths) == 1 else path.name for path in paths]
        self._paths: list[Path] = []
        for number, path in enumerate(paths):
            groups = self._groups(path)
            if any(self._is_large(path, group) for group in groups):
                path = self._cut(path, spool / f"{number:05d}.parquet")
            self._paths.append(path)

    def scan(self) -> Iterator[FoundSample]:
        num_rows = 0
        for number, path in enumerate(self._paths):
            groups = self._groups(path)
            with self._open(path) as file:
                for group in groups:
                    for row, data in self._rows(file, group, number):
                        num_rows += 1
                        yield self._found(number, row, data)
        if not num_rows:
            raise ConfigError(f"no rows in {and_more(self._names)}")

    def fetch(self, places: Sequence[Place]) -> Iterator[FoundSample]:
        for number, of_file in itertools.groupby(places, key=lambda place: place.file):
            groups = iter(self._groups(self._paths[number]))
            group = next(groups)
            wanted: list[int] = []
            with self._open(self._paths[number]) as file:
                for place in of_file:
                    while place.start >= group.first_row + group.num_rows:
                        yield from self._some(file, group, number, wanted)
                        group, wanted = next(groups), []
                    wanted.append(place.start)
                yield from self._some(file, group, number, wanted)

    def _some(self, file: Any, group: _Group, number: int, wanted: Sequence[int]) -> Iterator[FoundSample]:
        """The rows `wanted` of one group."""
        if not wanted:
            return
        missing = iter(wanted)
        row = next(missing)
        first = group.first_row
        for batch in self._batches(file, group):
            while row < first + batch.num_rows:
                (data,) = values_of(batch.slice(row - first, 1))
                yield self._found(number, row, data)
                following = next(missing, None)
                if following is None:
                    return
                row = following
            first += batch.num_rows

    def _rows(self, file: Any, group: _Group, number: int) -> Iterator[tuple[int, Any]]:
        row = group.first_row
        try:
            for batch in self._batches(file, group):
                for data in values_of(batch):
                    yield row, data
                    row += 1
        except (OSError, self._arrow.ArrowException) as error:
            where = f"{self._names[number]}, row group {group.number + 1}"
            raise ConfigError(f"{where}: cannot be read: {' '.join(str(error).split())[:200]}") from None

    def _batches(self, file: Any, group: _Group) -> Iterator[Any]:
        batches: Iterator[Any] = file.iter_batches(group.batch_rows, row_groups=[group.number], use_threads=False)
        return batches

    def _found(self, number: int, row: int, data: Any) -> FoundSample:
        place = Place(number, row, 1, row + 1)
        prefix = f"{self._names[number]} " if len(self._paths) > 1 else ""
        return found_row(place, f"{prefix}row {row + 1}", data)

    def _open(self, path: Path) -> Any:
        try:
            return self._parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (OSError, self._arrow.ArrowException) as error:
            text = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path} cannot be read as a parquet file: {text}") from None

    def _groups(self, path: Path) -> list[_Group]:
        with self._open(path) as file:
            groups = []
            first_row = 0
            for number in range(file.metadata.num_row_groups):
                facts = file.metadata.row_group(number)
                row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
                batch_rows = min(_MOST_ROWS, max(1, _BATCH_BYTES // row_bytes))
                groups.append(_Group(number, first_row, facts.num_rows, batch_rows))
                first_row += facts.num_rows
            return groups

    def _is_large(self, path: Path, group: _Group) -> bool:
        with self._open(path) as file:
            num_bytes = file.metadata.row_group(group.number).total_byte_size
        return bool(num_bytes > _LARGE_GROUP_BYTES and group.num_rows > 2 * group.batch_rows)

    def _cut(self, path: Path, out: Path) -> Path:
        """Copies a file into one of small row groups."""
        out.parent.mkdir(parents=True, exist_ok=True)
        # Small pages too: a page, and a dictionary, is read as a whole.
        options = {"compression": "snappy", "use_dictionary": False, "write_batch_size": 8}
        with self._open(path) as file, self._parquet.ParquetWriter(out, file.schema_arrow, **options) as to:
            for group in self._groups(path):
                rows = max(1, group.batch_rows * (_SMALL_GROUP_BYTES // _BATCH_BYTES))
                pending: list[Any] = []
                for batch in self._batches(file, group):
                    pending.append(batch)
                    if sum(b.num_rows for b in pending) >= rows:
                        to.write_table(self._arrow.Table.from_batches(pending))
                        pending = []
                if pending:
                    to.write_table(self._arrow.Table.from_batches(pending))
        return out


def values_of(rows: Any) -> list[Any]:
    """The rows of an Arrow table or batch as Python has them; an error in place of one that it cannot have."""
    try:
        values: list[Any] = rows.to_pylist()
        return values
    except (ValueError, OverflowError) as error:  # text that is no UTF-8, a date beyond the calendar
        if rows.num_rows == 1:
            reason = Reason.BAD_TEXT if isinstance(error, UnicodeDecodeError) else Reason.WRONG_TYPE
            return [SampleError(reason, f"the row cannot be read: {' '.join(str(error).split())[:200]}")]
        return [value for i in range(rows.num_rows) for value in values_of(rows.slice(i, 1))]


def found_row(place: Place, name: str, values: Any) -> FoundSample:
    """A row, as `values_of` gives it, as a sample."""
    try:
        if isinstance(values, SampleError):
            raise values
        record, pictures = checked_row(values)
    except SampleError as error:
        identity = values.get("id") if isinstance(values, dict) else None
        return FoundSample(place=place, record=Record(place=name, data={"id": identity}, error=error))
    return FoundSample(place=place, record=Record(place=name, data=record), read_picture=pictures.get)
