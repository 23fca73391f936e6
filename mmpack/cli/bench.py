"""``mmpack bench``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmpack.bench import packers
from mmpack.bench.records import BenchRecord, table
from mmpack.cli.show import progress, say
from mmpack.config import read_document
from mmpack.errors import ConfigError, nearest

BENCHES = {packers.BENCH: packers}


def run(path: str, settings: Sequence[str], *, as_json: bool) -> None:
    """Runs the bench that a file names and prints its records: a table, or one JSON object a line."""
    values = dict(read_document(Path(path)).with_settings(settings).values)
    name = values.pop("bench", None)
    if name not in BENCHES:
        raise ConfigError(f"{path}: bench={name!r} is no bench; {nearest(str(name), BENCHES)}")
    config = BENCHES[name].config_from_mapping(values, where=path)
    cases = [(mix, window) for mix in config.distributions for window in config.windows]
    records: list[BenchRecord] = []
    with progress("measuring") as advance:
        for done, (mix, window) in enumerate(cases, start=1):
            records += BENCHES[name].run(replace(config, distributions=(mix,), windows=(window,)))
            advance(done, len(cases), mix)
    if as_json:
        for record in records:
            print(record.to_json())
    else:
        say(table(records))
