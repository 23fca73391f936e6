"""Packed training ends with the parameters of unpacked training on the same global batches; planted faults do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.batch import Batch, PackedBatch
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.model.causal import CausalModel, CausalSpec
from mmpack.train import TrainConfig, train
from tests.llm.texts import write_sets

STEPS = 20
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"), num_training=20 * 8)


class _Changed:
    """A loader whose batches are changed on the way."""

    def __init__(self, loader: Any, change: Callable[[Batch], Batch]) -> None:
        self._loader, self._change = loader, change

    def steps(self) -> Iterator[list[Batch]]:
        for step in self._loader.steps():
            yield [self._change(batch) for batch in step]


class _ChangedData(FineTuningDataModule):
    change: Callable[[Batch], Batch] = staticmethod(lambda batch: batch)

    def train_dataloader(self) -> Any:
        return _Changed(super().train_dataloader(), self.change)


def trained(
    sets: Path, tokenizer: Any, tmp_path: Path, spec: CausalSpec, *, change: Any = None, **changes: Any
) -> tuple[CausalModel, Any]:
    data = _ChangedData(sets, 192, tokenizer, global_batch_size=8, num_workers=0, **changes)
    if change is not None:
        data.change = change
    model = spec.build(tokenizer)
    settings = TrainConfig(
        output_dir=tmp_path / f"{changes}"[:40], max_steps=STEPS, optimizer="sgd", learning_rate=0.3, grad_clip=0.0
    )
    return model, train(settings, data, model)


def worst(one: CausalModel, other: CausalModel) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.fixture(scope="module")
def unpacked(sets: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CausalModel]:
    models = {}
    for family in ("llama", "gpt2"):
        models[family], result = trained(
            sets, tokenizer, tmp_path_factory.mktemp(family), CausalSpec(family=family), batching="padding"
        )
        assert result.steps == STEPS
        assert result.last_loss < result.first_loss - 1
    return models


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("batching", "mask"),
    [("global_packing", "varlen"), ("global_packing", "block_diagonal"), ("dynamic", "varlen")],
)
def test_parameters_are_those_of_unpacked_training(
    sets: Path, tokenizer: Any, tmp_path: Path, unpacked: Any, family: str, batching: str, mask: str
) -> None:
    spec = CausalSpec(family=family, mask=mask)
    model, _ = trained(sets, tokenizer, tmp_path, spec, batching=batching, tokens_per_microbatch=800)
    assert worst(model, unpacked[family]) < TOLERANCE
    fresh = spec.build(tokenizer)
    assert worst(model, fresh) > 100 * TOLERANCE  # it has moved far from where it began


def leak(batch: Batch) -> Batch:
    """Every second sample sees the last token of the one before it."""
    assert isinstance(batch, PackedBatch)
    offsets = batch.cu_seqlens_padded.clone()
    offsets[1:-1] -= 1
    longest = int(offsets.diff().max())
    return dataclasses.replace(batch, cu_seqlens_padded=offsets, max_seqlen=longest)


def shifted_seam(batch: Batch) -> Batch:
    """The last position of every sample is taught the first token of the next."""
    assert isinstance(batch, PackedBatch)
    labels, weight = batch.labels.clone(), batch.loss_weight.clone()
    ends = batch.cu_seqlens_padded[1:-1].long() - 1
    labels[0, ends] = batch.tokens[0, ends + 1]
    weight[0, ends] = 1.0
    return dataclasses.replace(
        batch, labels=labels, loss_weight=weight, num_loss_tokens=batch.num_loss_tokens + len(ends)
    )


def positions_run_on(batch: Batch) -> Batch:
    """Positions that do not begin anew at the second sample."""
    positions = batch.position_ids.clone()
    first = int(batch.cu_seqlens_padded[1]) if isinstance(batch, PackedBatch) else 0
    positions[0, first:] += 1
    return dataclasses.replace(batch, position_ids=positions)


@pytest.mark.parametrize(
    ("fault", "family"), [(leak, "llama"), (shifted_seam, "llama"), (leak, "gpt2"), (positions_run_on, "gpt2")]
)
def test_a_planted_fault_is_found(
    sets: Path, tokenizer: Any, tmp_path: Path, unpacked: Any, fault: Any, family: str
) -> None:
    spec = CausalSpec(family=family)
    model, _ = trained(sets, tokenizer, tmp_path, spec, batching="global_packing", change=fault)
    assert worst(model, unpacked[family]) > 10 * TOLERANCE


def test_two_ranks_step_as_one(sets: Path, tokenizer: Any) -> None:
    """Gradients of both ranks' batches, over the weights of both, are those of one rank with all of them."""

    def gradients(world_size: int, batching: str) -> list[torch.Tensor]:
        model = CausalSpec().build(tokenizer)
        batches = []
        for rank in range(world_size):
            data = FineTuningDataModule(
                sets, 192, tokenizer, global_batch_size=8, batching=batching,
                data_parallel_rank=rank, data_parallel_size=world_size,
            )  # fmt: skip
            batches += list(next(data.train_dataloader().steps()))
        weight = sum(float(batch.loss_weight.sum()) for batch in batches)
        for batch in batches:
            (model(batch).loss_sum / weight).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    one = gradients(1, "padding")
    for world_size, batching in ((2, "padding"), (4, "global_packing"), (2, "dynamic")):
        for a, b in zip(one, gradients(world_size, batching), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
