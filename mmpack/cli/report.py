"""``mmpack report``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmpack.cli.show import print_json, say
from mmpack.errors import ConfigError, nearest
from mmpack.report import RunFacts, bench_html, bench_png, read_bench, read_run, run_html, run_png

DEFAULTS: dict[str, Any] = {"title": None}


def run(records: Path, html: Path | None, png: Path | None, settings: Sequence[str], *, as_json: bool) -> None:
    """Draws a run or measurements; HTML beside the records if nothing else is asked for."""
    title = _options(settings)["title"]
    measured = read_bench(records)
    facts = read_run(records) if measured is None else measured
    if html is None and png is None:
        html = records.with_suffix(".html")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(facts, RunFacts):
            page = run_html(facts, str(title or "Training run"))
        else:
            page = bench_html(facts, str(title or "Measurements"))
        html.write_text(page, encoding="utf-8")
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(facts, RunFacts):
            run_png(facts, png)
        else:
            bench_png(facts, png)
    if as_json:
        print_json({**dataclasses.asdict(facts), "html": html and str(html), "png": png and str(png)})
        return
    for written in (html, png):
        if written is not None:
            say(f"Picture: {written}")


def _options(settings: Sequence[str]) -> dict[str, Any]:
    if not settings:
        return DEFAULTS
    from mmpack.config import Document

    options = dict(Document(name="report", values=DEFAULTS).with_settings(settings).values)
    for name in options:
        if name not in DEFAULTS:
            raise ConfigError(f"--set {name}: unknown setting; {nearest(name, DEFAULTS)}")
    return options
