"""Mock and lazy modules stopped after every step go on with the same packs, in any layout of workers and ranks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack import state as states
from tests.datamodules.helpers import batches, digest, files, lazy, mock

NUM_STEPS = 20
NUM_FOLLOWING = 8
KINDS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"packed_sequence": True},
    "window": {"packed_sequence": True, "packing_buffer_size": 12},
    "held": {"packed_sequence": True, "packing_buffer_size": 12, "align_window": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    files(folder, {"first": 40, "second": 25})
    (folder / "images" / "first-00003_0.png").unlink(missing_ok=True)  # one fault, somewhere
    return folder


def run(module: Any, count: int | None) -> tuple[list[str], list[bytes]]:
    """Digests of the first batches, and the state behind each."""
    digests, saved = [], [pickle.dumps(module.state_dict())]
    for batch in itertools.islice(module.train_dataloader(), count):
        digests.append(digest(batch))
        saved.append(pickle.dumps(module.state_dict()))
    return digests, saved


def check(make: Callable[..., Any], *, num_workers: int) -> None:
    expected, saved = run(make(num_workers=num_workers), NUM_STEPS + NUM_FOLLOWING)
    assert len(set(expected)) > NUM_STEPS
    for step in range(NUM_STEPS + 1):
        module = make(num_workers=num_workers)
        module.load_state_dict(pickle.loads(saved[step]))
        assert pickle.loads(saved[step]) == module.state_dict()
        following = NUM_FOLLOWING if num_workers == 0 else 3
        got = [digest(batch) for batch in batches(module, following)]
        assert got == expected[step : step + following], f"stopped after step {step}"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_mock(kind: str, num_workers: int) -> None:
    check(lambda **more: mock(num_train_samples=50, **KINDS[kind], **more), num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_lazy(folder: Path, tokenizer: Any, kind: str, num_workers: int) -> None:
    paths = [folder / "first.json", folder / "second.json"]
    check(lambda **more: lazy(paths, tokenizer, folder / "images", **KINDS[kind], **more), num_workers=num_workers)


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_blends(folder: Path, tokenizer: Any, unit: str) -> None:
    paths = [folder / "first.json", folder / "second.json"]
    options = {"weights": [1, 3], "blend_by": unit, **KINDS["window"]}
    check(lambda **more: lazy(paths, tokenizer, folder / "images", **options, **more), num_workers=0)


@pytest.mark.parametrize("kind", ["padded", "window"])
def test_the_end_of_an_epoch_is_where_it_was(folder: Path, tokenizer: Any, kind: str) -> None:
    def make() -> Any:
        return lazy(folder / "first.json", tokenizer, folder / "images", repeat=False, **KINDS[kind])

    module = make()
    expected, saved = run(module, None)
    second_epoch = [digest(batch) for batch in module.train_dataloader()]
    for step in (0, len(expected) - 3, len(expected) - 1):
        again = make()
        again.load_state_dict(pickle.loads(saved[step]))
        assert [digest(batch) for batch in again.train_dataloader()] == expected[step:]
        assert [digest(batch) for batch in again.train_dataloader()] == second_epoch


@pytest.mark.parametrize("kind", ["packed", "window"])
def test_another_number_of_ranks_goes_on(folder: Path, tokenizer: Any, kind: str) -> None:
    def make(rank: int, size: int) -> Any:
        place = {"data_parallel_rank": rank, "data_parallel_size": size, "global_batch_size": 12}
        return lazy(folder / "first.json", tokenizer, folder / "images", **place, **KINDS[kind])

    expected, _ = run(make(0, 1), 16)
    two = [make(rank, 2) for rank in range(2)]
    for module in two:
        batches(module, 3)
    merged = states.merge([module.state_dict() for module in two])
    for size in (1, 4):
        modules = [make(rank, size) for rank in range(size)]
        for module in modules:
            module.load_state_dict(merged)
        parts = [batches(module, 8 // size) for module in modules]
        assert [digest(b) for turn in zip(*parts, strict=True) for b in turn] == expected[6:14]


def test_a_state_is_small_and_plain(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    module = mock(num_train_samples=10_000_000, num_streams=4)
    batches(module, 30)
    path = tmp_path / "state.pt"
    torch.save(module.state_dict(), path)
    assert torch.load(path, weights_only=True) == module.state_dict()
    assert len(pickle.dumps(module.state_dict())) < 4000


def test_a_picture_that_is_gone_at_resume_keeps_its_place(tokenizer: Any, tmp_path: Path) -> None:
    files(tmp_path, {"a": 30})

    def make() -> Any:
        return lazy(
            tmp_path / "a.json",
            tokenizer,
            tmp_path / "images",
            num_streams=1,
            repeat=False,
            seq_length=200,
            **KINDS["window"],
        )

    expected, saved = run(make(), None)
    state = pickle.loads(saved[2])
    held = [key for _, _, key, *_ in state["streams"]["0"]["window"]]
    gone = sorted(path for key in held for path in (tmp_path / "images").glob(f"a-{int(key):05d}_*"))
    gone[0].unlink()
    module = make()
    module.load_state_dict(state)
    got = batches(module)
    same = [a == b for a, b in zip([digest(b) for b in got], expected[2:], strict=True)]
    assert same.count(False) == 1  # the pack that has the lost sample, and no other
    assert module.train_dataloader().drops.counts()["image_missing"] == 1
