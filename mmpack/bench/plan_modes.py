"""Streaming windows beside the global plan: fill, balance of ranks, shuffle, time and memory of a whole epoch.

``mmpack bench configs/bench/plan_modes.yaml``
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from mmpack.bench.distributions import Distribution, distribution
from mmpack.bench.records import BenchRecord, Plain
from mmpack.cost import CostModel
from mmpack.energon.direct import open_direct
from mmpack.energon.reader import SourceConfig
from mmpack.energon.source import EnergonSource
from mmpack.epoch import LengthIndex, PlanConfig, plan_epoch
from mmpack.errors import ConfigError, nearest
from mmpack.ledger import DropLedger
from mmpack.stats import attention_cost, balance
from mmpack.window import AlignedPlans, stream_packs

BENCH = "plan_modes"
Advance = Callable[[int, int, str], None]  # (cases done, cases, what was done last)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanModesConfig:
    """What is compared.

    Args:
        distributions: mixes of lengths; see `mmpack.bench.distributions`.
        num_samples: of an epoch.
        ranks: data-parallel ranks, each with one stream.
        windows: samples in the window of a stream.
        align_windows: plans that a stream holds back.
        hidden_size: of the model that a step's cost is reckoned for.
        dataset: an Energon dataset to measure reading by; None for none.
        seed: of the lengths and of the shuffles.

    Raises:
        ConfigError: a number below 1.
    """

    distributions: Sequence[str] = ("caption_8k", "tiled_16k", "text_2k", "uniform_8k")
    num_samples: int = 100_000
    ranks: int = 8
    windows: Sequence[int] = (50, 200)
    align_windows: Sequence[int] = (1, 32)
    hidden_size: int = 4096
    dataset: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_samples", "ranks", "hidden_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; it must be at least 1")
        for name in self.distributions:
            distribution(name)
        for name in ("windows", "align_windows"):
            if any(value < 1 for value in getattr(self, name)):
                raise ConfigError(f"{name}={list(getattr(self, name))}; give sizes of at least 1")

    @property
    def cost(self) -> CostModel:
        return CostModel(per_token=1.0, per_len_squared=1 / (12 * self.hidden_size))


_LISTS: dict[str, type] = {"distributions": str, "windows": int, "align_windows": int}


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> PlanModesConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    known = [field.name for field in fields(PlanModesConfig)]
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(key, known)}")
        wanted = _LISTS.get(key, str if key == "dataset" else int)
        items = value if key in _LISTS and isinstance(value, list) else [value]
        unset = key == "dataset" and value is None
        if (key in _LISTS) != isinstance(value, list) or (
            any(type(item) is not wanted for item in items) and not unset
        ):
            kind = f"a list of {wanted.__name__}, such as [..., ...]" if key in _LISTS else f"one {wanted.__name__}"
            raise ConfigError(f"{where}: {key}={value!r}; give {kind}")
        values[key] = tuple(items) if key in _LISTS else value
    return PlanModesConfig(**values)  # type: ignore[arg-type]  # the config checks what it was given


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Epoch:
    """Packs of an epoch, step by step: the samples that each rank gets, none for a filler."""

    steps: list[list[list[int]]]
    seconds: float  # that making them took
    peak_bytes: int


def run(config: PlanModesConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """A record for every mode on every mix, and for both ways to read the dataset."""
    modes = [(f"window={w} align={a}", w, a) for w in config.windows for a in config.align_windows]
    total, records = len(config.distributions) * (len(modes) + 1) + bool(config.dataset), []
    for name in config.distributions:
        mix = distribution(name)
        lengths = mix.lengths(config.num_samples, config.seed)
        for label, window, align in modes:
            epoch = _traced(lambda lengths=lengths, mix=mix, w=window, a=align: _streams(config, lengths, mix, w, a))  # type: ignore[misc]
            records.append(_record(config, name, label, lengths, mix, epoch))
            advance(len(records), total, f"{name} {label}")
        epoch = _traced(lambda lengths=lengths, mix=mix: _planned(config, lengths, mix))  # type: ignore[misc]
        records.append(_record(config, name, "global plan", lengths, mix, epoch))
        advance(len(records), total, f"{name} global plan")
    if config.dataset is not None:
        records += _reading(config, config.dataset)
        advance(total, total, "reading")
    return records


def _traced(make: Callable[[], list[list[list[int]]]]) -> _Epoch:
    """Times one run, and measures the memory of another: the measurement itself takes time."""
    started = time.process_time()
    steps = make()
    seconds = time.process_time() - started
    tracemalloc.start()
    make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return _Epoch(steps=steps, seconds=seconds, peak_bytes=peak)


def _streams(
    config: PlanModesConfig, lengths: list[int], mix: Distribution, window: int, align: int
) -> list[list[list[int]]]:
    """Every rank reads a part of the data through a window of its own; who ends early sends fillers."""
    order = np.random.RandomState(config.seed).permutation(len(lengths)).tolist()
    packs_of_ranks = []
    for rank in range(config.ranks):
        mine = order[rank :: config.ranks]
        aligned = AlignedPlans[list[int]](align, seed=config.seed)
        packs, ended = [], False
        source = stream_packs([lengths[i] for i in mine], mix.capacity, window=window)
        while not ended or len(aligned):
            while aligned.wants_plan and not ended:
                pack = next(source, None)
                if pack is None:
                    ended = True
                else:
                    aligned.add([mine[i] for i in pack], attention_cost(lengths[mine[i]] for i in pack))
            if len(aligned):
                packs.append(aligned.take())
        packs_of_ranks.append(packs)
    num_steps = max(map(len, packs_of_ranks))
    return [[packs[t] if t < len(packs) else [] for packs in packs_of_ranks] for t in range(num_steps)]


def _planned(config: PlanModesConfig, lengths: list[int], mix: Distribution) -> list[list[list[int]]]:
    zeros = np.zeros(len(lengths), dtype=np.int32)
    index = LengthIndex(
        folder=Path(),
        num_tokens=np.array(lengths, dtype=np.int32),
        num_tiles=zeros,
        num_images=zeros,
        starts=(0, len(lengths)),
        drops=DropLedger(),
    )
    plan_config = PlanConfig(capacity=mix.capacity, seed=config.seed, cost=config.cost)
    plan = plan_epoch(index, [len(lengths)], plan_config, 0)
    numbers = range(0, plan.num_packs, config.ranks)
    return [
        [plan.pack(p) if p < plan.num_packs else [] for p in range(first, first + config.ranks)] for first in numbers
    ]


def _record(
    config: PlanModesConfig, name: str, mode: str, lengths: list[int], mix: Distribution, epoch: _Epoch
) -> BenchRecord:
    costs = [[config.cost.cost(lengths=[lengths[i] for i in pack]) for pack in step] for step in epoch.steps]
    num_places = len(epoch.steps) * config.ranks
    emitted = [i for step in epoch.steps for pack in step for i in pack]
    assert len(emitted) == len(set(emitted)) == len(lengths), "every sample once"
    metrics = {
        "fill_percent": 100 * sum(lengths) / (num_places * mix.capacity),  # of the whole epoch, fillers and drains too
        "packs": num_places,
        "fillers": sum(not pack for step in epoch.steps for pack in step),
        "max_over_mean_cost": balance(costs),
        "lock_step_percent_lost": 100 * (1 - sum(map(sum, costs)) / config.ranks / sum(map(max, costs))),
        "us_per_sample": 1e6 * epoch.seconds / len(lengths),
        "peak_mb": epoch.peak_bytes / 1e6,
    }
    return BenchRecord(
        bench=BENCH, case=f"{name}/ranks={config.ranks}", subject=mode, metrics=metrics, config=_plain(config)
    )


def _reading(config: PlanModesConfig, dataset: str) -> list[BenchRecord]:
    """Samples a second of both ways to read, pictures compressed, from one process and a warm page cache."""
    source = SourceConfig(path=dataset, repeat=False, seed=config.seed)
    parts = open_direct(source)
    numbers = [(part.dataset, i) for part in parts for i in range(len(part.dataset))]
    order = np.random.RandomState(config.seed).permutation(len(numbers)).tolist()

    def by_number() -> int:
        for place in order:
            part, i = numbers[place]
            part.sample(i)
        return len(order)

    def by_stream() -> int:
        opened = EnergonSource(source, stream=0, num_streams=1, on_fault=lambda error, name: None)
        return sum(1 for _ in opened)

    records = []
    for subject, read in (("by number, shuffled", by_number), ("by stream", by_stream)):
        read()
        started = time.perf_counter()
        count = read()
        metrics = {"samples_per_s": count / (time.perf_counter() - started)}
        records.append(
            BenchRecord(bench=BENCH, case="reading", subject=subject, metrics=metrics, config=_plain(config))
        )
    return records


def _plain(config: PlanModesConfig) -> dict[str, Plain]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
