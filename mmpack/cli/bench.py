"""``mmpack bench``."""

from __future__ import annotations

from pathlib import Path

from mmpack.bench import packers
from mmpack.bench.records import table
from mmpack.cli.show import say


def run(path: str, *, as_json: bool) -> None:
    """Runs the bench `packers` and prints its records: a table, or one JSON object a line."""
    records = packers.run(packers.load_config(Path(path)))
    if as_json:
        for record in records:
            print(record.to_json())
    else:
        say(table(records))
