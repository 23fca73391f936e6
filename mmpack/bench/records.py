"""The record of one measurement: what was measured, on what, with which versions. One JSON object a line."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

Plain = bool | int | float | str | None | list["Plain"] | dict[str, "Plain"]


@cache
def machine() -> dict[str, str]:
    """The machine, as far as it matters to a time: operating system, processor, cores this process may use, Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor_name(),
        "cores": str(cores),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


@cache
def commit() -> str | None:
    """The commit of the checkout that mmpack runs from, with ``+`` if files differ from it; None outside of one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None  # installed: a repository further up the path would be somebody else's
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return name + ("+" if changed else "")


def versions(*packages: str) -> dict[str, str]:
    """Version of mmpack and of the named distributions; ``"absent"`` for one that is not installed.

    >>> versions("no-such-distribution")["no-such-distribution"]
    'absent'
    """
    found: dict[str, str] = {}
    for package in ("mmpack", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRecord:
    """One measurement of one subject on one case. A metric's name carries its unit."""

    bench: str  # the bench that made it
    case: str  # what was measured: input and setting
    subject: str  # who was measured: "mmpack", or a peer
    metrics: Mapping[str, float]
    config: Mapping[str, Plain]  # all settings that decide the numbers
    versions: Mapping[str, str] = field(default_factory=versions)
    commit: str | None = field(default_factory=commit)
    machine: Mapping[str, str] = field(default_factory=machine)

    def to_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> BenchRecord:
        """The record that `to_json` wrote."""
        return cls(**json.loads(line))


def tables(records: Iterable[BenchRecord]) -> str:
    """Records of any kinds as text: a table for each kind, told by its metrics, and below what was not measured.

    A record without metrics is a measurement that was not made; its config says why under ``skipped``.
    """
    kinds: list[tuple[set[str], list[BenchRecord]]] = []
    skipped: list[str] = []
    for record in records:
        names = set(record.metrics)
        if not names:
            skipped.append(f"not measured: {record.case}  {record.subject}: {record.config.get('skipped')}")
            continue
        for known, members in kinds:
            if known >= names or known <= names:
                known |= names
                members.append(record)
                break
        else:
            kinds.append((names, [record]))
    parts = [table(members) for _, members in kinds]
    return "\n\n".join(parts + (["\n".join(skipped)] if skipped else []))


def table(records: Iterable[BenchRecord]) -> str:
    """The records of one kind as text: a line each, a column for each metric that any of them has."""
    rows = list(records)
    metrics = list(dict.fromkeys(name for record in rows for name in record.metrics))
    lines = [["case", "subject", *metrics]]
    for record in rows:
        cells = [_number(record.metrics[name]) if name in record.metrics else "-" for name in metrics]
        lines.append([record.case, record.subject, *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
