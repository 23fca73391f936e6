"""Packing algorithms: which samples share a pack, decided from their lengths alone.

An algorithm is a pure function ``(lengths, capacity, *, seed=0, limits=UNLIMITED) -> packs``; a pack is a list of
indices into `lengths`. It is given lengths and limits that were checked: whole numbers from 1 to `capacity`, and no
sample over a limit. It returns every index once, never fills a pack above `capacity` or a limit, and gives the same
packs for the same arguments. A new one is a file in this folder and a line in `ALGORITHMS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

from mmpack.errors import ConfigError, whole_number
from mmpack.packing.exact_fill import next_pack
from mmpack.packing.limits import UNLIMITED, Limits, make_limits
from mmpack.packing.metrics import PackingMeter, PackingMetrics, load_metrics, packing_metrics
from mmpack.registry import Registry

__all__ = [
    "ALGORITHMS",
    "UNLIMITED",
    "Limits",
    "Packer",
    "PackingMeter",
    "PackingMetrics",
    "check_capacity",
    "check_length",
    "check_lengths",
    "load_metrics",
    "make_limits",
    "next_pack",
    "pack_lengths",
    "packing_metrics",
]


class Packer(Protocol):
    """What every entry of `ALGORITHMS` is; the module's docstring says what it promises."""

    def __call__(
        self, lengths: Sequence[int], capacity: int, *, seed: int = 0, limits: Limits = UNLIMITED
    ) -> list[list[int]]: ...


ALGORITHMS: Registry[Packer] = Registry(
    "packing algorithm",
    {
        "exact_fill": "mmpack.packing.exact_fill_set:exact_fill",
        "best_fit_decreasing": "mmpack.packing.best_fit_decreasing:best_fit_decreasing",
        "first_fit_decreasing": "mmpack.packing.first_fit_decreasing:first_fit_decreasing",
        "first_fit": "mmpack.packing.first_fit:first_fit",
        "first_fit_shuffle": "mmpack.packing.first_fit_shuffle:first_fit_shuffle",
        "modified_first_fit_decreasing": "mmpack.packing.modified_first_fit_decreasing:modified_first_fit_decreasing",
        "greedy_knapsack": "mmpack.packing.greedy_knapsack:greedy_knapsack",
        "concatenative": "mmpack.packing.concatenative:concatenative",
    },
)


def pack_lengths(
    lengths: Sequence[int],
    capacity: int,
    *,
    algorithm: str = "exact_fill",
    seed: int = 0,
    limits: Mapping[str, tuple[Sequence[int], int]] | None = None,
    max_samples: int | None = None,
) -> list[list[int]]:
    """Packs a whole set of samples: a list of packs, each a list of indices into `lengths`, every index once.

    Args:
        lengths: tokens of each sample, whole numbers from 1 to `capacity`.
        capacity: tokens that a pack holds at most.
        algorithm: a name in `ALGORITHMS`.
        seed: decides the order of an algorithm that shuffles; the others take no notice of it.
        limits: name -> (cost of each sample, most that a pack holds), for tiles, pictures and the like.
        max_samples: samples that a pack holds at most.

    Raises:
        ConfigError: unknown algorithm; a length or capacity that is no whole number, below 1, or too long; a sample
            that is over a limit by itself.

    >>> pack_lengths([3, 5, 2, 7, 4, 6], 10, algorithm="first_fit_decreasing")
    [[3, 0], [5, 4], [1, 2]]
    >>> sorted(sum(pack_lengths([3, 5, 2, 7, 4, 6], 10), []))
    [0, 1, 2, 3, 4, 5]
    >>> pack_lengths([2, 2, 2, 2], 8, algorithm="first_fit", limits={"pictures": ([1, 3, 2, 1], 4)}, max_samples=3)
    [[0, 1], [2, 3]]
    """
    pack = ALGORITHMS.get(algorithm)
    room = check_capacity(capacity)
    checked = check_lengths(lengths, room)
    if (whole := whole_number(seed)) is None or not 0 <= whole < 2**32:
        raise ConfigError(f"seed={seed!r}; give a whole number from 0 to {2**32 - 1}")
    beside = make_limits(limits, len(checked), max_samples=max_samples)
    if not checked:
        return []
    # An algorithm of the user's own need not know limits until they are used.
    return pack(checked, room, seed=seed, limits=beside) if beside else pack(checked, room, seed=seed)


def check_lengths(lengths: Iterable[int], capacity: int | None = None) -> Sequence[int]:
    """`lengths` as ints. Raises ConfigError unless they are whole numbers from 1 to `capacity` (None: to any).

    >>> check_lengths(iter([3, 1]))
    [3, 1]
    """
    listed = hasattr(type(lengths), "__iter__") and getattr(lengths, "ndim", 1) == 1
    if not listed or isinstance(lengths, (Mapping, Set, str, bytes)):
        raise ConfigError(f"lengths={lengths!r:.60}; give a list of whole numbers, one for each sample")
    items = lengths if isinstance(lengths, (list, tuple)) else list(lengths)
    if capacity is None:
        capacity = max((n for item in items if (n := whole_number(item)) is not None), default=1)
    if set(map(type, items)) == {int} and min(items) > 0 and max(items) <= capacity:
        return items  # the usual case, checked without a Python loop
    return [check_length(length, capacity, place=f"lengths[{i}]") for i, length in enumerate(items)]


def check_capacity(capacity: int, *, name: str = "capacity") -> int:
    """`capacity` as an int. Raises ConfigError unless it is a whole number of at least one token."""
    if (tokens := whole_number(capacity)) is None or tokens < 1:
        raise ConfigError(f"{name}={capacity!r}: a pack holds a whole number of tokens, at least 1")
    return tokens


def check_length(length: int, capacity: int, *, place: str) -> int:
    """`length` as an int. Raises ConfigError, naming `place`, unless it is a whole number from 1 to `capacity`."""
    tokens = whole_number(length)
    if tokens is None:
        raise ConfigError(f"{place} is {length!r}; a length is a whole number of tokens from 1 to {capacity}")
    if tokens < 1:
        raise ConfigError(f"{place} is {tokens}; a sample has at least 1 token: leave out the empty ones")
    if tokens > capacity:
        raise ConfigError(
            f"{place} is {tokens} tokens, a pack holds {capacity}; raise the capacity, or drop or cut what is longer"
        )
    return tokens
