"""Drawing by number: every sample once an epoch from any number of streams, and a state of two numbers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError, StateError
from mmpack.indexed import IndexedSource, Part
from mmpack.sample import Conversation, Role, Turn


@dataclass(frozen=True)
class Numbers:
    """Conversations that say their number; number 13 is broken."""

    name: str
    size: int

    def __len__(self) -> int:
        return self.size

    def key(self, index: int) -> str:
        return f"{index:03d}"

    def sample(self, index: int) -> Conversation:
        if index == 13:
            raise SampleError(Reason.BROKEN_JSON, "broken", key=self.key(index))
        turns = (Turn(role=Role.ASSISTANT, parts=(str(index),)),)
        return Conversation(key=self.key(index), turns=turns, source=self.name)

    def describe(self) -> str:
        return f"numbers {self.size}"


def drawn(source: IndexedSource, count: int | None = None) -> list[tuple[str, str]]:
    return [(d.source, d.key) for d in itertools.islice(source, count)]


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3).filter(any),
    num_streams=st.integers(1, 7),
    shuffle=st.booleans(),
)
def test_the_streams_together_give_every_sample_once_an_epoch(
    sizes: list[int], num_streams: int, shuffle: bool
) -> None:
    datasets = [Numbers(f"d{i}", size) for i, size in enumerate(sizes)]
    everything = sorted((d.name, d.key(i)) for d in datasets for i in range(len(d)))
    sources = [
        IndexedSource(datasets, stream=s, num_streams=num_streams, seed=5, shuffle=shuffle, repeat=False)
        for s in range(num_streams)
    ]
    epochs = []
    for _ in range(2):
        parts = [drawn(source) for source in sources]
        assert [len(part) for part in parts] == [source.num_samples for source in sources]
        epochs.append([pair for turn in itertools.zip_longest(*parts) for pair in turn if pair is not None])
        assert sorted(epochs[-1]) == everything
    endless = [
        IndexedSource(datasets, stream=s, num_streams=num_streams, seed=5, shuffle=shuffle) for s in range(num_streams)
    ]
    turns = -(-2 * len(everything) // num_streams)
    parts = [drawn(source, turns) for source in endless]
    both = [pair for turn in zip(*parts, strict=True) for pair in turn][: 2 * len(everything)]
    assert both == epochs[0] + epochs[1]  # the same order, whether it repeats by itself or not
    if not shuffle:
        assert epochs[0] == everything


def test_twelve_draws_from_five_samples() -> None:
    """NeMo's mapping shuffles what is left of several epochs together: [2, 1, 4, 0, 3, 1, 0, 3, 4, 1, 0, 2]."""
    in_order = [
        int(key) for _, key in drawn(IndexedSource(Numbers("d", 5), stream=0, num_streams=1, shuffle=False), 12)
    ]
    assert in_order == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    shuffled = [int(key) for _, key in drawn(IndexedSource(Numbers("d", 5), stream=0, num_streams=1, seed=1), 12)]
    assert sorted(shuffled[:5]) == sorted(shuffled[5:10]) == [0, 1, 2, 3, 4]
    assert len(set(shuffled[10:])) == 2
    assert shuffled[:5] != shuffled[5:10]


@given(count=st.integers(0, 60), repeat=st.booleans(), num_streams=st.integers(1, 4))
def test_a_state_is_gone_on_from(count: int, repeat: bool, num_streams: int) -> None:
    def fresh() -> IndexedSource:
        return IndexedSource(Numbers("d", 17), stream=0, num_streams=num_streams, seed=2, repeat=repeat)

    first = fresh()
    reading = iter(first)
    for _ in range(count):
        if next(reading, None) is None:
            reading = iter(first)
    state = first.state()
    assert set(state) == {"epoch", "num_drawn"}
    second = fresh()
    second.restore(state)
    rest = list(itertools.islice(reading, 30))
    if rest or repeat:
        again = list(itertools.islice(second, 30))
        assert [d.key for d in rest] == [d.key for d in again]
        for d in again:
            if not isinstance(d.sample, SampleError):
                assert second.read(d.place).key == d.key


def test_a_fault_is_drawn_as_one() -> None:
    source = IndexedSource(Numbers("d", 20), stream=0, num_streams=1, shuffle=False)
    faults = [d for d in itertools.islice(source, 20) if isinstance(d.sample, SampleError)]
    assert [(d.key, d.place, d.sample.reason) for d in faults] == [("013", 13, Reason.BROKEN_JSON)]


def test_a_part_is_a_fixed_share() -> None:
    whole = Numbers("d", 40)
    parts = [Part(whole, start, stop, 3) for start, stop in ((0, 30), (30, 36), (36, 40))]
    keys = [[part.key(i) for i in range(len(part))] for part in parts]
    assert sorted(itertools.chain(*keys)) == [whole.key(i) for i in range(40)]
    assert keys[0] != sorted(keys[0])
    assert len({part.describe() for part in parts}) == 3


def test_what_cannot_be_drawn_from() -> None:
    with pytest.raises(ConfigError, match="no samples"):
        IndexedSource(Numbers("d", 0), stream=0, num_streams=1)
    with pytest.raises(ConfigError, match="two of the same name"):
        IndexedSource([Numbers("d", 1), Numbers("d", 2)], stream=0, num_streams=1)
    with pytest.raises(StateError, match="is not one of 'd'"):
        IndexedSource(Numbers("d", 1), stream=0, num_streams=1).restore({"reader": 3})
