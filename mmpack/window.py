"""The streaming window: samples come in one by one, packs go out, and the order hardly changes.

`Window` chooses the packs of one stream. `AlignedPlans` reorders finished packs so that packs of like cost meet at
the same step on every rank. `stream_packs` is the window over plain numbers. To save a window, save its samples in
order; `add` puts them back. An `AlignedPlans` is saved as its `state` and its `plans`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypedDict, TypeVar

from mmpack.errors import ConfigError, StateError, whole_number
from mmpack.packing import UNLIMITED, Limits, check_capacity, check_length, next_pack
from mmpack.packing.limits import check_cost, check_most

T = TypeVar("T")


class Window(Generic[T]):
    """The samples of one stream that wait for their pack.

    Fill it while it is not `full`, then take one pack, and so on; when the stream has ended, take packs until it is
    empty: they get emptier, and every sample goes out. Packs depend on the lengths inside and on nothing else, so
    adding the same samples in the same order restores a window.

    Args:
        capacity: tokens that a pack holds at most.
        max_samples: the window is full with this many samples; None for no such limit.
        max_tokens: it is full with this many tokens as well, at least `capacity`; None for no such limit. Four
            capacities are enough for mixes of short and very long chats.
        limits: name -> most that a pack holds of it beside tokens: tiles, pictures. Samples come with their costs.
        max_pack_samples: samples that a pack holds at most; None for no such limit.

    Raises:
        ConfigError: a limit below 1, `max_tokens` below `capacity`, or no limit at all.

    >>> window = Window[str](capacity=8, max_samples=4)
    >>> for item, length in ("a", 5), ("b", 4), ("c", 2), ("d", 3):
    ...     window.add(item, length)
    >>> window.full, window.take_pack(), window.full, window.take_pack()
    (True, ['a', 'd'], False, ['b', 'c'])
    """

    emitting = False  # samples come in again after every pack

    def __init__(
        self,
        capacity: int,
        max_samples: int | None,
        max_tokens: int | None = None,
        *,
        limits: Mapping[str, int] | None = None,
        max_pack_samples: int | None = None,
    ) -> None:
        self.capacity = check_capacity(capacity)
        if max_samples is None and max_tokens is None:
            raise ConfigError("a window needs a size: set max_samples, max_tokens or both")
        if max_samples is not None and (whole_number(max_samples) or 0) < 1:
            raise ConfigError(
                f"max_samples={max_samples!r}: a window holds at least 1 sample; 50 to 200 fill packs exactly"
            )
        if max_tokens is not None and (whole_number(max_tokens) or 0) < capacity:
            raise ConfigError(
                f"max_tokens={max_tokens!r}: the window could not fill a pack of {capacity} tokens; "
                f"set at least {capacity}, better {4 * capacity}"
            )
        if max_pack_samples is not None and (whole_number(max_pack_samples) or 0) < 1:
            raise ConfigError(f"max_pack_samples={max_pack_samples!r}: a pack holds at least 1 sample")
        self.max_samples = max_samples
        self.max_tokens = max_tokens
        self.max_pack_samples = max_pack_samples
        self.limits = {name: check_most(name, most) for name, most in (limits or {}).items()}
        self._items: list[T] = []
        self._lengths: list[int] = []
        self._costs: list[tuple[int, ...]] = []
        self._total_tokens = 0

    def __len__(self) -> int:
        """Samples inside."""
        return len(self._items)

    @property
    def total_tokens(self) -> int:
        """Tokens of the samples inside."""
        return self._total_tokens

    def __iter__(self) -> Iterator[T]:
        """The samples inside, oldest first."""
        return iter(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """The samples inside, oldest first, as they are now."""
        return tuple(self._items)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Their lengths in tokens, in the same order."""
        return tuple(self._lengths)

    @property
    def costs(self) -> tuple[tuple[int, ...], ...]:
        """What they cost beside tokens, in the same order and in that of `limits`."""
        return tuple(self._costs)

    @property
    def full(self) -> bool:
        """Whether a pack should be taken before more is added. `add` does not insist."""
        if self.max_samples is not None and len(self._items) >= self.max_samples:
            return True
        return self.max_tokens is not None and self._total_tokens >= self.max_tokens

    def add(self, item: T, length: int, costs: Sequence[int] = ()) -> None:
        """Puts in the next sample of the stream. Raises ConfigError if no pack can hold it.

        Args:
            item: whatever stands for the sample.
            length: its tokens.
            costs: what it costs of each of `limits`, in their order.
        """
        place = f"sample {len(self)} of the window"
        tokens = check_length(length, self.capacity, place=f"the length of {place}")
        if len(costs) != len(self.limits):
            raise ConfigError(f"{place} has {len(costs)} costs; the window's limits are {list(self.limits)}, in order")
        checked = [
            check_cost(name, cost, most, place=place)
            for (name, most), cost in zip(self.limits.items(), costs, strict=True)
        ]
        self._items.append(item)
        self._lengths.append(tokens)
        self._costs.append(tuple(checked))
        self._total_tokens += tokens

    def take_pack(self) -> list[T]:
        """Removes and returns the samples of the next pack, oldest first. O(window). Raises IndexError if empty."""
        if not self._items:
            raise IndexError("no sample in the window to take")
        chosen = next_pack(self._lengths, self.capacity, self._limits())
        pack = [self._items[i] for i in chosen]
        for i in reversed(chosen):
            self._total_tokens -= self._lengths[i]
            del self._items[i], self._lengths[i], self._costs[i]
        return pack

    def _limits(self) -> Limits:
        if not self.limits and self.max_pack_samples is None:
            return UNLIMITED
        if self.max_pack_samples is None:
            return Limits(names=tuple(self.limits), most=tuple(self.limits.values()), costs=self._costs)
        return Limits(
            names=(*self.limits, "samples"),
            most=(*self.limits.values(), self.max_pack_samples),
            costs=[(*costs, 1) for costs in self._costs],
        )


class AlignedState(TypedDict):
    """Where an `AlignedPlans` stands, as plain numbers; its plans are saved by whoever knows what they are."""

    block: int  # blocks finished before the present one
    emitting: bool  # False: the present block is being filled; True: it is going out
    costs: list[int]  # of the held plans, in the order of `AlignedPlans.plans`


class AlignedPlans(Generic[T]):
    """Blocks of finished packs ("plans"), sent out by cost in an order that is the same on every stream.

    A block is filled with `block_plans` plans, sorted by cost, and emitted in a permutation of the sorted places that
    depends on (seed, number of the block) alone. With the same seed everywhere, the n-th pack of every stream is the
    same quantile of its block, so the packs that ranks work on at one step cost about the same, and nobody had to
    tell anybody anything. A block of 1 passes plans through unchanged.

    The price is order: a plan moves by less than `block_plans` packs, and its samples wait that much longer. Nothing
    goes out before the first block is full; in return the plans of a block are made in one go.

    Use: while it `wants_plan`, `add` the next one; then, or when there is none, `take` one.

    Args:
        block_plans: plans a block, at least 1.
        seed: the same on all streams and ranks.
    """

    def __init__(self, block_plans: int, seed: int) -> None:
        if block_plans < 1:
            raise ConfigError(f"align_window={block_plans}: hold at least 1 plan; 1 keeps the order as it is")
        self.block_plans = block_plans
        self.seed = seed
        self._block = 0
        self._emitting = False
        self._held: list[tuple[int, T]] = []  # (cost, plan): as they came; once emitting, as they will go

    def __len__(self) -> int:
        """Plans held."""
        return len(self._held)

    @property
    def plans(self) -> tuple[T, ...]:
        """The plans held, in the order in which `restore` wants them back."""
        return tuple(plan for _, plan in self._held)

    @property
    def wants_plan(self) -> bool:
        """Whether the block is still being filled: `add` a plan, or `take` if the stream has none left."""
        return not self._emitting

    def add(self, plan: T, cost: int) -> None:
        """Puts a plan into the block; `cost` as `mmpack.stats.attention_cost` counts it. Only while `wants_plan`."""
        assert self.wants_plan, "a block is going out; take its plans before adding more"
        self._held.append((cost, plan))
        if len(self._held) == self.block_plans:
            self._start_block()

    def take(self) -> T:
        """Removes and returns the next plan. A block that is not full (the stream has ended) goes out as it is.

        Raises IndexError if no plan is held.
        """
        if not self._held:
            raise IndexError("no plan held to take")
        if not self._emitting:
            self._start_block()
        _, plan = self._held.pop(0)
        if not self._held:
            self._block += 1
            self._emitting = False
        return plan

    def restart(self) -> None:
        """Counts blocks from 0 again, for a new epoch: streams agree again, whatever number of packs each had."""
        assert not self._held, "plans of the old epoch are still held"
        self._block = 0

    def state(self) -> AlignedState:
        """Where it stands; with `plans`, all that `restore` needs."""
        return {"block": self._block, "emitting": self._emitting, "costs": [cost for cost, _ in self._held]}

    def restore(self, state: AlignedState, plans: Sequence[T]) -> None:
        """Goes back to a saved `state`, holding the `plans` of that time. Raises StateError if they do not fit."""
        costs = state["costs"]
        if len(costs) != len(plans) or len(plans) > self.block_plans:
            raise StateError(
                f"{len(plans)} held plans restored, the state counts {len(costs)}, align_window is {self.block_plans}; "
                "resume with the align_window the run was saved with"
            )
        self._block, self._emitting = state["block"], state["emitting"]
        self._held = list(zip(costs, plans, strict=True))

    def _start_block(self) -> None:
        by_cost = sorted(self._held, key=lambda held: held[0])  # stable: equal costs stay as they came
        self._held = [by_cost[place] for place in quantile_order(len(by_cost), self.seed, self._block)]
        self._emitting = True


def quantile_order(num_plans: int, seed: int, block: int) -> list[int]:
    """The order in which a block's places, sorted by cost, go out: a permutation that (seed, block) decide.

    >>> quantile_order(4, seed=0, block=0) == quantile_order(4, seed=0, block=0)
    True
    >>> sorted(quantile_order(4, seed=0, block=1))
    [0, 1, 2, 3]
    """
    # Python promises the numbers of random() for a seed for ever, those of shuffle() not.
    draw = random.Random(f"aligned plans {seed} {block}").random
    keys = [draw() for _ in range(num_plans)]
    return sorted(range(num_plans), key=keys.__getitem__)


def stream_packs(
    lengths: Iterable[int], capacity: int, *, window: int | None = 200, window_tokens: int | None = None, seed: int = 0
) -> Iterator[list[int]]:
    """Packs a stream of lengths through a window, the way the loader does: indices into the stream, every one once.

    Lengths are read as they are needed, never more than `window` ahead. When they end, the window drains into ever
    emptier packs.

    Args:
        lengths: tokens of the samples in the order they come, whole numbers from 1 to `capacity`; may be endless.
        capacity: tokens that a pack holds at most.
        window: samples to choose from; None to count them by tokens only.
        window_tokens: tokens to choose from, at least `capacity`; None for no such limit.
        seed: not used; the window does not shuffle.

    Raises:
        ConfigError: capacity or window below 1; while iterating, a length that is no whole number from 1 to `capacity`.

    >>> list(stream_packs([5, 4, 2, 3, 1, 8], 8, window=4))
    [[0, 3], [1, 2, 4], [5]]
    """
    return _packs_of_stream(lengths, Window[int](capacity, window, window_tokens))


def _packs_of_stream(lengths: Iterable[int], window: Window[int]) -> Iterator[list[int]]:
    for i, length in enumerate(lengths):
        window.add(i, check_length(length, window.capacity, place=f"lengths[{i}]"))
        while window.full:
            yield window.take_pack()
    while len(window):
        yield window.take_pack()
