"""transformers' own forward and loss on a pack against the samples alone.

Run as a program with the stand-in of flash-attn on the path, it does so through transformers' FlashAttention-2
code and prints what came out as JSON. It is a program because transformers looks for flash-attn once, at import.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor

from mmpack.batch import PackedBatch

from .packs import mixed_samples, pack, spec


def hf_model(attention: Any, **changes: object) -> Any:
    """A plain transformers model, the same weights every time."""
    from transformers import LlavaForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = spec(**changes).transformers_config()
        return LlavaForConditionalGeneration._from_config(config, attn_implementation=attention).eval()


def hf_step(
    model: Any, batches: list[PackedBatch], num_items: int, **changes: Any
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Summed loss, logits of the real positions in order, gradients. `changes` alter the call's arguments."""
    mask = changes.pop("mask", "varlen")
    model.zero_grad(set_to_none=True)
    total, logits = torch.zeros(()), []
    for batch in batches:
        inputs = batch.to_transformers(image_token_id=spec().placeholder_id, mask=mask)
        out = model(**inputs | {"num_items_in_batch": num_items} | changes)
        out.loss.backward()
        total = total + out.loss.detach()
        logits.append(out.logits.detach()[0, ~batch.padding_mask[0]])
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return total, torch.cat(logits), grads


def differences(packed_model: Any, batch: PackedBatch, **changes: Any) -> dict[str, Any]:
    """Of the packed step through `packed_model` from the samples alone through torch's sdpa."""
    num_items = batch.num_loss_tokens
    alone = hf_step(hf_model("sdpa"), [pack([one]) for one in mixed_samples()], num_items)
    packed = hf_step(packed_model, [batch], num_items, **changes)
    everything = sum(float(g.norm()) ** 2 for g in alone[2].values()) ** 0.5
    excess = {
        name: float((packed[2][name] - g).norm()) / (1e-5 * float(g.norm()) + 1e-8 * everything)
        for name, g in alone[2].items()
        if name in packed[2]
    }
    return {
        "loss": abs(float(packed[0] - alone[0])),
        "logits": float((packed[1] - alone[1]).abs().max()),
        "gradients_over_allowed": max(excess.values()),
        "same_parameters": alone[2].keys() == packed[2].keys(),
    }


def main() -> None:
    import transformers.utils.import_utils as import_utils

    import_utils.is_torch_cuda_available = lambda: True  # the stand-in runs on CPU; transformers must not mind
    import transformers.modeling_flash_attention_utils as flash_utils

    for entry in flash_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX.values():
        entry["supported_devices"] = [(lambda: True, "cuda")]
    import flash_attn

    batch = pack(mixed_samples(), multiple=4, total=200)
    model = hf_model({"text_config": "flash_attention_2", "vision_config": "sdpa"})
    result = differences(model, batch)
    offsets = batch.cu_seqlens_padded.tolist()
    result["calls"] = len(flash_attn.CALLS)
    result["calls_as_expected"] = all(call == ("varlen", offsets, True) for call in flash_attn.CALLS)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
