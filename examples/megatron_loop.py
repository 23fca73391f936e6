"""A Megatron-style loop: `get_batch` from an iterator, `forward_step` with a loss function, one loss for all ranks.

The keys are those that NeMo's NeVA step reads, and `packed_seq_params` is Megatron-core's class where that is
installed. The model is transformers' LLaVA behind a Megatron model's arguments, so that this runs without Megatron.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from common import data_and_model, options
from torch import Tensor

from mmpack.batch import IGNORE_INDEX
from mmpack.sample import IMAGE_TOKEN_INDEX
from mmpack.state import merge

LossFunction = Callable[[Tensor], tuple[Tensor, Tensor]]


def get_batch(data_iterator: Iterator[Any]) -> dict[str, Any]:
    """The next pack of this data-parallel rank under Megatron's names, on the device."""
    batch = next(data_iterator)
    return dict((batch.to("cuda") if torch.cuda.is_available() else batch).to_megatron())


class LlavaModel(torch.nn.Module):
    """transformers' LLaVA called as a Megatron model: per-token losses come back, the loss function sums them."""

    def __init__(self, packed_model: Any) -> None:
        super().__init__()
        self.hf, self.image_token_id = packed_model.hf, packed_model.image_token_id

    def forward(
        self, tokens: Tensor, position_ids: Tensor, labels: Tensor, media: Tensor, packed_seq_params: Any
    ) -> Tensor:
        """(1, T) losses, 0 where nothing is learnt."""
        offsets, longest = packed_seq_params.cu_seqlens_q_padded, packed_seq_params.max_seqlen_q
        logits = self.hf(
            input_ids=tokens.where(tokens != IMAGE_TOKEN_INDEX, self.image_token_id),
            position_ids=position_ids,
            pixel_values=media if media.shape[0] else None,
            attention_mask=None,
            use_cache=False,
            cu_seq_lens_q=offsets,
            cu_seq_lens_k=offsets,
            max_length_q=longest,
            max_length_k=longest,
        ).logits
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
        )
        return losses.view_as(labels)


def forward_step(data_iterator: Iterator[Any], model: LlavaModel) -> tuple[Tensor, LossFunction]:
    """One micro batch: the model's output, and the function that makes (loss, number of tokens) of it."""
    batch = get_batch(data_iterator)
    names = ("tokens", "position_ids", "labels", "media", "packed_seq_params")
    output = model(**{name: batch[name] for name in names})

    def loss_function(losses: Tensor) -> tuple[Tensor, Tensor]:
        mask = batch["loss_mask"]
        return (losses * mask).sum(), mask.sum()

    return output, loss_function


def train_step(data_iterator: Iterator[Any], model: LlavaModel, num_microbatches: int) -> float:
    """Forward and backward of the micro batches; gradients end as those of the mean over the global batch's tokens."""
    loss_sum, num_tokens = torch.zeros(()), torch.zeros(())
    for _ in range(num_microbatches):
        output, loss_function = forward_step(data_iterator, model)
        loss, tokens = loss_function(output)
        loss.backward()
        loss_sum += loss.detach().cpu()
        num_tokens += tokens.cpu()
    if dist.is_initialized():
        dist.all_reduce(loss_sum)
        dist.all_reduce(num_tokens)
    for parameter in model.parameters():
        # a rank whose packs had no picture must take part with zeros
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if dist.is_initialized():
            dist.all_reduce(grad)
        parameter.grad = grad / num_tokens.to(grad.device)
    return float(loss_sum / num_tokens)


def main() -> None:
    """Trains up to `--steps`, from the checkpoint if there is one."""
    chosen = options()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    data, packed_model = data_and_model(chosen)
    model = LlavaModel(packed_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, first = chosen.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        first = saved["step"]
    packs = iter(data.train_dataloader())
    for step in itertools.takewhile(lambda step: step <= chosen.steps, itertools.count(first + 1)):
        loss = train_step(packs, model, data.gradient_accumulation_steps)
        optimizer.step()
        optimizer.zero_grad()
        if data.rank == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    states = [data.state_dict()]
    if dist.is_initialized():
        gathered: list = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, states[0])
        states = gathered
    if data.rank == 0:
        chosen.out.mkdir(parents=True, exist_ok=True)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**content, "data": merge(states), "step": max(first, chosen.steps)}, checkpoint)
    packs.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
