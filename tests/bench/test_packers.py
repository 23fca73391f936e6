"""The bench of packers: its records, its config file, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmpack.bench.packers import PackersConfig, load_config, main, run
from mmpack.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "configs" / "bench" / "packers.yaml"


def test_run_gives_a_record_for_each_case():
    records = run(PackersConfig(distributions=("text_2k", "uniform_8k"), windows=(20, 50), num_samples=500, repeats=1))
    assert [r.case for r in records] == [
        "text_2k/window=20",
        "text_2k/window=50",
        "uniform_8k/window=20",
        "uniform_8k/window=50",
    ]
    for record in records:
        assert record.subject == "mmpack"
        assert 80 < record.metrics["fill_percent"] <= 100
        assert record.metrics["us_per_pack"] > 0
        waited = record.metrics["longest_wait_samples"] / record.config["window"]
        assert record.metrics["longest_wait_windows"] == pytest.approx(waited)


def test_the_shipped_config_is_read():
    config = load_config(SHIPPED)
    assert config.windows == (50, 200)
    assert len(config.distributions) == 5
    assert config.num_samples == 20_000


def test_main_prints_json_lines(tmp_path, capsys):
    small = tmp_path / "small.yaml"
    small.write_text("bench: packers\ndistributions: [text_2k]\nwindows: [20]\nnum_samples: 200\n")
    assert main([str(small), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["bench"] == "packers"
    assert main([str(small)]) == 0
    assert capsys.readouterr().out.startswith("case")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bench: packers\nwindow: [5]\n", "unknown setting 'window'; did you mean 'windows'"),
        ("bench: packers\nwindows: 5\n", "windows=5; give a list of int"),
        ("bench: packers\nseed: x\n", "seed='x'; give a whole number"),
        ("bench: packers\ndistributions: [text_2]\n", "did you mean 'text_2k'"),
        ("bench: packers\nnum_samples: 10\n", "num_samples=10: too few"),
        ("bench: other\n", "first line should be 'bench: packers'"),
        ("{", "cannot be read as YAML"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(tmp_path, capsys, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    assert main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
