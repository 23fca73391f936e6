"""The streaming window on known mixes of lengths: how full, how fast, how long samples wait.

``python -m mmpack.bench.packers configs/bench/packers.yaml [--json]``
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from mmpack.bench.distributions import DISTRIBUTIONS, distribution
from mmpack.bench.records import BenchRecord, table, versions
from mmpack.errors import ConfigError, nearest
from mmpack.stats import displacements, fill_stats, packs_before_drain, waits
from mmpack.window import stream_packs

BENCH = "packers"
PackStreamOfLengths = Callable[[Sequence[int], int, int], Iterator[list[int]]]  # (lengths, capacity, window) -> packs

# Who is measured. Whoever turns a stream of lengths into packs of stream places can stand here.
SUBJECTS: dict[str, PackStreamOfLengths] = {
    "mmpack": lambda lengths, capacity, window: stream_packs(lengths, capacity, window=window),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackersConfig:
    """What to measure.

    Args:
        distributions: names in `mmpack.bench.distributions`.
        windows: window sizes in samples.
        num_samples: samples drawn from each distribution.
        seed: of the draws.
        repeats: runs of each case; the fastest counts, the packs are the same each time.
        subjects: names in `SUBJECTS`.
    """

    distributions: tuple[str, ...] = tuple(DISTRIBUTIONS)
    windows: tuple[int, ...] = (50, 200)
    num_samples: int = 20_000
    seed: int = 0
    repeats: int = 3
    subjects: tuple[str, ...] = tuple(SUBJECTS)

    def __post_init__(self) -> None:
        for name in self.distributions:
            distribution(name)
        for name in self.subjects:
            if name not in SUBJECTS:
                raise ConfigError(f"unknown subject {name!r}; {nearest(name, SUBJECTS)}")
        if self.repeats < 1:
            raise ConfigError(f"repeats={self.repeats}: run each case at least once")
        if not self.windows or min(self.windows) < 1:
            raise ConfigError(f"windows={list(self.windows)}: name at least one window, of at least 1 sample each")
        if self.num_samples < 2 * max(self.windows):
            raise ConfigError(
                f"num_samples={self.num_samples}: too few to measure a window of {max(self.windows)} samples; "
                f"draw at least {2 * max(self.windows)}, better 100 times the window"
            )


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> PackersConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    item_types = {"distributions": str, "windows": int, "subjects": str}  # the lists; the rest are whole numbers
    known = [field.name for field in dataclasses.fields(PackersConfig)]
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), known)}")
        if item_type := item_types.get(key):
            if not isinstance(value, list) or any(type(item) is not item_type for item in value):
                raise ConfigError(f"{where}: {key}={value!r}; give a list of {item_type.__name__}, such as [..., ...]")
            values[key] = tuple(value)
        elif type(value) is not int:
            raise ConfigError(f"{where}: {key}={value!r}; give a whole number")
        else:
            values[key] = value
    return PackersConfig(**values)  # type: ignore[arg-type]  # the config checks what it was given


def run(config: PackersConfig) -> list[BenchRecord]:
    """Measures every subject on every distribution with every window: one record each.

    Fill counts the packs that were chosen from a full window. Times are processor time of the whole stream, wait and
    displacement cover all samples, the drain included.
    """
    return [
        _measure(config, subject, name, window)
        for name in config.distributions
        for window in config.windows
        for subject in config.subjects
    ]


def _measure(config: PackersConfig, subject: str, name: str, window: int) -> BenchRecord:
    mix = distribution(name)
    lengths = mix.lengths(config.num_samples, config.seed)
    seconds = float("inf")
    for _ in range(config.repeats):
        start = time.process_time()
        packs = list(SUBJECTS[subject](lengths, mix.capacity, window))
        seconds = min(seconds, time.process_time() - start)
    steady = packs_before_drain(packs, window)
    fill = fill_stats((sum(lengths[i] for i in pack) for pack in steady), mix.capacity)
    longest_wait = max(waits(packs, window))
    moved = displacements(packs)
    metrics: dict[str, float] = {
        "fill_percent": 100 * fill.mean_fill,
        "full_packs_percent": 100 * fill.full_share,
        "us_per_pack": 1e6 * seconds / len(packs),
        "samples_per_s": round(len(lengths) / seconds) if seconds else 0,
        "longest_wait_samples": longest_wait,
        "longest_wait_windows": longest_wait / window,
        "mean_displacement_samples": sum(moved) / len(moved),
        "samples_per_pack": len(lengths) / len(packs),
    }
    return BenchRecord(
        bench=BENCH,
        case=f"{name}/window={window}",
        subject=subject,
        metrics=metrics,
        config={
            "distribution": name,
            "capacity": mix.capacity,
            "window": window,
            "num_samples": config.num_samples,
            "seed": config.seed,
            "repeats": config.repeats,
        },
        versions=versions("numpy"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench from a YAML file and prints its table, or one JSON record a line."""
    parser = argparse.ArgumentParser(prog="python -m mmpack.bench.packers", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="for example configs/bench/packers.yaml")
    parser.add_argument("--json", action="store_true", help="print records, one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    records = run(config)
    print("\n".join(record.to_json() for record in records) if options.json else table(records))
    return 0


def load_config(path: Path) -> PackersConfig:
    """Reads a YAML file such as configs/bench/packers.yaml. Raises ConfigError if it is not one."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or settings.pop("bench", None) != BENCH:
        raise ConfigError(f"{path}: not a config of this bench; its first line should be 'bench: {BENCH}'")
    return config_from_mapping(settings, where=str(path))


if __name__ == "__main__":
    sys.exit(main())
