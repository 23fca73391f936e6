"""Loaders side by side on the same pictures and texts, packing included: CPU per sample of the whole process tree.

``mmpack bench configs/bench/loaders.yaml``. Each subject runs in a process tree of its own, and the subjects take
turns, so that a busy machine is busy for all. What a loader costs is what it takes from the cores that feed a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mmpack.bench.loaders_config import BENCH, LIMIT, SUBJECTS, LoadersConfig, config_from_mapping
from mmpack.bench.loaders_data import prepare
from mmpack.bench.records import BenchRecord, Plain, versions

__all__ = ["BENCH", "LoadersConfig", "config_from_mapping", "run"]

Advance = Callable[[int, int, str], None]  # (runs done, runs, what was done last)
PACKAGES = ("torch", "megatron-energon", "webdataset", "mosaicml-streaming", "litdata", "spdl", "simplejpeg", "pillow")
_LONGEST_S = 900


def run(config: LoadersConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """A record for each subject, without metrics for one that cannot run here; and one for the limit.

    Of the rounds the cheapest counts; `max_to_min` says how far they lie apart, `own_cpu_ms` what a loader costs beside
    header, decode, resize and text.
    """
    rounds: dict[str, list[dict[str, float]]] = {}
    skipped: dict[str, str] = {}
    names = [*config.measured, LIMIT]
    for name in config.measured:
        try:
            prepare(Path(config.data), name)
        except ImportError as error:
            skipped[name] = f"{error}; pip install 'mmpack[bench]'"
    total = config.rounds * len(names)
    for number in range(config.rounds):
        for place, name in enumerate(names):
            if name not in skipped:
                found = measured_apart(name, config)
                if isinstance(found, str):
                    skipped[name] = found
                else:
                    rounds.setdefault(name, []).append(found)
            advance(number * len(names) + place + 1, total, name)
    best: dict[str, dict[str, float]] = {}
    for name, measured in rounds.items():
        cpu_ms = [metrics["cpu_ms_per_sample"] for metrics in measured]
        best[name] = measured[cpu_ms.index(min(cpu_ms))] | {"max_to_min": max(cpu_ms) / min(cpu_ms)}
    return [_record(name, config, best, skipped) for name in names]


def measured_apart(name: str, config: LoadersConfig) -> dict[str, float] | str:
    """The metrics of one subject in a process tree of its own, or why there are none."""
    return run_apart("mmpack.bench.loaders_subjects", name, json.dumps(dataclasses.asdict(config)))


def run_apart(module: str, *arguments: str) -> dict[str, float] | str:
    """The numbers that a module prints as JSON, run as a process tree of its own; or why there are none."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            out, errors = "", f"not done within {_LONGEST_S} s"
        finally:  # workers of some peers outlive their trainer
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if lines:
        found: dict[str, float] = json.loads(lines[-1])
        return found
    return (errors.strip().splitlines() or ["it printed nothing"])[-1][:300]


def _record(
    name: str, config: LoadersConfig, best: dict[str, dict[str, float]], skipped: dict[str, str]
) -> BenchRecord:
    about, target = SUBJECTS.get(name, ("header, decode, resize and text alone, nothing between them", None))
    metrics = dict(best.get(name, {}))
    settings: dict[str, Plain] = json.loads(json.dumps(dataclasses.asdict(config)))
    if metrics and "mmpack" in best:
        if LIMIT in best and name != LIMIT:
            metrics["own_cpu_ms"] = metrics["cpu_ms_per_sample"] - best[LIMIT]["cpu_ms_per_sample"]
        metrics["times_mmpack"] = metrics["cpu_ms_per_sample"] / best["mmpack"]["cpu_ms_per_sample"]
        if "mmpack_plan" in best and name == "energon_pillow":
            metrics["times_mmpack_plan"] = metrics["cpu_ms_per_sample"] / best["mmpack_plan"]["cpu_ms_per_sample"]
        if target is not None:
            metrics["target_times"] = target
    if not metrics:
        settings["skipped"] = skipped.get(name, "it was not measured")
    return BenchRecord(
        bench=BENCH,
        case=f"LLaVA-like mix, {config.num_workers} workers",
        subject=name,
        metrics=metrics,
        config=settings | {"about": about},
        versions=versions(*PACKAGES),
    )
