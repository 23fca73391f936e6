"""Samples of data sets with random access as a `mmpack.stream.Source`: where it stands is two numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mmpack.errors import ConfigError, SampleError, StateError
from mmpack.indexed.contract import IndexedDataset
from mmpack.indexed.permutation import Permutation
from mmpack.sample import Conversation, EncodedSample
from mmpack.stream.contract import Drawn, FaultHandler


class IndexedSource:
    """Every `num_streams`-th sample of the data sets together, beginning with number `stream` of the order.

    The order is a permutation of all samples that is another one in each epoch, or, without `shuffle`, the data sets
    one behind the other. If it repeats, the streams together have given every sample once before any of them gives one
    for the second time.

    Args:
        datasets: one or several; their names differ.
        stream, num_streams: which logical stream of how many.
        seed: of the order.
        shuffle, repeat: see above.

    Raises:
        ConfigError: no sample in them, or two of the same name.
    """

    def __init__(
        self,
        datasets: IndexedDataset | Sequence[IndexedDataset],
        *,
        stream: int,
        num_streams: int,
        seed: int = 0,
        shuffle: bool = True,
        repeat: bool = True,
    ) -> None:
        self._datasets: tuple[IndexedDataset, ...] = tuple(datasets) if isinstance(datasets, Sequence) else (datasets,)
        names = [dataset.name for dataset in self._datasets]
        if len(set(names)) < len(names):
            raise ConfigError(f"data sets {names}: two of the same name; their samples could not be told apart")
        self.name = " + ".join(names)
        self._ends = list(accumulate(len(dataset) for dataset in self._datasets))
        self._size = self._ends[-1] if self._ends else 0
        if not self._size:
            raise ConfigError(f"{self.name or 'no data sets'}: no samples")
        self._stream, self._num_streams = stream, num_streams
        self._seed, self._shuffle, self._repeat = seed, shuffle, repeat
        own = len(range(stream, self._size, num_streams))
        self.num_samples = max(own, 1) if repeat else own
        self._epoch = 0  # counted only if the source does not repeat: else the number drawn says it
        self._num_drawn = 0
        self._order: tuple[int, Permutation] | None = None  # of an epoch

    def __iter__(self) -> Iterator[Drawn]:
        while True:
            place = self._num_drawn * self._num_streams + self._stream
            if place >= self._size and not self._repeat:
                break
            self._num_drawn += 1
            yield self._draw(self._epoch + place // self._size, place % self._size)
        self._epoch, self._num_drawn = self._epoch + 1, 0

    def _draw(self, epoch: int, position: int) -> Drawn:
        if self._shuffle:
            if self._order is None or self._order[0] != epoch:
                self._order = (epoch, Permutation(self._size, self._seed, epoch))
            position = self._order[1](position)
        dataset, index = self._find(position)
        key = dataset.key(index)
        sample: Conversation | EncodedSample | SampleError
        try:
            sample = dataset.sample(index)
        except SampleError as error:
            sample = error
        return Drawn(place=position, key=key, source=dataset.name, sample=sample)

    def _find(self, place: int) -> tuple[IndexedDataset, int]:
        number = bisect_right(self._ends, place)
        return self._datasets[number], place - (self._ends[number - 1] if number else 0)

    def read(self, place: Any) -> Conversation | EncodedSample:
        """The sample that was drawn with `place`, read again."""
        dataset, index = self._find(place)
        return dataset.sample(index)

    def state(self) -> dict[str, Any]:
        """The epoch, and how many samples have been drawn in it."""
        return {"epoch": self._epoch, "num_drawn": self._num_drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises StateError if it is another kind of source's."""
        try:
            self._epoch, self._num_drawn = int(state["epoch"]), int(state["num_drawn"])
        except (KeyError, TypeError, ValueError):
            raise StateError(f"the saved position {str(state)[:80]} is not one of {self.name!r}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenIndexed:
    """Opens the streams of data sets with random access: a `mmpack.stream.OpenSource`; see `IndexedSource`."""

    datasets: tuple[IndexedDataset, ...]
    seed: int = 0
    shuffle: bool = True
    repeat: bool = True

    def __call__(self, *, stream: int, num_streams: int, on_fault: FaultHandler) -> IndexedSource:
        return IndexedSource(
            self.datasets,
            stream=stream,
            num_streams=num_streams,
            seed=self.seed,
            shuffle=self.shuffle,
            repeat=self.repeat,
        )
