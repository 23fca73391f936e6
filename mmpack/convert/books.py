"""What is known of every record, kept on disk: 40 bytes for its place and id, and a line where it is bad.

A few bytes a record stay in memory (whether it is bad), so the size of a source hardly matters.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.convert.config import REPORT_NAME, ConvertReport, SampleReport
from mmpack.energon.writer import strict_json
from mmpack.errors import Reason
from mmpack.readers import Place

_COLUMNS = 5  # the numbers of a place, and a hash of the id
_ROW = struct.Struct(f"<{_COLUMNS}q")
_BLOCK_ROWS = 1 << 16
_REASONS = list(Reason)


@dataclass(frozen=True, slots=True)
class PlaceFile:
    """Where all records stand, in a file that any process can read."""

    path: Path

    def at(self, positions: NDArray[np.int64]) -> list[Place]:
        """Where the records at `positions`, which ascend, stand."""
        first = int(positions[0])
        rows = self.rows(first, int(positions[-1]) + 1 - first)
        return [Place(*row) for row in rows[positions - first, :4].tolist()]

    def rows(self, first: int, count: int) -> NDArray[np.int64]:
        """The numbers of `count` records from `first`, (count, 5)."""
        values = np.fromfile(self.path, dtype="<i8", count=count * _COLUMNS, offset=first * _ROW.size)
        return values.reshape(-1, _COLUMNS)


class Books:
    """Writes down records as they are found, then what becomes of them.

    Args:
        folder: for its files, which are gone with it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._reasons = array("B")  # of each record, 1 + its place in the enumeration; 0: good so far
        self.places = PlaceFile(folder / "places")
        self._rows = self.places.path.open("wb")
        self._ids = (folder / "ids").open("w", encoding="ascii")
        self._faults: list[Path] = []
        self._fault_file: Any = None
        self.start_faults()

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, place: Place, identity: object) -> int:
        """Takes note of the next record; returns its position."""
        identity = plain_id(identity)
        hashed = 0
        if identity is not None:
            hashed = int.from_bytes(hashlib.blake2b(repr(identity).encode(), digest_size=8).digest(), "little") >> 1
        self._rows.write(_ROW.pack(*place, hashed))
        self._ids.write(json.dumps(identity) + "\n")
        self._reasons.append(0)
        return len(self._reasons) - 1

    def close(self) -> None:
        """All records are known. `places` can be asked from now on, in any process."""
        self._rows.close()
        self._ids.close()

    def start_faults(self) -> None:
        """The faults that follow come in the order of their positions."""
        if self._fault_file is not None:
            self._fault_file.close()
        self._faults.append(self._folder / f"faults-{len(self._faults)}")
        self._fault_file = self._faults[-1].open("w", encoding="ascii")

    def fault(self, position: int, reason: Reason, detail: str) -> None:
        """A record is bad, and why."""
        self._reasons[position] = 1 + _REASONS.index(reason)
        self._fault_file.write(json.dumps([position, reason.value, detail]) + "\n")

    def usable(self) -> NDArray[np.int64]:
        """Positions of the records that are not known to be bad."""
        return np.flatnonzero(self._good())

    def _good(self) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = np.frombuffer(self._reasons, dtype=np.uint8) == 0
        return good

    @property
    def num_bad(self) -> int:
        return sum(self.skipped().values())

    def skipped(self) -> dict[str, int]:
        """Bad records by reason."""
        counts = np.bincount(np.frombuffer(self._reasons, dtype=np.uint8), minlength=1 + len(_REASONS))[1:]
        return {str(reason.value): int(counts[i]) for i, reason in sorted(enumerate(_REASONS), key=_name) if counts[i]}

    def num_duplicate_ids(self) -> int:
        """Good records whose id an earlier good one has."""
        good = self._good()
        hashes = np.empty(len(good), dtype=np.int64)
        for first in range(0, len(good), _BLOCK_ROWS):
            hashes[first : first + _BLOCK_ROWS] = self.places.rows(first, min(_BLOCK_ROWS, len(good) - first))[:, -1]
        hashes = hashes[good & (hashes != 0)]
        hashes.sort()
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))

    def samples(self) -> Iterator[SampleReport]:
        """What became of each record, in order."""
        self._fault_file.flush()
        faults = heapq.merge(*(_read_faults(path) for path in self._faults), key=lambda fault: fault[0])
        fault = next(faults, None)
        with (self._folder / "ids").open(encoding="ascii") as ids:
            for position, line in enumerate(ids):
                reason = detail = None
                if fault is not None and fault[0] == position:
                    _, reason, detail = fault
                    fault = next(faults, None)
                yield SampleReport(id=json.loads(line), key=key_of(position), reason=reason, detail=detail)

    def write_report(self, report: ConvertReport, folder: Path) -> None:
        """Writes the report with every sample on a line of its own."""
        with (folder / REPORT_NAME).open("w", encoding="ascii") as file:
            file.write("{\n")
            for name, value in report.head().items():
                text = json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
                file.write(f' "{name}": {text},\n')
            file.write(' "samples": [')
            for number, sample in enumerate(self.samples()):
                file.write((",\n  " if number else "\n  ") + json.dumps(sample.to_json(), allow_nan=False))
            file.write("\n ]\n}\n")

    def release(self) -> None:
        """Lets go of all files."""
        for file in (self._rows, self._ids, self._fault_file):
            file.close()


def _name(item: tuple[int, Reason]) -> str:
    return item[1].value


def _read_faults(path: Path) -> Iterator[tuple[int, str, str]]:
    with path.open(encoding="ascii") as file:
        for line in file:
            position, reason, detail = json.loads(line)
            yield position, reason, detail


def key_of(position: int) -> str:
    """The key of the record at `position`, whatever its id is."""
    return f"{position:08d}"


def plain_id(identity: object) -> Any:
    """An id as the dataset has it: strict JSON.

    >>> plain_id(float("nan")), plain_id("a")
    (None, 'a')
    """
    if identity is None or (isinstance(identity, str) and identity.isascii()):
        return identity
    return json.loads(strict_json({"id": identity}))["id"]
