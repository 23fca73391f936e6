"""Where a loader's time goes: every stage is counted once, and the advice follows from what bounds it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmpack.bench.profile import STAGES, Profile, profile
from tests.conftest import data_module

CONFIGS = Path(__file__).parents[2] / "configs"


def test_all_stages_are_timed_and_add_up(energon_dataset: Path, tokenizer: Any) -> None:
    factory = data_module(energon_dataset, tokenizer).factory("train", training=True)
    seen: list[tuple[int, int]] = []
    begun = time.process_time()
    found = profile(factory, 60, lambda done, total: seen.append((done, total)))
    spent_ms = 1000 * (time.process_time() - begun)
    assert found.num_samples >= 60
    assert seen[-1] == (60, 60)
    assert list(found.stage_ms) == list(STAGES)
    assert all(ms > 0 for ms in found.stage_ms.values())
    assert 0 < found.total_ms * found.num_samples <= spent_ms
    assert found.decode == "exact"


def test_a_slow_stage_is_the_bound(energon_dataset: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = data_module(energon_dataset, tokenizer).factory("train", training=True)
    encode = type(factory.encoder).encode

    def slowly(self: Any, conversation: Any) -> Any:
        end = time.process_time() + 0.005
        while time.process_time() < end:
            pass
        return encode(self, conversation)

    monkeypatch.setattr(type(factory.encoder), "encode", slowly)
    found = profile(factory, 30)
    assert found.bound == "encode"
    assert found.stage_ms["encode"] > 4
    assert any("tokenizer" in line for line in found.advice())


def test_advice_follows_the_bound() -> None:
    even = dict.fromkeys(STAGES, 0.1)
    pixels = Profile(
        num_samples=100, num_packs=10, stage_ms={**even, "decode": 5.0}, decode="exact", has_simplejpeg=False
    )
    assert [line.partition(":")[0] for line in pixels.advice()] == [
        "data.decode=fast",
        "pip install 'mmpack[jpeg]'",
        "data.num_workers",
    ]
    assert pixels.samples_per_s == pytest.approx(1000 / 5.5)
    assert pixels.packs_per_s == pytest.approx(100 / 5.5)
    done = replace(pixels, decode="fast", has_simplejpeg=True)
    assert done.advice()[0].startswith("smaller pictures")
    reading = replace(pixels, stage_ms={**even, "read": 5.0})
    assert "global_plan" in reading.advice()[0]


def test_the_command_prints_it() -> None:
    command = [str(Path(sys.executable).with_name("mmpack")), "profile", str(CONFIGS / "mock.yaml"), "--samples", "20"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["samples"] >= 20
    assert found["bound"] in STAGES
    assert not any("decode=fast" in line for line in found["advice"])  # made-up pictures are no JPEGs
    bad = subprocess.run([*command[:-1], "0"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
