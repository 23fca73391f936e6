"""Pictures of packs and of runs: one self-contained HTML file each, and PNG through matplotlib (extra `report`)."""

from mmpack.report.pack import PackFacts, pack_facts, pack_html
from mmpack.report.png import pack_png, run_png
from mmpack.report.run import RunFacts, read_records, run_facts, run_html

__all__ = [
    "PackFacts",
    "RunFacts",
    "pack_facts",
    "pack_html",
    "pack_png",
    "read_records",
    "run_facts",
    "run_html",
    "run_png",
]
