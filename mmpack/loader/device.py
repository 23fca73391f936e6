"""The next batch on its way to the device while this one is computed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic

import torch

from mmpack.batch import B
from mmpack.errors import ConfigError


def ahead_on(batches: Iterable[B], device: torch.device | str) -> Iterator[B]:
    """The batches on `device`, each sent one before it is asked for.

    On a GPU the tensors are pinned and copied on a stream of their own, so that copying and computing overlap; the
    stream that asks for a batch waits for its copy and no longer. Elsewhere batches are moved as they are asked for,
    and none is taken ahead.
    """
    place = _device(device)
    if place.type != "cuda":
        for batch in batches:
            moved: Any = batch.to(place)
            yield moved
        return
    stream: Any = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
    waiting: tuple[B, Any] | None = None
    for batch in batches:
        pinned: Any = batch.pinned()
        with torch.cuda.stream(stream):
            sent: B = pinned.to(place, non_blocking=True)
            done = stream.record_event()
        if waiting is not None:
            yield _arrived(*waiting, place)
        waiting = sent, done
    if waiting is not None:
        yield _arrived(*waiting, place)


def _device(device: Any) -> torch.device:
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"device={device!r} is no device of torch; give one such as 'cuda', 'cuda:1' or 'cpu'"
        ) from None
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device={str(place)!r}, but {count} GPUs are visible to torch; give another, or 'cpu'")
    return place


def _arrived(batch: B, done: Any, place: torch.device) -> B:
    current = torch.cuda.current_stream(place)
    current.wait_event(done)
    for tensor in batch.tensors():
        tensor.record_stream(current)  # its memory was taken on the other stream and must outlast its use on this one
    return batch


class DeviceLoader(Generic[B]):
    """A loader's batches on a device, the next one sent ahead; the state stays that of the batch handed out last.

    Args:
        loader: a training loader of one of the data modules.
        device: where the batches are wanted.

    Raises:
        ConfigError: `loader` is none of a data module's, or `device` is none that this machine has.
    """

    def __init__(self, loader: Any, device: torch.device | str) -> None:
        if not hasattr(loader, "confirm"):
            raise ConfigError(f"loader is of kind {type(loader).__name__}; give a data module's train_dataloader()")
        self.loader, self.device = loader, _device(device)

    def __iter__(self) -> Iterator[B]:
        self.loader.confirming = True
        for batch in ahead_on(iter(self.loader), self.device):
            self.loader.confirm(batch)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state behind the batch handed out last."""
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state` at the next ``iter()``."""
        self.loader.load_state_dict(state)
