"""Records: one JSON object a line, and the table drawn from them."""

from __future__ import annotations

import json

from mmpack.bench.records import BenchRecord, machine, table, tables


def record(subject: str, **metrics: float) -> BenchRecord:
    return BenchRecord(bench="b", case="c", subject=subject, metrics=metrics, config={"seed": 0, "list": [1]})


def test_a_record_is_one_line_and_comes_back():
    line = record("mmpack", fill_percent=99.5, packs=3).to_json()
    assert "\n" not in line
    assert set(json.loads(line)) == {"bench", "case", "subject", "metrics", "versions", "commit", "machine", "config"}
    assert BenchRecord.from_json(line).to_json() == line


def test_the_machine_is_described():
    assert set(machine()) == {"system", "processor", "cores", "python"}
    assert int(machine()["cores"]) >= 1


def test_table_has_a_column_for_every_metric():
    lines = table([record("mmpack", fill=99.5, packs=1234), record("peer", fill=71.25)]).splitlines()
    assert [line.split() for line in lines] == [
        ["case", "subject", "fill", "packs"],
        ["c", "mmpack", "99.500", "1,234"],
        ["c", "peer", "71.250", "-"],
    ]


def test_tables_part_the_kinds_and_name_what_was_not_measured():
    missing = BenchRecord(bench="b", case="c", subject="peer", metrics={}, config={"skipped": "not installed"})
    text = tables([record("mmpack", fill=99.5, wait=3), missing, record("x", balance=1.5), record("y", fill=70.0)])
    first, second, last = text.split("\n\n")
    assert [line.split()[1] for line in first.splitlines()] == ["subject", "mmpack", "y"]
    assert [line.split() for line in second.splitlines()] == [["case", "subject", "balance"], ["c", "x", "1.500"]]
    assert last == "not measured: c  peer: not installed"
