"""Plain torch: DistributedDataParallel, accumulation, a loss normalised over the global batch, exact resume."""

from __future__ import annotations

import contextlib
import itertools
import os

import torch
import torch.distributed as dist
from common import data_and_model, options
from torch.nn.parallel import DistributedDataParallel

from mmpack.state import merge


def main() -> None:
    """Trains up to `--steps`, from the checkpoint if there is one."""
    chosen = options()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    data, model = data_and_model(chosen)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    # LLaVA leaves the last layer of its vision tower out, so some parameters never get a gradient
    ddp = DistributedDataParallel(model, find_unused_parameters=True) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, step = chosen.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])  # of all ranks together, so the number of ranks may be another
        step = saved["step"]

    packs = iter(data.train_dataloader())
    while step < chosen.steps:
        batches = list(itertools.islice(packs, data.gradient_accumulation_steps))
        weight = torch.tensor(float(sum(batch.loss_weight.sum() for batch in batches)))
        if ranks > 1:
            dist.all_reduce(weight)  # labels of the whole global batch: what a token counts is the same on every rank
        loss_sum = 0.0
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            with contextlib.nullcontext() if last or ranks == 1 else ddp.no_sync():
                output = ddp(batch)
                # DistributedDataParallel averages over ranks; the sum is wanted
                (output.loss_sum * ranks / weight).backward()
            loss_sum += float(output.loss_sum.detach())
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        total = torch.tensor(loss_sum)
        if ranks > 1:
            dist.all_reduce(total)
        if data.rank == 0:
            samples = sum(batch.num_samples for batch in batches)
            print(f"step {step}: loss {float(total / weight):.4f}, {samples} samples on this rank", flush=True)

    states = [data.state_dict()]
    if ranks > 1:
        gathered: list = [None] * ranks
        dist.all_gather_object(gathered, states[0])
        states = gathered
    if data.rank == 0:
        chosen.out.mkdir(parents=True, exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**content, "data": merge(states), "step": step}, checkpoint)
    packs.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
