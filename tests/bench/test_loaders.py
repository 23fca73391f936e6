"""The bench of loaders: its data, the subjects that are always there, in processes of their own, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mmpack.bench.loaders import run
from mmpack.bench.loaders_config import SUBJECTS, LoadersConfig, config_from_mapping
from mmpack.errors import ConfigError

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "mix"
    tool = [sys.executable, str(REPO / "tools" / "make_bench_mix.py"), str(folder), "--samples", "60"]
    said = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    assert "cropping the bundled pictures" in said
    return folder


def test_the_mix_has_its_sizes(mix: Path) -> None:
    from collections import Counter

    from mmpack.images import image_size

    records = json.loads((mix / "llava.json").read_text(encoding="utf-8"))
    sizes = Counter(image_size((mix / "images" / record["image"]).read_bytes()) for record in records)
    assert sizes == {(640, 480): 44, (336, 336): 10, (1920, 1080): 5, (4000, 3000): 1}


def test_loaders_are_measured_in_turn_and_compared_with_ours(mix: Path) -> None:
    config = LoadersConfig(
        data=str(mix),
        subjects=("mmpack", "energon_pillow", "torch"),
        num_samples=40,
        warmup_samples=20,
        rounds=1,
        num_workers=1,
        window=20,
    )
    records = {record.subject: record for record in run(config)}
    assert set(records) == {"mmpack", "energon_pillow", "torch", "limit"}
    for name, record in records.items():
        assert record.metrics, record.config.get("skipped")
        assert record.metrics["cpu_ms_per_sample"] > 0
        if name != "limit":
            assert record.metrics["samples_per_pack"] > 5
            assert record.metrics["memory_mb"] > 50
        ours = records["mmpack"].metrics["cpu_ms_per_sample"]
        assert record.metrics["times_mmpack"] == pytest.approx(record.metrics["cpu_ms_per_sample"] / ours)
    assert records["energon_pillow"].metrics["target_times"] == 4.0
    stages = {name: value for name, value in records["limit"].metrics.items() if name.endswith("_ms")}
    assert records["limit"].metrics["cpu_ms_per_sample"] == pytest.approx(sum(stages.values()))


def test_the_shipped_file_names_every_subject(mix: Path) -> None:
    settings = yaml.safe_load((REPO / "configs" / "bench" / "loaders.yaml").read_text(encoding="utf-8"))
    assert settings.pop("bench") == "loaders"
    assert config_from_mapping({**settings, "data": str(mix)}, where="here").measured == tuple(SUBJECTS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"subjects": ["mmpak"]}, "did you mean 'mmpack'"),
        ({"subjects": "mmpack"}, "give a list"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": "2"}, "rounds='2'"),
        ({"worker": 2}, "unknown setting 'worker'"),
        ({"data": "nowhere"}, "make_bench_mix.py nowhere"),
    ],
)
def test_what_cannot_work_is_refused(mix: Path, settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_mapping({"data": str(mix), **settings}, where="b.yaml")
