"""One training run: steps, validation, records, resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmpack.batch import Batch
from mmpack.errors import ConfigError, StateError
from mmpack.train.checkpoint import checkpoint_path, load_checkpoint, newest_checkpoint, save_checkpoint
from mmpack.train.contract import DataModule, TrainableModel, TrainConfig, TrainResult

Record = dict[str, Any]


def train(
    config: TrainConfig,
    data: DataModule,
    model: TrainableModel,
    on_record: Callable[[Record], None] = lambda record: None,
) -> TrainResult:
    """Trains `model` on the packs of `data`.

    Raises:
        ConfigError: the folder holds a checkpoint and `resume_if_exists` is off; the data ended with no pack.
        StateError: a checkpoint that does not fit.
    """
    run = _Run(config, data, model, on_record)
    return run.run()


class _Run:
    def __init__(
        self, config: TrainConfig, data: DataModule, model: TrainableModel, on_record: Callable[[Record], None]
    ) -> None:
        self.config, self.data, self.model = config, data, model
        self.device = config.torch_device
        torch.manual_seed(config.seed)
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            list(model.parameters()), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.step = 0
        self.is_first_rank = not dist.is_initialized() or dist.get_rank() == 0
        self.records_path = config.output_dir / "train.jsonl"
        self._on_record = on_record
        self._losses: list[float] = []
        self._val_loss: float | None = None

    def run(self) -> TrainResult:
        started = time.perf_counter()
        self.config.output_dir.mkdir(parents=True, exist_ok=True)
        self._resume()
        packs = self._packs()
        while self.step < self.config.max_steps:
            self._train_step(packs)
            if self._due(self.config.val_check_interval):
                self._validate()
            if self._due(self.config.save_interval) or self.step == self.config.max_steps:
                self._save()
        packs.close()
        return TrainResult(
            steps=self.step,
            first_loss=self._losses[0] if self._losses else float("nan"),
            last_loss=self._losses[-1] if self._losses else float("nan"),
            val_loss=self._val_loss,
            checkpoint=checkpoint_path(self.config.output_dir, self.step),
            records_path=self.records_path,
            seconds=time.perf_counter() - started,
        )

    def _due(self, interval: int) -> bool:
        return interval > 0 and (self.step % interval == 0 or self.step == self.config.max_steps)

    def _packs(self) -> Any:
        """Training packs without end; a loader that gives one epoch is asked for the next."""

        def generate() -> Iterator[Batch]:
            loader = self.data.train_dataloader()
            while True:
                count = 0
                for batch in loader:
                    count += 1
                    yield batch
                if count == 0:
                    raise ConfigError(
                        "the training data gave no pack: every sample was left out, see the drop counters"
                    )

        return generate()

    def _train_step(self, packs: Iterator[Batch]) -> None:
        begun = time.perf_counter()
        batches = [next(packs) for _ in range(self.data.gradient_accumulation_steps)]
        waited = time.perf_counter() - begun
        total_weight = _summed(torch.tensor(float(sum(batch.loss_weight.sum() for batch in batches))))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for batch in batches:
            output = self.model(batch.to(self.device))
            (output.loss_sum / total_weight.clamp(min=1e-8).to(self.device)).backward()
            loss_sum += float(output.loss_sum.detach())
        self._share_gradients()
        if self.config.grad_clip:
            nn.utils.clip_grad_norm_(list(self.model.parameters()), self.config.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * min(1.0, (self.step + 1) / max(1, self.config.warmup_steps))
        self.optimizer.step()
        self.step += 1
        loss = float(_summed(torch.tensor(loss_sum)) / total_weight.clamp(min=1e-8))
        self._losses.append(loss)
        self._record(self._step_record(batches, loss, time.perf_counter() - begun, waited))

    def _share_gradients(self) -> None:
        """Sums gradients over the ranks; a parameter that this rank's packs did not touch counts as zero."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def _step_record(self, batches: list[Batch], loss: float, seconds: float, waited: float) -> Record:
        real = sum(batch.num_real_tokens for batch in batches)
        positions = sum(batch.num_tokens for batch in batches)
        return {
            "kind": "step",
            "step": self.step,
            "loss": loss,
            "num_packs": len(batches),
            "num_samples": sum(batch.num_samples for batch in batches),
            "num_tokens": real,
            "num_positions": positions,
            "num_loss_tokens": sum(batch.num_loss_tokens for batch in batches),
            "num_tiles": sum(int(batch.pixels.shape[0]) for batch in batches),
            "sum_len_squared": sum(batch.sum_len_squared for batch in batches),
            "useful_tokens_per_s": real / seconds,
            "step_s": seconds,
            "wait_s": waited,
            "drops": self._drops(),
        }

    def _drops(self) -> Any:
        """What this rank's data has left out so far: dataset -> reason -> count and first keys."""
        ledger = getattr(self.data.train_dataloader(), "drops", None)
        return {} if ledger is None else ledger.to_dict()

    def _validate(self) -> None:
        self.model.eval()
        loss_sum, weight_sum, count = 0.0, 0.0, 0
        with torch.no_grad():
            for batch in self.data.val_dataloader():
                loss_sum += float(self.model(batch.to(self.device)).loss_sum)
                weight_sum += float(batch.loss_weight.sum())
                count += 1
                if count == self.config.limit_val_batches:
                    break
        totals = _summed(torch.tensor([loss_sum, weight_sum]))
        if float(totals[1]) == 0.0:
            raise ConfigError("the validation data gave no label; make a larger split, or set val_check_interval=0")
        self._val_loss = float(totals[0] / totals[1])
        self._record({"kind": "val", "step": self.step, "val_loss": self._val_loss, "num_packs": count})

    def _record(self, record: Record) -> None:
        if not self.is_first_rank:
            return
        with self.records_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._on_record(record)

    def _resume(self) -> None:
        newest = newest_checkpoint(self.config.output_dir)
        if newest is None:
            self.records_path.unlink(missing_ok=True)
            return
        if not self.config.resume_if_exists:
            raise ConfigError(
                f"{self.config.output_dir} already holds {newest.name}; choose another output_dir, "
                "or set resume_if_exists=true to go on from it"
            )
        saved = load_checkpoint(newest)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        states = saved["data"]
        rank = dist.get_rank() if dist.is_initialized() else 0
        if rank >= len(states):
            raise StateError(f"{newest} was saved by {len(states)} ranks, this is rank {rank}")
        self.data.load_state_dict(states[rank])
        torch.set_rng_state(saved["rng"])
        self.step = saved["step"]
        _cut_records(self.records_path, self.step)

    def _save(self) -> None:
        states = _gathered(self.data.state_dict())
        if not self.is_first_rank:
            return
        content = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": states,
            "rng": torch.get_rng_state(),
        }
        save_checkpoint(checkpoint_path(self.config.output_dir, self.step), content)


def _cut_records(path: Path, step: int) -> None:
    """Drops the records of steps that come again after a resume."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        path.write_text("".join(kept), encoding="utf-8")


def _step_of(line: str) -> float:
    """The step of a record; infinity for a line that a kill cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _summed(value: Tensor) -> Tensor:
    """The sum over the ranks."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def _gathered(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of every rank, on every rank."""
    if not dist.is_initialized():
        return [state]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states
