"""The processes of one training job, as torchrun starts them."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def join_ranks() -> int:
    """Joins the other processes of a job that torchrun started, once; returns this one's rank, 0 if it is alone.

    NCCL where there are GPUs, each process taking the one of its local rank; else gloo.
    """
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        has_gpus = torch.cuda.is_available()
        if has_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if has_gpus else "gloo")
    return dist.get_rank() if dist.is_initialized() else 0


def leave_ranks() -> None:
    """Waits for the others and parts from them; nothing if the process is alone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def summed(value: Tensor) -> Tensor:
    """The sum over the ranks, on the CPU."""
    if not dist.is_initialized():
        return value
    on_gpu = dist.get_backend() == "nccl"  # which knows no other memory
    total = value.cuda() if on_gpu else value
    dist.all_reduce(total)
    return total.cpu()


def of_all_ranks(values: list[float]) -> list[list[float]]:
    """For each value, what every rank has for it, in the order of the ranks."""
    if not dist.is_initialized():
        return [[value] for value in values]
    own = torch.tensor(values, dtype=torch.float64)
    own = own.cuda() if dist.get_backend() == "nccl" else own
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return [list(column) for column in zip(*(row.tolist() for row in rows), strict=True)]


def gathered(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of every rank, on every rank."""
    if not dist.is_initialized():
        return [state]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states
