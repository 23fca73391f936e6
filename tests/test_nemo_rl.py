"""NeMo-RL's `BatchedDataDict`: its sharding and micro batches, number for number, and nothing lost."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmpack.dynamic.nemo_rl import BatchedDataDict, get_microbatch_iterator
from mmpack.errors import ConfigError

EIGHT = [2, 4, 7, 6, 3, 4, 1, 5]


def batch_of(lengths: list[int], width: int) -> BatchedDataDict:
    tokens = torch.zeros(len(lengths), width, dtype=torch.long)
    for i, length in enumerate(lengths):
        tokens[i, :length] = i + 1
    return BatchedDataDict(
        {
            "input_ids": tokens,
            "input_lengths": torch.tensor(lengths),
            "logits": torch.randn(len(lengths), width, 3),
            "idx": list(range(len(lengths))),
        }
    )


def dynamic(budget: int, round_to: int) -> dict:
    return {
        "max_tokens_per_microbatch": budget,
        "sequence_length_round": round_to,
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
    }


def packing(budget: int, multiple: int) -> dict:
    return {
        "max_tokens_per_microbatch": budget,
        "sequence_length_pad_multiple": multiple,
        "algorithm": "modified_first_fit_decreasing",
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
    }


# --- numbers that NeMo-RL gives --------------------------------------------------------------------------------------


def test_shards_without_micro_batches():
    batch = BatchedDataDict({"problem_id": [0, 0, 1, 1, 2, 2, 3, 3], "data": torch.arange(8)})
    assert [shard["problem_id"] for shard in batch.shard_by_batch_size(shards=2)] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    shards = batch.shard_by_batch_size(shards=2, batch_size=4)
    assert [shard["problem_id"] for shard in shards] == [[0, 0, 2, 2], [1, 1, 3, 3]]
    assert [shard["data"].tolist() for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [shard["data"].tolist() for shard in shards[0].make_microbatch_iterator(2)] == [[0, 1], [4, 5]]
    assert shards[0].get_batch(1, 2)["data"].tolist() == [4, 5]
    uneven = batch.slice(0, 5).shard_by_batch_size(shards=2, allow_uneven_shards=True)
    assert [shard["data"].tolist() for shard in uneven] == [[0, 1, 2], [3, 4]]


def test_dynamic_batching():
    (shard,), order = batch_of([2, 4, 7, 6, 3, 4], 7).shard_by_batch_size(1, dynamic_batching_args=dynamic(16, 1))
    assert order == [0, 4, 1, 5, 3, 2]
    shapes = [tuple(mb["input_ids"].shape) for mb in shard.make_microbatch_iterator_with_dynamic_shapes()]
    assert shapes == [(4, 4), (2, 7)]
    assert shard.get_microbatch_iterator_dynamic_shapes_len() == 2


def test_dynamic_batching_of_two_global_batches():
    batch = batch_of(EIGHT, 8)
    shards, order = batch.shard_by_batch_size(2, batch_size=4, dynamic_batching_args=dynamic(16, 2))
    assert [shard["idx"] for shard in shards] == [[0, 3, 6, 5], [1, 2, 4, 7]]
    assert order == [0, 3, 6, 5, 1, 2, 4, 7]
    first, second = (shards[1].get_batch(k) for k in range(2))
    (micro_batch,) = first.make_microbatch_iterator_with_dynamic_shapes()
    assert tuple(micro_batch["input_ids"].shape) == (2, 8)
    assert (second["idx"], second.micro_batch_lengths) == ([4, 7], [[6]])
    with pytest.raises(ConfigError, match="2 global batches; take one with get_batch"):
        shards[0].make_microbatch_iterator_with_dynamic_shapes()


def test_sequence_packing():
    shards, order = batch_of(EIGHT, 8).shard_by_batch_size(2, batch_size=4, sequence_packing_args=packing(16, 4))
    assert order == [0, 1, 6, 2, 3, 7, 4, 5]
    assert [shard.micro_batch_lengths for shard in shards] == [[[8], [4]], [[16], [16]]]
    assert [shard.elem_counts_per_gb for shard in shards] == [[2, 1], [2, 3]]
    last = shards[1].get_batch(1)
    (pack,) = last.make_microbatch_iterator_for_packable_sequences()
    assert (pack["idx"], pack["input_ids"].shape[1]) == ([7, 4, 5], 8)
    assert last.get_microbatch_iterator_for_packable_sequences_len() == (1, 16)


# --- what must hold for any lengths and ranks ------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, int]:
    shards, per_shard, num_global = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    size = shards * per_shard
    lengths = draw(st.lists(st.integers(1, 24), min_size=size * num_global, max_size=size * num_global))
    return lengths, shards, size


@given(cases(), st.booleans(), st.integers(24, 64), st.integers(1, 8))
def test_every_sequence_once_equal_counts_within_the_budget_and_back_in_order(case, packed, budget, multiple):
    lengths, num_shards, size = case
    batch = batch_of(lengths, 24)
    kind = "sequence_packing" if packed else "dynamic_batching"
    args = packing(budget, multiple) if packed else dynamic(budget, multiple)
    shards, order = batch.shard_by_batch_size(num_shards, size, **{f"{kind}_args": args})
    policy = {kind: {"enabled": True}}
    outputs: list[list[BatchedDataDict]] = [[] for _ in shards]
    for number in range(len(lengths) // size):
        parts = [shard.get_batch(number) for shard in shards]
        steps = [get_microbatch_iterator(part, policy, mbs=1) for part in parts]
        assert len({count for _, count in steps}) == 1
        micro_batches = [list(found) for found, _ in steps]
        assert {len(found) for found in micro_batches} == {steps[0][1]}
        seen = list(chain.from_iterable(mb["idx"] for found in micro_batches for mb in found))
        assert sorted(seen) == list(range(number * size, (number + 1) * size))
        for step in zip(*micro_batches, strict=True):
            assert all(mb.size for mb in step)
            assert packed or len({tuple(mb["input_ids"].shape) for mb in step}) == 1
        for mb in chain.from_iterable(micro_batches):
            mine = [lengths[i] for i in mb["idx"]]
            rounded = [-(-n // multiple) * multiple for n in mine]
            assert (sum(rounded) if packed else mb["input_ids"].numel()) <= budget
            assert (mb["input_ids"] != 0).sum(1).tolist() == mine  # nothing cut
            assert mb["logits"].shape[:2] == mb["input_ids"].shape
        for output, found in zip(outputs, micro_batches, strict=True):
            output += found
    results = BatchedDataDict.from_batches([BatchedDataDict.from_batches(output) for output in outputs])
    results.reorder_data(order)
    assert results["idx"] == batch["idx"]
    width = results["input_ids"].shape[1]
    assert torch.equal(results["input_ids"], batch["input_ids"][:, :width])


def test_what_cannot_be_is_refused():
    batch = batch_of(EIGHT, 8)
    for kwargs, message in [
        ({"shards": 3}, "8 sequences a global batch do not divide by shards=3.*allow_uneven_shards=True"),
        ({"shards": 2, "batch_size": 3}, "8 sequences are no multiple of batch_size=3"),
        ({"shards": 2, "batch_size": 4, "allow_uneven_shards": True}, "leave batch_size out"),
        ({"shards": 3, "allow_uneven_shards": True, "dynamic_batching_args": dynamic(16, 1)}, "do not divide"),
        ({"shards": 16, "sequence_packing_args": packing(16, 1)}, "8 sequences a global batch for 16 shards"),
        ({"shards": 2, "sequence_packing_args": packing(6, 1)}, "is 7"),
        ({"shards": 2, "dynamic_batching_args": dynamic(6, 1)}, "tokens_per_microbatch=6"),
        ({"shards": 2, "dynamic_batching_args": {"sequence_length_round": 1}}, "set max_tokens_per_microbatch"),
        ({"shards": 2, "dynamic_batching_args": {**dynamic(16, 1), "round": 1}}, "unknown argument 'round'"),
        ({"shards": 2, "dynamic_batching_args": {**dynamic(16, 1), "input_lengths_key": "lengths"}}, "no 'lengths'"),
        (
            {"shards": 2, "dynamic_batching_args": dynamic(16, 1), "sequence_packing_args": packing(16, 1)},
            "exclude each other",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            batch.shard_by_batch_size(**kwargs)
    with pytest.raises(ConfigError, match="no micro batches here"):
        batch.make_microbatch_iterator_for_packable_sequences()
    with pytest.raises(ConfigError, match="give every row's place once"):
        batch.reorder_data([0, 0, 1, 2, 3, 4, 5, 6])
    with pytest.raises(ConfigError, match="one row a sequence"):
        BatchedDataDict({"a": [1], "b": torch.ones(2)}).shard_by_batch_size(1)


PACK = {"max_tokens_per_microbatch": 8}
WRONG = {
    "made of list": (lambda b: BatchedDataDict([1, 2]), "made of list"),  # type: ignore[arg-type]
    "scalar": (lambda b: BatchedDataDict({"a": 3}).size, "entry 'a' is of kind int"),
    "no dimension": (lambda b: BatchedDataDict({"a": torch.tensor(3)}).shard_by_batch_size(1), "without dimensions"),
    "no lengths": (
        lambda b: BatchedDataDict({**b, "input_lengths": None}).shard_by_batch_size(1, sequence_packing_args=PACK),
        "entry 'input_lengths' is of kind NoneType",
    ),
    "ids of one dimension": (
        lambda b: b.shard_by_batch_size(1, dynamic_batching_args={**PACK, "input_key": "input_lengths"}),
        r"entry 'input_lengths' is a tensor \(3,\)",
    ),
    "ids a list": (
        lambda b: b.shard_by_batch_size(1, dynamic_batching_args={**PACK, "input_key": "idx"}),
        "entry 'idx' is list",
    ),
    "a key that is none": (
        lambda b: b.shard_by_batch_size(1, dynamic_batching_args={**PACK, "input_key": [1]}),
        r"has no \[1\]",
    ),
    "arguments": (lambda b: b.shard_by_batch_size(1, sequence_packing_args=8), "sequence_packing_args=8"),
    "budget": (
        lambda b: b.shard_by_batch_size(1, sequence_packing_args={"max_tokens_per_microbatch": "8"}),
        "max_tokens_per_microbatch='8'",
    ),
    "global batch behind the last": (lambda b: b.get_batch(3, 1), "batch_idx has 3; whole numbers from 0 to 2"),
    "global batch below 0": (
        lambda b: b.shard_by_batch_size(1, sequence_packing_args=PACK)[0][0].get_batch(-1),
        "batch_idx has -1",
    ),
    "rows cut": (lambda b: b.truncate_tensors(0, 1), "dim=0"),
    "rows cut from behind": (
        lambda b: b.shard_by_batch_size(1, dynamic_batching_args={**PACK, "sequence_length_round": 1})[0][
            0
        ].make_microbatch_iterator_with_dynamic_shapes(-1),
        "sequence_dim=-1",
    ),
    "a length below 0": (lambda b: b.truncate_tensors(1, -1), "truncated_len=-1"),
    "a row that is none": (lambda b: b.select_indices([-1]), "indices has -1; whole numbers from 0 to 2"),
    "rows by name": (lambda b: b.select_indices(["a"]), "indices has 'a'"),
    "rows that are none": (lambda b: b.reorder_data(None), "NoneType in place of a list"),
    "slice": (lambda b: b.slice("a", 1), "start='a'"),
    "join of one": (lambda b: BatchedDataDict.from_batches(b), "of kind BatchedDataDict"),
    "join of dimensions": (
        lambda b: BatchedDataDict.from_batches([{"a": torch.ones(2, 3)}, {"a": torch.ones(2)}]),
        r"entry 'a' is \[\(2, 3\), \(2,\)\]",
    ),
    "join of kinds": (
        lambda b: BatchedDataDict.from_batches([{"a": torch.ones(2)}, {"a": [1, 2]}]),
        "entry 'a' is .*list",
    ),
    "policy": (lambda b: get_microbatch_iterator(b, {"dynamic_batching": True}, 1), "policy.dynamic_batching=True"),
    "policy's words": (
        lambda b: get_microbatch_iterator(b, {"sequence_packing": {"enabled": "false"}}, 1),
        "policy.sequence_packing=",
    ),
    "no policy": (lambda b: get_microbatch_iterator(b, None, 1), "cfg=None"),
    "no batch": (lambda b: get_microbatch_iterator({}, {}, 1), "data is of kind dict"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_batch_or_no_row_is_named(case: str) -> None:
    wrong, says = WRONG[case]
    with pytest.raises(ConfigError, match=says):
        wrong(batch_of([3, 8, 2], 8))


def test_a_section_of_the_policy_that_is_null_is_off() -> None:
    batches, number = get_microbatch_iterator(batch_of([3, 2], 4), {"dynamic_batching": None}, 1)
    assert (number, len(list(batches))) == (2, 2)
