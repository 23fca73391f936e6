"""What the examples share: their options, and data and model of the demo's configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mmpack

CONFIG = Path(__file__).parents[1] / "configs" / "demo.yaml"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="build/demo/energon", help="Energon dataset")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps in all, those before a resume included")
    parser.add_argument("--out", type=Path, default=Path("build/example"), help="where the checkpoint lies")
    parser.add_argument("--workers", type=int, default=1, help="processes that read, encode and decode")
    return parser.parse_args()


def data_and_model(chosen: argparse.Namespace, **settings: Any) -> tuple[mmpack.EnergonMultiModalDataModule, Any]:
    """The data module, and `mmpack.model.PackedModel` around transformers' LLaVA.

    Call it when torch.distributed is set up, if it will be: the data module asks it for the rank.
    """
    overrides = {"data.path": chosen.data, "data.num_workers": chosen.workers, "data.global_batch_size": 4, **settings}
    config = mmpack.read_config(CONFIG, [f"{name}={value}" for name, value in overrides.items()])
    return config.data_module(), config.build_model()
