"""What the bench of loaders measures, and how it is read from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mmpack.errors import ConfigError, nearest

C = TypeVar("C")
BENCH = "loaders"
TILE_PX, TILE_TOKENS = 336, 576
# subject -> (in words, how many times ours its CPU per sample shall be at least)
SUBJECTS: Mapping[str, tuple[str, float | None]] = {
    "mmpack": ("the data module, window of 200", None),
    "mmpack_plan": ("the same by a global plan, read by random access", None),
    "energon_pillow": ("energon, buffer of 200, Pillow, float32 normalised in the worker", 4.0),
    "energon": ("energon, buffer of 200, our pictures", 1.5),
    "streaming": ("mosaicml-streaming, our pictures, packed in the trainer", 1.4),
    "litdata": ("litdata, our pictures, packed in the trainer", 1.4),
    "torch": ("torch DataLoader over files, our pictures, packed in the trainer", 1.2),
    "webdataset": ("webdataset, our pictures, packed in the trainer", 1.2),
    "spdl": ("spdl's threads over files, our pictures, packed in the trainer", 1.2),
}
LIMIT = "limit"  # the sum of the single stages


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadersConfig:
    """What to measure.

    Args:
        data: folder made by ``tools/make_bench_mix.py``; forms for the peers are added to it.
        subjects: names of `SUBJECTS`; ours is always measured.
        num_samples: measured of each subject in each round, behind `warmup_samples`.
        rounds: the subjects take turns so many times; the cheapest counts.
        num_workers: processes (of spdl: threads).
        capacity, window: tokens of a pack, and samples to choose from.
        tokenizer: folder; None for the bundled one.

    Raises:
        ConfigError: a number below 1, an unknown subject, or no data.
    """

    data: str = "build/bench/mix"
    subjects: tuple[str, ...] = tuple(SUBJECTS)
    num_samples: int = 1500
    warmup_samples: int = 400
    rounds: int = 2
    num_workers: int = 2
    capacity: int = 8192
    window: int = 200
    tokenizer: str | None = None

    def __post_init__(self) -> None:
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

    @property
    def measured(self) -> tuple[str, ...]:
        """The subjects in the order of `SUBJECTS`, ours among them."""
        return tuple(name for name in SUBJECTS if name in self.subjects or name == "mmpack")


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> LoadersConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    return config_of(LoadersConfig, settings, where=where)


def config_of(kind: Callable[..., C], settings: Mapping[str, object], *, where: str) -> C:
    """A config of dataclass `kind` from what a YAML file holds; each value must be of the default's type."""
    known = {field.name: field for field in dataclasses.fields(cast(Any, kind))}
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), known)}")
        default = known[key].default
        if isinstance(default, tuple):
            if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
                raise ConfigError(f"{where}: {key}={value!r}; give a list of names, such as [mmpack, torch]")
            value = tuple(value)
        elif isinstance(value, bool) or not isinstance(value, str if default is None else type(default)):
            raise ConfigError(f"{where}: {key}={value!r}; give one like {default!r}")
        values[key] = value
    return kind(**values)  # the config checks what it was given
