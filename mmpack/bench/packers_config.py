"""What the bench of packers measures, and how it is read from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mmpack.bench.distributions import DISTRIBUTIONS, distribution
from mmpack.bench.peers import PEERS
from mmpack.errors import ConfigError, nearest

BENCH = "packers"
OURS = "mmpack"
SUBJECTS = (OURS, *PEERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackersConfig:
    """What to measure.

    Args:
        distributions: names in `mmpack.bench.distributions`.
        windows: window sizes in samples.
        window_capacities: window sizes in capacities of tokens, for distributions whose window is better sized so.
        whole_sets: numbers of samples packed at once.
        num_samples: samples drawn for each window.
        most_samples: subject -> samples it gets at most, for those that take hours.
        balance_ranks: simulated ranks; 0 to leave the balance out.
        balance_steps: steps they make.
        balance_window: samples of their windows.
        align_windows: blocks of plans to try.
        hidden_size: of the model whose steps the balance costs.
        seed: of the draws.
        repeats: runs of each case with a window; the fastest counts, the packs are the same each time.
        subjects: names in `SUBJECTS`.
    """

    distributions: tuple[str, ...] = tuple(DISTRIBUTIONS)
    windows: tuple[int, ...] = (50, 200)
    window_capacities: tuple[int, ...] = (4,)
    whole_sets: tuple[int, ...] = ()
    num_samples: int = 20_000
    most_samples: Mapping[str, int] = field(default_factory=dict)
    balance_ranks: int = 0
    balance_steps: int = 64
    balance_window: int = 200
    align_windows: tuple[int, ...] = (1, 32)
    hidden_size: int = 2048
    seed: int = 0
    repeats: int = 3
    subjects: tuple[str, ...] = (OURS,)

    def __post_init__(self) -> None:
        for name in self.distributions:
            distribution(name)
        for name in (*self.subjects, *self.most_samples):
            if name not in SUBJECTS:
                raise ConfigError(f"unknown subject {name!r}; {nearest(name, SUBJECTS)}")
        for key in ("repeats", "balance_steps", "balance_window", "hidden_size"):
            if (value := getattr(self, key)) < 1:
                raise ConfigError(f"{key}={value}; give at least 1")
        for key in ("windows", "window_capacities", "whole_sets", "align_windows"):
            values = getattr(self, key)
            if any(value < 1 for value in values):
                raise ConfigError(f"{key}={list(values)}; give sizes of at least 1")
        if self.balance_ranks < 0 or (self.balance_ranks and not self.align_windows):
            raise ConfigError(f"balance_ranks={self.balance_ranks}; give 0 to leave it out, or ranks and align_windows")
        if any(most < 1 for most in self.most_samples.values()):
            raise ConfigError(f"most_samples={dict(self.most_samples)}; give at least 1 for each")
        if self.windows and self.num_samples < 2 * max(self.windows):
            raise ConfigError(
                f"num_samples={self.num_samples}: too few to measure a window of {max(self.windows)} samples; "
                f"draw at least {2 * max(self.windows)}, better 100 times the window"
            )

    def most_samples_of(self, subject: str, num_samples: int) -> int:
        """How many of `num_samples` the subject gets."""
        return min(num_samples, self.most_samples.get(subject, num_samples))


_LISTS: dict[str, type] = {
    "distributions": str,
    "windows": int,
    "window_capacities": int,
    "whole_sets": int,
    "align_windows": int,
    "subjects": str,
}


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> PackersConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    known = [field.name for field in dataclasses.fields(PackersConfig)]
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), known)}")
        if item_type := _LISTS.get(key):
            if not isinstance(value, list) or any(type(item) is not item_type for item in value):
                raise ConfigError(f"{where}: {key}={value!r}; give a list of {item_type.__name__}, such as [..., ...]")
            values[key] = tuple(value)
        elif key == "most_samples":
            if not isinstance(value, Mapping) or any(type(most) is not int for most in value.values()):
                raise ConfigError(f"{where}: {key}={value!r}; give subject: whole number")
            values[key] = {str(subject): most for subject, most in value.items()}
        elif type(value) is not int:
            raise ConfigError(f"{where}: {key}={value!r}; give a whole number")
        else:
            values[key] = value
    return PackersConfig(**values)  # type: ignore[arg-type]  # the config checks what it was given


def load_config(path: Path) -> PackersConfig:
    """Reads a YAML file such as configs/bench/packers.yaml. Raises ConfigError if it is not one."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or settings.pop("bench", None) != BENCH:
        raise ConfigError(f"{path}: not a config of this bench; its first line should be 'bench: {BENCH}'")
    return config_from_mapping(settings, where=str(path))
