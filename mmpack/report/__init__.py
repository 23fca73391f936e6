"""Pictures of packs, runs and measurements: a self-contained HTML file each, or PNG (extra `report`)."""

from mmpack.report.bench import BenchFacts, bench_html, read_bench
from mmpack.report.pack import PackFacts, pack_facts, pack_html
from mmpack.report.png import bench_png, pack_png, run_png
from mmpack.report.run import RUN_FILE, RunFacts, read_records, read_run, run_facts, run_html

__all__ = [
    "RUN_FILE",
    "BenchFacts",
    "PackFacts",
    "RunFacts",
    "bench_html",
    "bench_png",
    "pack_facts",
    "pack_html",
    "pack_png",
    "read_bench",
    "read_records",
    "read_run",
    "run_facts",
    "run_html",
    "run_png",
]
