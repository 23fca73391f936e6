"""Lightning: the data module goes into `fit`, and Lightning's checkpoint holds its state."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from common import data_and_model, options


class Llava(lightning.LightningModule):
    """A `PackedModel` as Lightning wants it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of one pack.

        Lightning divides by the number of accumulated packs. Full packs have about as many labels each; for a loss over
        the labels of the whole global batch, count them as `plain_torch.py` does.
        """
        output = self.model(batch)
        loss = output.loss_sum / output.weight_sum.clamp(min=1)
        self.log("loss", loss)
        print(f"pack {index}: loss {float(loss):.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As everywhere here."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Trains up to `--steps`, from the checkpoint if there is one."""
    chosen = options()
    data, model = data_and_model(chosen)
    trainer = lightning.Trainer(
        max_steps=chosen.steps,
        accumulate_grad_batches=data.gradient_accumulation_steps,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
    )
    checkpoint = chosen.out / "lightning.ckpt"
    trainer.fit(Llava(model), datamodule=data, ckpt_path=str(checkpoint) if checkpoint.exists() else None)
    trainer.save_checkpoint(checkpoint)
    print(f"step {trainer.global_step}: saved", flush=True)


if __name__ == "__main__":
    main()
