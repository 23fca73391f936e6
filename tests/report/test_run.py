"""The picture of a run, from records alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.report import RUN_FILE, read_run, run_facts, run_html, run_png
from tests.report.test_pack import parse


def step(number: int, **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "step",
        "step": number,
        "loss": 5.0 / number,
        "num_packs": 2,
        "num_samples": 11,
        "num_tokens": 1900,
        "num_positions": 1900,
        "useful_tokens_per_s": 1000.0,
        "step_s": 2.0,
        "wait_s": 0.5,
        "drops": {"a": {"oversize": {"count": 3, "keys": ["k"]}}, "b": {"oversize": {"count": 1, "keys": []}}},
    }
    return record | changes


@pytest.fixture
def records(tmp_path: Path) -> Path:
    lines = [step(1), step(2, num_positions=2000), {"kind": "val", "step": 2, "val_loss": 3.0, "num_packs": 1}, step(3)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_fill_is_of_the_configured_size_or_else_of_the_rows_as_they_are(records: Path) -> None:
    assert [value for _, value in read_run(records).fill_percent] == pytest.approx([100.0, 95.0, 100.0])
    (records.parent / RUN_FILE).write_text(json.dumps({"packed_sequence_size": 1900}))
    assert [value for _, value in read_run(records).fill_percent] == pytest.approx([50.0, 50.0, 50.0])


def test_series_and_totals(records: Path) -> None:
    run = read_run(records)
    assert run.loss == [(1, 5.0), (2, 2.5), (3, 5.0 / 3)]
    assert run.val_loss == [(2, 3.0)]
    assert run.wait_percent == [(1, 25.0), (2, 25.0), (3, 25.0)]
    assert (run.num_samples, run.num_packs, run.drops) == (33, 6, {"oversize": 4})


def test_balance_queue_and_lengths_are_drawn_where_the_records_have_them(records: Path) -> None:
    lines = [
        step(1, max_to_mean_cost=1.2, queue_depth=3, lengths={"96": 1, "1024": 2}),
        step(2, max_to_mean_cost=1.0, queue_depth=0, lengths={"96": 4}),
    ]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(records)
    assert (run.balance, run.queue_depth, run.lengths) == ([(1, 1.2), (2, 1.0)], [(1, 3), (2, 0)], {96: 5, 1024: 2})
    page = parse(run_html(run))
    assert page.tags.count("svg") == 7
    assert "Samples by length" in page.text
    assert "1,024" in page.text


def test_the_page_and_the_png(records: Path, tmp_path: Path) -> None:
    page = parse(run_html(read_run(records), "a <b> & c", [("x", "<y>")]))
    assert page.tags.count("svg") == 4
    assert page.links == []
    assert "a <b> & c" in page.text
    assert "<y>" in page.text
    assert "oversize" in page.text
    run_png(read_run(records), tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_of_one_step_can_be_drawn() -> None:
    run = run_facts([step(1)])
    assert parse(run_html(run)).tags.count("svg") == 4


@pytest.mark.parametrize("text", ["", "not json\n", '{"kind": "val", "step": 1}\n', "[1]\n"])
def test_what_is_no_run_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(ConfigError):
        read_run(tmp_path / "train.jsonl")
    with pytest.raises(ConfigError):
        read_run(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"kind": "step", "st', "line 2 cannot be read .* cut short"),
        ("[1]\n", "line 2 is no record of a training run"),
        ('{"bench": "packers"}\n', "line 2 is no record of a training run"),
        (json.dumps(step(2, loss=[1])) + "\n", r"line 2: loss=\[1\] of a step is no number"),
        (json.dumps(step(2, step="<b>")) + "\n", "line 2: step='<b>'"),
        (json.dumps(step(2, step_s=0)) + "\n", "step_s, num_positions and num_packs must be above 0"),
        (json.dumps(step(2, drops=3)) + "\n", "'drops' or 'lengths'"),
        (json.dumps(step(2, lengths={"x": 1})) + "\n", "'drops' or 'lengths'"),
        ('{"kind": "val", "step": 2}\n', "val_loss=None of a val"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(step(1)) + "\n" + line)
    with pytest.raises(ConfigError, match=says):
        read_run(path)


def test_losses_of_a_run_that_diverged_are_counted_and_the_others_drawn(records: Path) -> None:
    records.write_text("".join(json.dumps(step(n, loss=x)) + "\n" for n, x in ((1, 5.0), (2, float("nan")))))
    page = run_html(read_run(records))
    parse(page)
    assert "1 values are no finite numbers" in page
    assert "nan," not in page
    assert ",nan" not in page
    assert "nan" in page  # the head says how it ended
