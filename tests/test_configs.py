"""Every configuration in `configs/` does what it says: each trains its own model on its own data module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmpack.cli.train import train_with_progress
from mmpack.config import read_config
from mmpack.convert import convert

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
QUICK = ("train.max_steps=2", "train.val_check_interval=2", "train.limit_val_batches=1", "data.num_workers=0")


@pytest.fixture(scope="module")
def demo_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "energon"
    convert(read_config(CONFIGS / "demo.yaml", [f"convert.dst={folder}"]).convert)
    return folder


@pytest.mark.parametrize("name", ["demo", "mock", "lazy", "llava_next", "qwen2_5_vl"])
def test_a_configuration_trains(name: str, demo_dataset: Path, tmp_path: Path) -> None:
    settings = [*QUICK, f"train.output_dir={tmp_path / name}"]
    plain = read_config(CONFIGS / f"{name}.yaml", settings)
    config = plain.with_settings(f"data.path={demo_dataset}") if plain.data.module == "energon" else plain
    result = train_with_progress(config)
    assert result.steps == 2
    assert result.val_loss is not None
    assert result.val_loss > 0


@pytest.fixture(scope="module")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    tool = CONFIGS.parent / "tools" / "make_text_data.py"
    subprocess.run([sys.executable, str(tool), str(folder), "--samples", "200"], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("batching", ["packing", "padding", "dynamic", "buckets"])
def test_text_is_fine_tuned_with_any_batching_by_one_line(batching: str, text_data: Path, tmp_path: Path) -> None:
    settings = [f"data.dataset_root={text_data}", f"data.cache_dir={tmp_path / 'packs'}", f"data.batching={batching}"]
    settings += ["train.max_steps=2", "train.val_check_interval=2", f"train.output_dir={tmp_path / 'run'}"]
    result = train_with_progress(read_config(CONFIGS / "sft_packing.yaml", settings))
    assert result.steps == 2
    assert result.val_loss is not None


def test_no_configuration_is_left_out() -> None:
    vlm = {path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("sft_")}
    assert vlm == {"demo", "mock", "lazy", "llava_next", "qwen2_5_vl"}
