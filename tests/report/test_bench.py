"""Measurements as pictures: every subject and number on the page, ratios beside the metric they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.bench.records import BenchRecord
from mmpack.cli.report import run
from mmpack.errors import ConfigError
from mmpack.report import bench_html, bench_png, read_bench
from tests.report.test_pack import parse

NAMES = {"energon": 3.0, "mmpack": 2.0}


def record(subject: str, metrics: dict[str, float], **config: Any) -> str:
    return BenchRecord(bench="loaders", case="a <mix>", subject=subject, metrics=metrics, config=config).to_json()


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    lines = [
        record(
            name, {"cpu_ms_per_sample": value, "memory_mb": 100 * value, "times_mmpack": value / 2, "target_times": 1.2}
        )
        for name, value in NAMES.items()
    ]
    lines.append(record("limit", {"cpu_ms_per_sample": 1.0, "read_ms": 0.25, "decode_ms": 0.75, "times_mmpack": 0.5}))
    lines.append(record("torch", {}, skipped="no module <torch>"))
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    plain = {
        "stages_ms": {"read": 1.0, "decode": 3.0},
        "bound": "decode",
        "cpu_ms_per_sample": 4.0,
        "samples_per_s_per_worker": 250.0,
        "packs_per_s_per_worker": 20.0,
        "advice": ["take <more>"],
    }
    path.write_text(json.dumps(plain, indent=1), encoding="utf-8")
    return path


def test_subjects_stand_side_by_side(measured: Path) -> None:
    found = read_bench(measured)
    assert found is not None
    page = parse(bench_html(found))
    assert page.links == []
    for text in (
        "loaders: a <mix>",
        "energon",
        "3   1.50x (target 1.2)",
        "300",
        "no module <torch>",
        "limit, by stage",
    ):
        assert text in page.text
    assert "decode: 0.75 ms, 75 %" in page.text
    assert page.tags.count("svg") == 3  # CPU, memory, the limit's stages: a ratio has no bars of its own
    longest = bench_html(found).split('height="18"')[0]
    assert 'width="704.0"' in longest


def test_a_profile_is_time_by_stage(profiled: Path) -> None:
    found = read_bench(profiled)
    assert found is not None
    page = parse(bench_html(found, "mine"))
    assert "mine" in page.text
    assert "decode: 3 ms a sample, 75 %" in page.text
    assert "take <more>" in page.text


@pytest.mark.parametrize("name", ["measured", "profiled"])
def test_the_command_draws_both(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run(request.getfixturevalue(name), tmp_path / "x.html", tmp_path / "x.png", ["title=Ours"], as_json=True)
    assert "Ours" in (tmp_path / "x.html").read_text(encoding="utf-8")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_other_files_are_no_measurements(tmp_path: Path) -> None:
    for text in ("", "[1]\n", '{"kind": "step"}\n', "no json\n"):
        (tmp_path / "x").write_text(text, encoding="utf-8")
        assert read_bench(tmp_path / "x") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bench(tmp_path / "none")


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text(record("torch", {}, skipped="absent"), encoding="utf-8")
    found = read_bench(path)
    assert found is not None
    assert "absent" in parse(bench_html(found)).text
    with pytest.raises(ConfigError, match="none of the records"):
        bench_png(found, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"case": ["c"]}, r"record 1: case=\['c'\]"),
        ({"versions": []}, r"record 1: versions=\[\]"),
        ({"metrics": {"a": "<i>"}}, "record 1: metric a='<i>'"),
        ({"metrics": {"a": float("nan")}}, "record 1: metric a=nan is no finite number"),
    ],
)
def test_what_bench_does_not_print_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps(json.loads(record("s", {"a": 1.0})) | changes), encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_bench(path)
