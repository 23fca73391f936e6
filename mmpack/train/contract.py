"""What training needs of a model and of the data, its settings, and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from mmpack.batch import Batch
from mmpack.errors import ConfigError


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
    """What training needs of the data; see `mmpack.datamodules`."""

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
        max_steps: optimizer steps in all, those before a resume included.
        learning_rate, weight_decay, warmup_steps: of AdamW, with linear warm-up and then a constant rate.
        grad_clip: largest norm of the gradient; 0 for none.
        val_check_interval: validate after every so many steps, and at the end; 0 never.
        limit_val_batches: most validation packs; None for the whole split.
        save_interval: checkpoint after every so many steps, and at the end; 0 only at the end.
        resume_if_exists: go on from the newest checkpoint in `output_dir`; False starts anew and refuses a folder
            that has one.
        seed: of torch, for dropout.
        device: "auto" takes a GPU where there is one.
    """

    output_dir: Path
    max_steps: int
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 0
    grad_clip: float = 1.0
    val_check_interval: int = 0
    limit_val_batches: int | None = None
    save_interval: int = 0
    resume_if_exists: bool = True
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps={self.max_steps}; it must be at least 1")
        rates = ("learning_rate", "weight_decay", "grad_clip")
        for name in (*rates, "warmup_steps", "val_check_interval", "save_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}; it must not be negative")
        try:
            self.torch_device  # noqa: B018  (a device that torch does not know)
        except RuntimeError as error:
            raise ConfigError(f"device={self.device!r}: {str(error).splitlines()[0]}") from None
        if self.limit_val_batches is not None and self.limit_val_batches < 1:
            raise ConfigError(f"limit_val_batches={self.limit_val_batches}; at least 1, or leave it out for all")

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
    records_path: Path
    seconds: float
