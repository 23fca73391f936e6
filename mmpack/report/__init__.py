"""Pictures of packs and of runs: one self-contained HTML file each, and PNG through matplotlib (extra `report`)."""

from mmpack.report.pack import PackFacts, pack_facts, pack_html
from mmpack.report.png import pack_png, run_png
from mmpack.report.run import RUN_FILE, RunFacts, read_records, read_run, run_facts, run_html

__all__ = [
    "RUN_FILE",
    "PackFacts",
    "RunFacts",
    "pack_facts",
    "pack_html",
    "pack_png",
    "read_records",
    "read_run",
    "run_facts",
    "run_html",
    "run_png",
]
