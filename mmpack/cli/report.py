"""``mmpack report``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mmpack.cli.show import print_json, say
from mmpack.cli.train import write_run_page
from mmpack.report import read_records, run_facts, run_png


def run(records: Path, html: Path | None, png: Path | None, *, as_json: bool) -> None:
    """Draws the run; HTML beside the records if nothing else is asked for."""
    facts = run_facts(read_records(records))
    if html is None and png is None:
        html = records.with_suffix(".html")
    if html is not None:
        write_run_page(records, html, "Training run", [])
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        run_png(facts, png)
    if as_json:
        print_json({**dataclasses.asdict(facts), "html": html and str(html), "png": png and str(png)})
        return
    for written in (html, png):
        if written is not None:
            say(f"Picture: {written}")
