"""Stopped after pack k and resumed in a fresh process: the rest is the same, pixels included, for every k."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.errors import StateError
from tests.conftest import convert_llava, data_module, digest
from tests.loader.resume_process import rest

REPO = Path(__file__).parents[2]
NUM_FOLLOWING = 12


def run_and_save(dataset: Path, tokenizer: Any, num_packs: int | None, **options: Any) -> tuple[list[str], list[Any]]:
    """Digests of the first packs, and the state behind each of them."""
    module = data_module(dataset, tokenizer, **options)
    digests, states = [], []
    for batch in itertools.islice(module.train_dataloader(), num_packs):
        digests.append(digest(batch.check()))
        states.append(module.state_dict())
    return digests, states


def resume(
    dataset: Path, tokenizer: Any, states: list[Any], tmp_path: Path, *, fresh: bool, **options: Any
) -> list[dict[str, Any]]:
    """What a new data module makes of each state, `fresh`: in a new process."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    job = {
        "dataset": str(dataset),
        "tokenizer": str(tmp_path / "tokenizer"),
        "options": options,
        "num_following": NUM_FOLLOWING,
        "states": states,
    }
    if not fresh:
        return [rest(job, state) for state in pickle.loads(pickle.dumps(states))]
    file = tmp_path / "job.pickle"
    file.write_bytes(pickle.dumps(job))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.loader.resume_process", str(file)],
        cwd=REPO, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def assert_resumes(
    dataset: Path,
    tokenizer: Any,
    cuts: list[int],
    tmp_path: Path,
    *,
    num_packs: int | None,
    fresh: bool = False,
    **options: Any,
) -> None:
    digests, states = run_and_save(dataset, tokenizer, num_packs, **options)
    answers = resume(dataset, tokenizer, [states[k - 1] for k in cuts], tmp_path, fresh=fresh, **options)
    for k, answer in zip(cuts, answers, strict=True):
        expected = digests[k : k + NUM_FOLLOWING]
        assert answer["rest"][: len(expected)] == expected, f"cut after pack {k}"
        assert answer["saved_again"][:2] == answer["rest"][:2], f"cut after pack {k}, saved again at once"
        if num_packs is None:
            assert len(answer["rest"]) == len(expected), f"cut after pack {k}: the epoch must end where it ended"


SLOW = pytest.mark.slow


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=SLOW), pytest.param(1, marks=SLOW), 2])
def test_resume_in_a_fresh_process(energon_dataset: Path, tokenizer: Any, tmp_path: Path, num_workers: int) -> None:
    options = {"num_workers": num_workers, "num_streams": 4}
    assert_resumes(energon_dataset, tokenizer, [1, 7, 30], tmp_path, num_packs=42, fresh=True, **options)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=SLOW)])
def test_resume_within_the_end_of_an_epoch(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path, num_workers: int
) -> None:
    digests, _ = run_and_save(energon_dataset, tokenizer, None, repeat=False, num_streams=4)
    last = len(digests)
    cuts = [last - 6, last - 2, last - 1, last]
    assert_resumes(
        energon_dataset, tokenizer, cuts, tmp_path, num_packs=None, repeat=False, num_workers=num_workers, num_streams=4
    )


def test_resume_with_held_plans(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    assert_resumes(
        energon_dataset, tokenizer, [1, 5, 9], tmp_path, num_packs=24, num_streams=2, align_window=4, num_workers=1
    )


def test_the_next_epoch_follows_after_the_last_pack(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, repeat=False, num_streams=4)
    loader = module.train_dataloader()
    first = [batch.sample_keys for batch in loader]
    state = module.state_dict()
    second = [batch.sample_keys for batch in loader]
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second))
    assert first != second
    resumed = data_module(energon_dataset, tokenizer, repeat=False, num_streams=4)
    resumed.load_state_dict(state)
    assert [batch.sample_keys for batch in resumed.train_dataloader()] == second


def test_a_loop_that_breaks_goes_on_where_it_stopped(energon_dataset: Path, tokenizer: Any) -> None:
    expected, _ = run_and_save(energon_dataset, tokenizer, 9, num_streams=4)
    loader = data_module(energon_dataset, tokenizer, num_workers=1, num_streams=4).train_dataloader()
    got = [digest(b) for b in itertools.islice(loader, 4)]
    got += [digest(b) for b in itertools.islice(loader, 5)]
    assert got == expected


def test_restoring_late_reads_no_more_than_restoring_early(
    energon_dataset: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmpack.energon.reader import Source

    _, states = run_and_save(energon_dataset, tokenizer, 300, num_streams=2)
    reads: list[Any] = []
    original = Source.read
    monkeypatch.setattr(Source, "read", lambda self, key: (reads.append(key), original(self, key))[1])
    for k in (3, 300):
        module = data_module(energon_dataset, tokenizer, num_streams=2)
        module.load_state_dict(states[k - 1])
        reads.clear()
        next(iter(module.train_dataloader()))
        stream = states[k - 1]["streams"][str(k % 2)]  # the one that gives the next pack
        held = [*stream["window"], *stream["waiting"]]
        shuffled = [*stream["source"]["buffer"], stream["source"]["ahead"]]
        assert len(held) <= len(reads) <= len(held) + len(shuffled) <= 40 + 10 + 1


@pytest.mark.parametrize(
    ("buffer", "shuffle", "stride"),
    [
        (7, 13, 41),
        (200, 100, 47),
        *[pytest.param(*sizes, 7, marks=SLOW) for sizes in ((1, 100), (7, 100), (7, 1), (7, 13))],
    ],
)
def test_resume_anywhere_in_a_short_epoch(
    energon_dataset: Path, tokenizer: Any, buffer: int, shuffle: int, stride: int
) -> None:
    # Streams shorter than the shuffle buffer are in its drain from the first sample on.
    options = {"repeat": False, "num_streams": 12, "packing_buffer_size": buffer, "shuffle_buffer_size": shuffle}
    module = data_module(energon_dataset, tokenizer, **options)
    loader = module.train_dataloader()
    digests, states = [], []
    for batch in loader:
        digests.append(digest(batch))
        states.append(module.state_dict())
    second_epoch = [batch.sample_keys for batch in itertools.islice(loader, 5)]
    for k in range(1, len(digests) + 1, stride):
        resumed = data_module(energon_dataset, tokenizer, **options)
        resumed.load_state_dict(states[k - 1])
        assert [digest(batch) for batch in resumed.train_dataloader()] == digests[k:], f"cut after pack {k}"
        following = [batch.sample_keys for batch in itertools.islice(resumed.train_dataloader(), 5)]
        assert following == second_epoch, f"the epoch after a cut after pack {k}"


def test_a_state_is_plain_small_and_loads_without_code(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    options = {"num_streams": 1, "packing_buffer_size": 200, "shuffle_buffer_size": 100}
    _, states = run_and_save(energon_dataset, tokenizer, 300, **options)
    sizes = []
    for step in (0, 20, 150, 299):
        torch.save(states[step], tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == states[step]
        sizes.append(max(len(pickle.dumps(stream)) for stream in states[step]["streams"].values()))
    assert max(sizes) <= 24 * 1024
    assert max(sizes) - min(sizes) < 8192
    assert (tmp_path / "state.pt").stat().st_size <= 64 * 1024


@pytest.mark.slow
def test_a_large_state_is_compressed(tokenizer: Any, tmp_path: Path) -> None:
    # 200 samples in the window and as many in 32 plans held back.
    dataset = convert_llava(tmp_path / "data", 2000, split={"train": 1.0})
    options = {"num_streams": 1, "packing_buffer_size": 200, "align_window": 32, "packed_sequence_size": 2048}
    module = data_module(dataset, tokenizer, **options)
    iterator = iter(module.train_dataloader())
    batches = list(itertools.islice(iterator, 3))
    held = batches[-1].stream_state
    assert sum(map(len, held["plans"])) > 150
    assert len(pickle.dumps(held)) > 24 * 1024
    state = module.state_dict()
    assert isinstance(state["streams"]["0"], bytes)
    assert len(state["streams"]["0"]) < 20 * 1024
    torch.save(state, tmp_path / "state.pt")
    resumed = data_module(dataset, tokenizer, **options)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    expected = [digest(batch) for batch in itertools.islice(iterator, 40)]
    assert [digest(batch) for batch in itertools.islice(resumed.train_dataloader(), 40)] == expected


def test_a_changed_setting_is_named(energon_dataset: Path, tokenizer: Any) -> None:
    _, states = run_and_save(energon_dataset, tokenizer, 2, num_streams=2)
    other = data_module(energon_dataset, tokenizer, num_streams=2, packing_buffer_size=30, seed=5)
    with pytest.raises(StateError, match=r"data\.seed: saved 0, now 5.*packing_buffer_size: saved 40, now 30"):
        other.load_state_dict(states[-1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_whose_state_is_damaged_is_named(energon_dataset: Path, tokenizer: Any, num_workers: int) -> None:
    _, saved = run_and_save(energon_dataset, tokenizer, 4, num_streams=2)
    whole = saved[-1]["streams"]["1"]
    for held, told in (
        ({}, "streams.1 lacks 'stream'"),
        ({**whole, "window": None}, r"streams\.1\.window=None"),
        ({**whole, "recent_losses": [["a"]]}, "the state of stream 1 is damaged"),
    ):
        state = {**saved[-1], "streams": {**saved[-1]["streams"], "1": held}}
        module = data_module(energon_dataset, tokenizer, num_streams=2, num_workers=num_workers)

        def go_on(module: Any = module, state: Any = state) -> None:
            module.load_state_dict(state)
            list(itertools.islice(module.train_dataloader(), 2))

        with pytest.raises(StateError, match=told):
            go_on()
