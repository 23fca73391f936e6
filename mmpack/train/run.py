"""One training run: steps, validation, records, checkpoints, resume."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mmpack import state as states
from mmpack.batch import Batch
from mmpack.errors import ConfigError
from mmpack.loader import ahead_on
from mmpack.stats import balance
from mmpack.train.assets import assets_of
from mmpack.train.checkpoint import (
    BEST_NAME,
    checkpoint_path,
    load_checkpoint,
    newest_checkpoint,
    restore_trained,
    save_checkpoint,
)
from mmpack.train.contract import DataModule, TrainableModel, TrainConfig, TrainResult
from mmpack.train.metrics import MetricLoggers
from mmpack.train.observe import StepObserver, cost_of
from mmpack.train.precision import compute_in
from mmpack.train.ranks import gathered, of_all_ranks, summed
from mmpack.train.records import append_record, cut_records
from mmpack.train.slow import SlowDataWatch
from mmpack.train.steps import training_steps

_log = logging.getLogger(__name__)

Record = dict[str, Any]
EXPORT_NAME = "final"


def train(
    config: TrainConfig,
    data: DataModule,
    model: TrainableModel,
    on_record: Callable[[Record], None] = lambda record: None,
) -> TrainResult:
    """Trains `model` on the packs of `data`.

    A fine-tuning module and a `CausalModel` together store in every checkpoint what using the model takes: how prompts
    are written, the tokenizer, and the settings.

    Raises:
        ConfigError: the folder holds a checkpoint and `resume_if_exists` is off, or none and it must; the data ended
            with no pack, or is preference data; a device or a logger that is not there.
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
        compute_in(config.precision, self.device)  # refuses a device that has it not
        torch.manual_seed(config.seed)
        if (setup := getattr(data, "setup", None)) is not None:
            setup("fit")
        if getattr(data, "record_format", None) == "preference":
            raise ConfigError(
                "preference data: this trainer learns every answer, the rejected ones as well; compute a preference "
                "loss in a loop of your own, with PackedBatch.pairs and mmpack.model.sequence_log_probs"
            )
        self.model.to(self.device)
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        made = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.SGD
        self.optimizer = made(self._trained, lr=config.learning_rate, weight_decay=config.weight_decay)
        self.step = 0
        self._saved_at = self._validated_at = -1  # steps
        self.is_first_rank = not dist.is_initialized() or dist.get_rank() == 0
        self.records_path = config.output_dir / "train.jsonl"
        self._on_record = on_record
        self._losses: list[float] = []
        self._val_loss: float | None = None
        self._best: dict[str, float] | None = None  # step and loss of the best validation
        self._assets = assets_of(data, model, config)
        self._loggers: MetricLoggers | None = None
        self._watch = SlowDataWatch(None)
        self._observer = StepObserver(None, None)

    def run(self) -> TrainResult:
        started = time.perf_counter()
        self._check_validation()
        self.config.output_dir.mkdir(parents=True, exist_ok=True)
        self._resume()
        self._loggers = MetricLoggers(self.config, active=self.is_first_rank)
        loader: Any = self.data.train_dataloader()
        self._watch = SlowDataWatch(loader)
        self._observer = StepObserver(loader, getattr(self.data, "pack_capacity", None))
        steps = training_steps(self.data, self.config.last_epoch)
        while self.step != self.config.max_steps and self._train_step(steps):
            if self._due(self.config.val_check_interval):
                self._validate()
            if self._due(self.config.save_interval) or self.step == self.config.max_steps:
                self._save()
        steps.close()
        self._finish()
        best = self.config.output_dir / BEST_NAME
        exported = self.config.output_dir / EXPORT_NAME
        return TrainResult(
            steps=self.step,
            first_loss=self._losses[0] if self._losses else float("nan"),
            last_loss=self._losses[-1] if self._losses else float("nan"),
            val_loss=self._val_loss,
            checkpoint=checkpoint_path(self.config.output_dir, self.step),
            best_checkpoint=best if best.exists() else None,
            exported=exported if exported.exists() else None,
            records_path=self.records_path,
            seconds=time.perf_counter() - started,
        )

    def _check_validation(self) -> None:
        """Opens the validation data, so that what is wrong with it is said before anything is trained."""
        if self.config.val_check_interval == 0:
            return
        try:
            self.data.val_dataloader()
        except ConfigError as error:
            raise ConfigError(f"{error}; or set val_check_interval=0 to train without validation") from error

    def _due(self, interval: int) -> bool:
        return interval > 0 and (self.step % interval == 0 or self.step == self.config.max_steps)

    def _finish(self) -> None:
        """What is due at the end of data that ended before `max_steps`, and the export."""
        if self.step > 0 and self.config.val_check_interval and self._validated_at != self.step:
            self._validate()
        if self._saved_at != self.step:
            self._save()
        if self._assets is not None and self.config.save_on_train_end and self.is_first_rank:
            model: Any = self.model
            self._assets.export(model, self.config.output_dir / EXPORT_NAME)
        if self._loggers is not None:
            self._loggers.close()

    def _train_step(self, steps: Iterator[list[Batch]]) -> bool:
        """One step; False if the data has ended."""
        self._observer.begin()
        begun = time.perf_counter()
        batches = next(steps, None)
        if batches is None:
            return False
        waited = time.perf_counter() - begun
        weight = float(sum(batch.loss_weight.sum() for batch in batches))
        weights, costs = of_all_ranks([weight, cost_of(batches)])
        total_weight = torch.tensor(sum(weights))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for batch in ahead_on(batches, self.device):
            with compute_in(self.config.precision, self.device):
                output = self.model(batch)
            (output.loss_sum / total_weight.clamp(min=1e-8).to(self.device)).backward()
            loss_sum += float(output.loss_sum.detach())
        self._share_gradients()
        if self.config.grad_clip:
            nn.utils.clip_grad_norm_(self._trained, self.config.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * min(1.0, (self.step + 1) / max(1, self.config.warmup_steps))
        self.optimizer.step()
        self.step += 1
        loss = float(summed(torch.tensor(loss_sum)) / total_weight.clamp(min=1e-8))
        self._losses.append(loss)
        record = {
            "kind": "step",
            "step": self.step,
            "loss": loss,
            **self._observer.record(batches, seconds=time.perf_counter() - begun, waited=waited),
            "max_to_mean_cost": balance([costs]),
        }
        if (warning := self._watch.step(waited, record["step_s"])) is not None:
            _log.warning("step %d: %s", self.step, warning)
        self._record(record)
        return True

    def _share_gradients(self) -> None:
        """Sums gradients over the ranks; a parameter that this rank's packs did not touch counts as zero."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def _validate(self) -> None:
        self.model.eval()
        loss_sum, weight_sum, count = 0.0, 0.0, 0
        with torch.no_grad():
            for batch in self.data.val_dataloader():
                with compute_in(self.config.precision, self.device):
                    loss_sum += float(self.model(batch.to(self.device)).loss_sum)
                weight_sum += float(batch.loss_weight.sum())
                count += 1
                if count == self.config.limit_val_batches:
                    break
        totals = summed(torch.tensor([loss_sum, weight_sum]))
        if float(totals[1]) == 0.0:
            raise ConfigError("the validation data gave no label; make a larger split, or set val_check_interval=0")
        self._val_loss = float(totals[0] / totals[1])
        self._record({"kind": "val", "step": self.step, "val_loss": self._val_loss, "num_packs": count})
        self._validated_at = self.step
        if self.config.monitor is not None and (self._best is None or self._val_loss < self._best["val_loss"]):
            self._best = {"step": self.step, "val_loss": self._val_loss}
            self._write(self.config.output_dir / BEST_NAME)

    def _record(self, record: Record) -> None:
        if not self.is_first_rank:
            return
        append_record(self.records_path, record)
        if self._loggers is not None:
            self._loggers.log(record)
        self._on_record(record)

    def _resume(self) -> None:
        newest = newest_checkpoint(self.config.output_dir)
        if newest is None:
            if self.config.resume_if_exists and not self.config.resume_ignore_no_checkpoint:
                raise ConfigError(
                    f"{self.config.output_dir} holds no checkpoint to resume from; set "
                    "resume_ignore_no_checkpoint=true to start anew, or give the folder of the run"
                )
            self.records_path.unlink(missing_ok=True)
            return
        if not self.config.resume_if_exists:
            raise ConfigError(
                f"{self.config.output_dir} already holds {newest.name}; choose another output_dir, "
                "or set resume_if_exists=true to go on from it"
            )
        saved = load_checkpoint(newest)
        restore_trained(saved, newest, self.model, self.optimizer)
        self.data.load_state_dict(states.merge(saved["data"]))  # whatever the number of ranks was
        torch.set_rng_state(saved["rng"])
        self.step = self._saved_at = self._validated_at = saved["step"]
        self._best = saved.get("best")
        if self.is_first_rank:
            cut_records(self.records_path, self.step)

    def _save(self) -> None:
        self._write(checkpoint_path(self.config.output_dir, self.step))
        self._saved_at = self.step

    def _write(self, path: Path) -> None:
        data = gathered(self.data.state_dict())
        if not self.is_first_rank:
            return
        content = {
            "step": self.step,
            "model": getattr(self.model, "trained_state", self.model.state_dict)(),
            "optimizer": self.optimizer.state_dict(),
            "data": data,
            "rng": torch.get_rng_state(),
            "best": self._best,
        }
        if self._assets is not None:
            content["assets"] = self._assets.to_plain()
        save_checkpoint(path, content)
