"""transformers' Trainer: a pack is a batch of one row, and Trainer's own loss over the global batch is right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import data_and_model, options
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from mmpack.state import merge

STATE = "mmpack_data.pt"


class Packs:
    """The packs of a loader as keyword arguments of the model."""

    def __init__(self, loader: Any, image_token_id: int) -> None:
        self.loader, self.image_token_id = loader, image_token_id

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            inputs = batch.to_transformers(image_token_id=self.image_token_id)
            del inputs["num_items_in_batch"]  # Trainer counts the labels of the global batch itself
            yield inputs


class Llava(torch.nn.Module):
    """The model under names of its own: Trainer saves a transformers model in one form and resumes it from another."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, **inputs: Any) -> Any:
        """transformers' own loss, divided by the ``num_items_in_batch`` that Trainer passes."""
        return self.hf(**inputs)


class PackTrainer(Trainer):
    """Takes mmpack's loader as it is: it knows its rank already, so nothing is to be sharded or gathered."""

    def __init__(self, *args: Any, packs: Packs, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.packs = packs

    def get_train_dataloader(self) -> Any:
        """The packs of this rank."""
        return self.packs


class SaveData(TrainerCallback):
    """Saves where the data stands into every checkpoint, merged over the ranks."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer calls it on every rank."""
        states = [self.data.state_dict()]
        if dist.is_initialized():
            gathered: list = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, states[0])
            states = gathered
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(merge(states), folder / STATE)

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """A line for people."""
        if state.is_world_process_zero and "loss" in (logs or {}):
            print(f"step {state.global_step}: loss {logs['loss']:.4f}", flush=True)


def main() -> None:
    """Trains up to `--steps`, from the newest checkpoint if there is one."""
    chosen = options()
    arguments = TrainingArguments(
        output_dir=str(chosen.out),
        max_steps=chosen.steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,  # set below
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        weight_decay=0.01,
        logging_steps=1,
        save_steps=chosen.steps,
        report_to="none",
        disable_tqdm=True,
        ignore_data_skip=True,  # the data goes on where it stood; nothing is to be read again
        ddp_find_unused_parameters=True,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo" if "RANK" in os.environ and not torch.cuda.is_available() else None,
    )
    print(f"training on {arguments.device}", flush=True)  # asking for the device sets torch.distributed up
    data, model = data_and_model(chosen)
    arguments.gradient_accumulation_steps = data.gradient_accumulation_steps
    packs = Packs(data.train_dataloader(), model.image_token_id)
    newest = get_last_checkpoint(str(chosen.out)) if chosen.out.is_dir() else None
    if newest is not None:
        data.load_state_dict(torch.load(Path(newest) / STATE, weights_only=True))
    trainer = PackTrainer(Llava(model.hf), arguments, packs=packs, callbacks=[SaveData(data)])
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
