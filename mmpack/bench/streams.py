"""Streams of packs under measurement: what waited how long, and how even the work of many ranks is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mmpack.stats import attention_cost, balance
from mmpack.window import AlignedPlans, stream_packs


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSize:
    """How much a packer may choose from: samples, or tokens."""

    samples: int | None = None
    tokens: int | None = None

    def is_full(self, num_samples: int, num_tokens: int) -> bool:
        """Whether a window that holds so much takes no more."""
        by_samples = self.samples is not None and num_samples >= self.samples
        return by_samples or (self.tokens is not None and num_tokens >= self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a stream of packs did to its samples."""

    steady_packs: int  # packs that were chosen from a full window or buffer; the others drained the stream
    longest_wait: int  # samples emitted between a sample's being read and its being emitted, at most


def replay_window(packs: Sequence[Sequence[int]], lengths: Sequence[int], size: WindowSize) -> Replay:
    """The window is filled up before each pack.

    >>> replay_window([[0, 3], [1, 2, 4], [5]], [5, 4, 2, 3, 1, 8], WindowSize(samples=4))
    Replay(steady_packs=2, longest_wait=3)
    """
    emitted_when_read: list[int] = []
    emitted = held_tokens = steady = longest = 0
    for pack in packs:
        while len(emitted_when_read) < len(lengths) and not size.is_full(len(emitted_when_read) - emitted, held_tokens):
            held_tokens += lengths[len(emitted_when_read)]
            emitted_when_read.append(emitted)
        steady += size.is_full(len(emitted_when_read) - emitted, held_tokens)
        longest = max(longest, *(emitted - emitted_when_read[i] for i in pack))
        emitted += len(pack)
        held_tokens -= sum(lengths[i] for i in pack)
    return Replay(steady_packs=steady, longest_wait=longest)


def replay_buffers(packs: Sequence[Sequence[int]], parts: Sequence[Sequence[int]], last_is_full: bool) -> Replay:
    """A buffer is filled, all of it goes out in packs, and so on."""
    ends: list[int] = []
    for part in parts:
        ends.append(len(part) + (ends[-1] if ends else 0))
    emitted = steady = longest = start = number = 0
    for pack in packs:
        if emitted >= ends[number]:
            start, number = ends[number], number + 1
        longest = max(longest, emitted - start)
        steady += number < len(parts) - 1 or last_is_full
        emitted += len(pack)
    return Replay(steady_packs=steady, longest_wait=longest)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWork:
    """What one rank did: the cost of each step, and the longest wait of a sample until its step."""

    step_costs: list[float]
    longest_wait: int


def step_cost(lengths: Sequence[int], hidden_size: int) -> float:
    """Work of one pack: attention, and what is the same for every token (6 x hidden size for a usual transformer)."""
    return attention_cost(lengths) + 6 * hidden_size * sum(lengths)


def aligned_rank(
    lengths: Sequence[int], capacity: int, *, window: int, align_window: int, num_steps: int, hidden_size: int
) -> RankWork:
    """mmpack's own: a window, and blocks of `align_window` plans behind it."""
    emitted = 0
    emitted_when_read: list[int] = []

    def read() -> Iterator[int]:
        for length in lengths:
            emitted_when_read.append(emitted)
            yield length

    packs = stream_packs(read(), capacity, window=window)
    plans = AlignedPlans[list[int]](align_window, seed=0)
    costs: list[float] = []
    longest = 0
    while len(costs) < num_steps:
        while plans.wants_plan:
            pack = next(packs)
            plans.add(pack, attention_cost(lengths[i] for i in pack))
        pack = plans.take()
        costs.append(step_cost([lengths[i] for i in pack], hidden_size))
        longest = max(longest, *(emitted - emitted_when_read[i] for i in pack))
        emitted += len(pack)
    return RankWork(step_costs=costs, longest_wait=longest)


def ranks_balance(work_of_rank: Callable[[int], Sequence[float]], num_ranks: int) -> float:
    """max / mean cost over ranks, mean over steps; `work_of_rank` gives the step costs of one rank."""
    return balance(list(zip(*(work_of_rank(rank) for rank in range(num_ranks)), strict=True)))
