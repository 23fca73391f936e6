"""What a check found."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmpack.errors import Reason

MOST_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class BadSample:
    """A sample that training would leave out for a fault."""

    folder: str  # of its dataset, or the file of records
    shard: str
    key: str  # in the shard, or ``#i`` for the i-th sample of a shard that cannot say its name
    reason: Reason
    detail: str

    @property
    def name(self) -> str:
        """``shard.tar/key``, as energon's ``exclude`` names it; the key alone of a record."""
        return f"{self.shard}/{self.key}" if self.shard else self.key


@dataclass(kw_only=True, slots=True)
class Counts:
    """What was met in a part of the data, or in all of it; tokens are in reading order."""

    bad: list[BadSample] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("I"))  # of each good sample
    rooms: array[int] = field(default_factory=lambda: array("I"))  # the same, padded as in a pack
    tiles: array[int] = field(default_factory=lambda: array("I"))
    num_pictures: int = 0
    num_too_long: int = 0  # good, but longer than the settings allow

    @property
    def num_samples(self) -> int:
        """Good and bad ones."""
        return len(self.tokens) + self.num_too_long + len(self.bad)

    def add(self, other: Counts) -> None:
        """Adds what was met behind this part."""
        self.bad += other.bad
        for name in ("tokens", "rooms", "tiles"):
            getattr(self, name).extend(getattr(other, name))
        self.num_pictures += other.num_pictures
        self.num_too_long += other.num_too_long


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    """How one pass over the good samples packs."""

    num_packs: int
    packed_sequence_size: int
    fill_percent: float
    full_packs_percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """All of it."""

    path: str
    splits: tuple[str, ...]  # that were read; none of a file
    counted_with: str  # tokenizer, template and tiles, in words
    deep: bool
    counts: Counts
    damaged_shards: tuple[tuple[str, str], ...]  # (path, what is wrong)
    fill: Fill | None  # None without a good sample
    max_bad: float
    seconds: float

    @property
    def num_good(self) -> int:
        """Samples without a fault, too long ones included."""
        return len(self.counts.tokens) + self.counts.num_too_long

    @property
    def num_samples(self) -> int:
        """All that the data should hold."""
        return self.num_good + len(self.counts.bad)

    @property
    def bad_share(self) -> float:
        """Part of the samples that have a fault, 0 to 1."""
        return len(self.counts.bad) / self.num_samples if self.num_samples else 0.0

    @property
    def passed(self) -> bool:
        """Whether the faults are within the budget."""
        return self.bad_share <= self.max_bad

    @property
    def faults(self) -> Mapping[str, int]:
        """Bad samples by reason, the most frequent first."""
        return dict(Counter(bad.reason.value for bad in self.counts.bad).most_common())

    def examples(self, reason: str) -> list[BadSample]:
        """The first few of that reason."""
        return [bad for bad in self.counts.bad if bad.reason.value == reason][:MOST_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        fill = self.fill
        return {
            "path": self.path,
            "splits": list(self.splits),
            "counted_with": self.counted_with,
            "deep": self.deep,
            "passed": self.passed,
            "samples": self.num_samples,
            "good": self.num_good,
            "bad": len(self.counts.bad),
            "bad_share": self.bad_share,
            "max_bad": self.max_bad,
            "too_long": self.counts.num_too_long,
            "pictures": self.counts.num_pictures,
            "faults": {
                reason: {
                    "count": count,
                    "examples": [{"sample": bad.name, "detail": bad.detail} for bad in self.examples(reason)],
                }
                for reason, count in self.faults.items()
            },
            "damaged_shards": [{"shard": shard, "problem": problem} for shard, problem in self.damaged_shards],
            "tokens": histogram(self.counts.tokens),
            "tiles": histogram(self.counts.tiles),
            "fill": None
            if fill is None
            else {name: getattr(fill, name) for name in ("num_packs", "packed_sequence_size", "fill_percent")}
            | {"full_packs_percent": fill.full_packs_percent},
            "seconds": self.seconds,
        }


def histogram(values: Sequence[int], max_bins: int = 20) -> list[tuple[int, int, int]]:
    """(first value, last value, how many) of bins of one round width, from the smallest value to the largest.

    >>> histogram([3, 7, 8, 41], max_bins=5)
    [(0, 9, 3), (10, 19, 0), (20, 29, 0), (30, 39, 0), (40, 49, 1)]
    >>> histogram([1, 1, 3]), histogram([])
    ([(1, 1, 2), (2, 2, 0), (3, 3, 1)], [])
    """
    if not values:
        return []
    low, high = min(values), max(values)
    width, power = 1, 1
    while high // width - low // width >= max_bins:
        leading = {power: 2, 2 * power: 5, 5 * power: 10}[width]
        width = leading * power
        power = width if leading == 10 else power
    counts = Counter(value // width for value in values)
    return [(i * width, (i + 1) * width - 1, counts[i]) for i in range(low // width, high // width + 1)]
