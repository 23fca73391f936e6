"""Writes real text to fine-tune on, from this Python's standard library: names as inputs, docstrings as outputs.

Usage: python tools/make_text_data.py OUT [--samples 1500] [--validation 0.1]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sysconfig
from pathlib import Path

from mmpack.bench.batching_text import docstrings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for training.jsonl and validation.jsonl")
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--validation", type=float, default=0.1, help="share of the samples")
    given = parser.parse_args()
    records = list(itertools.islice(docstrings(Path(sysconfig.get_paths()["stdlib"])), given.samples))
    every = max(2, round(1 / given.validation)) if given.validation > 0 else len(records) + 1
    parts = {
        "training": [record for i, record in enumerate(records, start=1) if i % every],
        "validation": [record for i, record in enumerate(records, start=1) if i % every == 0],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        path = given.out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in part), encoding="utf-8")
        print(f"{path}: {len(part)} records")


if __name__ == "__main__":
    main()
