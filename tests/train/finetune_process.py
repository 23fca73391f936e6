"""A fine-tuning run in a process of its own, to be killed: DATA, TOKENIZER, OUTPUT, BATCHING, STREAMING, LORA."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.model.causal import CausalSpec, LoraSpec
from mmpack.train import TrainConfig, train


def main() -> None:
    sets, folder, out, batching, streaming, lora = sys.argv[1:]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = FineTuningDataModule(
        sets, 192, tokenizer, global_batch_size=8 if batching != "packing" else 2, batching=batching,
        streaming=streaming == "1", num_workers=1, packing_buffer_size=20,
    )  # fmt: skip
    model = CausalSpec(hidden_size=32, lora=LoraSpec(rank=2, dropout=0.1) if lora == "1" else None).build(tokenizer)
    settings = TrainConfig(
        output_dir=Path(out), max_steps=40, learning_rate=3e-3, warmup_steps=5, val_check_interval=10,
        limit_val_batches=2, monitor="val_loss", save_interval=1, save_on_train_end=False,
    )  # fmt: skip
    train(settings, data, model, lambda record: print(record["kind"], record["step"], flush=True))


if __name__ == "__main__":
    main()
