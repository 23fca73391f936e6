"""``mmpack train``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmpack.bench.records import versions
from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.config import Config, read_config
from mmpack.report import RUN_FILE, RunFacts, read_run, run_html
from mmpack.train import TrainResult, join_ranks, leave_ranks, newest_checkpoint, train


def train_with_progress(config: Config) -> TrainResult:
    """Trains as the configuration says, with a bar that shows the loss, together with the ranks of a torchrun job."""
    is_first_rank = join_ranks() == 0
    settings, model, data = config.train, config.build_model(), config.data_module()
    size = getattr(config.data, "packed_sequence_size", None)  # rows of any length have none
    if not is_first_rank:
        return train(settings, data, model)
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    about = {"packed_sequence_size": size, "config": config.document.values, "versions": versions("torch")}
    (settings.output_dir / RUN_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if (newest := newest_checkpoint(settings.output_dir)) is not None and settings.resume_if_exists:
        say(f"Going on from {newest}", as_json=True)
    with progress("training") as advance:

        def show(record: dict[str, Any]) -> None:
            if record["kind"] == "step":
                positions = record["num_positions"] if size is None else size * record["num_packs"]
                fill = 100 * record["num_tokens"] / positions
                lost = sum(entry["count"] for reasons in record["drops"].values() for entry in reasons.values())
                waited = 100 * record["wait_s"] / record["step_s"]
                note = (
                    f"loss {record['loss']:.3f}, fill {fill:.2f} %, {record['useful_tokens_per_s']:,.0f} tokens/s, "
                    f"waited {waited:.0f} %, balance {record['max_to_mean_cost']:.3f}, left out {lost}"
                )
                advance(record["step"], settings.max_steps, note)

        return train(settings, data, model, show)


def run(path: str, overrides: list[str], *, as_json: bool) -> None:
    """Trains and shows what came of it; under torchrun, on the first rank."""
    result = train_with_progress(read_config(path, overrides))
    is_first_rank = join_ranks() == 0
    leave_ranks()
    if not is_first_rank:
        return
    run_so_far = read_run(result.records_path)
    if as_json:
        print_json(summary(run_so_far, result))
        return
    print_table("Training", rows(run_so_far))
    say(f"Checkpoint: {result.checkpoint}   records: {result.records_path}")


def summary(run_so_far: RunFacts, result: TrainResult) -> dict[str, Any]:
    """The run for machines."""
    return {
        "steps": result.steps,
        "first_loss": run_so_far.loss[0][1],
        "last_loss": run_so_far.loss[-1][1],
        "val_loss": run_so_far.val_loss[-1][1] if run_so_far.val_loss else None,
        "fill_percent": mean(run_so_far.fill_percent),
        "useful_tokens_per_s": mean(run_so_far.tokens_per_s),
        "left_out": run_so_far.drops,
        "checkpoint": str(result.checkpoint),
        "records": str(result.records_path),
    }


def rows(run_so_far: RunFacts) -> list[tuple[str, str]]:
    """The table for people."""
    table = [
        ("steps", str(len(run_so_far.loss))),
        ("samples in packs", f"{run_so_far.num_samples:,} in {run_so_far.num_packs:,}"),
        ("mean fill", f"{mean(run_so_far.fill_percent):.2f} %"),
        ("loss, first -> last", f"{run_so_far.loss[0][1]:.3f} -> {run_so_far.loss[-1][1]:.3f}"),
        ("useful tokens/s", f"{mean(run_so_far.tokens_per_s):,.0f}"),
        ("time waiting for data", f"{mean(run_so_far.wait_percent):.1f} %"),
    ]
    if run_so_far.val_loss:
        table.insert(4, ("validation loss", f"{run_so_far.val_loss[-1][1]:.3f}"))
    left_out = ", ".join(f"{count} {reason}" for reason, count in run_so_far.drops.items())
    return [*table, ("samples left out", left_out or "none")]


def mean(series: list[tuple[float, float]]) -> float:
    """Of the values."""
    return sum(value for _, value in series) / len(series)


def write_run_page(records: Path, html: Path, title: str, table: list[tuple[str, str]]) -> None:
    """The HTML report of a run."""
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(run_html(read_run(records), title, table), encoding="utf-8")
