"""Checkpoints of a run: found, written whole or not at all, and read without running code."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmpack.errors import ConfigError, StateError

CHECKPOINT_VERSION = 1
BEST_NAME = "best.pt"  # the checkpoint of the lowest validation loss, if it is monitored


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps in `folder`."""
    found = [path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d+\.pt", path.name)]
    return max(found, key=lambda path: int(path.stem.partition("-")[2]), default=None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `train` saved. Raises StateError if the file is not such a checkpoint."""
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(f"{path} cannot be read as a checkpoint: {error}") from error
    if saved.get("version") != CHECKPOINT_VERSION:
        raise StateError(f"{path} has format version {saved.get('version')!r}, this mmpack reads {CHECKPOINT_VERSION}")
    return saved


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.pt"


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Writes beside the final name and renames, so that a kill leaves the previous checkpoint whole."""
    partial = path.with_suffix(".partial")
    torch.save({"version": CHECKPOINT_VERSION, **content}, partial)
    os.replace(partial, path)


def restore_trained(saved: Mapping[str, Any], path: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Puts the weights and the optimizer of a checkpoint back; its settings, such as weight decay, stay this run's.

    Warns of settings that differ.

    Raises:
        StateError: they are another model's or another optimizer's; `path` and the first difference are named.
    """
    try:
        getattr(model, "load_trained_state", model.load_state_dict)(saved["model"])
    except (RuntimeError, ConfigError) as error:  # torch names every weight that differs, one a line
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise StateError(
            f"{path} holds another model: {lines[1] if len(lines) > 1 else lines[0]}; resume with the settings of "
            "`model` that it was trained with, or choose another output_dir"
        ) from None
    groups, own_groups = saved["optimizer"]["param_groups"], optimizer.state_dict()["param_groups"]
    if [set(group) for group in groups] != [set(group) for group in own_groups]:
        raise StateError(
            f"{path} holds the state of another optimizer than {type(optimizer).__name__}; resume with the `optimizer` "
            "that it was trained with, or choose another output_dir"
        )
    optimizer.load_state_dict(saved["optimizer"])
    for group, before, own in zip(optimizer.param_groups, groups, own_groups, strict=True):
        settings = {name: value for name, value in own.items() if name not in ("params", "lr")}
        group.update(settings)  # the run's own, like the learning rate, which every step sets
        told = [f"{name}: saved {before[name]!r}, now {own[name]!r}" for name in settings if before[name] != own[name]]
        if told:
            warnings.warn(
                f"{path} was trained with other settings of the optimizer: {'; '.join(told)}. It goes on with those of "
                "now",
                stacklevel=2,
            )
