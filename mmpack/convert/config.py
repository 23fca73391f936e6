"""What to convert and how, and what became of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mmpack.energon.remote import local_file, shown
from mmpack.energon.store import is_remote, url_of
from mmpack.engine import check_engine
from mmpack.errors import ConfigError
from mmpack.sources import AUTO, parser_for

REPORT_NAME = "convert-report.json"
ON_ERROR = ("skip", "raise")
MAX_SHOWN = 100_000  # samples that a report as one object names; its file names all of them
SOURCE_KINDS: Mapping[str, tuple[str, ...]] = {  # what may stand in place of a format, and the kinds that it means
    "parquet": ("parquet",),
    "tar": ("tar",),
    "webdataset": ("tar",),
    "json": ("json",),
    "jsonl": ("json",),
    "csv": ("table",),
    "tsv": ("table",),
    "hf": ("saved",),
    "datasets": ("saved",),
    "captions": ("captioned", "table", "json", "tar", "parquet"),
    "folder": ("captioned", "table", "json"),
}
Progress = Callable[[int, int], None]  # records done, records in all


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """What to convert and how.

    Args:
        src: a file, a folder, or a pattern of files; what it is, its content says (`mmpack.readers`).
        dst: folder of the new dataset; ``msc://profile/bucket/path`` for one in a store.
        image_root: folder that the records' picture paths are relative to; None for the folder of `src`.
        format: a name of `mmpack.sources.SOURCES`, or ``auto``: each record by its fields. The name of a kind of source
            (`SOURCE_KINDS`) means ``auto`` too, and that `src` must be of that kind.
        split: share of each split, in the order of the dataset; a split that is asked for never stays empty.
        workers: processes; 0 and 1 convert in this one.
        on_error: ``"skip"`` counts a bad sample and goes on, ``"raise"`` stops at it. All records are checked before
            the first picture is read.
        seed: of the choice of splits.
        max_samples_per_shard: shards get smaller where a split would have fewer than eight.
        max_bytes_per_shard: a shard that would get larger is cut in several; one sample may be larger alone.
        max_bad_share: largest share of bad records, 0 to 1; with more of them nothing is written. None for any.
        overwrite: replace `dst` if it exists.
        engine: ``local``, or ``ray``: the shards are written by a Ray cluster whose machines all see the source, the
            pictures and `dst` under the same names. The result is the same; a run that is broken off is taken over by
            the next one with the same settings.
        address: of the Ray cluster, such as ``auto`` or ``host:6379``; None for ``RAY_ADDRESS`` or, without that, one
            that is started here with `workers` CPUs.
        staging: folder in which a dataset for a store is made before it is uploaded; None for the folder of temporary
            files. A cluster needs one that all its machines see.
    """

    src: Path
    dst: Path
    image_root: Path | None = None
    format: str = AUTO
    split: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    workers: int = 1
    on_error: str = "skip"
    seed: int = 0
    max_samples_per_shard: int = 1000
    max_bytes_per_shard: int = 1_000_000_000
    max_bad_share: float | None = None
    overwrite: bool = False
    engine: str = "local"
    address: str | None = None
    staging: Path | None = None

    def __post_init__(self) -> None:
        if self.format not in SOURCE_KINDS:
            parser_for(self.format)
        for name in ("src", "dst", "image_root", "staging"):
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))
            if name in ("src", "image_root") and path is not None and is_remote(path):
                raise ConfigError(f"{name}={url_of(path)!r} is remote; only DST may be: download the source first")
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on_error={self.on_error!r}; allowed: {', '.join(ON_ERROR)}")
        check_engine(self.engine, self.address)
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}; it must not be negative")
        if self.max_samples_per_shard < 1:
            raise ConfigError(f"max_samples_per_shard={self.max_samples_per_shard}; it must be at least 1")
        if self.max_bytes_per_shard < 1:
            raise ConfigError(f"max_bytes_per_shard={self.max_bytes_per_shard}; it must be at least 1")
        if self.max_bad_share is not None and not 0 <= self.max_bad_share <= 1:
            raise ConfigError(f"max_bad_share={self.max_bad_share}; it is a share from 0 to 1, such as 0.01")
        if not self.split or any(not name.isidentifier() for name in self.split):
            raise ConfigError(f"split={dict(self.split)}; give names and shares, such as train=0.9,val=0.1")
        if any(not 0 < share < math.inf for share in self.split.values()):
            raise ConfigError(f"split={dict(self.split)}; every share must be above 0")
        if not math.isclose(total := math.fsum(self.split.values()), 1.0, abs_tol=1e-6):
            raise ConfigError(f"split={dict(self.split)}; the shares make {total:g}, they must make 1")

    @property
    def record_format(self) -> str:
        """The format of records, whatever they are stored in."""
        return AUTO if self.format in SOURCE_KINDS else self.format


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleReport:
    """What became of one record. `key` is the one that it has, or would have had."""

    id: Any  # as the record has it; None if it has none
    key: str
    reason: str | None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        entry = {"id": self.id, "key": self.key, "reason": self.reason}
        return entry if self.detail is None else {**entry, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class SampleReports:
    """What became of every record, read from the report's file whenever it is gone through."""

    path: Path
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[SampleReport]:
        with local_file(self.path).open(encoding="ascii") as file:
            lines = iter(file)
            for line in lines:
                if line.startswith(' "samples"'):
                    break
            for line in islice(lines, self.count):  # `write_report` puts one on each line
                yield SampleReport(**json.loads(line.strip().removesuffix(",")))


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """What a conversion did."""

    path: Path
    source: str  # what was converted, such as "4 tar files"
    formats: Mapping[str, int]  # records of each format
    samples: SampleReports
    splits: Mapping[str, int]  # kept samples of each
    skipped: Mapping[str, int]  # records by reason
    num_duplicate_ids: int  # kept samples whose id an earlier one has; keys are unique whatever the ids are
    num_shards: int
    num_pictures: int
    num_bytes: int  # of the shards
    seconds: float
    notes: tuple[str, ...] = ()  # what is odd about the source and cost no sample

    @property
    def kept(self) -> int:
        return sum(self.splits.values())

    def head(self) -> dict[str, Any]:
        """The report without the samples, as plain values."""
        return {
            "kept": self.kept,
            "skipped": dict(self.skipped),
            "duplicate_ids": self.num_duplicate_ids,
            "splits": dict(self.splits),
            "shards": self.num_shards,
            "pictures": self.num_pictures,
            "bytes": self.num_bytes,
            "seconds": round(self.seconds, 3),
            "source": self.source,
            "formats": dict(self.formats),
            "notes": list(self.notes),
            "path": shown(self.path),
        }

    def to_json(self, max_samples: int = MAX_SHOWN) -> dict[str, Any]:
        """The report as plain values.

        Of more samples than `max_samples` the first are given, and ``"samples_cut"`` says how many are not; they are
        in the report's file.
        """
        samples = [sample.to_json() for sample in islice(self.samples, max_samples)]
        cut = {"samples_cut": len(self.samples) - max_samples} if len(self.samples) > max_samples else {}
        return {**self.head(), **cut, "samples": samples}
