"""Equal numbers of steps on every rank of an epoch, whatever the streams hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.collate import Collator
from mmpack.layout import Layout
from mmpack.loader import PackLoader
from mmpack.loader.equal import EqualSteps, sure_turns
from mmpack.stream import PackStream, StreamConfig
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec
from tests.stream.test_packs import NoText, Ready


class Factory:
    """Streams over ready samples: stream l has the lengths ``streams[l]``."""

    settings: dict[str, Any] = {}  # noqa: RUF012
    versions: dict[str, str] = {}  # noqa: RUF012
    max_batch_bytes = 10_000
    endless = False

    def __init__(self, streams: list[list[int]]) -> None:
        self.streams, self.num_streams = streams, len(streams)
        self.collator = Collator(tiling=make_tiling("single", tile_spec()), layout=Layout(sequence_multiple=2))

    def filler(self, pack_index: int) -> Any:
        return self.collator.filler(pack_index=pack_index)

    def __call__(self, stream: int) -> PackStream[Any]:
        lengths = self.streams[stream]
        return PackStream(
            StreamConfig(capacity=16, packing_buffer_size=4),
            lambda *, stream, num_streams, on_fault: Ready(lengths, stream=0, num_streams=1, on_fault=on_fault),
            NoText(),
            self.collator,
            stream=stream,
            num_streams=self.num_streams,
        )


class Meeting:
    """An exchange between threads that each are a rank."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=30)
        self.numbers = [0] * num_ranks

    def of(self, rank: int) -> Any:
        def largest(number: int) -> int:
            self.numbers[rank] = number
            self.barrier.wait()
            most = max(self.numbers)
            self.barrier.wait()
            return most

        return largest


def epochs(factory: Factory, num_ranks: int, num_epochs: int) -> list[list[list[Any]]]:
    """rank -> epoch -> batches, each rank in a thread of its own."""
    meeting = Meeting(num_ranks)
    given_by: list[list[list[Any]]] = [[] for _ in range(num_ranks)]
    faults: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            loader = PackLoader(factory, rank=rank, world_size=num_ranks, exchange=meeting.of(rank))
            for _ in range(num_epochs):
                given_by[rank].append(list(loader))
        except BaseException as error:
            faults.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    return given_by


def check_epoch(factory: Factory, of_ranks: list[list[Any]]) -> None:
    assert len({len(batches) for batches in of_ranks}) == 1  # equal steps
    for step in zip(*of_ranks, strict=True):
        assert any(batch.num_samples for batch in step), "a step of fillers only"
    for batches in of_ranks:
        for batch in batches:
            batch.check()
            if not batch.num_samples:
                assert float(batch.loss_weight.sum()) == 0
    seen = sorted(
        (batch.pack_index % factory.num_streams, int(key))
        for batches in of_ranks
        for batch in batches
        for key in batch.sample_keys
    )
    wanted = [(s, i) for s, lengths in enumerate(factory.streams) for i, length in enumerate(lengths) if length]
    assert seen == sorted(wanted)  # every usable sample once


STREAMS = st.lists(st.lists(st.integers(0, 16), max_size=30), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(per_rank=STREAMS, data=st.data(), num_ranks=st.integers(2, 4))
def test_every_epoch_has_equal_steps(per_rank: Any, data: st.DataObject, num_ranks: int) -> None:
    streams = [data.draw(st.lists(st.integers(0, 16), max_size=30)) for _ in range(len(per_rank) * num_ranks)]
    if not any(any(lengths) for lengths in streams):
        streams[0] = [3]
    factory = Factory(streams)
    of_ranks = epochs(factory, num_ranks, 3)
    for epoch in range(3):
        check_epoch(factory, [batches[epoch] for batches in of_ranks])
    keys = [[[b.sample_keys for b in batches] for batches in one] for one in of_ranks]
    assert all(one[0] == one[1] == one[2] for one in keys)  # a stream without a shuffle gives the same every epoch


def test_fewer_samples_than_ranks() -> None:
    factory = Factory([[5], [], [], []])
    of_ranks = epochs(factory, 4, 1)
    check_epoch(factory, [batches[0] for batches in of_ranks])
    assert [len(batches[0]) for batches in of_ranks] == [1, 1, 1, 1]


def test_exchanges_are_few_before_the_drain() -> None:
    factory = Factory([[4] * 4000, [4] * 4000])
    meeting = Meeting(2)
    counts = [0, 0]

    def run(rank: int) -> None:
        largest = meeting.of(rank)

        def counting(number: int) -> int:
            counts[rank] += 1
            return largest(number)

        steps = sum(1 for _ in PackLoader(factory, rank=rank, world_size=2, exchange=counting))
        assert steps == 1000

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts[0] == counts[1] < 20


def test_no_exchange_alone_or_without_an_end() -> None:
    def never(number: int) -> int:
        raise AssertionError("nobody to exchange with")

    factory = Factory([[4] * 10])
    assert sum(batch.num_samples for batch in PackLoader(factory, exchange=never)) == 10
    factory.endless = True
    assert PackLoader(Factory([[4], [4]]), world_size=2, exchange=never).exchange is never
    endless = Factory([[4], [4]])
    endless.endless = True
    assert PackLoader(endless, world_size=2, exchange=never).exchange is None


def test_what_is_sure() -> None:
    state = {"round": 10, "emitted": 40, "left": 400, "exhausted": False}
    assert sure_turns([state, state], 2) == 100
    assert sure_turns([state, None], 2) == 1
    assert sure_turns([state, {**state, "exhausted": True}], 2) == 1
    asked: Iterator[int] = iter([3, 1, 0])
    equal = EqualSteps(lambda number: next(asked))
    assert [equal.any_pack(turn, 1) for turn in range(5)] == [True, True, True, True, False]


@pytest.mark.parametrize("total", [None, 32])
def test_a_filler_is_a_batch_of_weight_zero(total: int | None) -> None:
    layout = Layout(sequence_multiple=4, total_multiple=8, fixed_total=total)
    filler = Collator(tiling=make_tiling("single", tile_spec()), layout=layout).filler(pack_index=7).check()
    assert filler.num_tokens == (total or 8)
    assert (filler.num_samples, filler.num_loss_tokens, filler.pack_index) == (0, 0, 7)
