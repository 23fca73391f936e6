"""What a stream of packs needs of the data: samples in an order that can be saved after each, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from mmpack.errors import DataError, SampleError
from mmpack.sample import Conversation, EncodedSample

FaultHandler = Callable[[Exception, str], None]  # the error, and the name of what could not be read
Sample = Conversation | EncodedSample  # a source of ready token ids gives encoded samples


class ReadFault(DataError):
    """A sample that the data cannot give, and where it should have been.

    Args:
        cause: one line: what was met. No sample content.
        source: the dataset.
        shard: the file it should be in.
        name: the best name of the sample that is known.
        folder: the dataset's, if it has one.
    """

    def __init__(self, cause: str, *, source: str, shard: str, name: str, folder: str = "") -> None:
        self.cause, self.source, self.shard, self.name, self.folder = cause, source, shard, name, folder
        super().__init__(f"{source} {name}: {cause}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drawn:
    """One sample as its source gave it, or what is wrong with it."""

    place: Any  # where to read it again: plain lists, strings, numbers and bytes
    key: str
    source: str  # the dataset it came from
    shard: str = ""  # the file it came from, for messages
    folder: str = ""  # the dataset's, for messages
    sample: Sample | SampleError


class Source(Protocol):
    """The samples of one logical stream.

    Iterating goes on from where the state stands, to the end of the epoch; for ever if the source repeats. The next
    iteration after the end is the next epoch.
    """

    @property
    def name(self) -> str: ...  # of the data, for messages

    @property
    def num_samples(self) -> int: ...  # of this stream, in one epoch

    def __iter__(self) -> Iterator[Drawn]: ...

    def read(self, place: Any) -> Sample:
        """The sample of `place` again. Raises SampleError, or whatever reading it met."""
        ...

    def state(self) -> dict[str, Any]:
        """Where it stands, as plain values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises StateError if that is another source's."""
        ...


class OpenSource(Protocol):
    """Opens the source of one logical stream; `on_fault` is told of every sample that could not even be read."""

    def __call__(self, *, stream: int, num_streams: int, on_fault: FaultHandler) -> Source: ...
