"""A small real training run: packs from a data module, a model that consumes them, checkpoints with the data's state.

The loss of a step is normalised over its whole global batch: the weighted sum over all packs of all ranks, divided
by the sum of their weights. So the number of packs per step or rank does not change what a token counts.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmpack.batch import PackedBatch
from mmpack.errors import ConfigError, StateError

Record = dict[str, Any]
CHECKPOINT_VERSION = 1


class TrainableModel(Protocol):
    """What training needs of a model; see `mmpack.model.PackedModel`."""

    def __call__(self, batch: PackedBatch) -> Any: ...  # .loss_sum: the weighted sum of the token losses
    def parameters(self) -> Iterable[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def to(self, device: Any) -> Any: ...


class DataModule(Protocol):
    """What training needs of the data; see `mmpack.datamodules`."""

    gradient_accumulation_steps: int

    def train_dataloader(self) -> Iterable[PackedBatch]: ...
    def val_dataloader(self) -> Iterable[PackedBatch]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long and how to train.

    Args:
        output_dir: gets ``train.jsonl`` (one record per step) and the checkpoints.
        max_steps: optimizer steps in all, those before a resume included.
        learning_rate, weight_decay, warmup_steps: of AdamW, with linear warm-up and then a constant rate.
        grad_clip: largest norm of the gradient; 0 for none.
        val_check_interval: validate after every so many steps, and at the end; 0 never.
        limit_val_batches: most validation packs; None for the whole split.
        save_interval: checkpoint after every so many steps, and at the end; 0 only at the end.
        resume_if_exists: go on from the newest checkpoint in `output_dir`; False starts anew and refuses a folder
            that has one.
        seed: of torch, for dropout.
        device: "auto" takes a GPU where there is one.
    """

    output_dir: Path
    max_steps: int
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 0
    grad_clip: float = 1.0
    val_check_interval: int = 0
    limit_val_batches: int | None = None
    save_interval: int = 0
    resume_if_exists: bool = True
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps={self.max_steps}; it must be at least 1")
        rates = ("learning_rate", "weight_decay", "grad_clip")
        for name in (*rates, "warmup_steps", "val_check_interval", "save_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}; it must not be negative")
        try:
            self.torch_device  # noqa: B018  (a device that torch does not know)
        except RuntimeError as error:
            raise ConfigError(f"device={self.device!r}: {str(error).splitlines()[0]}") from None
        if self.limit_val_batches is not None and self.limit_val_batches < 1:
            raise ConfigError(f"limit_val_batches={self.limit_val_batches}; at least 1, or leave it out for all")

    @property
    def torch_device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What a run did; `records_path` holds a record per step."""

    steps: int
    first_loss: float
    last_loss: float
    val_loss: float | None
    checkpoint: Path
    records_path: Path
    seconds: float


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
            checkpoint=_checkpoint_path(self.config.output_dir, self.step),
            records_path=self.records_path,
            seconds=time.perf_counter() - started,
        )

    def _due(self, interval: int) -> bool:
        return interval > 0 and (self.step % interval == 0 or self.step == self.config.max_steps)

    def _packs(self) -> Any:
        """Training packs without end; a loader that gives one epoch is asked for the next."""

        def generate() -> Iterator[PackedBatch]:
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

    def _train_step(self, packs: Iterator[PackedBatch]) -> None:
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

    def _step_record(self, batches: list[PackedBatch], loss: float, seconds: float, waited: float) -> Record:
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
            "sum_len_squared": sum(int((batch.cu_seqlens_padded.diff().double() ** 2).sum()) for batch in batches),
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
        """Writes beside the final name and renames, so that a kill leaves the previous checkpoint whole."""
        states = _gathered(self.data.state_dict())
        if not self.is_first_rank:
            return
        path = _checkpoint_path(self.config.output_dir, self.step)
        partial = path.with_suffix(".partial")
        content = {
            "version": CHECKPOINT_VERSION,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": states,
            "rng": torch.get_rng_state(),
        }
        torch.save(content, partial)
        os.replace(partial, path)


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps in `folder`."""
    found = [path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d+\.pt", path.name)]
    return max(found, key=lambda path: int(path.stem.partition("-")[2]), default=None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `train` saved. Raises StateError if the file is not such a checkpoint."""
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(f"{path} cannot be read as a checkpoint: {error}") from error
    if saved.get("version") != CHECKPOINT_VERSION:
        raise StateError(f"{path} has format version {saved.get('version')!r}, this mmpack reads {CHECKPOINT_VERSION}")
    return saved


def _checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.pt"


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
