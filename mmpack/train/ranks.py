"""The processes of one training job, as torchrun starts them."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


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
