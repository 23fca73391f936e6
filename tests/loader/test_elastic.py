"""A run that comes back on other ranks and workers goes on with the same packs, within an epoch or behind it."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import yaml

from mmpack.convert import ConvertConfig, convert
from mmpack.errors import ConfigError, StateError
from mmpack.loader import PackLoader
from mmpack.state import DistributedState
from tests.conftest import data_module
from tests.distributed.launch import torchrun
from tests.loader.jobs import named, start_job
from tests.loader.test_equal import Meeting

SLOW = pytest.mark.slow
GRID = [(ranks, workers) for ranks in (1, 2) for workers in (0, 1, 2)]
FIRST = 50  # packs at each of which the grid is cut
FOLLOWING = 12


@pytest.fixture(scope="module")
def uncut(energon_dataset: Path, tokenizer: Any) -> tuple[list[Any], dict[int, Any]]:
    """The first packs of an uncut run, and its state behind each."""
    job = start_job(energon_dataset, tokenizer, num_streams=4)
    batches, states = [], {0: job.save()}
    for batch in itertools.islice(job.ranks[0].train_dataloader(), FIRST + FOLLOWING):
        batches.append(batch)
        states[len(batches)] = job.save()
    return named(batches), states


def assert_goes_on(
    cuts: list[int], ranks: int, workers: int, uncut: tuple[list[Any], dict[int, Any]], dataset: Path, tokenizer: Any
) -> None:
    expected, states = uncut
    job = start_job(dataset, tokenizer, ranks, workers, num_streams=4)
    stopped = 0
    for cut in [c - c % ranks for c in cuts]:
        # The job itself comes to the cut, is saved there, and another one goes on.
        assert named(job.take((cut - stopped) // ranks)) == expected[stopped:cut]
        stopped = cut
        saved = job.save()
        assert saved["streams"] == states[cut]["streams"], f"cut behind pack {cut}"
        other = start_job(dataset, tokenizer, ranks, workers, num_streams=4).load(saved)
        assert other.save() == saved
        assert named(other.take(FOLLOWING // ranks)) == expected[cut : cut + FOLLOWING], f"cut behind pack {cut}"
        # Equal states go on equally, so the whole rest is the same.
        assert other.save()["streams"] == states[cut + FOLLOWING]["streams"], f"cut behind pack {cut}"


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 0), (2, 2)])
def test_the_rest_is_the_same_after_a_cut(
    uncut: tuple[list[Any], dict[int, Any]], energon_dataset: Path, tokenizer: Any, ranks: int, workers: int
) -> None:
    assert_goes_on([2, 47] if workers else [1, 12, 23, 34, 45], ranks, workers, uncut, energon_dataset, tokenizer)


@SLOW
@pytest.mark.parametrize(("ranks", "workers"), GRID)
def test_the_rest_is_the_same_after_every_cut(
    uncut: tuple[list[Any], dict[int, Any]], energon_dataset: Path, tokenizer: Any, ranks: int, workers: int
) -> None:
    assert_goes_on(list(range(1, FIRST + 1)), ranks, workers, uncut, energon_dataset, tokenizer)


@pytest.mark.parametrize(
    "going_on",
    [(1, 4), (3, 1), pytest.param((4, 1), marks=SLOW), pytest.param((1, 1), marks=SLOW),
     pytest.param((6, 2), marks=SLOW), pytest.param((12, 0), marks=SLOW)],
)  # fmt: skip
def test_other_ranks_and_workers_give_the_same_order(
    energon_dataset: Path, tokenizer: Any, going_on: tuple[int, int]
) -> None:
    options: dict[str, Any] = {"num_streams": 12, "repeat": False}
    expected = named(start_job(energon_dataset, tokenizer, **options).take(None))
    job = start_job(energon_dataset, tokenizer, 2, 2, **options)
    assert named(job.take(7)) == expected[:14]
    other = start_job(energon_dataset, tokenizer, *going_on, **options).load(job.save())
    assert named(other.take(None)) == expected[14:]  # the epoch ends where it ended
    # Behind it the numbers begin anew, with the packs that the uncut run has in its second epoch.
    uncut = start_job(energon_dataset, tokenizer, **options)
    uncut.take(None)
    second = named(uncut.take(None))
    steps = 24 // going_on[0]
    assert named(other.take(steps)) == second[: steps * going_on[0]]
    # and a job that is saved there and comes back on yet other ranks has them too.
    third = start_job(energon_dataset, tokenizer, 4, 0, **options).load(other.save())
    begun = steps * going_on[0]
    assert named(third.take(3)) == second[begun : begun + 12]


def test_sizes_that_do_not_divide_name_those_that_do_and_the_other_mode(energon_dataset: Path, tokenizer: Any) -> None:
    text = r"world_size=5 does not divide num_streams=12.*work: 1, 2, 3, 4, 6, 12.*global plan"
    with pytest.raises(ConfigError, match=text):
        data_module(energon_dataset, tokenizer, data_parallel_size=5, data_parallel_rank=0, num_streams=12)


def test_a_rank_needs_the_states_of_all(energon_dataset: Path, tokenizer: Any) -> None:
    job = start_job(energon_dataset, tokenizer, 2, 0, num_streams=4)
    job.take(1)
    other = start_job(energon_dataset, tokenizer, 1, 0, num_streams=4)
    with pytest.raises(StateError, match=r"no position for streams \[1, 3\]; merge the states of all ranks"):
        other.load(job.ranks[0].state_dict())


@pytest.fixture(scope="module")
def metadatasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A weighted blend, an epochized blend, and a subset."""
    folder = tmp_path_factory.mktemp("meta")
    for name in ("one", "two"):
        records = [{"prompt": f"{name} {i}?", "response": "word " * (1 + i * 7 % 40)} for i in range(120)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
        convert(ConvertConfig(src=folder / f"{name}.jsonl", dst=folder / name, format="auto"))
    splits = {
        "blend": {"blend": [{"path": "one", "weight": 3}, {"path": "two", "weight": 1}]},
        "epochized": {"blend_epochized": [{"path": "one", "repetitions": 1}, {"path": "two", "repetitions": 2}]},
        "subset": {"path": "one", "subset": {"range": ["20%", "90%"]}},
    }
    for name, split in splits.items():
        content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return {name: folder / f"{name}.yaml" for name in splits}


@pytest.mark.parametrize("name", ["blend", pytest.param("epochized", marks=SLOW), "subset"])
def test_metadatasets_over_several_epochs(metadatasets: dict[str, Path], tokenizer: Any, name: str) -> None:
    options: dict[str, Any] = {"num_streams": 6, "packing_buffer_size": 10}
    expected = named(start_job(metadatasets[name], tokenizer, **options).take(154))
    state, got = None, []
    # 154 packs are more than an epoch of each; every job is another.
    for ranks, workers, steps in ((2, 1, 20), (3, 0, 15), (1, 2, 31), (6, 0, 5), (2, 0, 4)):
        job = start_job(metadatasets[name], tokenizer, ranks, workers, **options)
        if state is not None:
            job.load(state)
        got += named(job.take(steps))
        state = job.save()
    assert got == expected


def test_a_state_of_another_dataset_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {i} word"}}\n' for i in range(40)))
        convert(ConvertConfig(src=tmp_path / f"{name}.jsonl", dst=tmp_path / name, format="auto"))
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"path": "one"}}}
    (tmp_path / "meta.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    saved = {name: start_job(tmp_path / name, tokenizer, num_streams=2).save() for name in ("one", "meta.yaml")}
    with pytest.raises(StateError, match=r"data\.index: saved '\w+', now '\w+' \(data\)"):
        start_job(tmp_path / "two", tokenizer, num_streams=2).load(saved["one"])
    start_job(tmp_path / "meta.yaml", tokenizer, num_streams=2).load(saved["meta.yaml"])
    # The same YAML, but what it names is another dataset now.
    (tmp_path / "one").rename(tmp_path / "before")
    (tmp_path / "two").rename(tmp_path / "one")
    with pytest.raises(StateError, match=r"data\.index: saved"):
        start_job(tmp_path / "meta.yaml", tokenizer, num_streams=2).load(saved["meta.yaml"])


def validate(modules: list[Any], num_passes: int) -> list[list[list[Any]]]:
    """rank -> pass -> batches, every rank in a thread of its own."""
    meeting = Meeting(len(modules))
    given: list[list[list[Any]]] = [[] for _ in modules]

    def run(rank: int, module: Any) -> None:
        loader: PackLoader[Any] = PackLoader(
            module.factory("val"), rank=rank, world_size=len(modules), restart=True, exchange=meeting.of(rank)
        )
        for _ in range(num_passes):
            given[rank].append(list(loader))

    threads = [threading.Thread(target=run, args=item) for item in enumerate(modules)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_validation_is_each_sample_once_the_same_every_time_in_equal_steps(
    energon_dataset: Path, tokenizer: Any, ranks: int
) -> None:
    passes = validate(start_job(energon_dataset, tokenizer, ranks, num_streams=12).ranks, 2)
    assert len({len(batches) for of_rank in passes for batches in of_rank}) == 1
    keys = [key for of_rank in passes for batch in of_rank[0] for key in batch.sample_keys]
    assert len(keys) == len(set(keys)) == 60
    for first, second in passes:
        assert named(first) == named(second)


def dcp_steps(jobs: list[tuple[int, int]], dataset: Path, tokenizer: Any, folder: Path) -> tuple[list[Any], Path]:
    """What jobs of so many gloo processes and steps take, each from the checkpoint of the one before; the last one."""
    tokenizer.save_pretrained(folder / "tokenizer")
    got: list[Any] = []
    load = ""
    for number, (ranks, steps) in enumerate(jobs):
        save = str(folder / f"checkpoint{number}")
        job = {"dataset": str(dataset), "tokenizer": str(folder / "tokenizer"), "steps": steps}
        results = torchrun("../loader/dcp_process.py", ranks, json.dumps({**job, "load": load, "save": save}))
        got += sorted((index, told) for result in results for index, told in result["taken"])
        load = save
    return got, Path(load)


def test_a_distributed_checkpoint_of_two_processes_loads_in_one(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    got, checkpoint = dcp_steps([(2, 3)], energon_dataset, tokenizer, tmp_path)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        for number in range(2):  # what it saves again is loaded as well
            module = data_module(energon_dataset, tokenizer, num_streams=4)
            dcp.load({"data": DistributedState(module)}, checkpoint_id=checkpoint)
            checkpoint = tmp_path / f"again{number}"
            dcp.save({"data": DistributedState(module)}, checkpoint_id=checkpoint)
    finally:
        dist.destroy_process_group()
    got += named(list(itertools.islice(module.train_dataloader(), 4)))
    assert got == named(start_job(energon_dataset, tokenizer, num_streams=4).take(10))


@SLOW
def test_distributed_checkpoints_on_changing_ranks(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    got, _ = dcp_steps([(2, 3), (1, 4), (2, 2), (4, 1)], energon_dataset, tokenizer, tmp_path)
    assert got == named(start_job(energon_dataset, tokenizer, num_streams=4).take(18))
