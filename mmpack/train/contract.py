"""What training needs of a model and of the data, its settings, and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from mmpack.batch import Batch
from mmpack.errors import ConfigError, nearest

OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("32", "bf16", "bf16-mixed", "auto")
MONITORS = ("val_loss", "validation_loss")


class TrainableModel(Protocol):
    """What training needs of a model; see `mmpack.model.PackedModel`."""

    def __call__(self, batch: Batch) -> Any: ...  # .loss_sum: the weighted sum of the token losses
    def parameters(self) -> Iterable[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def to(self, device: Any) -> Any: ...


class DataModule(Protocol):
    """What training needs of the data; see `mmpack.datamodules`.

    A loader whose steps vary in their number of batches says so with a method ``steps``, which iterates over steps and
    each of them over its batches; any other is taken `gradient_accumulation_steps` batches at a time. A loader with
    ``epoch`` says how many passes it has finished.
    """

    gradient_accumulation_steps: int

    def train_dataloader(self) -> Iterable[Batch]: ...
    def val_dataloader(self) -> Iterable[Batch]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long and how to train.

    Args:
        output_dir: gets ``train.jsonl`` (one record per step) and the checkpoints.
        max_steps: optimizer steps in all, those before a resume included; -1 for as many as `max_epochs` has.
        max_epochs: passes over the data at most; None for one if `max_steps` is -1, else for no limit.
        optimizer: "adamw" or "sgd" (without momentum).
        learning_rate, weight_decay, warmup_steps: with linear warm-up and then a constant rate.
        grad_clip: largest norm of the gradient; 0 for none.
        precision: "32"; "bf16" (or "bf16-mixed") computes in bfloat16, with weights and sums as they are; "auto" does
            so on a GPU that has it.
        val_check_interval: validate after every so many steps, and at the end; 0 never.
        limit_val_batches: most validation packs; None for the whole split.
        monitor: "val_loss" (or "validation_loss") keeps the checkpoint of the best validation as ``best.pt``.
        save_interval: checkpoint after every so many steps, and at the end; 0 only at the end.
        save_on_train_end: write what was fine-tuned as a folder that transformers reads, ``final``, too.
        resume_if_exists: go on from the newest checkpoint in `output_dir`; False starts anew and refuses a folder
            that has one.
        resume_ignore_no_checkpoint: start anew where `resume_if_exists` finds none; False refuses.
        create_tensorboard_logger: metrics to TensorBoard, in ``output_dir/tensorboard``.
        create_wandb_logger, wandb_project, wandb_name: metrics to Weights & Biases.
        prometheus_port: metrics of the newest step on ``http://HOST:PORT/metrics``, for Prometheus to fetch; 0 takes
            a free port. None for none.
        seed: of torch, for dropout.
        device: "auto" takes a GPU where there is one.
    """

    output_dir: Path
    max_steps: int = -1
    max_epochs: int | None = None
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 0
    grad_clip: float = 1.0
    precision: str = "32"
    val_check_interval: int = 0
    limit_val_batches: int | None = None
    monitor: str | None = None
    save_interval: int = 0
    save_on_train_end: bool = True
    resume_if_exists: bool = True
    resume_ignore_no_checkpoint: bool = True
    create_tensorboard_logger: bool = False
    create_wandb_logger: bool = False
    wandb_project: str | None = None
    wandb_name: str | None = None
    prometheus_port: int | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.max_steps < 1 and self.max_steps != -1:
            raise ConfigError(f"max_steps={self.max_steps}; it must be at least 1, or -1 for one pass over the data")
        if self.max_epochs is not None and self.max_epochs < 1:
            raise ConfigError(f"max_epochs={self.max_epochs}; it must be at least 1, or None")
        for name, allowed in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS), ("monitor", (None, *MONITORS))):
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name}={value!r}; {nearest(str(value), [str(one) for one in allowed])}")
        if self.monitor is not None and not self.val_check_interval:
            raise ConfigError(f"monitor={self.monitor!r} needs validation; set val_check_interval, or leave it out")
        rates = ("learning_rate", "weight_decay", "grad_clip")
        for name in (*rates, "warmup_steps", "val_check_interval", "save_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}; it must not be negative")
        try:
            self.torch_device  # noqa: B018  (a device that torch does not know)
        except RuntimeError as error:
            raise ConfigError(f"device={self.device!r}: {str(error).splitlines()[0]}") from None
        if self.prometheus_port is not None and not 0 <= self.prometheus_port < 1 << 16:
            raise ConfigError(f"prometheus_port={self.prometheus_port}; a port is a number from 0 to 65535")
        if self.limit_val_batches is not None and self.limit_val_batches < 1:
            raise ConfigError(f"limit_val_batches={self.limit_val_batches}; at least 1, or leave it out for all")

    @property
    def last_epoch(self) -> int | None:
        """Passes over the data after which training ends; None for no such end."""
        return 1 if self.max_steps == -1 and self.max_epochs is None else self.max_epochs

    @property
    def torch_device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What a run did; `records_path` holds a record per step."""

    steps: int
    first_loss: float
    last_loss: float
    val_loss: float | None
    checkpoint: Path
    best_checkpoint: Path | None = None  # of the lowest validation loss, if it was monitored
    exported: Path | None = None  # folder that transformers reads
    records_path: Path
    seconds: float
