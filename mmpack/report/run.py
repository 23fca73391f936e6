"""A training run as a picture, drawn from its records alone."""

from __future__ import annotations

import contextlib
import html
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError
from mmpack.report.bars import columns
from mmpack.report.lines import check_record, read_lines
from mmpack.report.page import facts, page

Series = list[tuple[float, float]]  # (step, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Series over steps, and totals."""

    loss: Series
    val_loss: Series
    fill_percent: Series
    tokens_per_s: Series
    wait_percent: Series  # share of the step spent waiting for data
    balance: Series  # cost of the dearest rank over the mean of all ranks
    queue_depth: Series  # packs that were ready when a step began
    lengths: dict[int, int]  # samples by length: up to so many tokens, and more than the next smaller bound
    num_samples: int
    num_packs: int
    drops: dict[str, int]  # samples left out, by reason


RUN_FILE = "run.json"  # beside the records: what the run was configured as


def read_run(records: Path) -> RunFacts:
    """The facts of the run that wrote `records`. Raises ConfigError if it is not a file of records."""
    size = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a run not started by the command line
        size = json.loads((records.parent / RUN_FILE).read_text(encoding="utf-8"))["packed_sequence_size"]
    return run_facts(read_records(records), packed_sequence_size=size)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a ``train.jsonl``. Raises ConfigError if it is not one."""
    lines = read_lines(path)
    records = [record for _, record in lines]
    if not any(isinstance(record, dict) and record.get("kind") == "step" for record in records):
        raise ConfigError(f"{path} holds no step of a training run; give a train.jsonl, or what bench --json printed")
    for where, record in lines:
        check_record(record, where)
    return records


def run_facts(records: Sequence[dict[str, Any]], *, packed_sequence_size: int | None = None) -> RunFacts:
    """What the records of `mmpack.train` say.

    Fill is of `packed_sequence_size`; without one, of the positions of the rows as they are.
    """
    steps = [record for record in records if record["kind"] == "step"]
    return RunFacts(
        loss=[(r["step"], r["loss"]) for r in steps],
        val_loss=[(r["step"], r["val_loss"]) for r in records if r["kind"] == "val"],
        fill_percent=[(r["step"], 100 * r["num_tokens"] / _positions(r, packed_sequence_size)) for r in steps],
        tokens_per_s=[(r["step"], r["useful_tokens_per_s"]) for r in steps],
        wait_percent=[(r["step"], 100 * r["wait_s"] / r["step_s"]) for r in steps],
        balance=[(r["step"], r["max_to_mean_cost"]) for r in steps if "max_to_mean_cost" in r],
        queue_depth=[(r["step"], r["queue_depth"]) for r in steps if "queue_depth" in r],
        lengths=_lengths(steps),
        num_samples=sum(r["num_samples"] for r in steps),
        num_packs=sum(r["num_packs"] for r in steps),
        drops=_drops(steps[-1]["drops"]),
    )


def _positions(record: dict[str, Any], packed_sequence_size: int | None) -> int:
    return int(packed_sequence_size * record["num_packs"] if packed_sequence_size else record["num_positions"])


def _lengths(steps: Sequence[dict[str, Any]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for record in steps:
        for bound, count in record.get("lengths", {}).items():
            total[int(bound)] = total.get(int(bound), 0) + count
    return dict(sorted(total.items()))


def _drops(by_source: dict[str, dict[str, dict[str, Any]]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for reasons in by_source.values():
        for reason, entry in reasons.items():
            total[reason] = total.get(reason, 0) + entry["count"]
    return total


def run_html(run: RunFacts, title: str = "Training run", table: Sequence[tuple[str, str]] = ()) -> str:
    """The page. `table` holds further facts to show at the top."""
    fill = statistics.fmean(value for _, value in run.fill_percent)
    speed = statistics.median(value for _, value in run.tokens_per_s)
    wait = statistics.median(value for _, value in run.wait_percent)
    head = facts(
        [
            *table,
            ("steps", str(len(run.loss))),
            ("packs", f"{run.num_packs:,}"),
            ("samples", f"{run.num_samples:,}"),
            ("mean fill", f"{fill:.2f} %"),
            ("first -> last loss", f"{run.loss[0][1]:.2f} -> {run.loss[-1][1]:.2f}"),
            ("useful tokens/s", f"{speed:,.0f}"),
            ("waiting for data", f"{wait:.1f} %"),
            ("samples left out", str(sum(run.drops.values()))),
        ]
    )
    charts = [
        _chart("Loss", [("training", "#4c8bf5", run.loss), ("validation", "#d9822b", run.val_loss)], low=0.0),
        _chart("Fill of the packs, %", [("fill", "#2e9e5b", run.fill_percent)], low=0.0, high=100.0),
        _chart("Useful tokens per second", [("tokens/s", "#4c8bf5", run.tokens_per_s)], low=0.0),
        _chart("Share of a step spent waiting for data, %", [("wait", "#c0392b", run.wait_percent)], low=0.0),
    ]
    if any(value != 1.0 for _, value in run.balance):
        charts.append(_chart("Cost of the dearest rank over the mean", [("balance", "#8e6bbf", run.balance)], low=1.0))
    if any(value for _, value in run.queue_depth):
        charts.append(_chart("Packs ready when a step began", [("packs", "#17a2a2", run.queue_depth)], low=0.0))
    if run.lengths:
        counts = [(f"{bound:,}", float(count)) for bound, count in run.lengths.items()]
        charts.append(columns("Samples by length, up to so many tokens", counts, "samples"))
    reasons = "".join(f"<li>{html.escape(reason)}: {count}</li>" for reason, count in run.drops.items())
    left_out = f"<h2>Left out</h2><ul>{reasons}</ul>" if reasons else ""
    return page(
        title,
        "Useful tokens are text and image embeddings of samples, without padding.",
        head + "".join(charts) + left_out,
    )


def _chart(
    title: str, lines: Sequence[tuple[str, str, Series]], *, low: float | None = None, high: float | None = None
) -> str:
    """A line chart as inline SVG: (name, colour, points) each, axes labelled at their ends."""
    drawn = [(name, color, [p for p in points if math.isfinite(p[1])]) for name, color, points in lines]
    missing = sum(len(line[2]) for line in lines) - sum(len(line[2]) for line in drawn)
    note = f"<p>{missing} values are no finite numbers and are not drawn.</p>" if missing else ""
    lines = [line for line in drawn if line[2]]
    if not lines:
        return f'<h2>{html.escape(title)}</h2><div class="card">{note}</div>'
    xs = [x for _, _, points in lines for x, _ in points]
    ys = [y for _, _, points in lines for _, y in points]
    bottom = min(ys) if low is None else low
    top = round_top(max(ys)) if high is None else high
    width, height, left, below = 1024, 220, 60, 24

    def at(x: float, y: float) -> str:
        across = (x - min(xs)) / ((max(xs) - min(xs)) or 1)
        up = (y - bottom) / ((top - bottom) or 1)
        return f"{left + across * (width - left - 10):.1f},{10 + (1 - up) * (height - below - 10):.1f}"

    shapes = []
    for value in (bottom, (bottom + top) / 2, top):
        x, y = at(min(xs), value).split(",")
        shapes.append(f'<line x1="{x}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#e4e9ef"/>')
        shapes.append(
            f'<text x="{left - 8}" y="{float(y) + 4}" text-anchor="end" font-size="11">{_short(value)}</text>'
        )
    for place, anchor in ((min(xs), "start"), (max(xs), "end")):
        at_x = at(place, bottom).split(",")[0]
        shapes.append(
            f'<text x="{at_x}" y="{height - 6}" text-anchor="{anchor}" font-size="11">step {place:.0f}</text>'
        )
    for number, (name, color, points) in enumerate(lines):
        path = " ".join(at(x, y) for x, y in points)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        last_x, last_y = path.split()[-1].split(",")
        shapes.append(f'<circle cx="{last_x}" cy="{last_y}" r="3" fill="{color}"/>')
        if len(lines) > 1:
            corner = f'x="{width - 12}" y="{24 + 16 * number}" text-anchor="end" font-size="12"'
            shapes.append(f'<text {corner} fill="{color}">{name}</text>')
    drawing = (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">{"".join(shapes)}</svg>'
    )
    return f'<h2>{html.escape(title)}</h2><div class="card">{drawing}{note}</div>'


def round_top(value: float) -> float:
    """The smallest 1, 1.5, 2, 3, 4, 6 or 8 times a power of ten that is not below `value`.

    >>> [round_top(value) for value in (10.4, 0.07, 16_300, 60, 0)]
    [15.0, 0.08, 20000.0, 60.0, 1.0]
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 6, 8) if step * power >= value), 10 * power)


def _short(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:.4g}"
