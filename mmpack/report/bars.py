"""Bar charts as inline SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

_WIDTH, _ROW, _LABEL, _VALUE = 1024, 26, 170, 150
OURS, OTHERS = "#2e9e5b", "#9aa5b1"
STAGE_COLORS = ("#4c8bf5", "#2e9e5b", "#d9822b", "#c0392b", "#8e6bbf", "#9aa5b1", "#17a2a2")


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, ours: Sequence[str] = ()) -> str:
    """A bar for each (name, value, text behind the bar), as long as the value; those named in `ours` stand out."""
    top = max((value for _, value, _ in rows), default=0.0) or 1.0
    room = _WIDTH - _LABEL - _VALUE
    shapes = []
    for number, (name, value, text) in enumerate(rows):
        y = number * _ROW
        length = max(0.0, value) / top * room
        color = OURS if name in ours else OTHERS
        shapes.append(
            f'<text x="{_LABEL - 8}" y="{y + 17}" text-anchor="end" font-size="12">{html.escape(name)}</text>'
            f'<rect x="{_LABEL}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2" fill="{color}"/>'
            f'<text x="{_LABEL + length + 6:.1f}" y="{y + 17}" font-size="12">{html.escape(text)}</text>'
        )
    return _card(title, shapes, len(rows) * _ROW)


def columns(title: str, counts: Sequence[tuple[str, float]], what: str) -> str:
    """A histogram: a column for each (label, count)."""
    top = max((count for _, count in counts), default=0.0) or 1.0
    height, step = 200, (_WIDTH - 20) / max(1, len(counts))
    shapes = []
    for number, (label, count) in enumerate(counts):
        x, tall = 10 + number * step, count / top * (height - 40)
        middle = x + step / 2
        shapes.append(
            f'<rect x="{x + 1:.1f}" y="{height - 22 - tall:.1f}" width="{max(1.0, step - 2):.1f}" height="{tall:.1f}" '
            f'fill="#4c8bf5"><title>{html.escape(label)}: {count:,.0f} {html.escape(what)}</title></rect>'
            f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle" font-size="11">{html.escape(label)}</text>'
            f'<text x="{middle:.1f}" y="{height - 26 - tall:.1f}" text-anchor="middle" font-size="10" '
            f'fill="#52606d">{count:,.0f}</text>'
        )
    return _card(title, shapes, height)


def stacked(title: str, parts: Mapping[str, float], unit: str) -> str:
    """One bar of parts laid end to end, with a legend that gives each part's value and share."""
    total = sum(parts.values()) or 1.0
    x, shapes = 0.0, []
    for number, (name, value) in enumerate(parts.items()):
        length = value / total * _WIDTH
        color = STAGE_COLORS[number % len(STAGE_COLORS)]
        shapes.append(
            f'<rect x="{x:.1f}" y="4" width="{length:.1f}" height="34" fill="{color}">'
            f"<title>{html.escape(name)}: {value:.3g} {html.escape(unit)}</title></rect>"
        )
        text_x, text_y = 10 + number % 3 * 340, 62 + number // 3 * 20
        text = f"{name}: {value:.3g} {unit}, {100 * value / total:.0f} %"
        shapes.append(
            f'<rect x="{text_x}" y="{text_y - 11}" width="12" height="12" rx="3" fill="{color}"/>'
            f'<text x="{text_x + 18}" y="{text_y}" font-size="12">{html.escape(text)}</text>'
        )
        x += length
    return _card(title, shapes, 62 + (len(parts) - 1) // 3 * 20 + 10)


def _card(title: str, shapes: Sequence[str], height: float) -> str:
    safe = html.escape(title)
    drawing = f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{safe}">{"".join(shapes)}</svg>'
    return f'<h2>{safe}</h2><div class="card">{drawing}</div>'
