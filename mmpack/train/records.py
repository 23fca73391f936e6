"""The records of a run: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one record."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def cut_records(path: Path, step: int) -> None:
    """Drops the records of steps that come again after a resume."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        path.write_text("".join(kept), encoding="utf-8")


def _step_of(line: str) -> float:
    """The step of a record; infinity for a line that a kill cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
