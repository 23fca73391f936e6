"""Text files for fine-tuning, made on the spot: every record is unlike all others, and lengths are skewed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.conftest import words


def prompt_response(num_records: int, seed: int = 0) -> list[dict[str, str]]:
    """Records of which the answers' lengths are lognormal."""
    rng = random.Random(seed)
    return [
        {
            "input": f"question {i} {words(rng, rng.randint(1, 12))}?",
            "output": f"answer {i} {words(rng, min(60, 1 + int(rng.lognormvariate(1.8, 0.9))))}.",
        }
        for i in range(num_records)
    ]


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_sets(folder: Path, num_training: int = 90, num_validation: int = 12) -> Path:
    """A folder with training.jsonl and validation.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "training.jsonl", prompt_response(num_training))
    write_jsonl(folder / "validation.jsonl", prompt_response(num_validation, seed=1))
    return folder
