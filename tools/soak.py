#!/usr/bin/env python3
"""Streams packs for a long time, with faults, and says whether memory, files or processes grow.

    python tools/soak.py --minutes 60 --workers 2 [--damage 0.02] [--kill-every 10] [--dataset FOLDER] [--out FILE]

Without a dataset the bundled data is converted into a temporary folder. Its shards are damaged: of a share of the
samples some bytes of a picture or of the record are overwritten. Every so many minutes one worker process is killed,
and the trainer goes on from its state. Once in ten seconds one line of JSON is written: unique memory of the trainer
and of its workers, open files, processes, names in shared memory, packs and samples left out so far. Unique memory is
what was written to and no other process has; pages of library files count or not by what else runs, and are left out.

At the end it prints the slope of memory, which leaves out what lies two minutes and less behind a start, and exits
with 1 if that is above 1 MB a minute, or if files, processes or shared memory have grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

SAMPLE_S = 10.0
WARM_UP_S = 120.0
MOST_MB_PER_MINUTE = 1.0


def damage(dataset: Path, share: float, seed: int) -> int:
    """Overwrites bytes in one member of about `share` of all samples; how many."""
    rng = random.Random(seed)
    count = 0
    for shard in sorted(dataset.rglob("*.tar")):
        with tarfile.open(shard) as tar:
            members = [(m.offset_data, m.size) for m in tar.getmembers() if m.isfile() and m.size > 200]
        with shard.open("r+b") as file:
            for begin, size in members:
                if rng.random() < share / 2:  # a sample has about two members
                    file.seek(begin + rng.randrange(size // 8, size // 2))
                    file.write(rng.randbytes(100))
                    count += 1
    return count


@contextmanager
def damaged_dataset(given: Path | None, share: float) -> Iterator[tuple[Any, int]]:
    """The demo's configuration over a damaged copy of a dataset, and how many samples were damaged."""
    from mmpack.cli.convert import run as convert
    from mmpack.config import package_path, read_config

    with tempfile.TemporaryDirectory(prefix="mmpack-soak-") as folder:
        path = Path(folder) / "energon"
        config = read_config(
            package_path("demo_data/demo.yaml"), [f"convert.dst={path}", f"data.path={path}", "data.oversize=drop"]
        )
        if given is None:
            convert(config.convert, as_json=False, quiet=True)
        else:
            shutil.copytree(given, path)
        yield config, damage(path, share, seed=0)


def unique_mb(process: psutil.Process) -> float:
    """What a process alone holds and has written to."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1e3
    except OSError:  # no Linux
        return float(process.memory_full_info().uss / 1e6)


def measured(started: float, life: int, life_started: float, packs: int, left_out: int) -> dict[str, Any]:
    """One line: what the trainer and its workers hold now."""
    trainer = psutil.Process()
    workers = trainer.children(recursive=True)
    shared = Path("/dev/shm")
    return {
        "minutes": (time.monotonic() - started) / 60,
        "life": life,
        "life_s": time.monotonic() - life_started,
        "trainer_mb": unique_mb(trainer),
        "workers_mb": sum(map(unique_mb, workers)),
        "open_files": trainer.num_fds() + sum(worker.num_fds() for worker in workers),
        "processes": 1 + len(workers),
        "shared_memory": len(list(shared.iterdir())) if shared.is_dir() else 0,
        "packs": packs,
        "left_out": left_out,
    }


def slope(lines: list[dict[str, Any]], name: str) -> float:
    """Of `name` a minute, by least squares; every life has its own height, since a new worker begins small."""
    used = [line for line in lines if line["life_s"] > WARM_UP_S]
    above = below = 0.0
    for life in {line["life"] for line in used}:
        mine = [(line["minutes"], line[name]) for line in used if line["life"] == life]
        mean_x, mean_y = (sum(column) / len(mine) for column in zip(*mine, strict=True))
        above += sum((x - mean_x) * (y - mean_y) for x, y in mine)
        below += sum((x - mean_x) ** 2 for x, _ in mine)
    return above / below if below else 0.0


def soak(config: Any, options: argparse.Namespace, out: Any) -> list[dict[str, Any]]:
    """Streams for the time asked for; the lines written."""
    from mmpack.errors import WorkerError

    module = config.with_values("data", {"num_workers": options.workers}).data_module()
    loader = module.train_dataloader()
    started = life_started = time.monotonic()
    last_line = last_kill = started
    lines: list[dict[str, Any]] = []
    packs = life = 0
    iterator = iter(loader)
    while time.monotonic() - started < 60 * options.minutes:
        try:
            next(iterator).check()
        except StopIteration:
            iterator = iter(loader)
            continue
        except WorkerError as error:
            if "killed by SIGKILL" not in str(error):
                raise
            life, life_started = life + 1, time.monotonic()
            state = module.state_dict()
            module.load_state_dict(state)
            iterator = iter(loader)
            continue
        packs += 1
        now = time.monotonic()
        if now - last_line >= SAMPLE_S:
            last_line = now
            lines.append(measured(started, life, life_started, packs, loader.drops.total))
            out.write(json.dumps(lines[-1]) + "\n")
            out.flush()
        if options.kill_every and options.workers and now - last_kill >= 60 * options.kill_every:
            last_kill = now
            random.choice(psutil.Process().children(recursive=True)).kill()
    iterator.close()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--damage", type=float, default=0.02, help="share of the samples that are damaged")
    parser.add_argument("--kill-every", type=float, default=10, help="minutes between kills of a worker; 0 for none")
    parser.add_argument("--dataset", type=Path, help="an Energon dataset; it is copied")
    parser.add_argument("--out", type=Path, help="file for the lines; else they go to standard error")
    options = parser.parse_args()
    before = (psutil.Process().num_fds(), len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0)
    with (
        damaged_dataset(options.dataset, options.damage) as (config, num_damaged),
        options.out.open("w") if options.out else os.fdopen(os.dup(2), "w") as out,
    ):
        lines = soak(config, options, out)
    left = psutil.Process().children(recursive=True)
    steady = [line for line in lines if line["life_s"] > WARM_UP_S] or lines
    summary = {
        "minutes": options.minutes,
        "packs": lines[-1]["packs"] if lines else 0,
        "samples_damaged": num_damaged,
        "left_out": lines[-1]["left_out"] if lines else 0,
        "worker_kills": lines[-1]["life"] if lines else 0,
        "trainer_mb_per_minute": slope(lines, "trainer_mb"),
        "workers_mb_per_minute": slope(lines, "workers_mb"),
        "open_files": [steady[0]["open_files"], steady[-1]["open_files"]] if steady else [],
        "processes_left": len(left),
        "shared_memory_grown": (len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0) - before[1],
    }
    print(json.dumps(summary))
    grown = max(summary["trainer_mb_per_minute"], summary["workers_mb_per_minute"]) > MOST_MB_PER_MINUTE
    files = bool(steady) and steady[-1]["open_files"] > steady[0]["open_files"] + 8
    return int(grown or files or bool(left) or summary["shared_memory_grown"] > 0)


if __name__ == "__main__":
    sys.exit(main())
