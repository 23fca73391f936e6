"""Limits of a pack beside its tokens: tiles, pictures, samples; any number of them at once.

A pack has room for a sample if the tokens fit and if every limit does. Algorithms that look for a sample or a pack
"that fits" may have to pass over many that fit in tokens only; they look at no more than `MOST_LOOKS` of them, so a
limit that binds everywhere makes them a little less thorough, never quadratic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index

from mmpack.errors import ConfigError, whole_number

MOST_LOOKS = 128  # candidates that fit in tokens and are asked for the other limits, for one place in a pack

Room = list[int]  # what a pack has left of each limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What each sample costs and what a pack may cost, in D quantities beside tokens. Checked by `make_limits`.

    >>> limits = make_limits({"pictures": ([1, 0, 3], 4)}, 3, max_samples=2)
    >>> limits.names, limits.most, limits.costs
    (('pictures', 'samples'), (4, 2), [(1, 1), (0, 1), (3, 1)])
    """

    names: tuple[str, ...] = ()
    most: tuple[int, ...] = ()  # (D,) what a pack holds at most
    costs: Sequence[tuple[int, ...]] = ()  # of each sample (D,)

    def __bool__(self) -> bool:
        """Whether there is anything to obey."""
        return bool(self.most)

    def room(self) -> Room:
        """What an empty pack has left."""
        return list(self.most)

    def fit(self, room: Room, sample: int) -> bool:
        """Whether `sample` fits what is left."""
        return not self.most or all(cost <= left for cost, left in zip(self.costs[sample], room, strict=True))

    def take(self, room: Room, sample: int) -> None:
        """Takes the costs of `sample` from `room`."""
        if self.most:
            for d, cost in enumerate(self.costs[sample]):
                room[d] -= cost

    def room_beside(self, samples: Iterable[int]) -> Room:
        """What a pack of `samples` has left; below 0 where it is over."""
        room = self.room()
        for sample in samples:
            self.take(room, sample)
        return room

    def that_can_bind(self) -> Limits:
        """Without those that one pack of all samples would obey."""
        kept = [d for d, column in enumerate(zip(*self.costs, strict=True)) if sum(column) > self.most[d]]
        if len(kept) == len(self.most):
            return self
        return Limits(
            names=tuple(self.names[d] for d in kept),
            most=tuple(self.most[d] for d in kept),
            costs=[tuple(cost[d] for d in kept) for cost in self.costs] if kept else (),
        )

    def fewest_packs(self) -> int:
        """No packing needs fewer, whatever the lengths are."""
        totals = [sum(column) for column in zip(*self.costs, strict=True)]
        return max((-(-total // most) for total, most in zip(totals, self.most, strict=True) if most), default=0)

    def of(self, samples: Sequence[int]) -> Limits:
        """The limits for a list of samples: sample k there is `samples[k]` here."""
        if not self.most:
            return self
        return Limits(names=self.names, most=self.most, costs=[self.costs[i] for i in samples])


UNLIMITED = Limits()


def make_limits(
    limits: Mapping[str, tuple[Sequence[int], int]] | None, num_samples: int, *, max_samples: int | None = None
) -> Limits:
    """Checks limits given as name -> (cost of each sample, most a pack holds); `max_samples` is one more of them.

    Raises:
        ConfigError: a number of costs that differs from `num_samples`, a cost below 0, a limit below 0 (`max_samples`
            below 1), or a sample that no pack can hold.
    """
    names: list[str] = []
    most: list[int] = []
    columns: list[Sequence[int]] = []
    if limits is not None and not isinstance(limits, Mapping):
        raise ConfigError(f"limits={limits!r:.60}; give name -> (cost of each sample, most that a pack holds)")
    for name, limit in (limits or {}).items():
        if not (isinstance(limit, (tuple, list)) and len(limit) == 2 and hasattr(limit[0], "__len__")):
            raise ConfigError(f"limits[{name!r}]={limit!r:.60}; give (cost of each sample, most that a pack holds)")
        costs, at_most = limit
        if len(costs) != num_samples:
            raise ConfigError(f"limits[{name!r}] has {len(costs)} costs for {num_samples} samples; give one for each")
        names.append(name)
        most.append(check_most(name, at_most))
        columns.append([check_cost(name, cost, at_most, place=f"sample {i}") for i, cost in enumerate(costs)])
    if max_samples is not None:
        if _whole(max_samples) < 1:
            raise ConfigError(f"max_samples={max_samples!r}: a pack holds a whole number of samples, at least 1")
        names.append("samples")
        most.append(max_samples)
        columns.append([1] * num_samples)
    return Limits(names=tuple(names), most=tuple(most), costs=list(zip(*columns, strict=True)) if columns else ())


def check_most(name: str, most: int) -> int:
    """`most` as an int. Raises ConfigError unless it is a whole number of at least 0."""
    if _whole(most) < 0:
        raise ConfigError(f"limits[{name!r}]: a pack holds at most {most!r}; give a whole number, at least 0")
    return index(most)


def check_cost(name: str, cost: int, most: int, *, place: str) -> int:
    """`cost` as an int. Raises ConfigError, naming `place` and the limit, unless it is whole and from 0 to `most`."""
    if (whole := _whole(cost)) < 0:
        raise ConfigError(f"limits[{name!r}]: {place} costs {cost!r}; a cost is a whole number, at least 0")
    if whole > most:
        raise ConfigError(
            f"limits[{name!r}]: {place} costs {whole}, a pack holds at most {most}; "
            f"raise the limit, or leave the sample out"
        )
    return whole


def _whole(value: object) -> int:
    # -1 stands for what is no whole number at all: neither can be used
    return -1 if (whole := whole_number(value)) is None else whole
