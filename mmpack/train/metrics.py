"""Metrics of a run to TensorBoard or Weights & Biases, where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mmpack.errors import ConfigError
from mmpack.train.contract import TrainConfig


class MetricLoggers:
    """What a run's records are sent to, beside its file.

    Raises:
        ConfigError: one that was asked for is not installed.
    """

    def __init__(self, config: TrainConfig, *, active: bool = True) -> None:
        self._writer: Any = None
        self._run: Any = None
        if not active:
            return
        if config.create_tensorboard_logger:
            module = _installed("torch.utils.tensorboard", "create_tensorboard_logger", "tensorboard")
            self._writer = module.SummaryWriter(config.output_dir / "tensorboard")
        if config.create_wandb_logger:
            module = _installed("wandb", "create_wandb_logger", "wandb")
            self._run = module.init(project=config.wandb_project, name=config.wandb_name, dir=str(config.output_dir))

    def log(self, record: Mapping[str, Any]) -> None:
        """Sends the numbers of a record."""
        step = int(record["step"])
        for name, value in metrics_of(record).items():
            if self._writer is not None:
                self._writer.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(metrics_of(record), step=step)

    def close(self) -> None:
        """Writes what is still held."""
        if self._writer is not None:
            self._writer.close()
        if self._run is not None:
            self._run.finish()


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, each under ``train/`` or ``val/``.

    >>> metrics_of({"kind": "val", "step": 3, "val_loss": 1.5})
    {'val/val_loss': 1.5}
    """
    group = "val" if record["kind"] == "val" else "train"
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
    return {f"{group}/{name}": float(value) for name, value in numbers.items()}


def _installed(module: str, setting: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{setting}=True needs {package}, which is not installed: pip install {package}") from None
