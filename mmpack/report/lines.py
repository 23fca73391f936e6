"""What a line of records must hold to be drawn; anything else is named with its file and line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError

STEP_NUMBERS: tuple[str, ...] = (
    "loss",
    "num_packs",
    "num_samples",
    "num_tokens",
    "num_positions",
    "useful_tokens_per_s",
)
STEP_NUMBERS += ("step_s", "wait_s")  # seconds
_SOMETIMES = ("max_to_mean_cost", "queue_depth")


def read_lines(path: Path) -> list[tuple[str, Any]]:
    """("file, line n", what it holds) for every line that is not blank.

    Raises:
        ConfigError: it cannot be read, or a line is no JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as records of a run: {error}") from None
    found: list[tuple[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            if line.strip():
                found.append((where, json.loads(line)))
        except (ValueError, RecursionError) as error:
            cut = number == len(lines)  # no line end behind it
            hint = "it was cut short: resume the run, or remove the line" if cut else "give a train.jsonl"
            raise ConfigError(f"{where} cannot be read as a record of a run: {error}; {hint}") from None
    return found


def check_record(record: Any, where: str) -> None:
    """Raises ConfigError for what no training run writes. NaN and infinity are numbers: a run may diverge."""
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind is None:
        raise ConfigError(f"{where} is no record of a training run; give a file of one run's records alone")
    if kind == "step":
        numbers: tuple[str, ...] = ("step", *STEP_NUMBERS, *(name for name in _SOMETIMES if name in record))
    else:
        numbers = ("step", "val_loss") if kind == "val" else ()
    for name in numbers:
        value = record.get(name)
        counted = name == "step" or name.startswith("num_")
        if isinstance(value, bool) or not isinstance(value, int if counted else int | float):
            raise ConfigError(f"{where}: {name}={value!r} of a {kind} is no number; was the file edited?")
    if kind == "step":
        if record["step_s"] <= 0 or record["num_positions"] <= 0 or record["num_packs"] <= 0:
            raise ConfigError(f"{where}: step_s, num_positions and num_packs must be above 0; was the file edited?")
        _check_counts(record, where)


def _check_counts(record: Mapping[str, Any], where: str) -> None:
    try:
        for entry in (entry for reasons in record["drops"].values() for entry in reasons.values()):
            entry["count"] + 0
        for bound, count in record.get("lengths", {}).items():
            int(bound), count + 0
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(f"{where}: 'drops' or 'lengths' hold what is no count; was the file edited?") from None


def check_measurement(record: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for what ``mmpack bench --json`` does not write."""
    for name in ("bench", "case", "subject"):
        if not isinstance(record.get(name), str):
            raise ConfigError(f"{where}: {name}={record.get(name)!r}; give what mmpack bench --json printed, a text")
    for name in ("metrics", "config", "versions", "machine"):
        if not isinstance(record.get(name, {}), Mapping):
            raise ConfigError(f"{where}: {name}={record[name]!r}; give what mmpack bench --json printed, an object")
    for name, value in record["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{where}: metric {name}={value!r} is no finite number; measure again, or leave it out")
