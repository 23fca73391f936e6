"""Which of the samples that are held make the next pack: an exact fill from a window, or simply the next few."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from mmpack.errors import ConfigError

T = TypeVar("T")


class Selection(Protocol[T]):
    """Samples that wait for their pack; see `mmpack.window.Window`."""

    def __len__(self) -> int: ...
    @property
    def items(self) -> tuple[T, ...]: ...
    @property
    def full(self) -> bool: ...
    def add(self, item: T, length: int) -> None: ...
    def take_pack(self) -> list[T]: ...


class NextFew(Generic[T]):
    """Packs of a fixed number of samples in the order they come, whatever their lengths: NeMo's micro-batch.

    >>> few = NextFew[str](2)
    >>> for item in "abc":
    ...     few.add(item, 1)
    >>> few.full, few.take_pack(), few.full, few.take_pack()
    (True, ['a', 'b'], False, ['c'])
    """

    def __init__(self, num_samples: int) -> None:
        if num_samples < 1:
            raise ConfigError(f"micro_batch_size={num_samples}; it must be at least 1")
        self.num_samples = num_samples
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """Oldest first."""
        return tuple(self._items)

    @property
    def full(self) -> bool:
        """Whether a pack is complete."""
        return len(self._items) >= self.num_samples

    def add(self, item: T, length: int) -> None:
        """Puts in the next sample; its length does not matter."""
        self._items.append(item)

    def take_pack(self) -> list[T]:
        """Removes and returns the oldest samples, fewer than `num_samples` only if no more are held."""
        if not self._items:
            raise IndexError("no sample held to take")
        pack, self._items = self._items[: self.num_samples], self._items[self.num_samples :]
        return pack
