"""A run that is killed and started again ends with the same parameters, bit for bit, and the same records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.train import load_checkpoint, newest_checkpoint
from tests.llm.texts import write_sets

ROOT = Path(__file__).parents[2]
NOISE = ("step_s", "wait_s", "useful_tokens_per_s", "queue_depth", "pack_cpu_s", "pack_wall_s")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = write_sets(tmp_path_factory.mktemp("killed"))
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def start(place: Path, out: Path, way: tuple[str, str, str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.train.finetune_process", str(place), str(place / "tokenizer"), str(out)]
    return subprocess.Popen(
        [*command, *way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def records(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in NOISE} for line in lines]


WAYS = {
    "packing": ("packing", "0", "0"),
    "dynamic": ("dynamic", "0", "0"),
    "window": ("packing", "1", "0"),
    "lora with dropout": ("padding", "0", "1"),
}


@pytest.mark.parametrize("way", WAYS)
def test_40_steps_are_17_a_kill_and_23(place: Path, tmp_path: Path, way: str) -> None:
    if "lora" in way and find_spec("peft") is None:
        pytest.skip("peft is not installed")
    straight = start(place, tmp_path / "straight", WAYS[way])
    killed = start(place, tmp_path / "parts", WAYS[way])
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.strip() == "step 18":  # step 17 has been saved; 18 may or may not be
            killed.send_signal(signal.SIGKILL)
            break
    assert killed.wait() == -signal.SIGKILL
    newest = newest_checkpoint(tmp_path / "parts")
    assert newest is not None
    assert 17 <= load_checkpoint(newest)["step"] < 40
    for extra in (tmp_path / "parts").glob("step-*.pt"):
        if int(extra.stem[5:]) > 17:
            extra.unlink()
    finish(start(place, tmp_path / "parts", WAYS[way]))
    finish(straight)
    one, other = (load_checkpoint(tmp_path / part / "step-000040.pt") for part in ("straight", "parts"))
    assert one["model"].keys() == other["model"].keys()
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name
    assert one["best"] == other["best"]
    assert records(tmp_path / "straight") == records(tmp_path / "parts")
    first = load_checkpoint(tmp_path / "straight" / "step-000001.pt")["model"]
    assert any(not torch.equal(value, first[name]) for name, value in one["model"].items())
