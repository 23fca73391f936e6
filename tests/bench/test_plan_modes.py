"""Streaming windows beside the global plan: the whole epoch is compared, and the plan keeps what the docs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmpack.bench import plan_modes
from mmpack.bench.plan_modes import PlanModesConfig, run
from mmpack.errors import ConfigError


def test_the_plan_is_fuller_and_better_balanced(energon_dataset: Path) -> None:
    config = PlanModesConfig(
        distributions=("caption_8k", "text_2k"), num_samples=3000, ranks=4, windows=(200,), align_windows=(1, 16),
        dataset=str(energon_dataset),
    )  # fmt: skip
    records = run(config)
    assert [record.subject for record in records[:3]] == ["window=200 align=1", "window=200 align=16", "global plan"]
    for window, aligned, plan in (records[:3], records[3:6]):
        assert plan.metrics["fill_percent"] > aligned.metrics["fill_percent"] > 90
        assert plan.metrics["max_over_mean_cost"] < aligned.metrics["max_over_mean_cost"]
        assert aligned.metrics["max_over_mean_cost"] < window.metrics["max_over_mean_cost"]
        assert plan.metrics["fillers"] < 4
    assert {record.case for record in records[6:]} == {"reading"}
    assert all(record.metrics["samples_per_s"] > 0 for record in records[6:])


def test_the_command_prints_records() -> None:
    from typer.testing import CliRunner

    from mmpack.cli.app import app

    settings = ["distributions=[text_2k]", "num_samples=500", "ranks=2", "windows=[50]"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    shown = CliRunner().invoke(
        app, ["bench", "configs/bench/plan_modes.yaml", *arguments, "--json"], catch_exceptions=False
    )
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {line["case"] for line in lines} == {"text_2k/ranks=2"}
    assert [line["subject"] for line in lines] == ["window=50 align=1", "window=50 align=32", "global plan"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ranks": 0}, "ranks=0"),
        ({"rank": 1}, "x.yaml: unknown setting 'rank'.*ranks"),
        ({"windows": 50}, r"x.yaml: windows=50; give a list of int"),
        ({"windows": [0]}, r"windows=\[0\]; give sizes of at least 1"),
        ({"distributions": ["text"]}, "text"),
        ({"num_samples": "many"}, "x.yaml: num_samples='many'; give one int"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_modes.config_from_mapping(settings, where="x.yaml")
