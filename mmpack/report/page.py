"""The frame of every page: style and small building blocks. Nothing is fetched; all text is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

COLORS = {"prompt": "#9aa5b1", "image": "#4c8bf5", "trained": "#2e9e5b", "padding": "#eceff3"}

_STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1f2933; }
body { margin: 2rem auto; max-width: 1120px; padding: 0 1rem; background: #fbfcfd; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.lead { color: #52606d; margin: 0 0 1.25rem; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.fact { background: #fff; border: 1px solid #dde3ea; border-radius: .5rem; padding: .5rem .9rem; min-width: 7rem; }
.fact b { display: block; font-size: 1.25rem; } .fact span { color: #52606d; font-size: .85rem; }
.card { background: #fff; border: 1px solid #dde3ea; border-radius: .5rem; padding: .75rem 1rem; margin: .6rem 0; }
.card header { color: #52606d; font-size: .85rem; margin-bottom: .35rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; }
.text mark { background: #d5f2e0; color: inherit; border-radius: .2rem; }
.text .slot { background: #dbe8fe; border-radius: .2rem; padding: 0 .3rem; }
.tiles { display: flex; flex-wrap: wrap; gap: 4px; margin: .3rem 0 .5rem; }
.tiles img { width: 84px; height: 84px; border-radius: 4px; border: 1px solid #dde3ea; }
.legend { display: flex; flex-wrap: wrap; gap: 1.25rem; font-size: .85rem; color: #52606d; }
.legend i { display: inline-block; width: .9rem; height: .9rem; border-radius: 3px; margin-right: .4rem;
  vertical-align: -2px; }
svg { display: block; width: 100%; height: auto; }
"""


def page(title: str, lead: str, body: str) -> str:
    """A whole HTML document. `title` and `lead` are plain text, `body` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p>{body}</body></html>\n'
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A row of boxes: (what, value)."""
    boxes = (f'<div class="fact"><b>{html.escape(v)}</b><span>{html.escape(k)}</span></div>' for k, v in pairs)
    return f'<div class="facts">{"".join(boxes)}</div>'


def legend(names: Sequence[tuple[str, str]]) -> str:
    """Colour samples: (text, colour)."""
    items = (f'<span><i style="background:{color}"></i>{html.escape(text)}</span>' for text, color in names)
    return f'<div class="legend">{"".join(items)}</div>'
