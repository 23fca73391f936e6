"""Packers on known mixes of lengths: how full, how fast, how long samples wait, how even the work of ranks is.

``mmpack bench configs/bench/packers.yaml`` or ``python -m mmpack.bench.packers configs/bench/packers.yaml [--json]``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmpack.bench.distributions import Distribution, distribution
from mmpack.bench.packers_config import BENCH, OURS, PackersConfig, config_from_mapping, load_config
from mmpack.bench.peers import PEERS, buffers
from mmpack.bench.records import BenchRecord, Plain, tables, versions
from mmpack.bench.streams import WindowSize, aligned_rank, ranks_balance, replay_buffers, replay_window, step_cost
from mmpack.errors import ConfigError
from mmpack.packing import pack_lengths
from mmpack.stats import displacements, fill_stats
from mmpack.window import stream_packs

__all__ = ["BENCH", "PackersConfig", "config_from_mapping", "load_config", "main", "run"]

Advance = Callable[[int, int, str], None]  # (cases done, cases, what was done last)


def run(config: PackersConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """Measures every subject in every case: one record each, without metrics where the subject is not installed.

    * ``window=N``: a stream through a window or buffer of N samples, or of tokens. Fill counts the packs chosen from
      a full window. Times are processor time; wait and displacement cover all samples, the drain included.
    * ``whole=N``: all N samples at once. A subject listed in `most_samples` gets no more than that many; its record
      says how many it had, and nothing is extrapolated.
    * ``balance``: simulated ranks with streams of their own: max / mean cost of a step.
    """
    cases: list[tuple[str, Callable[[], list[BenchRecord]]]] = []
    for name in config.distributions:
        mix = distribution(name)
        sizes = [WindowSize(samples=samples) for samples in config.windows]
        if mix.in_tokens:
            sizes += [WindowSize(tokens=capacities * mix.capacity) for capacities in config.window_capacities]
        cases += [(name, lambda n=name, s=size: _windows(config, n, s)) for size in sizes]  # type: ignore[misc]
        cases += [(name, lambda n=name, w=whole: _whole_set(config, n, w)) for whole in config.whole_sets]  # type: ignore[misc]
        if config.balance_ranks:
            cases.append((name, lambda n=name: _balance(config, n)))  # type: ignore[misc]
    records: list[BenchRecord] = []
    for done, (label, measure) in enumerate(cases, start=1):
        records += measure()
        advance(done, len(cases), label)
    return records


def _windows(config: PackersConfig, name: str, size: WindowSize) -> list[BenchRecord]:
    mix = distribution(name)
    lengths = mix.lengths(config.num_samples, config.seed)
    case = f"{name}/window={size.samples}" if size.samples else f"{name}/window_tokens={size.tokens}"
    records: list[BenchRecord] = []
    for subject in config.subjects:
        if skipped := _skipped(config, subject, name, case):
            records.append(skipped)
            continue
        mine = lengths[: config.most_samples_of(subject, len(lengths))]
        if subject == OURS:
            packs, seconds = _timed(
                lambda n=mine: list(stream_packs(n, mix.capacity, window=size.samples, window_tokens=size.tokens)),  # type: ignore[misc]
                config.repeats,
            )
            replay = replay_window(packs, mine, size)
        else:
            parts = list(buffers(mine, size.samples, size.tokens))
            packs, seconds = _timed(lambda p=parts, s=subject: PEERS[s].pack_buffers(p, mix.capacity), config.repeats)  # type: ignore[misc]
            replay = replay_buffers(packs, parts, last_is_full=size.is_full(len(parts[-1]), sum(parts[-1])))
        steady = packs[: replay.steady_packs]
        metrics = _metrics(mix, mine, packs, steady, seconds)
        moved = displacements(packs)
        metrics["longest_wait_samples"] = replay.longest_wait
        if size.samples:
            metrics["longest_wait_windows"] = replay.longest_wait / size.samples
        metrics["mean_displacement_samples"] = sum(moved) / len(moved)
        settings: dict[str, Plain] = {"window": size.samples, "window_tokens": size.tokens}
        records.append(_record(config, subject, name, case, metrics, num_samples=len(mine), **settings))
    return records


def _whole_set(config: PackersConfig, name: str, num_samples: int) -> list[BenchRecord]:
    mix = distribution(name)
    lengths = mix.lengths(num_samples, config.seed)
    case = f"{name}/whole={num_samples}"
    records: list[BenchRecord] = []
    for subject in config.subjects:
        if subject != OURS and not PEERS[subject].whole_sets:
            continue
        if skipped := _skipped(config, subject, name, case):
            records.append(skipped)
            continue
        mine = lengths[: config.most_samples_of(subject, num_samples)]
        if subject == OURS:
            packs, seconds = _timed(lambda n=mine: pack_lengths(n, mix.capacity), 1)  # type: ignore[misc]
        else:
            packs, seconds = _timed(lambda n=mine, s=subject: PEERS[s].pack_buffers([n], mix.capacity), 1)  # type: ignore[misc]
        metrics = _metrics(mix, mine, packs, packs, seconds)
        fewest = -(-sum(mine) // mix.capacity)
        metrics["packs_over_fewest"] = len(packs) - fewest
        metrics["packs_over_fewest_percent"] = 100 * (len(packs) / fewest - 1)
        metrics["seconds"] = seconds
        records.append(_record(config, subject, name, case, metrics, num_samples=len(mine)))
    return records


def _balance(config: PackersConfig, name: str) -> list[BenchRecord]:
    mix = distribution(name)
    steps, ranks, window = config.balance_steps, config.balance_ranks, config.balance_window
    sample = mix.lengths(2000, config.seed)
    # Enough for every step, the window, and a block of plans made ahead.
    most = int(1.3 * (steps + max(config.align_windows)) * mix.capacity * len(sample) / sum(sample)) + 2 * window
    streams = [mix.lengths(most, config.seed + 1 + rank) for rank in range(ranks)]
    case = f"{name}/balance/ranks={ranks}"
    records: list[BenchRecord] = []

    def add(subject: str, value: float, **settings: Plain) -> None:
        common: dict[str, Plain] = {"ranks": ranks, "steps": steps, "window": window, "hidden_size": config.hidden_size}
        where = "".join(f"/{key}={setting}" for key, setting in settings.items() if key == "align_window")
        waited = settings.pop("longest_wait_samples", None)
        metrics: dict[str, float] = {"max_to_mean_cost": value}
        if isinstance(waited, int):
            metrics |= {"longest_wait_samples": waited, "longest_wait_windows": waited / window}
        records.append(_record(config, subject, name, case + where, metrics, **common, **settings))

    for align_window in config.align_windows if OURS in config.subjects else ():
        work = [
            aligned_rank(
                lengths,
                mix.capacity,
                window=window,
                align_window=align_window,
                num_steps=steps,
                hidden_size=config.hidden_size,
            )
            for lengths in streams
        ]
        value = ranks_balance(lambda rank, done=work: done[rank].step_costs, ranks)  # type: ignore[misc]
        add(OURS, value, align_window=align_window, longest_wait_samples=max(w.longest_wait for w in work))
    if "energon_ffd" in config.subjects:

        def flushed(rank: int) -> list[float]:
            packs = PEERS["energon_ffd"].pack_buffers(list(buffers(streams[rank], window, None)), mix.capacity)
            return [step_cost([streams[rank][i] for i in pack], config.hidden_size) for pack in packs[:steps]]

        add("energon_ffd", ranks_balance(flushed, ranks))
    return records


def _timed(make: Callable[[], list[list[int]]], repeats: int) -> tuple[list[list[int]], float]:
    """The packs and the processor time of the fastest run, in seconds."""
    seconds, packs = float("inf"), []
    for _ in range(repeats):
        start = time.process_time()
        packs = make()
        seconds = min(seconds, time.process_time() - start)
    return packs, seconds


def _metrics(
    mix: Distribution,
    lengths: Sequence[int],
    packs: Sequence[Sequence[int]],
    steady: Sequence[Sequence[int]],
    seconds: float,
) -> dict[str, float]:
    fill = fill_stats((sum(lengths[i] for i in pack) for pack in steady), mix.capacity)
    return {
        "fill_percent": 100 * fill.mean_fill,
        "full_packs_percent": 100 * fill.full_share,
        "us_per_pack": 1e6 * seconds / len(packs),
        "samples_per_s": round(len(lengths) / seconds) if seconds else 0,
        "samples_per_pack": len(lengths) / len(packs),
    }


def _skipped(config: PackersConfig, subject: str, name: str, case: str) -> BenchRecord | None:
    reason = None if subject == OURS else PEERS[subject].missing()
    return _record(config, subject, name, case, {}, skipped=reason) if reason else None


def _record(
    config: PackersConfig, subject: str, name: str, case: str, metrics: Mapping[str, float], **settings: Plain
) -> BenchRecord:
    common: dict[str, Plain] = {"distribution": name, "capacity": distribution(name).capacity, "seed": config.seed}
    packages = ("numpy", *(PEERS[subject].packages if subject in PEERS else ()))
    return BenchRecord(
        bench=BENCH,
        case=case,
        subject=subject,
        metrics=metrics,
        config=common | {key: value for key, value in settings.items() if value is not None},
        versions=versions(*packages),
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
    print("\n".join(record.to_json() for record in records) if options.json else tables(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
