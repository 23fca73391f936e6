"""``mmpack bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmpack.bench import batching, conversion, loaders, mock, packers, plan_modes, resume
from mmpack.bench.records import tables
from mmpack.cli.show import progress, say
from mmpack.config import read_document
from mmpack.errors import ConfigError, nearest

_MODULES: tuple[Any, ...] = (packers, batching, plan_modes, loaders, resume, mock, conversion)
BENCHES = {module.BENCH: module for module in _MODULES}


def run(path: str, settings: Sequence[str], *, as_json: bool) -> None:
    """Runs the bench that a file names and prints its records: a table, or one JSON object a line."""
    values = dict(read_document(Path(path)).with_settings(settings).values)
    name = values.pop("bench", None)
    if name not in BENCHES:
        raise ConfigError(f"{path}: bench={name!r} is no bench; {nearest(str(name), BENCHES)}")
    config = BENCHES[name].config_from_mapping(values, where=path)
    with progress("measuring") as advance:
        records = BENCHES[name].run(config, advance)
    if as_json:
        for record in records:
            print(record.to_json())
    else:
        say(tables(records))
