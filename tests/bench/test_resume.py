"""The bench of resuming: real processes that end and come back, the same packs, and its refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mmpack.bench.resume import SUBJECTS, ResumeConfig, config_from_mapping, run
from mmpack.errors import ConfigError

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "mix"
    tool = [sys.executable, str(REPO / "tools" / "make_bench_mix.py"), str(folder), "--samples", "60"]
    subprocess.run(tool, check=True, capture_output=True)
    return folder


def test_a_loader_comes_back_with_the_packs_that_would_have_followed(mix: Path) -> None:
    config = ResumeConfig(
        data=str(mix),
        subjects=("mmpack", "fast_forward"),
        packs_before=3,
        packs_behind=2,
        num_workers=1,
        window=20,
        capacity=4096,
    )
    seen = []
    records = {record.subject: record for record in run(config, lambda done, total, what: seen.append((done, total)))}
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for record in records.values():
        assert record.metrics, record.config.get("skipped")
        assert record.metrics["same_packs"] == 1.0
        assert record.metrics["first_pack_s"] > 0
    assert records["mmpack"].metrics["state_kb"] > 0.5
    assert records["fast_forward"].metrics["state_kb"] == 0


def test_the_shipped_file_names_every_subject(mix: Path) -> None:
    settings = yaml.safe_load((REPO / "configs" / "bench" / "resume.yaml").read_text(encoding="utf-8"))
    assert settings.pop("bench") == "resume"
    assert config_from_mapping({**settings, "data": str(mix)}, where="here").subjects == tuple(SUBJECTS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"subjects": ["mmpak"]}, "did you mean 'mmpack'"),
        ({"subjects": []}, "at least one of"),
        ({"subjects": ["mmpack", "mmpack"]}, "each once"),
        ({"packs_before": 0}, "at least 1"),
        ({"pack_before": 1}, "did you mean 'packs_before'"),
        ({"data": "nowhere"}, "make_bench_mix.py nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_mapping({"data": "nowhere", **settings}, where="here")
