"""`mmpack train` under torchrun: any number of ranks learns the same, and a run goes on with another number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = ("data.num_workers=0", "train.val_check_interval=2", "train.limit_val_batches=1", "train.seed=3")


def mmpack_train(
    num_ranks: int, folder: Path, max_steps: int, config: str, settings: list[str]
) -> list[dict[str, Any]]:
    """Trains up to `max_steps` in real processes; the records of the steps so far."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [*launch, "--no-python", str(Path(sys.executable).with_name("mmpack")), "train", str(CONFIGS / config)]
    for setting in (*SMALL, *settings, f"train.output_dir={folder}", f"train.max_steps={max_steps}"):
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert done.stdout.count("Checkpoint:") == 1  # one rank speaks
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]


@pytest.fixture(scope="module")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    tool = CONFIGS.parent / "tools" / "make_text_data.py"
    subprocess.run([sys.executable, str(tool), str(folder), "--samples", "200"], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ("mock.yaml", 2, 1),
        pytest.param("mock.yaml", 1, 2, marks=pytest.mark.slow),
        pytest.param("sft_packing.yaml", 2, 1, marks=pytest.mark.slow),
        ("sft_packing.yaml", 1, 2),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    config: str, before: int, after: int, text_data: Path, tmp_path: Path
) -> None:
    settings = ["data.global_batch_size=8", "data.num_image_embeddings_per_tile=64"]
    if config.startswith("sft"):
        settings = [
            "data.global_batch_size=4",
            f"data.dataset_root={text_data}",
            f"data.cache_dir={tmp_path / 'packs'}",
        ]
    alone = mmpack_train(1, tmp_path / "alone", 4, config, settings)
    for num_ranks, max_steps in ((before, 2), (after, 4)):
        parts = mmpack_train(num_ranks, tmp_path / "parts", max_steps, config, settings)
    assert [record["step"] for record in parts] == [1, 2, 3, 4]
    for name in ("num_packs", "num_samples"):
        whole = [record[name] for record in alone]
        own = [record[name] for record in parts]  # of the first rank
        on_one, on_two = (slice(2, None), slice(0, 2)) if before == 2 else (slice(0, 2), slice(2, None))
        assert own[on_one] == whole[on_one]
        if name == "num_packs":
            assert [count * 2 for count in own[on_two]] == whole[on_two]
        assert all(record["max_to_mean_cost"] >= 1 for record in parts)
        assert any(record["max_to_mean_cost"] > 1 for record in parts[on_two])  # two ranks never have the same work
    # other ranks sum in another order, so the last bits differ; another sample would show in the second digit
    assert [record["loss"] for record in parts] == pytest.approx([record["loss"] for record in alone], abs=2e-4)
