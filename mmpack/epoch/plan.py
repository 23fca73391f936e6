"""A whole epoch planned ahead: which samples share a pack, and which pack is the how-manieth.

Everything follows from the lengths, the settings, and (seed, epoch): every process computes the same plan, and where a
run stands in it is the number of packs handed out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.cost import CostModel
from mmpack.epoch.apart import apart
from mmpack.epoch.lengths import LengthIndex
from mmpack.errors import ConfigError
from mmpack.indexed.permutation import mix64
from mmpack.packing import pack_lengths

GROUP_SIZES = (1, 2, 4, 12, 60, 240, 960, 3840)  # each divides the next; 3840 = 2^8 x 15
_GROUPS = 32  # at least so many groups in an epoch: what is alike in cost shall not all come together


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """How an epoch is packed and ordered.

    Args:
        capacity: positions that samples may fill in a pack.
        seed: of the shuffle; another order in every epoch.
        algorithm: of `mmpack.packing`.
        max_tiles, max_images, max_samples: most that a pack holds of these; None for no such limit.
        group_packs: packs in a row that cost about the same. Ranks that divide it get packs of equal cost at every
            step, others at nearly every one. None chooses by the number of packs: 12 for hundreds, 3840 for hundreds of
            thousands; 1 does not balance.
        cost: of a pack.

    Raises:
        ConfigError: a number below 1.
    """

    capacity: int
    seed: int = 0
    algorithm: str = "exact_fill"
    max_tiles: int | None = None
    max_images: int | None = None
    max_samples: int | None = None
    group_packs: int | None = None
    cost: CostModel = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        for name in ("capacity", "max_tiles", "max_images", "max_samples", "group_packs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")

    @property
    def limits(self) -> dict[str, int]:
        """Name of a size of samples -> most that a pack holds of it."""
        limits = {"num_tiles": self.max_tiles, "num_images": self.max_images}
        return {name: most for name, most in limits.items() if most is not None}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochPlan:
    """The packs of one epoch in their global order. N samples drawn, P packs."""

    members: NDArray[np.int32]  # (N,) numbers of the samples, pack by pack
    ends: NDArray[np.int64]  # (P,) end of each pack in `members`
    costs: NDArray[np.float64]  # (P,)

    @property
    def num_packs(self) -> int:
        return len(self.ends)

    def digest(self) -> str:
        """What tells this plan from others: 16 hexadecimal digits."""
        return hashlib.sha256(self.members.tobytes() + self.ends.tobytes()).hexdigest()[:16]

    def pack(self, number: int) -> list[int]:
        """Numbers of the samples in pack `number`."""
        start = int(self.ends[number - 1]) if number else 0
        members: list[int] = self.members[start : int(self.ends[number])].tolist()
        return members


def plan_epoch(
    index: LengthIndex, per_epoch: Sequence[int], config: PlanConfig, epoch: int, *, sequence_multiple: int = 1
) -> EpochPlan:
    """Plans epoch `epoch`: a global shuffle, exactly filled packs, and groups of packs of like cost.

    Args:
        index: sizes of the samples of all data sets.
        per_epoch: samples that an epoch draws of each data set. Other than all of them: the epochs together go through
            its samples again and again, so that none is ever drawn twice more than another.
        config: how.
        epoch: which pass over the data.
        sequence_multiple: that a sample's positions are rounded up to; see `mmpack.layout.Layout`.

    Raises:
        ConfigError: no sample can be used.
    """
    drawn = _drawn(index, per_epoch, config.seed, epoch)
    rooms, fits, alone = (column[drawn] for column in _fitting(index, config, sequence_multiple))
    if not fits.any() and not alone.any():
        raise ConfigError(
            f"no sample fits a pack of {config.capacity} positions and its limits {config.limits}; raise them"
        )
    order = drawn[fits]
    own_rooms: list[int] = rooms[fits].tolist()
    limits = {name: (getattr(index, name)[order].tolist(), most) for name, most in config.limits.items()}
    packs = pack_lengths(
        own_rooms,
        config.capacity,
        algorithm=config.algorithm,
        seed=mix64(config.seed, epoch, 1) % 2**32,
        limits=limits,
        max_samples=config.max_samples,
    )
    if any(count != size for count, size in zip(per_epoch, np.diff(index.starts), strict=True)):
        packs = apart(packs, order.tolist(), [(own_rooms, config.capacity), *limits.values()], config.max_samples)
    sizes = np.array([*map(len, packs), *[1] * int(alone.sum())], dtype=np.int64)
    places = np.fromiter((i for pack in packs for i in pack), dtype=np.int64, count=len(order))
    members = np.concatenate([order[places], drawn[alone]])
    taken = np.concatenate([rooms[fits][places], rooms[alone]])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    costs = config.cost.costs(
        np.add.reduceat(taken, starts),
        np.add.reduceat(taken**2, starts),
        np.add.reduceat(np.asarray(index.num_tiles)[members].astype(np.int64), starts),
    )
    return _in_order(members, starts, sizes, costs, _balanced_order(costs, config, epoch))


def too_large(index: LengthIndex, config: PlanConfig, sequence_multiple: int = 1) -> list[int]:
    """Samples that the index has and no pack can hold, by number."""
    _, fits, alone = _fitting(index, config, sequence_multiple)
    numbers: list[int] = np.flatnonzero((np.asarray(index.num_tokens) != 0) & ~fits & ~alone).tolist()
    return numbers


def _fitting(
    index: LengthIndex, config: PlanConfig, sequence_multiple: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Positions that each sample takes, whether it fits a pack with others, and whether it gets one of its own."""
    signed = np.asarray(index.num_tokens)
    rooms = -(-np.abs(signed).astype(np.int64) // sequence_multiple) * sequence_multiple
    fits = (rooms > 0) & (rooms <= config.capacity)
    for name, most in config.limits.items():
        fits &= np.asarray(getattr(index, name)) <= most
    return rooms, fits, (rooms > config.capacity) & (signed < 0)


def _drawn(index: LengthIndex, per_epoch: Sequence[int], seed: int, epoch: int) -> NDArray[np.int32]:
    """The samples of an epoch in their shuffled order, those left out included."""
    parts = []
    for number, count in enumerate(per_epoch):
        start, size = index.starts[number], index.starts[number + 1] - index.starts[number]
        if count == size:
            parts.append(np.arange(start, start + size, dtype=np.int32))
            continue
        first, last = epoch * count, (epoch + 1) * count  # of passes over the data set, each in an order of its own
        for turn in range(first // size, -(-last // size)) if size else ():
            order = shuffled(size, seed, number, turn)[max(0, first - turn * size) : last - turn * size]
            parts.append((start + order).astype(np.int32))
    together = np.concatenate([np.zeros(0, dtype=np.int32), *parts])
    return together[shuffled(len(together), seed, epoch)]


def _balanced_order(costs: NDArray[Any], config: PlanConfig, epoch: int) -> NDArray[np.int64]:
    """Packs sorted by cost, cut into groups, groups shuffled. The group that is not whole comes last."""
    group = config.group_packs or group_size(len(costs))
    mixed = shuffled(len(costs), config.seed, epoch, 2)  # equal costs in no particular order
    if group == 1:
        return mixed
    by_cost = mixed[np.argsort(costs[mixed], kind="stable")]
    num_whole, rest = divmod(len(costs), group)
    # The rest is cut out at any place, so that an epoch does not always end with its cheapest packs.
    cut = mix64(config.seed, epoch, 3) % (num_whole + 1) * group
    whole = np.concatenate([by_cost[:cut], by_cost[cut + rest :]]).reshape(num_whole, group)
    return np.concatenate([whole[shuffled(num_whole, config.seed, epoch, 4)].ravel(), by_cost[cut : cut + rest]])


def group_size(num_packs: int) -> int:
    """How many packs in a row cost about the same, where nothing else is asked for.

    >>> [group_size(n) for n in (10, 500, 10_000, 200_000)]
    [1, 12, 240, 3840]
    """
    return max(size for size in GROUP_SIZES if size == 1 or num_packs >= _GROUPS * size)


def _in_order(
    members: NDArray[Any],
    starts: NDArray[Any],
    sizes: NDArray[Any],
    costs: NDArray[Any],
    sequence: NDArray[Any],
) -> EpochPlan:
    """The same packs in the order of `sequence`."""
    ends = np.cumsum(sizes[sequence])
    # Place k of a pack that begins at b in the new order and at a in the old one is member a + k - b.
    shift = np.repeat(starts[sequence] - (ends - sizes[sequence]), sizes[sequence])
    return EpochPlan(
        members=members[np.arange(len(members)) + shift].astype(np.int32),
        ends=ends,
        costs=costs[sequence],
    )


def shuffled(size: int, *keys: int) -> NDArray[np.int64]:
    """The numbers 0 to `size` - 1 in an order that `keys` decide: sorted by a hash, the same for ever and everywhere.

    numpy keeps no promise that a permutation of its Generator stays the same from version to version.

    >>> sorted(shuffled(5, 7).tolist()), shuffled(5, 7).tolist() == shuffled(5, 7).tolist()
    ([0, 1, 2, 3, 4], True)
    """
    with np.errstate(over="ignore"):  # splitmix64's finalizer, as in `mix64`, modulo 2^64
        z = np.uint64(mix64(*keys)) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, size + 1, dtype=np.uint64)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.argsort(z, kind="stable")
