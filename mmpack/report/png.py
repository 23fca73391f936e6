"""The same pictures as PNG, through matplotlib (extra `report`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError
from mmpack.report.bars import OTHERS, OURS
from mmpack.report.bench import BenchFacts
from mmpack.report.pack import KINDS, ROW_TOKENS, PackFacts, runs
from mmpack.report.page import COLORS
from mmpack.report.run import RunFacts


def _figure(rows: int, height_in: float) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a PNG needs matplotlib; install mmpack[report], or ask for HTML") from None
    figure = Figure(figsize=(12, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, squeeze=False)[:, 0]


def pack_png(pack: PackFacts, path: Path) -> None:
    """Draws the row, `ROW_TOKENS` positions a line, and the pictures. Raises ConfigError without matplotlib."""
    lines = -(-len(pack.kind_t) // ROW_TOKENS)
    tiles = [tile for segment in pack.segments for tile in segment.tiles]
    figure, axes = _figure(2 if tiles else 1, 1.2 + 0.5 * lines + (1.6 if tiles else 0))
    bars = axes[0]
    for name, start, end in runs(pack.kind_t):
        while start < end:
            line, left = divmod(start, ROW_TOKENS)
            stop = min(end, (line + 1) * ROW_TOKENS)
            bars.barh(-line, stop - start, left=left, height=0.7, color=COLORS[name])
            start = stop
    for segment in pack.segments:
        line, left = divmod(segment.start, ROW_TOKENS)
        bars.vlines(left, -line - 0.45, -line + 0.45, color="black", linewidth=1.5)
    bars.set(xlim=(0, ROW_TOKENS), yticks=[], xlabel=f"position (lines of {ROW_TOKENS})")
    num_samples = sum(segment.key is not None for segment in pack.segments)
    size = f"{num_samples} samples, {len(pack.kind_t)} positions, {100 * pack.fill:.2f} % filled"
    bars.set_title(f"pack {pack.pack_index}: {size}", loc="left")
    handles = [bars.barh(0, 0, color=COLORS[kind], label=kind) for kind in KINDS]
    bars.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(KINDS), fontsize=8)
    if tiles:
        axes[1].axis("off")
        for i, tile in enumerate(tiles[:24]):
            axes[1].imshow(tile.transpose(1, 2, 0), extent=(i, i + 0.95, 0, 0.95))
        axes[1].set(xlim=(0, max(12, min(len(tiles), 24))), ylim=(0, 1), aspect="equal")
        axes[1].set_title(f"{len(tiles)} tiles" + (", the first 24" if len(tiles) > 24 else ""), fontsize=9)
    figure.savefig(path, dpi=110, format="png")


def bench_png(found: BenchFacts, path: Path) -> None:
    """Ours and the peers by the first metric of each case, or a loader's stages. ConfigError without matplotlib."""
    charts: list[tuple[str, list[tuple[str, float]]]] = []
    if found.profile is not None:
        charts.append(("CPU ms a sample, by stage", [(n, float(v)) for n, v in found.profile["stages_ms"].items()]))
    for case in dict.fromkeys((record["bench"], record["case"]) for record in found.records):
        measured = [r for r in found.records if (r["bench"], r["case"]) == case and r["metrics"]]
        if measured:
            name = next(iter(measured[0]["metrics"]))
            rows = [(r["subject"], float(r["metrics"][name])) for r in measured if name in r["metrics"]]
            charts.append((f"{case[0]}, {case[1]}: {name}", rows))
    if not charts:
        raise ConfigError("none of the records has a measurement to draw")
    figure, axes = _figure(len(charts), sum(0.8 + 0.3 * len(rows) for _, rows in charts))
    for axis, (title, rows) in zip(axes, charts, strict=True):
        names, values = zip(*reversed(rows), strict=True)
        color = [OURS if name.startswith("mmpack") else OTHERS for name in names]
        axis.bar_label(axis.barh(names, values, color=color), fmt="%.3g", padding=3, fontsize=8)
        axis.set_title(title, fontsize=10, loc="left")
    figure.savefig(path, dpi=110, format="png")


def run_png(run: RunFacts, path: Path) -> None:
    """Loss, fill and speed over the steps. Raises ConfigError without matplotlib."""
    figure, axes = _figure(3, 8)
    axes[0].plot(*zip(*run.loss, strict=True), label="training")
    if run.val_loss:
        axes[0].plot(*zip(*run.val_loss, strict=True), "o-", label="validation")
    axes[0].legend()
    axes[1].plot(*zip(*run.fill_percent, strict=True), color=COLORS["trained"])
    axes[1].set_ylim(0, 102)
    axes[2].plot(*zip(*run.tokens_per_s, strict=True))
    for axis, title in zip(axes, ("loss", "fill of the packs, %", "useful tokens per second"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[2].set_xlabel("step")
    figure.savefig(path, dpi=110, format="png")
