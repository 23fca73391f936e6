"""A stream of packs over any source: selections, samples with packs of their own, and the state behind every pack."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mmpack.collate import Collator, PaddedCollator
from mmpack.errors import ConfigError, Reason, SampleError, StateError
from mmpack.layout import Layout
from mmpack.sample import Conversation, EncodedSample
from mmpack.stream import Drawn, DynamicBatching, FaultHandler, LengthBuckets, PackStream, StreamConfig
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec

CAPACITY = 16


class Ready:
    """Samples of given lengths, ready to be packed: a real source, held in memory. Length 0 is a faulty sample."""

    name = "ready"

    def __init__(self, lengths: list[int], *, stream: int, num_streams: int, on_fault: FaultHandler) -> None:
        self.own = list(range(len(lengths)))[stream::num_streams]
        self.lengths, self.at = lengths, 0
        self.num_samples = len(self.own)

    def __iter__(self) -> Iterator[Drawn]:
        while self.at < len(self.own):
            index = self.own[self.at]
            self.at += 1
            sample: EncodedSample | SampleError
            try:
                sample = self.read(index)
            except SampleError as error:
                sample = error
            yield Drawn(place=index, key=str(index), source="ready", sample=sample)
        self.at = 0

    def read(self, place: int) -> EncodedSample:
        length = self.lengths[place]
        if not length:
            raise SampleError(Reason.WRONG_TYPE, "a fault")
        return EncodedSample(
            key=str(place),
            source="ready",
            token_ids_n=np.full(length, place + 1),
            trained_n=np.ones(length, dtype=np.bool_),
            pictures=(),
            num_tokens=length,
            own_pack=length > CAPACITY,
            changed=Reason.TRUNCATED if length == 7 else None,
        )

    def state(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class NoText:
    def encode(self, conversation: Conversation) -> EncodedSample:
        raise AssertionError("there is no text to encode")


LENGTHS = [9, 3, 40, 5, 7, 0, 2, 11, 17, 4, 6, 6, 8, 16, 1, 5, 33, 2]


def stream(config: StreamConfig, lengths: list[int] = LENGTHS, collator: Any = None) -> PackStream[Any]:
    tiling = make_tiling("single", tile_spec())
    return PackStream(
        config,
        lambda *, stream, num_streams, on_fault: Ready(
            lengths, stream=stream, num_streams=num_streams, on_fault=on_fault
        ),
        NoText(),
        collator or Collator(tiling=tiling, layout=Layout()),
        stream=0,
        num_streams=1,
    )


WINDOW = StreamConfig(capacity=CAPACITY, packing_buffer_size=6)
ALIGNED = StreamConfig(capacity=CAPACITY, packing_buffer_size=6, align_window=3)
FEW = StreamConfig(samples_per_pack=3)
LIMITED = StreamConfig(capacity=CAPACITY, packing_buffer_size=6, max_samples=2)
DYNAMIC = StreamConfig(
    batching=DynamicBatching(num_samples=7, tokens_per_microbatch=48, max_length=48, sequence_length_round=4)
)
LARGEST_FIRST = StreamConfig(
    batching=DynamicBatching(
        num_samples=7,
        tokens_per_microbatch=48,
        max_length=48,
        sequence_length_round=4,
        microbatch_order="largest_first",
    )
)
BUCKETS = StreamConfig(batching=LengthBuckets(num_samples=7, batch_size=3, bucket_boundaries=[4, 8, 16]))
TOLERANT = StreamConfig(batching=LengthBuckets(num_samples=7, batch_size=3, length_tolerance=2))
PADDED = {"dynamic": DYNAMIC, "largest_first": LARGEST_FIRST, "buckets": BUCKETS, "tolerant": TOLERANT, "few": FEW}
PACKED = {"window": WINDOW, "aligned": ALIGNED, "limited": LIMITED}
USABLE = sorted(i for i, length in enumerate(LENGTHS) if length)


@pytest.mark.parametrize("config", PACKED.values(), ids=PACKED)
def test_long_samples_get_packs_of_their_own(config: StreamConfig) -> None:
    batches = [batch.check() for batch in stream(config)]
    assert sorted(int(key) for batch in batches for key in batch.sample_keys) == USABLE
    for batch in batches:
        long = [key for key in batch.sample_keys if LENGTHS[int(key)] > CAPACITY]
        assert batch.num_tokens <= CAPACITY or (len(batch.sample_keys) == 1 and long)
    assert sum(batch.num_tokens > CAPACITY for batch in batches) == 3


def test_the_next_few_come_in_order_whatever_their_lengths() -> None:
    batches = list(stream(FEW))
    assert [int(key) for batch in batches for key in batch.sample_keys] == USABLE
    assert {len(batch.sample_keys) for batch in batches[:-1]} == {3}


def test_padded_rows() -> None:
    collator = PaddedCollator(tiling=make_tiling("single", tile_spec()), width_multiple=8, max_width=20)
    batches = [batch.check() for batch in stream(FEW, collator=collator)]
    for batch in batches:
        longest = max(LENGTHS[int(key)] for key in batch.sample_keys)
        assert tuple(batch.tokens.shape) == (len(batch.sample_keys), max(longest, min(20, -(-longest // 8) * 8)))
    fixed = PaddedCollator(tiling=make_tiling("single", tile_spec()), width=48)
    assert {batch.tokens.shape[1] for batch in stream(FEW, collator=fixed)} == {48}


def test_a_pack_holds_no_more_samples_than_allowed() -> None:
    assert {len(batch.sample_keys) for batch in stream(LIMITED)} == {1, 2}


@pytest.mark.parametrize("config", [DYNAMIC, LARGEST_FIRST], ids=["packer", "largest_first"])
def test_dynamic_batches_keep_within_the_budget(config: StreamConfig) -> None:
    collator = PaddedCollator(tiling=make_tiling("single", tile_spec()), width_multiple=4, max_width=48)
    batches = list(stream(config, collator=collator))
    assert all(batch.num_tokens <= 48 for batch in batches)
    lengths = [[LENGTHS[int(key)] for key in batch.sample_keys] for batch in batches]
    first_seven = sorted(LENGTHS[i] for i in USABLE[:7])
    together: list[int] = []
    while len(together) < 7:  # the first seven samples go out before an eighth
        together += lengths.pop(0)
    assert sorted(together) == first_seven


def test_a_bucket_holds_like_lengths() -> None:
    for batch in stream(TOLERANT, collator=PaddedCollator(tiling=make_tiling("single", tile_spec()))):
        lengths = [LENGTHS[int(key)] for key in batch.sample_keys]
        assert max(lengths) - min(lengths) <= 4  # each within 2 of the oldest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens_per_microbatch": 4}, "below the longest row"),
        ({"sequence_length_round": 0}, "sequence_length_round=0"),
        ({"microbatch_order": "packr"}, "did you mean 'packer'"),
    ],
)
def test_dynamic_batching_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DynamicBatching(**{"num_samples": 7, "tokens_per_microbatch": 48, "max_length": 48, **settings})


def test_faults_and_changes_are_counted() -> None:
    packs = stream(WINDOW)
    list(packs)
    assert packs.ledger.counts() == {Reason.TRUNCATED: 1, Reason.WRONG_TYPE: 1}


@pytest.mark.parametrize("name", [*PACKED, *PADDED])
def test_resume_behind_every_pack(name: str) -> None:
    config = {**PACKED, **PADDED}[name]
    padded = PaddedCollator(tiling=make_tiling("single", tile_spec()), width_multiple=4, max_width=48)
    collator = padded if name in PADDED else None
    whole = [batch.check() for batch in stream(config, collator=collator)]
    assert sorted(int(key) for batch in whole for key in batch.sample_keys) == USABLE
    for cut, batch in enumerate(whole[:-1]):
        resumed = stream(config, collator=collator)
        resumed.restore(pickle.loads(pickle.dumps(batch.stream_state)))
        rest = list(resumed)
        assert [b.sample_keys for b in rest] == [b.sample_keys for b in whole[cut + 1 :]]
        assert rest[-1].stream_state["drops"] == whole[-1].stream_state["drops"]


def test_a_second_epoch_begins_only_when_the_first_has_ended() -> None:
    packs = stream(WINDOW)
    next(iter(packs))
    with pytest.raises(StateError, match="within epoch 0"):
        packs.begin(1)
    list(packs)
    packs.begin(1)
    assert sorted(int(key) for batch in packs for key in batch.sample_keys) == USABLE


def test_one_way_to_select() -> None:
    with pytest.raises(ConfigError, match="either"):
        StreamConfig(capacity=4)
    with pytest.raises(ConfigError, match="either"):
        StreamConfig(capacity=4, packing_buffer_size=3, samples_per_pack=2)
