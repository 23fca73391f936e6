"""``mmpack report``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmpack.cli.show import print_json, say
from mmpack.errors import ConfigError, nearest
from mmpack.report import read_run, run_html, run_png

DEFAULTS: dict[str, Any] = {"title": "Training run"}


def run(records: Path, html: Path | None, png: Path | None, settings: Sequence[str], *, as_json: bool) -> None:
    """Draws the run; HTML beside the records if nothing else is asked for."""
    options = _options(settings)
    facts = read_run(records)
    if html is None and png is None:
        html = records.with_suffix(".html")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(run_html(facts, str(options["title"])), encoding="utf-8")
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        run_png(facts, png)
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
