"""Coming back to the middle of an epoch: how long until the first pack, how large the state, and whether packs agree.

``mmpack bench configs/bench/resume.yaml``. Each subject runs straight through in one process; another process comes
back from the state that the first one saved. The time counts from before the loader is built.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmpack.bench.loaders import PACKAGES, run_apart
from mmpack.bench.loaders_config import config_of
from mmpack.bench.loaders_data import prepare
from mmpack.bench.records import BenchRecord, Plain, versions
from mmpack.errors import ConfigError, nearest

BENCH = "resume"
SUBJECTS: Mapping[str, str] = {
    "mmpack": "the data module: state of the pack taken last",
    "mmpack_plan": "the same by a global plan: two numbers",
    "energon": "energon's savable loader, packing in its task encoder",
    "fast_forward": "no state: the packs before are made again",
}
Advance = Callable[[int, int, str], None]  # (phases done, phases, what was done last)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeConfig:
    """What to measure.

    Args:
        data: folder made by ``tools/make_bench_mix.py``.
        subjects: names of `SUBJECTS`.
        packs_before: packs taken before the state is saved.
        packs_behind: packs compared behind it.
        num_workers, capacity, window, tokenizer: as in the bench of loaders.

    Raises:
        ConfigError: a number below 1, an unknown subject, or no data.
    """

    data: str = "build/bench/mix"
    subjects: tuple[str, ...] = tuple(SUBJECTS)
    packs_before: int = 60
    packs_behind: int = 20
    num_workers: int = 2
    capacity: int = 8192
    window: int = 200
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if not self.subjects or len(set(self.subjects)) < len(self.subjects):
            raise ConfigError(f"subjects={list(self.subjects)}; give at least one of {list(SUBJECTS)}, each once")
        for name in self.subjects:
            if name not in SUBJECTS:
                raise ConfigError(f"subjects: unknown subject {name!r}; {nearest(name, SUBJECTS)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{field.name}={value}; give at least 1")
        if not (Path(self.data) / "llava.json").is_file():
            raise ConfigError(
                f"data={self.data!r} holds no llava.json; make it: python tools/make_bench_mix.py {self.data}"
            )


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> ResumeConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    return config_of(ResumeConfig, settings, where=where)


def run(config: ResumeConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """A record for each subject."""
    records = []
    settings: dict[str, Plain] = json.loads(json.dumps(dataclasses.asdict(config)))
    for place, name in enumerate(config.subjects):
        prepare(Path(config.data), "mmpack" if name == "fast_forward" else name)
        metrics: dict[str, float] = {}
        skipped = None
        with tempfile.TemporaryDirectory() as folder:
            for number, phase in enumerate(("straight", "resumed")):
                found = run_apart("mmpack.bench.resume_subjects", name, phase, json.dumps(settings), folder)
                advance(2 * place + number + 1, 2 * len(config.subjects), f"{name} {phase}")
                if isinstance(found, str):
                    skipped, metrics = found, {}
                    break
                metrics |= found
        about: dict[str, Plain] = {"about": SUBJECTS[name]} if skipped is None else {"skipped": skipped}
        record = BenchRecord(
            bench=BENCH,
            case=f"pack {config.packs_before}, {config.num_workers} workers",
            subject=name,
            metrics=dict(sorted(metrics.items())),
            config=settings | about,
            versions=versions(*PACKAGES),
        )
        records.append(record)
    return records
