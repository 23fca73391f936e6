"""Records: one JSON object a line, and the table drawn from them."""

from __future__ import annotations

import json

from mmpack.bench.records import BenchRecord, machine, table


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
