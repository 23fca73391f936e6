"""Planned epochs on any ranks and workers: the same packs, every sample once, and the rest after a cut is the rest."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack import state as states
from mmpack.epoch import GlobalPlan, GlobalPlanLoader
from mmpack.errors import ConfigError, DataError, Reason, StateError
from tests.conftest import convert_llava, digest
from tests.epoch.conftest import make_plan

SLOW = pytest.mark.slow
Loaders = Callable[..., list[GlobalPlanLoader[Any]]]


def in_step(job: list[GlobalPlanLoader[Any]], num_steps: int | None = None) -> list[Any]:
    """The packs of all ranks in their global order; ranks must have equal steps."""
    ranks = [[batch.check() for batch in itertools.islice(loader, num_steps)] for loader in job]
    # After an epoch that began on other ranks, a rank's place in a step is another one than its number.
    return sorted((batch for rank in ranks for batch in rank), key=lambda batch: int(batch.pack_index))


def real(batches: list[Any]) -> list[str]:
    return [digest(batch) for batch in batches if batch.num_samples]


def keys_of(batches: list[Any]) -> list[str]:
    return [key for batch in batches for key in batch.sample_keys]


@pytest.fixture(scope="module")
def uncut(whole: GlobalPlan[Any]) -> list[str]:
    """The packs of the first epoch."""
    return [digest(batch) for batch in GlobalPlanLoader(whole)]


def test_an_epoch_has_every_sample_once_in_full_packs(whole: GlobalPlan[Any]) -> None:
    loader: GlobalPlanLoader[Any] = GlobalPlanLoader(whole)
    assert len(loader) == loader.plan(0).num_packs
    batches = [batch.check() for batch in loader]
    keys = keys_of(batches)
    assert len(keys) == len(set(keys)) == 340
    assert [batch.pack_index for batch in batches] == list(range(len(batches)))
    tokens = [batch.num_real_tokens for batch in batches]
    assert max(tokens) <= 512
    assert len(tokens) <= 1.05 * sum(tokens) / 512


@pytest.mark.parametrize(
    ("world_size", "num_workers"),
    [(1, 2), (2, 1), (5, 0), pytest.param(3, 0, marks=SLOW), pytest.param(7, 0, marks=SLOW)],
)
def test_the_same_packs_from_every_layout(
    loaders: Loaders, uncut: list[str], world_size: int, num_workers: int
) -> None:
    batches = in_step(loaders(world_size, num_workers))
    assert real(batches) == uncut
    fillers = [batch for batch in batches if not batch.num_samples]
    assert len(fillers) == -len(uncut) % world_size
    assert all(batch.loss_weight.sum() == 0 for batch in fillers)
    assert [batch.pack_index for batch in batches] == list(range(len(batches)))


def resumed(loaders: Loaders, state: dict[str, Any], world_size: int, num_workers: int) -> list[GlobalPlanLoader[Any]]:
    job = loaders(world_size, num_workers)
    for loader in job:
        loader.load_state_dict(state)
    return job


@pytest.mark.parametrize(
    ("saved", "going_on"),
    [
        ((2, 2), (5, 1)),
        ((2, 0), (1, 2)),
        *[pytest.param(*jobs, marks=SLOW) for jobs in (((3, 0), (4, 0)), ((1, 0), (1, 0)), ((2, 0), (2, 0)))],
    ],
)
def test_the_rest_after_a_cut_is_the_rest(
    loaders: Loaders, uncut: list[str], saved: tuple[int, int], going_on: tuple[int, int]
) -> None:
    second_epoch = None
    for steps in (0, 9) if saved == (3, 0) else (4,):
        job = loaders(*saved)
        begun = in_step(job, steps)
        state = states.merge([loader.state_dict() for loader in job])
        rest_of = resumed(loaders, state, *going_on)
        again = states.merge([loader.state_dict() for loader in rest_of])  # a save right after a restore
        assert again["next_pack"] == state["next_pack"] == steps * saved[0]
        rest = in_step(rest_of)
        assert real(begun) + real(rest) == uncut
        following = real(in_step(rest_of))
        second_epoch = second_epoch or following
        assert following == second_epoch
    assert second_epoch != uncut


def test_a_cut_after_the_last_pack_ends_the_epoch(loaders: Loaders) -> None:
    (loader,) = loaders(1)
    for _ in loader:
        last = loader.state_dict()
    second = [digest(batch) for batch in loader]
    (resumed_one,) = resumed(loaders, last, 1, 0)
    assert list(resumed_one) == []
    assert [digest(batch) for batch in resumed_one] == second
    five = resumed(loaders, last, 5, 0)
    assert in_step(five) == []
    assert real(in_step(five)) == second


def test_several_resumes_in_a_row(loaders: Loaders, uncut: list[str]) -> None:
    got: list[str] = []
    state = None
    for world_size in (2, 5, 1, 3, 4):
        job = loaders(world_size)
        for loader in job:
            if state is not None:
                loader.load_state_dict(state)
        got += real(in_step(job, 2))
        state = states.merge([loader.state_dict() for loader in job])
        state = pickle.loads(pickle.dumps(state))
    assert got == uncut[: len(got)]
    assert len(got) == 2 * (2 + 5 + 1 + 3 + 4)


def test_a_loop_that_breaks_goes_on_where_it_stopped(loaders: Loaders, uncut: list[str]) -> None:
    (loader,) = loaders(1, 1)
    got = [digest(batch) for batch in itertools.islice(loader, 4)]
    got += [digest(batch) for batch in loader]
    assert got == uncut


def test_a_state_is_small_and_plain(loaders: Loaders, tmp_path: Path) -> None:
    (loader,) = loaders(1)
    sizes = []
    for batch in loader:
        state = loader.state_dict()
        sizes.append(len(pickle.dumps(state)))
        assert "window" not in batch.stream_state
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    assert max(sizes) < 3000
    assert max(sizes) - min(sizes) < 100


def test_what_a_trainer_has_not_confirmed_comes_again(loaders: Loaders, uncut: list[str]) -> None:
    (loader,) = loaders(1)
    loader.confirming = True
    iterator = iter(loader)
    ahead = [next(iterator) for _ in range(5)]
    loader.confirm(ahead[2])
    (again,) = resumed(loaders, loader.state_dict(), 1, 0)
    assert [digest(batch) for batch in again] == uncut[3:]


def test_other_settings_and_another_mode_are_named(
    energon_dataset: Path, tokenizer: Any, loaders: Loaders, tmp_path: Path
) -> None:
    from tests.conftest import data_module

    state = loaders(1)[0].state_dict()
    other = make_plan(energon_dataset, tokenizer, tmp_path, seed=3, seq_length=300)
    with pytest.raises(
        StateError, match=r"limit\.seq_length: saved 512, now 300 \(shape\); plan\.seed: saved 0, now 3 \(order\)"
    ):
        GlobalPlanLoader(other).load_state_dict(state)
    module = data_module(energon_dataset, tokenizer)
    with pytest.raises(StateError, match="made by the global plan mode, this run uses logical streams"):
        module.load_state_dict(state)
    with pytest.raises(StateError, match="made by logical streams, this run uses the global plan mode"):
        loaders(1)[0].load_state_dict(module.state_dict())
    with pytest.raises(ConfigError, match="rank=2 is not in"):
        GlobalPlanLoader(other, rank=2, world_size=2)


def test_faults_are_counted_and_move_nothing(tokenizer: Any, tmp_path: Path) -> None:
    dataset = convert_llava(tmp_path / "data", 60, split={"train": 1.0})
    plan = make_plan(dataset, tokenizer, tmp_path / "lengths", seq_length=200, oversize="drop")
    dropped = plan.index.drops.counts()
    assert set(dropped) == {Reason.OVERSIZE}
    job = [GlobalPlanLoader(plan, rank=rank, world_size=2) for rank in (0, 1)]
    clean = in_step(job)
    assert len(keys_of(clean)) == 60 - dropped[Reason.OVERSIZE]
    assert (job[0].drops.counts(), job[1].drops.counts()) == (dropped, {})
    # One sample becomes unreadable after it was planned.
    broken = GlobalPlanLoader(plan)
    victim = plan.index.num_tokens.argmax()
    shard, number = plan.datasets[0]._find(int(victim))  # type: ignore[attr-defined]
    begin = int(plan.datasets[0]._offsets[shard][number])  # type: ignore[attr-defined]
    path = plan.datasets[0]._shards[shard]  # type: ignore[attr-defined]
    data = bytearray(path.read_bytes())
    data[begin : begin + 512] = bytes(512)
    path.write_bytes(data)
    damaged = in_step([broken])
    assert len(keys_of(damaged)) == len(keys_of(clean)) - 1
    assert [b.num_tokens for b in damaged] == [b.num_tokens for b in clean if b.num_samples]
    assert broken.drops.counts() == {**dropped, Reason.UNREADABLE: 1}
    second = GlobalPlanLoader(plan, world_size=3)
    second.load_state_dict(broken.state_dict())
    assert second.drops.counts() == {**dropped, Reason.UNREADABLE: 1}


def test_counters_follow_a_change_of_ranks(tokenizer: Any, energon_dataset: Path, tmp_path: Path) -> None:
    plan = make_plan(energon_dataset, tokenizer, tmp_path, seq_length=150, oversize="truncate")
    job = [GlobalPlanLoader(plan, rank=rank, world_size=2) for rank in (0, 1)]
    in_step(job, 6)
    counted = sum(loader.drops.counts()[Reason.TRUNCATED] for loader in job)
    state = states.merge([loader.state_dict() for loader in job])
    three = [GlobalPlanLoader(plan, rank=rank, world_size=3) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(state)
    assert [loader.drops.counts().get(Reason.TRUNCATED, 0) for loader in three] == [counted, 0, 0]
    in_step(three)
    alone = GlobalPlanLoader(plan)
    in_step([alone])
    assert sum(loader.drops.total for loader in three) == alone.drops.total > counted


def test_a_sample_whose_length_changed_is_named(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    import dataclasses

    plan = make_plan(energon_dataset, tokenizer, tmp_path)
    lengths = plan.index.num_tokens.copy()
    lengths[17] += 1
    key = plan.datasets[0].sample(17).key
    stale = dataclasses.replace(plan, index=dataclasses.replace(plan.index, num_tokens=lengths))
    text = rf"sample '{key}' \(.*#17 of 'energon'\) takes {lengths[17] - 1} tokens, in the length index it took"
    for num_workers in (0, 2):
        with pytest.raises(DataError, match=text):
            list(GlobalPlanLoader(stale, num_workers=num_workers))


def test_another_plan_of_the_epoch_is_refused(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    import dataclasses

    plan = make_plan(energon_dataset, tokenizer, tmp_path)
    lengths = plan.index.num_tokens.copy()
    lengths[3] = 0
    other = dataclasses.replace(plan, index=dataclasses.replace(plan.index, num_tokens=lengths))
    loader: GlobalPlanLoader[Any] = GlobalPlanLoader(plan)
    GlobalPlanLoader(other).load_state_dict(loader.state_dict())  # nothing of the epoch was handed out
    next(iter(loader))
    with pytest.raises(StateError, match="epoch 0 is planned otherwise than when the state was saved"):
        GlobalPlanLoader(other).load_state_dict(loader.state_dict())


def test_samples_that_no_pack_can_hold_are_counted(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    plan = make_plan(energon_dataset, tokenizer, tmp_path, max_tiles=2)
    loader: GlobalPlanLoader[Any] = GlobalPlanLoader(plan)
    assert loader.drops.total == 0
    num_large = int((plan.index.num_tiles > 2).sum())
    batches = in_step([loader])
    assert len(keys_of(batches)) == 340 - num_large < 340
    assert max(batch.pixels.shape[0] for batch in batches) <= 2
    assert loader.drops.counts() == {Reason.OVERSIZE: num_large}
    next(iter(loader))
    assert loader.drops.counts() == {Reason.OVERSIZE: 2 * num_large}  # the second epoch leaves them out again


def test_a_blend_is_planned_by_its_weights(tokenizer: Any, tmp_path: Path) -> None:
    import json
    from collections import Counter

    import yaml

    from mmpack.convert import ConvertConfig, convert
    from mmpack.epoch.build import default_cache

    for name, count in (("one", 60), ("two", 20)):
        lines = [json.dumps({"prompt": f"{name} {i}?", "response": "word " * (1 + i % 9)}) for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        convert(ConvertConfig(src=tmp_path / f"{name}.jsonl", dst=tmp_path / name, format="auto"))
    entries = [{"path": "one", "weight": 1}, {"path": "two", "weight": 1}]
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}
    (tmp_path / "blend.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    plan = make_plan(tmp_path / "blend.yaml", tokenizer, default_cache(tmp_path / "blend.yaml"))
    assert plan.index.folder.parent == tmp_path / ".mmpack-lengths"
    assert list(plan.per_epoch) == [40, 40]
    job = [GlobalPlanLoader(plan, rank=rank, world_size=2) for rank in (0, 1)]
    seen = Counter()
    for _ in range(3):
        batches = in_step(job)
        assert Counter(source for batch in batches for source in batch.sources) == {"one": 40, "two": 40}
        seen.update((source, key) for b in batches for source, key in zip(b.sources, b.sample_keys, strict=True))
    assert set(seen.values()) == {2, 6}  # 120 draws of 60 samples, 120 of 20


def test_damaged_and_large_states(loaders: Loaders) -> None:
    (loader,) = loaders(1)
    next(iter(loader))
    state = loader.state_dict()
    counted = state["streams"]["0"]
    for held, words in ((b"junk", "damaged"), ({}, "damaged .KeyError: 'plan'"), ({**counted, "drops": 7}, "damaged")):
        with pytest.raises(StateError, match=words):
            loaders(1)[0].load_state_dict({**state, "streams": {"0": held}})
    with pytest.raises(StateError, match="damaged: next_pack=5000, the epoch has"):
        loaders(1)[0].load_state_dict({**state, "next_pack": 5000})
    # What was counted of very many data sets is compressed when the state is handed out.
    before = loaders(1)[0]
    for number in range(3000):
        before._counted.count(f"set{number}", Reason.UNREADABLE, "key")
    many = before.state_dict()
    assert isinstance(many["streams"]["0"], bytes)
    (after,) = loaders(1)
    after.load_state_dict(many)
    assert after.drops.counts() == {Reason.UNREADABLE: 3000}
