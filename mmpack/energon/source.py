"""A logical stream of an Energon dataset as a `mmpack.stream.Source`: what the reader reads, as conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mmpack.energon.cook import source_of, to_conversation
from mmpack.energon.plain_state import from_plain, to_plain
from mmpack.energon.reader import Source as Reader
from mmpack.energon.reader import SourceConfig
from mmpack.errors import SampleError
from mmpack.sample import Conversation
from mmpack.stream.contract import Drawn, FaultHandler

Cook = Callable[[Any], Conversation]


class EnergonSource:
    """Conversations of one logical stream; see `mmpack.energon.reader.Source` for the order and the arguments."""

    def __init__(
        self,
        config: SourceConfig,
        *,
        stream: int,
        num_streams: int,
        on_fault: FaultHandler,
        cook: Cook = to_conversation,
    ) -> None:
        self.name = config.told
        self._reader = Reader(config, stream=stream, num_streams=num_streams, on_fault=on_fault)
        self._cook = cook
        self.num_samples = self._reader.num_samples
        self.damaged_shards = self._reader.damaged_shards

    def __iter__(self) -> Iterator[Drawn]:
        for raw, key in self._reader:
            sample: Conversation | SampleError
            try:
                sample = self._cook(raw)
            except SampleError as error:
                sample = error
            yield Drawn(
                place=to_plain(key),
                key=raw.__key__,
                source=source_of(raw),
                shard=_origin(raw, "shard_name"),
                folder=_origin(raw, "dataset_path"),
                sample=sample,
            )

    def read(self, place: Any) -> Conversation:
        """The sample that was drawn with `place`, read again."""
        return self._cook(self._reader.read(from_plain(place)))

    def state(self) -> dict[str, Any]:
        return self._reader.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._reader.restore(state)


def _origin(raw: Any, field: str) -> str:
    sources = getattr(raw, "__sources__", None)
    return str(getattr(sources[0], field) or "") if sources else ""


@dataclass(frozen=True, slots=True)
class OpenEnergon:
    """Opens the streams of `config`: a `mmpack.stream.OpenSource`."""

    config: SourceConfig

    def __call__(self, *, stream: int, num_streams: int, on_fault: FaultHandler) -> EnergonSource:
        return EnergonSource(self.config, stream=stream, num_streams=num_streams, on_fault=on_fault)
