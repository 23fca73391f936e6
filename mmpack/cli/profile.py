"""``mmpack profile``."""

from __future__ import annotations

from typing import Any

from mmpack.bench.profile import STAGES, Profile, profile
from mmpack.cli.inspect import open_config
from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.config import load
from mmpack.datamodules.factory import PackStreamFactory
from mmpack.errors import ConfigError


def run(path: str, overrides: list[str], num_samples: int, *, as_json: bool) -> None:
    """Times the stages of the loader that a configuration describes, and says what bounds it."""
    if num_samples < 1:
        raise ConfigError(f"--samples {num_samples}: give at least 1")
    config = open_config(path, overrides, as_json=as_json)
    loader: Any = load(config, split="train", num_workers=0)
    factory = getattr(loader, "factory", None)
    if not isinstance(factory, PackStreamFactory):
        raise ConfigError(
            f"{path}: {type(loader).__name__} has no stream to time; profile the same data with data.order=stream"
        )
    with progress("profiling") as advance:
        found = profile(factory, num_samples, lambda done, total: advance(done, total, ""))
    if not found.num_samples:
        raise ConfigError(f"{path}: the first stream ends before there is a pack to time; lower data.num_streams")
    if as_json:
        print_json(found.to_json())
        return
    print_table(f"One worker on {path}", rows(found))
    for number, line in enumerate(found.advice(), start=1):
        say(f"{number}. {line}")


def rows(found: Profile) -> list[tuple[str, str]]:
    """The table for people."""
    table = [
        (name, f"{ms:7.3f} ms  {100 * ms / found.total_ms:4.1f} %  {STAGES[name]}")
        for name, ms in found.stage_ms.items()
    ]
    return [
        *table,
        (
            "together",
            f"{found.total_ms:7.3f} ms CPU a sample, of {found.num_samples:,} samples in {found.num_packs:,} packs",
        ),
        ("bound by", found.bound),
        (
            "a worker gives",
            f"{found.samples_per_s:,.0f} samples/s, {found.packs_per_s:,.1f} packs/s on a core of its own",
        ),
    ]
