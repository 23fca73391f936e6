"""The comparison of ways to batch as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmpack.bench.records import BenchRecord
from mmpack.errors import ConfigError


def draw(records: Sequence[BenchRecord], path: str | Path) -> None:
    """Bars of useful tokens/s with the promised range, and of padding, into a PNG or SVG.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("picture needs matplotlib, which is not installed: pip install 'mmpack[report]'") from None
    measured = [record for record in records if record.metrics]
    names = [record.subject.replace("_", " ") for record in measured]
    places = list(range(len(measured)))
    speeds = [record.metrics["useful_tokens_per_s"] for record in measured]
    base = next(
        (r.metrics["useful_tokens_per_s"] for r in measured if r.metrics["times_padding"] == 1.0),
        max(speeds, default=1),
    )
    figure = Figure(figsize=(11, 0.6 * len(measured) + 1.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    bars = left.barh(places, speeds, color="#3b6fb6")
    left.bar_label(
        bars, [f" {s:,.0f}  ({r.metrics['times_padding']:.2f} x)" for s, r in zip(speeds, measured, strict=True)]
    )
    shown = False
    for place, record in zip(places, measured, strict=True):
        if "expected_from" not in record.metrics or record.metrics["expected_to"] == 1.0:
            continue
        ends = [base * record.metrics[name] for name in ("expected_from", "expected_to")]
        label = None if shown else "promised by teaching material"
        left.plot(ends, [place + 0.45, place + 0.45], color="#d98c21", linewidth=3, label=label)
        shown = True
    if shown:
        left.legend(loc="upper right", fontsize=8)
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.margins(x=0.35)
    left.set_xlabel("useful tokens / s (times padding)")
    padding = right.barh(places, [record.metrics["padding_percent"] for record in measured], color="#b6473b")
    right.bar_label(padding, [f" {record.metrics['padding_percent']:.1f} %" for record in measured])
    right.set_xlabel("positions that are padding, %")
    right.set_xlim(0, 115)
    figure.suptitle(measured[0].case if measured else "nothing was measured", fontsize=10)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
