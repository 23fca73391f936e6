"""Measurements as a picture: ours and the peers side by side, metric by metric, and a loader's time by stage."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError
from mmpack.report.bars import bars, stacked
from mmpack.report.lines import check_measurement
from mmpack.report.page import facts, page

_RATIOS = ("times_", "target_")  # of other metrics: they stand behind the bars
_STAGE = "_ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchFacts:
    """Records of ``mmpack bench --json``, or what ``mmpack profile --json`` prints."""

    records: Sequence[Mapping[str, Any]]
    profile: Mapping[str, Any] | None = None


def read_bench(path: Path) -> BenchFacts | None:
    """The measurements in a file; None if it holds none. Raises ConfigError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "stages_ms" in whole:
        return BenchFacts(records=(), profile=whole)
    try:
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return None
    if not records or not all(isinstance(record, dict) and {"bench", "metrics"} <= record.keys() for record in records):
        return None
    for number, record in enumerate(records, start=1):
        check_measurement(record, f"{path}, record {number}")
    return BenchFacts(records=records)


def bench_html(found: BenchFacts, title: str = "Measurements") -> str:
    """The page."""
    if found.profile is not None:
        return _profile_html(found.profile, title)
    first = found.records[0]
    machine = first.get("machine", {})
    head = facts(
        [
            ("processor", str(machine.get("processor", "?"))),
            ("cores", str(machine.get("cores", "?"))),
            ("commit", str(first.get("commit") or "?")),
            *((name, str(text)) for name, text in first.get("versions", {}).items() if text != "absent"),
        ]
    )
    charts = "".join(
        _case(f"{bench}: {case}", [r for r in found.records if (r["bench"], r["case"]) == (bench, case)])
        for bench, case in dict.fromkeys((record["bench"], record["case"]) for record in found.records)
    )
    lead = "One run; the subjects took turns. A bar is as long as its number; mmpack is green."
    return page(title, lead, head + charts)


def _case(title: str, records: Sequence[Mapping[str, Any]]) -> str:
    measured = [record for record in records if record["metrics"]]
    names = list(dict.fromkeys(name for record in measured for name in record["metrics"]))
    stages = {
        record["subject"]: parts
        for record in measured
        if len(parts := {n: v for n, v in record["metrics"].items() if n.endswith(_STAGE)}) > 1
    }
    in_stages = {name for parts in stages.values() for name in parts}
    charts = []
    for name in names:
        having = [record for record in measured if name in record["metrics"]]
        if name.startswith(_RATIOS) or (name in in_stages and len(having) < 2):
            continue
        rows = [(r["subject"], float(r["metrics"][name]), _text(r["metrics"], name)) for r in having]
        ours = [subject for subject, _, _ in rows if subject.startswith("mmpack")]
        charts.append(bars(name.replace("_", " "), rows, ours=ours))
    for subject, parts in stages.items():
        charts.append(stacked(f"{subject}, by stage", {n.removesuffix(_STAGE): v for n, v in parts.items()}, "ms"))
    missing = "".join(
        f"<li>{html.escape(r['subject'])}: {html.escape(str(r.get('config', {}).get('skipped')))}</li>"
        for r in records
        if not r["metrics"]
    )
    skipped = f'<div class="card">Not measured:<ul>{missing}</ul></div>' if missing else ""
    return f"<h1>{html.escape(title)}</h1>{''.join(charts)}{skipped}"


def _text(metrics: Mapping[str, float], name: str) -> str:
    """The number, and beside the metric that ratios are of, the ratio and what it should be."""
    text = f"{metrics[name]:,.4g}" if abs(metrics[name]) < 1e4 else f"{metrics[name]:,.0f}"
    ratios = [other for other in metrics if other.startswith("times_")]
    if ratios and name == next(n for n in metrics if not n.startswith(_RATIOS)):
        text += f"   {metrics[ratios[0]]:.2f}x"
        if "target_times" in metrics:
            text += f" (target {metrics['target_times']:g})"
    return text


def _profile_html(profile: Mapping[str, Any], title: str) -> str:
    head = facts(
        [
            ("bound by", str(profile["bound"])),
            ("CPU ms a sample", f"{profile['cpu_ms_per_sample']:.3f}"),
            ("samples/s a worker", f"{profile['samples_per_s_per_worker']:,.0f}"),
            ("packs/s a worker", f"{profile['packs_per_s_per_worker']:,.1f}"),
        ]
    )
    advice = "".join(f"<li>{html.escape(line)}</li>" for line in profile["advice"])
    charts = stacked("Time by stage", profile["stages_ms"], "ms a sample")
    return page(title, "One worker, by stage.", f"{head}{charts}<h2>What helps</h2><ol>{advice}</ol>")
