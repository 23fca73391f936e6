"""Training on packs: it learns, a resumed run is the same run bit for bit, checkpoints are whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.errors import ConfigError, StateError
from mmpack.model import LlavaSpec, PackedModel
from mmpack.train import TrainConfig, load_checkpoint, newest_checkpoint, train
from tests.conftest import data_module


def tiny_model(tokenizer: Any) -> PackedModel:
    return LlavaSpec(vocab_size=len(tokenizer), image_size_px=28, patch_size_px=14).build(seed=0)


def config(folder: Path, max_steps: int, **changes: Any) -> TrainConfig:
    return TrainConfig(output_dir=folder, max_steps=max_steps, learning_rate=3e-3, **changes)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_a_short_run_learns_and_records_every_step(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    data = data_module(energon_dataset, tokenizer, num_workers=1, global_batch_size=2)
    seen: list[dict[str, Any]] = []
    result = train(config(tmp_path, 12, val_check_interval=6), data, tiny_model(tokenizer), seen.append)
    assert result.last_loss < result.first_loss - 1
    assert result.val_loss is not None
    assert result.val_loss < result.first_loss - 1
    written = records(tmp_path)
    assert written == seen
    steps = [r for r in written if r["kind"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, 13))
    assert [r["step"] for r in written if r["kind"] == "val"] == [6, 12]
    assert all(r["num_packs"] == 2 and r["num_tokens"] <= r["num_positions"] <= 2 * 512 for r in steps)
    for record in steps:
        assert record["bin_utilization"] == pytest.approx(record["num_tokens"] / (2 * 512))
        assert record["waste_ratio"] == pytest.approx(1 - record["bin_utilization"])
        assert record["packing_efficiency"] == -(-record["num_tokens"] // 512) / 2
        assert record["bin_balance"] <= 1
        assert record["max_to_mean_cost"] == 1.0  # one rank
        assert sum(record["lengths"].values()) == record["num_samples"]
        assert 0 <= record["queue_depth"] <= 4
        assert record["pack_cpu_s"] > 0
    assert newest_checkpoint(tmp_path) == result.checkpoint


def test_straight_and_resumed_runs_end_with_the_same_parameters(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    straight = tiny_model(tokenizer)
    train(config(tmp_path / "straight", 9), data_module(energon_dataset, tokenizer), straight)
    for max_steps in (4, 9):
        resumed = tiny_model(tokenizer)
        train(config(tmp_path / "parts", max_steps), data_module(energon_dataset, tokenizer, num_workers=2), resumed)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    losses = [[r["loss"] for r in records(tmp_path / part)] for part in ("straight", "parts")]
    assert losses[0] == losses[1]


def test_the_loss_does_not_depend_on_how_packs_are_grouped(energon_dataset: Path, tokenizer: Any) -> None:
    # One step over two packs = the weighted sum over both, divided by the sum of both packs' weights.
    data = data_module(energon_dataset, tokenizer)
    first, second = (batch for batch, _ in zip(data.train_dataloader(), range(2), strict=False))
    model = tiny_model(tokenizer).eval()
    with torch.no_grad():
        outputs = [model(first), model(second)]
    together = sum(float(o.loss_sum) for o in outputs) / sum(float(o.weight_sum) for o in outputs)
    tokens = [float(o.per_token_loss.sum()) for o in outputs]
    assert together == pytest.approx(sum(tokens) / (first.num_loss_tokens + second.num_loss_tokens), rel=1e-5)


def test_a_folder_with_a_checkpoint_is_not_overwritten(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    train(config(tmp_path, 1), data_module(energon_dataset, tokenizer), tiny_model(tokenizer))
    with pytest.raises(ConfigError, match=r"already holds step-000001\.pt.*resume_if_exists=true"):
        train(
            config(tmp_path, 2, resume_if_exists=False), data_module(energon_dataset, tokenizer), tiny_model(tokenizer)
        )


def test_a_half_written_checkpoint_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "step-000003.partial").write_bytes(b"half")
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "step-000004.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(StateError, match=r"step-000004\.pt cannot be read"):
        load_checkpoint(tmp_path / "step-000004.pt")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": 1, "grad_clip": -1.0}, "grad_clip=-1.0"),
        ({"max_steps": 1, "limit_val_batches": 0}, "limit_val_batches=0"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(output_dir=tmp_path, **changes)
