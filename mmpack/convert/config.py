"""What to convert and how, and what became of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError
from mmpack.sources import parser_for

REPORT_NAME = "convert-report.json"
ON_ERROR = ("skip", "raise")
Progress = Callable[[int, int], None]  # records done, records in all


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """What to convert and how.

    Args:
        src: a file of records.
        dst: folder of the new dataset.
        image_root: folder that the records' picture paths are relative to; None for the folder of `src`.
        format: a name of `mmpack.sources.SOURCES`, or ``auto``: each record by its fields.
        split: share of each split, in the order of the dataset; a split that is asked for never stays empty.
        workers: processes; 0 and 1 convert in this one.
        on_error: ``"skip"`` counts a bad sample and goes on, ``"raise"`` stops at it. All records are checked before
            the first picture is read.
        seed: of the choice of splits.
        max_samples_per_shard: shards get smaller where a split would have fewer than eight.
        overwrite: replace `dst` if it exists.
    """

    src: Path
    dst: Path
    image_root: Path | None = None
    format: str = "llava"
    split: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    workers: int = 1
    on_error: str = "skip"
    seed: int = 0
    max_samples_per_shard: int = 1000
    overwrite: bool = False

    def __post_init__(self) -> None:
        parser_for(self.format)
        for name in ("src", "dst", "image_root"):
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on_error={self.on_error!r}; allowed: {', '.join(ON_ERROR)}")
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}; it must not be negative")
        if self.max_samples_per_shard < 1:
            raise ConfigError(f"max_samples_per_shard={self.max_samples_per_shard}; it must be at least 1")
        if not self.split or any(not name.isidentifier() for name in self.split):
            raise ConfigError(f"split={dict(self.split)}; give names and shares, such as train=0.9,val=0.1")
        if any(not 0 < share < math.inf for share in self.split.values()):
            raise ConfigError(f"split={dict(self.split)}; every share must be above 0")
        if not math.isclose(total := math.fsum(self.split.values()), 1.0, abs_tol=1e-6):
            raise ConfigError(f"split={dict(self.split)}; the shares make {total:g}, they must make 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleReport:
    """What became of one record. `key` is the one that it has, or would have had."""

    id: Any  # as the record has it; None if it has none
    key: str
    reason: str | None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """What a conversion did."""

    path: Path
    samples: tuple[SampleReport, ...]
    splits: Mapping[str, int]  # kept samples of each
    num_shards: int
    num_pictures: int
    num_bytes: int  # of the shards
    seconds: float

    @property
    def kept(self) -> int:
        return sum(self.splits.values())

    @property
    def skipped(self) -> dict[str, int]:
        """Skipped records by reason."""
        return dict(sorted(Counter(s.reason for s in self.samples if s.reason is not None).items()))

    @property
    def num_duplicate_ids(self) -> int:
        """Kept samples whose id an earlier one has. All are kept: keys are unique whatever the ids are."""
        ids = Counter(repr(s.id) for s in self.samples if s.reason is None and s.id is not None)
        return sum(count - 1 for count in ids.values())

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, as `convert-report.json` holds it."""
        samples = []
        for sample in self.samples:
            entry = {"id": sample.id, "key": sample.key, "reason": sample.reason}
            samples.append(entry if sample.detail is None else {**entry, "detail": sample.detail})
        return {
            "kept": self.kept,
            "skipped": self.skipped,
            "duplicate_ids": self.num_duplicate_ids,
            "splits": dict(self.splits),
            "shards": self.num_shards,
            "pictures": self.num_pictures,
            "bytes": self.num_bytes,
            "seconds": round(self.seconds, 3),
            "path": str(self.path),
            "samples": samples,
        }
