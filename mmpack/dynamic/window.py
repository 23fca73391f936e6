"""Dynamic batching over a stream: a window of one global batch, emitted as micro batches of padded rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from mmpack.dynamic.batches import MicrobatchOrder, check_at_least_1, check_order, dynamic_batches
from mmpack.errors import ConfigError, StateError
from mmpack.packing import check_length

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicBatch(Generic[T]):
    """One micro batch that left the window."""

    items: tuple[T, ...]  # a row each
    padded_length: int  # tokens of every row
    num_fillers: int  # rows of weight 0 behind them
    closes_global_batch: bool  # whether it is the last of its global batch, over all ranks


class PlannedBatch(TypedDict):
    """One micro batch still to come."""

    places: list[int]  # of its samples among those the window holds
    padded_length: int
    num_fillers: int


class DynamicState(TypedDict):
    """What is left of the global batch that is going out, as plain numbers; empty while one is being filled."""

    plan: list[PlannedBatch]


class DynamicWindow(Generic[T]):
    """The samples of one global batch, that come in one by one and go out as micro batches of like lengths.

    Fill it while it is not `full`, then take micro batches until it no longer is; when the stream has ended, take
    until it is empty. A global batch is planned when its first micro batch is taken, as `dynamic_batches` plans it:
    with `num_ranks` R, every R batches in a row have one shape and are for rank 0, 1, ... R - 1.

    Save it as its `items`, `lengths` and `state`; `add` and `restore` put them back.

    Args:
        tokens_per_microbatch: positions of a micro batch, padding included.
        global_batch_size: samples of one optimizer step, over all ranks.
        sequence_length_round: multiple for the length of rows.
        max_length: rows are never longer; None: the budget. No sample may be longer.
        num_ranks: data-parallel ranks that the micro batches are for.
        microbatch_order: as in `dynamic_batches`.

    Raises:
        ConfigError: a setting below 1, or `max_length` above the budget.

    >>> window = DynamicWindow[str](tokens_per_microbatch=16, global_batch_size=3, sequence_length_round=1)
    >>> for item, length in ("a", 7), ("b", 2), ("c", 8):
    ...     window.add(item, length)
    >>> [(batch.items, batch.padded_length) for batch in (window.take_batch(), window.take_batch())]
    [(('b', 'a'), 7), (('c',), 8)]
    """

    def __init__(
        self,
        *,
        tokens_per_microbatch: int,
        global_batch_size: int,
        sequence_length_round: int = 64,
        max_length: int | None = None,
        num_ranks: int = 1,
        microbatch_order: MicrobatchOrder = "packer",
    ) -> None:
        self.max_length = tokens_per_microbatch if max_length is None else max_length
        check_at_least_1(
            tokens_per_microbatch=tokens_per_microbatch,
            global_batch_size=global_batch_size,
            sequence_length_round=sequence_length_round,
            max_length=self.max_length,
            num_ranks=num_ranks,
        )
        check_order(microbatch_order)
        if self.max_length > tokens_per_microbatch:
            raise ConfigError(
                f"max_length={max_length}: a row would not fit tokens_per_microbatch={tokens_per_microbatch}; "
                "raise the budget, or lower max_length"
            )
        self.tokens_per_microbatch = tokens_per_microbatch
        self.global_batch_size = global_batch_size
        self.sequence_length_round = sequence_length_round
        self.num_ranks = num_ranks
        self.microbatch_order: MicrobatchOrder = microbatch_order
        self._items: list[T] = []
        self._lengths: list[int] = []
        self._plan: list[PlannedBatch] = []

    def __len__(self) -> int:
        """Samples inside."""
        return len(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """The samples inside, oldest first."""
        return tuple(self._items)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Their lengths in tokens, in the same order."""
        return tuple(self._lengths)

    @property
    def full(self) -> bool:
        """Whether micro batches must be taken before more is added."""
        return bool(self._plan) or len(self._items) >= self.global_batch_size

    def add(self, item: T, length: int) -> None:
        """Puts in the next sample. Raises ConfigError if its row cannot be. Not while a global batch goes out."""
        assert not self._plan, "a global batch is going out; take its micro batches before adding more"
        tokens = check_length(length, self.max_length, place=f"the length of sample {len(self)} of the window")
        self._items.append(item)
        self._lengths.append(tokens)

    def take_batch(self) -> DynamicBatch[T]:
        """Removes and returns the next micro batch. Raises IndexError if there is none."""
        if not self._plan:
            if not self._items:
                raise IndexError("no sample in the window to take")
            self._plan = self._planned()
        batch = self._plan.pop(0)
        taken = batch["places"]
        items = tuple(self._items[place] for place in taken)
        for place in sorted(taken, reverse=True):
            del self._items[place], self._lengths[place]
        for later in self._plan:
            later["places"] = [place - sum(t < place for t in taken) for place in later["places"]]
        return DynamicBatch(
            items=items,
            padded_length=batch["padded_length"],
            num_fillers=batch["num_fillers"],
            closes_global_batch=not self._plan,
        )

    def state(self) -> DynamicState:
        """What is left of the present plan; with `items` and `lengths`, all that has to be saved."""
        return {"plan": [{**batch, "places": list(batch["places"])} for batch in self._plan]}

    def restore(self, state: DynamicState) -> None:
        """Goes on with a saved plan, after the samples were added. Raises StateError if they do not fit."""
        places = sorted(place for batch in state["plan"] for place in batch["places"])
        if state["plan"] and places != list(range(len(self))):
            raise StateError(
                f"the saved plan is for {len(places)} samples, {len(self)} were restored; resume with the same data"
            )
        self._plan = [{**batch, "places": list(batch["places"])} for batch in state["plan"]]

    def _planned(self) -> list[PlannedBatch]:
        ranks = dynamic_batches(
            self._lengths,
            tokens_per_microbatch=self.tokens_per_microbatch,
            sequence_length_round=self.sequence_length_round,
            num_ranks=self.num_ranks,
            microbatch_order=self.microbatch_order,
            max_length=self.max_length,
        )
        return [
            {"places": list(b.indices), "padded_length": b.padded_length, "num_fillers": b.num_fillers}
            for step in zip(*ranks, strict=True)
            for b in step
        ]
