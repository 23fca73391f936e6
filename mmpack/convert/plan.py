"""Which record goes into which shard: a matter of positions and the seed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmpack.convert.config import ConvertConfig
from mmpack.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardTask:
    """One shard to be written: its name, and the positions of its records in the source."""

    name: str
    split: str
    positions: NDArray[np.int64]  # ascending


def plan_shards(config: ConvertConfig, usable: NDArray[np.int64]) -> list[ShardTask]:
    """Which record goes where: exact shares by a seeded choice, the order of the source within each split."""
    if len(usable) < len(config.split):
        names = ", ".join(config.split)
        raise ConfigError(f"{config.src}: {len(usable)} samples cannot fill the splits {names}; ask for fewer splits")
    # A place of its own for every position: mending one record moves at most one other over a border.
    order = usable[np.argsort(_places(config.seed, usable), kind="stable")] if len(config.split) > 1 else usable
    tasks: list[ShardTask] = []
    start = 0
    for split, count in _counts(config.split, len(order)).items():
        positions = np.sort(order[start : start + count])
        start += count
        size = min(config.max_samples_per_shard, max(1, -(-count // 8)))
        for number, first in enumerate(range(0, count, size)):
            chosen = positions[first : first + size]
            tasks.append(ShardTask(name=f"{split}-{number:06d}.tar", split=split, positions=chosen))
    return tasks


def _places(seed: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A random number for each position."""
    digests = bytearray()
    for position in positions:
        digests += hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def _counts(split: Mapping[str, float], total: int) -> dict[str, int]:
    """`total` divided by shares, largest remainders first; a part that would be 0 takes one from the largest.

    >>> _counts({"train": 0.9, "val": 0.08, "test": 0.02}, 40)
    {'train': 36, 'val': 3, 'test': 1}
    >>> _counts({"train": 0.9, "val": 0.1}, 2)
    {'train': 1, 'val': 1}
    """
    whole = sum(split.values())
    exact = {name: total * share / whole for name, share in split.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not count:
            counts[max(counts, key=lambda other: counts[other])] -= 1
            counts[name] = 1
    return counts
