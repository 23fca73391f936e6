"""The length index: what it holds is what encoding gives; built by any number of workers, found again, never half."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmpack.epoch import GlobalPlan, build_length_index, load_length_index
from mmpack.epoch.lengths import index_folder
from mmpack.errors import ConfigError, DataError, Reason, SampleError, WorkerError
from mmpack.sample import Conversation, EncodedSample


@dataclass
class Counted:
    """A real data set; counts its reads, and does something at one sample."""

    inner: Any
    reads: int = 0
    at: int = -1
    action: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def __len__(self) -> int:
        return len(self.inner)

    def key(self, index: int) -> str:
        return str(self.inner.key(index))

    def sample(self, index: int) -> Conversation:
        self.reads += 1
        if index == self.at:
            self.action()
        return self.inner.sample(index)  # type: ignore[no-any-return]

    def describe(self) -> str:
        return str(self.inner.describe())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_holds_what_encoding_gives(whole: GlobalPlan[Any], tmp_path: Path, num_workers: int) -> None:
    told: list[tuple[int, int]] = []
    index = build_length_index(
        whole.datasets, whole.encoder, cache=tmp_path, settings={"a": 1}, num_workers=num_workers,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    samples = [whole.encoder.encode(whole.datasets[0].sample(i)) for i in range(340)]  # type: ignore[arg-type]
    assert index.num_tokens.tolist() == [sample.num_tokens for sample in samples]
    assert index.num_tiles.tolist() == [sample.num_tiles for sample in samples]
    assert index.num_images.tolist() == [len(sample.pictures) for sample in samples]
    assert told == [(256, 340), (340, 340)]
    assert isinstance(index.num_tokens, np.memmap)
    assert (len(index), index.num_usable, index.drops.total) == (340, 340, 0)
    assert [path.name for path in tmp_path.iterdir()] == [index.folder.name]  # nothing half made is left


def test_it_is_found_again_and_only_where_it_fits(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    dataset = Counted(whole.datasets[0])
    settings = {"tokenizer": "x", "tiling": "y"}
    first = build_length_index([dataset], whole.encoder, cache=tmp_path, settings=settings)
    assert dataset.reads == 340
    again = build_length_index([dataset], whole.encoder, cache=tmp_path, settings=settings)
    assert dataset.reads == 340
    assert again.num_tokens.tolist() == first.num_tokens.tolist()
    assert load_length_index(tmp_path, [dataset], {**settings, "tiling": "z"}) is None
    build_length_index([dataset], whole.encoder, cache=tmp_path, settings=settings, rebuild=True)
    assert dataset.reads == 680
    assert len(list(tmp_path.iterdir())) == 1


@dataclass
class Half:
    """Another data set: the first half of one."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner) // 2

    def describe(self) -> str:
        return f"half of {self.inner.describe()}"


def test_several_data_sets_lie_one_behind_the_other(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    index = build_length_index([Half(whole.datasets[0]), whole.datasets[0]], whole.encoder, cache=tmp_path, settings={})
    assert index.starts == (0, 170, 510)
    assert index.num_tokens[:170].tolist() == index.num_tokens[170:340].tolist()


def test_what_is_left_out_is_counted_and_what_is_too_long_is_marked(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    class Choosy:
        def encode(self, conversation: Conversation) -> EncodedSample:
            sample: EncodedSample = whole.encoder.encode(conversation)
            if sample.num_tiles > 2:
                raise SampleError(Reason.IMAGE_TOO_LARGE, "too many", key=sample.key)
            return replace(sample, own_pack=sample.num_tokens > 300)

    for num_workers in (0, 2):
        index = build_length_index(
            whole.datasets, Choosy(), cache=tmp_path, settings={"n": num_workers}, num_workers=num_workers
        )
        tokens, tiles = whole.index.num_tokens, whole.index.num_tiles
        expected = np.where(tiles > 2, 0, np.where(tokens > 300, -tokens, tokens))
        assert index.num_tokens.tolist() == expected.tolist()
        assert index.drops.counts() == {Reason.IMAGE_TOO_LARGE: int((tiles > 2).sum())}
        assert len(index.drops.example_keys("energon", Reason.IMAGE_TOO_LARGE)) == 5


def test_nothing_usable_is_an_error(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    class Refusing:
        def encode(self, conversation: Conversation) -> EncodedSample:
            raise SampleError(Reason.NO_ANSWER, "none", key=conversation.key)

    with pytest.raises(ConfigError, match=r"none of the 340 samples of energon is usable \(340 no_answer\)"):
        build_length_index(whole.datasets, Refusing(), cache=tmp_path, settings={})
    assert list(tmp_path.iterdir()) == []


def test_a_dead_worker_is_told_and_leaves_nothing(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    dataset = Counted(whole.datasets[0], at=300, action=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerError, match="a process that measured samples died"):
        build_length_index([dataset], whole.encoder, cache=tmp_path, settings={}, num_workers=2)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_a_worker_arrives_as_what_it_is(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    def fail() -> None:
        raise DataError("shard gone")

    with pytest.raises(DataError, match="shard gone"):
        build_length_index(
            [Counted(whole.datasets[0], at=10, action=fail)], whole.encoder, cache=tmp_path, settings={}, num_workers=1
        )


def test_damage_and_folders_that_cannot_be_written(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    index = build_length_index(whole.datasets, whole.encoder, cache=tmp_path, settings={})
    assert index.folder == index_folder(tmp_path, whole.datasets, {})
    np.save(index.folder / "num_tiles.npy", np.zeros(3, dtype=np.int32))
    with pytest.raises(DataError, match=r"is damaged \(\[340, 3, 340\] entries for 340 samples\); delete the folder"):
        build_length_index(whole.datasets, whole.encoder, cache=tmp_path, settings={})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        build_length_index(whole.datasets, whole.encoder, cache=tmp_path / "file", settings={})


def test_ranks_that_start_together_measure_once(whole: GlobalPlan[Any], tmp_path: Path) -> None:
    counts = [tmp_path / f"rank{rank}" for rank in range(3)]
    context = multiprocessing.get_context("fork")

    def measure(count: Path) -> None:
        dataset = Counted(whole.datasets[0], at=0, action=lambda: count.write_text("measured"))
        build_length_index([dataset], whole.encoder, cache=tmp_path / "lengths", settings={})

    ranks = [context.Process(target=measure, args=(count,)) for count in counts]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert sum(count.exists() for count in counts) == 1
