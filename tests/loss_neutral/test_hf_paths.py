"""transformers' own loss on `to_transformers()`: at parity through every attention it may run with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.model import register_attention

from .hf_paths import differences, hf_model
from .packs import mixed_samples, pack, spec

TESTS = Path(__file__).parent.parent
BATCH = pack(mixed_samples(), multiple=4, total=200)


def assert_parity(result: dict[str, Any]) -> None:
    assert result["loss"] <= 1e-5
    assert result["logits"] <= 2e-5
    assert result["gradients_over_allowed"] <= 1.0
    assert result["same_parameters"] is True


def test_flash_attention_2_path() -> None:
    paths = [str(TESTS.parent), str(TESTS / "shim" / "flash_attn"), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-m", "tests.loss_neutral.hf_paths"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert_parity(result)
    assert result["calls"] == spec().text_layers, "one call per text layer, none in the vision tower"
    assert result["calls_as_expected"] is True


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_position_ids_alone_make_the_seams(attention: str) -> None:
    assert_parity(differences(hf_model(attention), BATCH))


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa_loop"])
def test_registered_backends(backend: str) -> None:
    towers = {"text_config": register_attention(backend), "vision_config": "sdpa"}
    assert_parity(differences(hf_model(towers), BATCH))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_block_diagonal_mask(attention: str) -> None:
    assert_parity(differences(hf_model(attention), BATCH, mask="block_diagonal"))


@pytest.mark.parametrize(
    "changes",
    [{"use_cache": None}, {"position_ids": None}, {"attention_mask": torch.ones(1, 200)}],
    ids=["use_cache", "position_ids", "attention_mask"],
)
def test_what_refuse_traps_refuses_is_really_wrong(changes: dict[str, Any]) -> None:
    """If transformers mends one of these, the refusal can go."""
    assert differences(hf_model("sdpa"), BATCH, **changes)["logits"] > 1e-3


def test_labels_without_shift_labels_give_the_same_loss() -> None:
    assert_parity(differences(hf_model("sdpa"), BATCH, shift_labels=None))
