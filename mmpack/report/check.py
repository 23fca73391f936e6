"""A check as one page: faults by reason, lengths and tiles as histograms, the expected fill."""

from __future__ import annotations

import html
from collections.abc import Sequence

from mmpack.check import CheckReport, histogram
from mmpack.report.page import COLORS, facts, page

_WIDTH, _HEIGHT, _FOOT = 1024, 180, 22


def check_html(report: CheckReport) -> str:
    """The page."""
    counts = report.counts
    pairs = [
        ("samples", f"{report.num_samples:,}"),
        ("good", f"{report.num_good:,}"),
        ("bad", f"{len(counts.bad):,} ({100 * report.bad_share:.2f} %)"),
        ("longer than allowed", f"{counts.num_too_long:,}"),
        ("pictures", f"{counts.num_pictures:,}"),
    ]
    if report.fill is not None:
        pairs.append(("expected fill", f"{report.fill.fill_percent:.2f} %"))
        pairs.append((f"packs of {report.fill.packed_sequence_size:,}", f"{report.fill.num_packs:,}"))
    body = facts(pairs)
    body += _faults(report)
    body += _shards(report)
    body += f"<h2>Tokens of a sample</h2>{_bars(histogram(counts.tokens, 40), COLORS['trained'])}"
    body += f"<h2>Tiles of a sample</h2>{_bars(histogram(counts.tiles, 40), COLORS['image'])}"
    verdict = "within" if report.passed else "above"
    depth = "every picture decoded" if report.deep else "headers of pictures read"
    lead = f"Faults are {verdict} the budget of {100 * report.max_bad:g} %; {depth}; {report.counted_with}."
    return page(f"Check of {report.path}", lead, body)


def _faults(report: CheckReport) -> str:
    if not report.faults:
        return "<h2>Faults</h2><p>None.</p>"
    most = max(report.faults.values())
    cards = []
    for reason, count in report.faults.items():
        bar = (
            f'<svg viewBox="0 0 {_WIDTH} 8"><rect width="{_WIDTH * count / most:.1f}" height="8" fill="#c0392b"/></svg>'
        )
        lines = "".join(f"<br>{html.escape(f'{bad.name}: {bad.detail}')}" for bad in report.examples(reason))
        head = f"<header><b>{html.escape(reason)}</b>: {count:,}</header>"
        cards.append(f'<div class="card">{head}{bar}<div class="text">{lines[4:]}</div></div>')
    return "<h2>Faults</h2>" + "".join(cards)


def _shards(report: CheckReport) -> str:
    if not report.damaged_shards:
        return ""
    rows = "".join(f"<br>{html.escape(f'{shard} {problem}')}" for shard, problem in report.damaged_shards)
    return f'<h2>Damaged shards</h2><div class="card"><div class="text">{rows[4:]}</div></div>'


def _bars(bins: Sequence[tuple[int, int, int]], color: str) -> str:
    """A histogram: one bar a bin, its range and count as a hint, the ends of the axis below."""
    if not bins:
        return "<p>No good sample.</p>"
    most = max(count for _, _, count in bins)
    width = _WIDTH / len(bins)
    shapes = []
    for i, (first, last, count) in enumerate(bins):
        height = _HEIGHT * count / most
        hint = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        shapes.append(
            f'<rect x="{i * width:.1f}" y="{_HEIGHT - height:.1f}" width="{max(width - 2, 1):.1f}" '
            f'height="{height:.1f}" fill="{color}"><title>{hint}: {count:,} samples</title></rect>'
        )
        if i % -(-len(bins) // 10) == 0:
            place = f'x="{i * width:.1f}" y="{_HEIGHT + 14}"'
            shapes.append(f'<text {place} font-size="11" fill="#52606d">{first:,}</text>')
    foot = (
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" font-size="11" text-anchor="end" fill="#52606d">{bins[-1][1]:,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img">{"".join(shapes)}{foot}</svg>'
