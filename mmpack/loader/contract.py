"""What the loader needs to know of the streams that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from mmpack.batch import B_co
from mmpack.batch.memory import Allocate, on_heap


class Stream(Protocol[B_co]):
    """One logical stream of packs; see `mmpack.stream.PackStream`."""

    def begin(self, epoch: int) -> None: ...
    def packs(self, allocate: Allocate = on_heap) -> Iterator[B_co]: ...  # their pixels in memory that it gives
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class StreamFactory(Protocol[B_co]):
    """Opens streams; called in the process that will read them."""

    @property
    def num_streams(self) -> int: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...  # everything that shapes the packs; compared at resume
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def max_batch_bytes(self) -> int: ...  # what the tensors of one pack can take, for the transfer
    @property
    def endless(self) -> bool: ...  # whether its streams never end
    def filler(self, pack_index: int) -> B_co: ...  # a batch of weight zero
    def __call__(self, stream: int) -> Stream[B_co]: ...
