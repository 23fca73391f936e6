"""Real ranks under torchrun: equal steps, every sample once an epoch, and the balance that the simulation predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.loader import PackLoader
from mmpack.stats import attention_cost, balance
from tests.conftest import convert_llava, data_module
from tests.distributed.launch import torchrun

NUM_RANKS = 4


Results = dict[str, list[dict[str, Any]]]  # job -> what each rank gave


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, energon_dataset: Path) -> dict[str, Path]:
    """43 samples make streams of uneven sizes, 5 are fewer than the streams have ends."""
    made = {
        f"of_{size}": convert_llava(tmp_path_factory.mktemp(f"of_{size}"), size, split={"train": 1.0})
        for size in (43, 5)
    }
    return {**made, "large": energon_dataset}


@pytest.fixture(scope="module")
def results(datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Results:
    """All jobs in one start of the ranks, which takes longer than they do."""
    tokenizer.save_pretrained(folder := tmp_path_factory.mktemp("tokenizer"))
    jobs: dict[str, dict[str, Any]] = {
        "here": {"path": str(datasets["of_43"]), "epochs": 3, "num_workers": 0},
        "worker": {"path": str(datasets["of_43"]), "epochs": 2, "num_workers": 1},
        "few": {"path": str(datasets["of_5"]), "epochs": 2, "num_workers": 0},
        "align_1": {"path": str(datasets["large"]), "epochs": 1, "align_window": 1},
        "align_8": {"path": str(datasets["large"]), "epochs": 1, "align_window": 8},
    }
    ranks = torchrun("epochs.py", NUM_RANKS, folder, json.dumps(jobs))
    return {name: [rank[name] for rank in ranks] for name in jobs}


def keys_of(dataset: Path, tokenizer: Any) -> list[str]:
    alone = data_module(dataset, tokenizer, repeat=False, num_streams=1)
    return sorted(key for batch in alone.train_dataloader() for key in batch.sample_keys)


@pytest.mark.parametrize(("job", "dataset"), [("here", "of_43"), ("worker", "of_43"), ("few", "of_5")])
def test_equal_steps_and_every_sample_once_an_epoch(
    results: Results, datasets: dict[str, Path], tokenizer: Any, job: str, dataset: str
) -> None:
    ranks, wanted = results[job], keys_of(datasets[dataset], tokenizer)
    for epoch in range(len(ranks[0]["epochs"])):
        steps = [rank["epochs"][epoch] for rank in ranks]
        assert len({len(of_rank) for of_rank in steps}) == 1
        assert sorted(key for of_rank in steps for step in of_rank for key in step["keys"]) == wanted
        for step in zip(*steps, strict=True):
            assert any(of_rank["keys"] for of_rank in step)
    # also on a rank that has no picture in its pack, or no pack at all
    assert len({step["num_trained"] for rank in ranks for epoch in rank["epochs"] for step in epoch}) == 1
    assert len({rank["checksum"] for rank in ranks}) == 1  # the ranks' models did not part


def test_costs_of_real_ranks_are_those_of_the_simulation(
    results: Results, datasets: dict[str, Path], tokenizer: Any
) -> None:
    """Costs from the offsets that 4 processes emitted, with and without aligned plans."""
    measured = {}
    for align_window in (1, 8):
        ranks = results[f"align_{align_window}"]
        costs = [[attention_cost(step["lengths"]) for step in rank["epochs"][0]] for rank in ranks]
        module = data_module(datasets["large"], tokenizer, repeat=False, num_streams=4, align_window=align_window)
        factory = module.factory("train", training=True)
        alone = [PackLoader(factory, rank=rank, world_size=NUM_RANKS) for rank in range(NUM_RANKS)]
        simulated = [[attention_cost(batch.cu_seqlens_padded.diff().tolist()) for batch in loader] for loader in alone]
        for real, expected in zip(costs, simulated, strict=True):
            assert [cost for cost in real if cost] == expected
        whole = min(map(len, simulated)) // 8 * 8 - 8  # without the drain
        measured[align_window] = balance(list(zip(*(of_rank[:whole] for of_rank in costs), strict=True)))
    assert measured[8] < measured[1]
