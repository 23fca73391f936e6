"""A rank that trains a small model on whole epochs of datasets, one after the other: OUT TOKENIZER JOBS."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from mmpack.model import LlavaSpec
from tests.conftest import data_module
from tests.distributed.launch import write_result


def main(out: str, tokenizer_folder: str, jobs: str) -> None:
    dist.init_process_group("gloo")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    write_result(out, dist.get_rank(), {name: run(tokenizer, **job) for name, job in json.loads(jobs).items()})
    dist.destroy_process_group()


def run(tokenizer: Any, path: str, epochs: int, **settings: Any) -> dict[str, Any]:
    """The steps of every epoch, and a checksum of the model behind them."""
    module = data_module(path, tokenizer, repeat=False, num_streams=4, **settings)
    model = LlavaSpec(vocab_size=len(tokenizer), image_size_px=28, patch_size_px=14).build(seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done: list[list[dict[str, Any]]] = []
    for _ in range(epochs):
        steps = []
        for batch in module.train_dataloader():
            total = torch.tensor(float(batch.loss_weight.sum()))
            dist.all_reduce(total)  # every rank takes part in every step, or this hangs
            (model(batch.check()).loss_sum / total).backward()
            trained = [p for p in model.parameters() if p.grad is not None]  # LLaVA leaves the tower's last layer out
            for parameter in trained:
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            lengths = batch.cu_seqlens_padded.diff().tolist() if batch.num_samples else []
            steps.append({"keys": list(batch.sample_keys), "lengths": lengths, "num_trained": len(trained)})
        done.append(steps)
    return {"epochs": done, "checksum": sum(float(p.detach().double().sum()) for p in model.parameters())}


if __name__ == "__main__":
    main(*sys.argv[1:])
