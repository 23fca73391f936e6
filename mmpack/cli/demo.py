"""``mmpack demo``: the whole way of the data, on bundled real samples."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mmpack.cli import convert as convert_command
from mmpack.cli import plan as plan_command
from mmpack.cli import train as train_command
from mmpack.cli.show import print_json, print_table, say
from mmpack.config import Config, package_path, read_config
from mmpack.errors import ConfigError
from mmpack.model import assert_loss_neutral, unpack
from mmpack.report import pack_facts, pack_html, read_run

T = TypeVar("T")
MARKER = ".mmpack-demo"  # what a folder must hold for the demo to empty it


def run(out: Path, steps: int, overrides: list[str], *, as_json: bool) -> None:
    """Runs all stages into `out` and ends with a table and the report's path."""
    seconds: dict[str, float] = {}

    def stage(name: str, title: str, call: Callable[[], T]) -> T:
        say(f"\n== {title}", as_json=as_json)
        started = time.perf_counter()
        result = call()
        seconds[name] = time.perf_counter() - started
        return result

    dataset = out / "energon"
    places = [f"convert.dst={dataset}", f"data.path={dataset}", f"train.output_dir={out / 'run'}"]
    config = read_config(package_path("demo_data/demo.yaml"), [*places, f"train.max_steps={steps}", *overrides])
    _empty(out)
    report = stage(
        "convert",
        "1 of 4: convert the bundled LLaVA JSON into an Energon dataset",
        lambda: convert_command.run(config.convert, as_json=False, quiet=as_json),
    )
    forecast = stage(
        "plan", "2 of 4: plan the packs from lengths alone", lambda: plan_command.plan(config, "train", None, 128, 1)
    )
    if not as_json:
        print_table("Plan for split 'train'", plan_command.rows(forecast))
    result = stage(
        "train", "3 of 4: train a tiny LLaVA on full packs", lambda: train_command.train_with_progress(config)
    )
    page = out / "report.html"
    pack_page = out / "pack.html"
    worst = stage("report", "4 of 4: check that packing is loss-neutral; draw", lambda: _draw(config, pack_page))
    facts = read_run(result.records_path)
    rows = [
        ("samples converted", f"{report.kept:,} of {len(report.samples):,}"),
        *train_command.rows(facts),
        ("packed against one by one", f"largest difference of a sample's loss {worst:.1e}; gradients agree"),
        ("seconds by stage", ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())),
    ]
    train_command.write_run_page(result.records_path, page, "mmpack demo", [("samples converted", f"{report.kept:,}")])
    if as_json:
        summary = train_command.summary(facts, result)
        print_json(
            {**summary, "kept": report.kept, "worst_loss_difference": worst, "seconds": seconds, "report": str(page)}
        )
        return
    print_table("\nThe demo", rows)
    say(f"Report: {page}   a pack as a picture: {pack_page}")


def _empty(out: Path) -> None:
    """Makes `out` an empty folder, but never removes one that the demo did not make."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise ConfigError(f"--out {str(out)!r} holds other things; choose a new folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARKER).touch()


def _draw(config: Config, path: Path) -> float:
    """Draws one full pack with pictures, and compares it with its samples one by one."""
    packs = config.with_values("data", {"num_workers": 0}).data_module().train_dataloader()
    batch = next(batch for batch in itertools.islice(packs, 20) if int(batch.images_per_sample.max()) > 0)
    path.write_text(
        pack_html(pack_facts(batch, config.tokenizer, packed_sequence_size=config.data.packed_sequence_size)),
        encoding="utf-8",
    )
    model = config.build_model().eval()
    return assert_loss_neutral(model, batch, unpack(batch)).worst_loss_difference
