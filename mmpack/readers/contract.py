"""What every reader of a source offers: its records once in order, and any of them again by its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mmpack.sources.json_files import MAX_RECORD_BYTES, Record

__all__ = ["MAX_PART_BYTES", "MAX_RECORD_BYTES", "FoundSample", "Place", "ReadPicture", "Reader"]

MAX_PART_BYTES = 1 << 28  # of one picture: more is not read into memory


class Place(NamedTuple):
    """Where a record stands, in four numbers whose meaning is its reader's affair."""

    file: int
    start: int
    size: int
    number: int


ReadPicture = Callable[[str], bytes | None]


def _holds_none(name: str) -> bytes | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSample:
    """A record with what its source holds beside it.

    `picture_parts` are names of pictures that belong to it whether it names them or not. `read_picture` gives the
    bytes of the picture that the record calls so; None if the source does not hold it, so that it is looked for in
    the image folder. `own_pictures`: every picture is in the source, nothing is looked for elsewhere; `holds` says
    what there is.
    """

    place: Place
    record: Record
    picture_parts: tuple[str, ...] = ()
    read_picture: ReadPicture = _holds_none
    own_pictures: bool = False
    holds: str = ""


class Reader(Protocol):
    """The records of one source. It may be used in a process forked from the one that opened it."""

    what: str  # such as "JSON list" or "4 tar files", for messages
    notes: list[str]  # what `scan` met that costs no sample but should be known; complete when it is exhausted

    def scan(self) -> Iterator[FoundSample]:
        """Every record in order; pictures need not be readable.

        Raises:
            ConfigError: the source as a whole cannot be read.
        """
        ...

    def fetch(self, places: Sequence[Place]) -> Iterator[FoundSample]:
        """The records at `places`, which ascend, with their pictures; these can be read until the next is asked for.

        A record that cannot be read any more comes with its error.
        """
        ...


def and_more(names: Sequence[str], shown: int = 5) -> str:
    """A few names, and how many more there are.

    >>> and_more(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
