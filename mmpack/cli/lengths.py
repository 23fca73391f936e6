"""``--length-index`` of ``mmpack convert`` and ``mmpack check``: what a global plan measures at its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmpack.cli.plan import length_index
from mmpack.config import read_config


def build(dataset: Path, config: str | Path, overrides: Sequence[str], *, split: str, workers: int) -> dict[str, Any]:
    """Builds the index of a split for the data section of `config`, unless there is one; what is in it.

    It serves training with ``data.order=global_plan`` and the same tokenizer, template, tiling and length limit.
    """
    read = read_config(config, [*overrides, f"data.path={dataset}"])
    index = length_index(read.with_values("data", {"num_workers": workers}), split).index
    return {
        "split": split,
        "samples": len(index),
        "usable": index.num_usable,
        "left_out": {reason.value: count for reason, count in index.drops.counts().items()},
        "folder": str(index.folder),
    }


def row(facts: dict[str, Any]) -> tuple[str, str]:
    """For a table."""
    left_out = "".join(f", {count:,} {reason}" for reason, count in facts["left_out"].items())
    return (
        f"length index of {facts['split']}",
        f"{facts['usable']:,} of {facts['samples']:,} samples usable{left_out}: {facts['folder']}",
    )
