"""What a data set needs for its samples to be drawn by number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mmpack.indexed.permutation import Permutation
from mmpack.stream.contract import Sample


class IndexedDataset(Protocol):
    """Samples by number. Opened before worker processes are forked, and read in all of them."""

    @property
    def name(self) -> str: ...  # what counters and messages call it; different for every data set of a blend
    def __len__(self) -> int: ...
    def key(self, index: int) -> str: ...  # different for every sample
    def sample(self, index: int) -> Sample:
        """Sample number `index`, always the same. Raises SampleError."""
        ...

    def describe(self) -> str:
        """All that decides what `sample` gives, as one line; where the data lies is no part of it."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a data set, drawn at random: places `start` to `stop` of a fixed order of all its samples."""

    whole: IndexedDataset
    start: int
    stop: int
    seed: int
    _order: Permutation = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.stop <= len(self.whole), f"{self.start}:{self.stop} of {len(self.whole)}"
        object.__setattr__(self, "_order", Permutation(len(self.whole), self.seed))

    @property
    def name(self) -> str:
        return self.whole.name

    def __len__(self) -> int:
        return self.stop - self.start

    def _index(self, index: int) -> int:
        return self._order(self.start + index)

    def key(self, index: int) -> str:
        return self.whole.key(self._index(index))

    def sample(self, index: int) -> Sample:
        return self.whole.sample(self._index(index))

    def describe(self) -> str:
        return f"{self.whole.describe()} [{self.start}:{self.stop}] seed {self.seed}"
