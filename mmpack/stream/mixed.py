"""Several sources blended by weights, exactly: in samples, or in tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmpack.errors import ConfigError, SampleError, StateError, nearest
from mmpack.sample import Conversation, EncodedSample
from mmpack.stream.contract import Drawn, FaultHandler, OpenSource, Sample, Source

UNITS = ("samples", "tokens")


class _Encoder(Protocol):
    def encode(self, conversation: Conversation) -> EncodedSample: ...


class MixedSource:
    """Draws from the source that is furthest behind its share.

    After any number of draws the share of each source is within one sample of its weight, whatever the lengths are
    (of those sources that have not ended). A sample that is left out costs its source nothing. Samples are encoded
    here, since their tokens have to be counted; faults in encoding are drawn as faults.

    Args:
        sources: the sources, in an order that stays the same.
        weights: of each, above 0; only their ratios matter.
        unit: what the weights are shares of, "samples" or "tokens".
        encoder: makes tokens of conversations.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float], unit: str, encoder: _Encoder) -> None:
        self.name = " + ".join(source.name for source in sources)
        self.num_samples = sum(source.num_samples for source in sources)
        self._sources, self._weights, self._unit, self._encoder = list(sources), list(weights), unit, encoder
        self._reading: list[Iterator[Drawn] | None] = [None] * len(sources)
        self._spent = [0] * len(sources)
        self._ended = [False] * len(sources)

    def __iter__(self) -> Iterator[Drawn]:
        while (number := self._furthest_behind()) is not None:
            reading = self._reading[number]
            if reading is None:
                reading = self._reading[number] = iter(self._sources[number])
            drawn = next(reading, None)
            if drawn is None:
                self._reading[number], self._ended[number] = None, True
                continue
            sample = self._encoded(drawn.sample)
            if isinstance(sample, EncodedSample):
                self._spent[number] += sample.num_tokens if self._unit == "tokens" else 1
            yield Drawn(place=[number, drawn.place], key=drawn.key, source=drawn.source, sample=sample)
        self._ended = [False] * len(self._sources)
        self._spent = [0] * len(self._sources)

    def _furthest_behind(self) -> int | None:
        running = [i for i, ended in enumerate(self._ended) if not ended and self._sources[i].num_samples]
        return min(running, key=lambda i: (self._spent[i] / self._weights[i], i), default=None)

    def _encoded(self, sample: Sample | SampleError) -> EncodedSample | SampleError:
        if isinstance(sample, Conversation):
            try:
                return self._encoder.encode(sample)
            except SampleError as error:
                return error
        return sample

    def read(self, place: Any) -> Sample:
        """The sample of `place` again, encoded or not."""
        number, inner = place
        source: Source = self._sources[number]
        return source.read(inner)

    def state(self) -> dict[str, Any]:
        return {
            "sources": [source.state() for source in self._sources],
            "spent": list(self._spent),
            "ended": list(self._ended),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises StateError if it blends another number of sources."""
        for name in ("sources", "spent", "ended"):
            if not isinstance(state.get(name), list | tuple):
                raise StateError(
                    f"the state is damaged: {name}={str(state.get(name))[:80]} of a blend, it must be a list"
                )
        if len(state["sources"]) != len(self._sources):
            raise StateError(f"the state blends {len(state['sources'])} sources, now there are {len(self._sources)}")
        for source, own in zip(self._sources, state["sources"], strict=True):
            source.restore(own)
        self._spent, self._ended = list(state["spent"]), list(state["ended"])
        self._reading = [None] * len(self._sources)


@dataclass(frozen=True, kw_only=True)
class OpenMix:
    """Opens the streams of a blend: a `mmpack.stream.OpenSource`.

    Args:
        sources: what opens each source.
        weights: of each.
        unit: what the weights are shares of.
        encoder: makes tokens of conversations.

    Raises:
        ConfigError: no sources, another number of weights, a weight that is not above 0, an unknown unit.
    """

    sources: Sequence[OpenSource]
    weights: Sequence[float]
    unit: str
    encoder: _Encoder

    def __post_init__(self) -> None:
        if not self.sources or len(self.sources) != len(self.weights):
            raise ConfigError(f"{len(self.weights)} weights for {len(self.sources)} datasets; give one for each")
        if not all(0 < weight < float("inf") for weight in self.weights):
            raise ConfigError(f"weights={list(self.weights)}; each must be above 0 (leave out what is not wanted)")
        if self.unit not in UNITS:
            raise ConfigError(f"blends can be in samples or tokens, not {self.unit!r}; {nearest(self.unit, UNITS)}")

    def __call__(self, *, stream: int, num_streams: int, on_fault: FaultHandler) -> MixedSource:
        opened = [
            open_source(stream=stream, num_streams=num_streams, on_fault=on_fault) for open_source in self.sources
        ]
        return MixedSource(opened, self.weights, self.unit, self.encoder)
