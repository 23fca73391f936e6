"""The bench of conversion: copy and conversions of the same files, compared; and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mmpack.bench.conversion import config_from_mapping, run
from mmpack.errors import ConfigError
from tests.conftest import write_llava

SHIPPED = Path(__file__).parents[2] / "configs" / "bench" / "convert.yaml"


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    source = write_llava(tmp_path / "in", 40)
    records = [r for r in json.loads(source.read_text(encoding="utf-8")) if isinstance(r.get("image"), str)]
    (source.parent / "llava.json").write_text(json.dumps(records), encoding="utf-8")
    return source.parent


def test_copy_and_conversions_are_measured_and_leave_nothing(mix: Path) -> None:
    before = sorted(path.name for path in mix.iterdir())
    config = config_from_mapping({"data": str(mix), "repeat": 2, "rounds": 1}, where="here")
    records = {record.subject: record for record in run(config)}
    assert list(records) == ["tarfile", "mmpack, 1 workers", "mmpack, 2 workers"]
    assert records["tarfile"].metrics["times_copy"] == 1.0
    for record in records.values():
        ratio = records["tarfile"].metrics["seconds"] / record.metrics["seconds"]
        assert record.metrics["times_copy"] == pytest.approx(ratio)
    assert records["mmpack, 2 workers"].metrics["target_times"] == 0.7
    assert sorted(path.name for path in mix.iterdir()) == before


def test_the_shipped_file_is_valid(mix: Path) -> None:
    settings = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    assert settings.pop("bench") == "convert"
    assert config_from_mapping({**settings, "data": str(mix)}, where="here").workers == (1, 2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"repeat": 0}, "repeat=0"),
        ({"workers": [0]}, "workers=0"),
        ({"workers": 2}, "workers=2; give a list"),
        ({"round": 2}, "did you mean 'rounds'"),
        ({"data": "nowhere"}, "make_bench_mix.py nowhere"),
    ],
)
def test_what_cannot_work_is_refused(mix: Path, settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_mapping({"data": str(mix), **settings}, where="c.yaml")
