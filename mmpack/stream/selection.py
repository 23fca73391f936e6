"""Which of the samples that are held make the next batch: an exact fill, the next few, the shortest, or a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mmpack.dynamic import dynamic_batches
from mmpack.dynamic.batches import MicrobatchOrder, check_at_least_1, check_order
from mmpack.errors import ConfigError
from mmpack.packing import check_length

T = TypeVar("T")


class Selection(Protocol[T]):
    """Samples that wait for their pack; see `mmpack.window.Window`.

    Equal samples in equal order, and `emitting`, give equal packs: that is all that is saved of it.
    """

    emitting: bool  # packs go out until none is left, before more samples come in

    def __len__(self) -> int: ...
    @property
    def items(self) -> tuple[T, ...]: ...
    @property
    def full(self) -> bool: ...
    def add(self, item: T, length: int, costs: Sequence[int] = ()) -> None: ...
    def take_pack(self) -> list[T]: ...


class NextFew(Generic[T]):
    """Packs of a fixed number of samples in the order they come, whatever their lengths: NeMo's micro-batch.

    >>> few = NextFew[str](2)
    >>> for item in "abc":
    ...     few.add(item, 1)
    >>> few.full, few.take_pack(), few.full, few.take_pack()
    (True, ['a', 'b'], False, ['c'])
    """

    emitting = False

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

    def add(self, item: T, length: int, costs: Sequence[int] = ()) -> None:
        """Puts in the next sample; its length does not matter."""
        self._items.append(item)

    def take_pack(self) -> list[T]:
        """Removes and returns the oldest samples, fewer than `num_samples` only if no more are held."""
        if not self._items:
            raise IndexError("no sample held to take")
        pack, self._items = self._items[: self.num_samples], self._items[self.num_samples :]
        return pack


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicBatching:
    """Batches of padded rows of like length within a budget of tokens, as NeMo-RL's dynamic batching makes them.

    Args:
        num_samples: samples that are sorted by length together: a stream's share of the global batch.
        tokens_per_microbatch: positions of a batch, padding included.
        sequence_length_round: multiple that rows are rounded up to, but not above `max_length`.
        max_length: longest row.
        microbatch_order: ``"packer"`` shortest first, ``"largest_first"`` the other way.

    Raises:
        ConfigError: a number below 1, a budget below the longest row, or an unknown order.
    """

    num_samples: int
    tokens_per_microbatch: int
    max_length: int
    sequence_length_round: int = 64
    microbatch_order: MicrobatchOrder = "packer"

    def __post_init__(self) -> None:
        check_order(self.microbatch_order)
        check_at_least_1(
            num_samples=self.num_samples,
            tokens_per_microbatch=self.tokens_per_microbatch,
            max_length=self.max_length,
            sequence_length_round=self.sequence_length_round,
        )
        if self.tokens_per_microbatch < self.max_length:
            raise ConfigError(
                f"tokens_per_microbatch={self.tokens_per_microbatch} is below the longest row of {self.max_length}; "
                "raise it, or lower seq_length"
            )

    def next_batch(self, lengths: Sequence[int]) -> list[int]:
        """Places of the samples of the next batch."""
        (batches,) = dynamic_batches(
            lengths,
            tokens_per_microbatch=self.tokens_per_microbatch,
            sequence_length_round=self.sequence_length_round,
            microbatch_order=self.microbatch_order,
            max_length=self.max_length,
        )
        return list(batches[0].indices)

    def selection(self) -> Selection[Any]:
        """An empty place to hold samples."""
        return _Planned(self, self.num_samples, whole=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthBuckets:
    """Batches of samples from one bucket of lengths: that of the sample which has waited longest.

    Args:
        num_samples: samples to choose from.
        batch_size: most samples of a batch.
        bucket_boundaries: rising lengths; a bucket ends with its boundary, and one more takes what is longer.
        length_tolerance: in place of boundaries: how much others may differ in length from the oldest.
    """

    num_samples: int
    batch_size: int
    bucket_boundaries: Sequence[int] | None = None
    length_tolerance: int | None = None

    def __post_init__(self) -> None:
        check_at_least_1(num_samples=self.num_samples, batch_size=self.batch_size)
        if (self.bucket_boundaries is None) == (self.length_tolerance is None):
            raise ConfigError("length buckets need either bucket_boundaries or length_tolerance")
        boundaries = list(self.bucket_boundaries or [1])
        if boundaries != sorted(set(boundaries)) or boundaries[0] < 1:
            raise ConfigError(f"bucket_boundaries={boundaries}; give rising lengths of at least 1")
        if self.length_tolerance is not None and self.length_tolerance < 0:
            raise ConfigError(f"length_tolerance={self.length_tolerance}; give a number of tokens, at least 0")

    def next_batch(self, lengths: Sequence[int]) -> list[int]:
        """Places of the samples of the next batch, oldest first."""
        alike = [i for i, length in enumerate(lengths) if self._alike(lengths[0], length)]
        return alike[: self.batch_size]

    def _alike(self, one: int, other: int) -> bool:
        if self.length_tolerance is not None:
            return abs(one - other) <= self.length_tolerance
        boundaries = self.bucket_boundaries or ()
        return sum(one > b for b in boundaries) == sum(other > b for b in boundaries)

    def selection(self) -> Selection[Any]:
        """An empty place to hold samples."""
        return _Planned(self, self.num_samples, whole=False)


class _Rule(Protocol):
    def next_batch(self, lengths: Sequence[int]) -> list[int]: ...


class _Planned(Generic[T]):
    """Samples that a rule chooses from; `whole`: all that were held when it was full go out before more come in."""

    def __init__(self, rule: _Rule, num_samples: int, *, whole: bool) -> None:
        self.emitting = False
        self._rule, self._num_samples, self._whole = rule, num_samples, whole
        self._items: list[T] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """Oldest first."""
        return tuple(self._items)

    @property
    def full(self) -> bool:
        """Whether a batch should be taken before more is added."""
        return self.emitting or len(self._items) >= self._num_samples

    def add(self, item: T, length: int, costs: Sequence[int] = ()) -> None:
        """Puts in the next sample."""
        self._items.append(item)
        self._lengths.append(check_length(length, max(length, 1), place="the length of a sample"))

    def take_pack(self) -> list[T]:
        """Removes and returns the samples of the next batch. Raises IndexError if none is held."""
        if not self._items:
            raise IndexError("no sample held to take")
        chosen = self._rule.next_batch(self._lengths)
        pack = [self._items[i] for i in chosen]
        for i in sorted(chosen, reverse=True):
            del self._items[i], self._lengths[i]
        self.emitting = self._whole and bool(self._items)
        return pack
