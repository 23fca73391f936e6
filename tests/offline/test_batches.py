"""Packs -> batches: the numbers of NeMo's collate, and mmpack's own batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.layout import Layout
from mmpack.offline import PackRow, nemo_collate, pack_row_to_batch
from mmpack.packing import pack_lengths

EOS = 2


def pack_row(ids: list[int], starts: list[int], mask: list[int]) -> PackRow:
    return PackRow(
        input_ids=np.array(ids, dtype=np.int32),
        loss_mask=np.array(mask, dtype=np.uint8),
        seq_start_ids=np.array(starts, dtype=np.int32),
    )


ROW0 = pack_row([5, 6, 7, 2, 8, 9, 2], [0, 4], [0, 1, 1, 0, 1, 1, 0])
ROW1 = pack_row([11, 12, 13, 14, 15, 2], [0], [0, 0, 1, 1, 1, 0])
INNER = pack_row([5, 2, 6, 2, 7, 8, 9, 2], [0], [0, 0, 0, 1, 1, 1, 1, 0])
META = {"max_samples_per_bin": 3, "dataset_max_seqlen": 5, "min_packed_seqlen": 4}


def collate(*rows: PackRow, **options: Any) -> dict[str, Any]:
    batch = nemo_collate(rows, eos_id=EOS, **({"max_length": 16} | options))
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_one_row() -> None:
    batch = collate(ROW0)
    assert batch["tokens"] == [[5, 6, 7, 8, 9, *[2] * 11]]
    assert batch["labels"] == [[6, 7, 2, 9, 2, *[2] * 11]]
    assert batch["loss_mask"] == [[0, 1, 1, 1, 1, *[0] * 11]]
    assert batch["position_ids"] == [[0, 1, 2, 0, 1, *[0] * 11]]
    assert batch["cu_seqlens"] == [[0, 3, 5, 16, -1]]
    assert batch["cu_seqlens_argmin"] == [[4]]
    assert batch["cu_seqlens_unpadded"] == [[0, 3, 5, 5, -1]]
    assert batch["cu_seqlens_unpadded_argmin"] == [[4]]
    assert batch["max_seqlen"] == [[11]]
    assert batch["token_count"] == [5]
    assert collate(ROW0, attend_tail=False)["max_seqlen"] == [[3]]
    assert nemo_collate([ROW0], max_length=16, eos_id=EOS)["cu_seqlens"].dtype == torch.int32


def test_row_padded_to_its_full_length() -> None:
    batch = collate(ROW0, max_length=8, pad_to_max_length=True)
    assert (batch["cu_seqlens"], batch["max_seqlen"]) == ([[0, 3, 5, 8, -1]], [[3]])


def test_offsets_of_one_shape() -> None:
    batch = collate(ROW0, ROW1, max_length=8, pad_to_max_length=True, pad_cu_seqlens=True, metadata=[META])
    assert batch["cu_seqlens"] == [[0, 3, 5, 8, 8, -1], [0, 5, 8, 8, 8, -1]]
    assert batch["max_seqlen"] == [5]
    assert collate(ROW0, ROW1, max_length=8)["cu_seqlens"] == [[0, 3, 5, 8, -1], [0, 5, 8, -1, -1]]
    with pytest.raises(ConfigError, match="needs metadata"):
        collate(ROW0, pad_cu_seqlens=True)


def test_end_tokens_inside_a_sequence_are_tokens() -> None:
    batch = collate(INNER)
    assert batch["cu_seqlens_unpadded"] == [[0, 7, 7, -1]]
    assert batch["tokens"][0][:8] == [5, 2, 6, 2, 7, 8, 9, 2]
    assert collate(INNER, answer_only_loss=False)["loss_mask"] == [[*[1] * 7, *[0] * 9]]


def test_padding_of_the_preparation_is_none_of_the_text() -> None:
    padded = pack_row([5, 6, 2, 2, 2, 7, 2, 2, 2, 2], [0, 5], [0, 1, 0, 0, 0, 1, 0, 0, 0, 0])
    batch = collate(padded, answer_only_loss=False)
    assert batch["cu_seqlens"] == [[0, 4, 8, 16, -1]]
    assert batch["cu_seqlens_unpadded"] == [[0, 3, 5, 5, -1]]
    assert batch["loss_mask"] == [[1, 1, 0, 0, 1, 0, 0, 0, *[0] * 8]]


def test_refused_rows() -> None:
    with pytest.raises(ConfigError, match="5 positions, max_length is 4"):
        collate(ROW0, max_length=4)
    with pytest.raises(ConfigError, match="no rows"):
        collate()


def test_own_batch() -> None:
    batch = pack_row_to_batch(ROW0, Layout(sequence_multiple=4, fixed_total=16), 0).check()
    assert batch.tokens.tolist() == [[5, 6, 7, 2, 8, 9, 2, 0, *[0] * 8]]
    assert batch.labels.tolist() == [[-100, 7, 2, -100, 9, 2, *[-100] * 10]]
    assert batch.cu_seqlens.tolist() == [0, 4, 7, 7]
    assert batch.cu_seqlens_padded.tolist() == [0, 4, 8, 16]
    assert batch.num_loss_tokens == 4
    assert pack_row_to_batch(ROW0, Layout(), 0, loss_weight="sample").loss_weight[0, 1].item() == 0.5
    with pytest.raises(ConfigError, match="do not fit"):
        pack_row_to_batch(ROW0, Layout(fixed_total=4), 0)


def test_a_sequence_without_a_target_is_padding() -> None:
    row = pack_row([5, 6, 2, 8, 9, 2], [0, 3], [0, 0, 0, 1, 1, 0])
    batch = pack_row_to_batch(row, Layout(), 0).check()
    assert batch.cu_seqlens.tolist() == [0, 0, 3]
    assert batch.sample_keys == ("00000001",)


SEQUENCES = st.lists(st.lists(st.tuples(st.integers(3, 50), st.booleans()), min_size=1, max_size=9), min_size=1)


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.sampled_from([1, 2, 8]))
def test_own_batch_learns_what_the_mask_says(sequences: list[list[tuple[int, bool]]], multiple: int) -> None:
    ids = [[token for token, _ in sequence] + [EOS] for sequence in sequences]
    masks = [[int(m) for _, m in sequence] + [0] for sequence in sequences]
    starts = [sum(map(len, ids[:i])) for i in range(len(ids))]
    row = pack_row([*itertools.chain(*ids)], starts, [*itertools.chain(*masks)])
    batch = pack_row_to_batch(row, Layout(sequence_multiple=multiple), 0).check()
    wanted = [s[i + 1] for s, m in zip(ids, masks, strict=True) for i in range(len(s)) if m[i]]
    assert [label for label in batch.labels[0].tolist() if label != -100] == wanted
    nemo = nemo_collate([row], max_length=512, eos_id=EOS)
    assert nemo["labels"][nemo["loss_mask"] == 1].tolist() == wanted


def in_order(lengths: list[int], size: int) -> list[Any]:
    """Texts of tokens 1, 2, 3 ... one behind the other, packed in the order they come, rows filled with 0."""
    starts = [1 + sum(lengths[:i]) for i in range(len(lengths))]
    batches = []
    for pack in pack_lengths(lengths, size, algorithm="concatenative"):
        ids = [token for i in pack for token in range(starts[i], starts[i] + lengths[i])]
        firsts = [sum(lengths[i] for i in pack[:n]) for n in range(len(pack))]
        batches.append(pack_row_to_batch(pack_row(ids, firsts, [1] * len(ids)), Layout(fixed_total=size), 0).check())
    return batches


def test_texts_packed_in_order() -> None:
    """Rows and lengths as Hugging Face's sequential packer has them; the filling is a segment there too."""
    first, second = in_order([3, 5, 4], 8)
    assert (first.tokens.tolist(), second.tokens.tolist()) == ([[*range(1, 9)]], [[9, 10, 11, 12, 0, 0, 0, 0]])
    assert first.cu_seqlens_padded.diff().tolist() == [3, 5]
    assert second.cu_seqlens_padded.diff().tolist() == [4, 4]
    assert first.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    # Where that packer would split a text over two rows, ours begins a row, and no text sees a part of itself only.
    assert [batch.cu_seqlens_padded.diff().tolist() for batch in in_order([3, 5, 4], 7)] == [[3, 4], [5, 2], [4, 3]]
    with pytest.raises(ConfigError, match=r"lengths\[1\] is 5 tokens, a pack holds 4"):
        in_order([3, 5, 4], 4)


def test_rows_of_six_and_four_tokens() -> None:
    """Megatron-Bridge's rows of 5 and 3 positions hold the labels of 6 and 4 tokens."""
    row = pack_row([*range(10, 16), *range(20, 24)], [0, 6], [*[1] * 5, 0, *[1] * 3, 0])
    batch = pack_row_to_batch(row, Layout(sequence_multiple=4, fixed_total=16), 0).check()
    assert batch.labels[0, :5].tolist() == [11, 12, 13, 14, 15]
    assert batch.labels[0, 8:11].tolist() == [21, 22, 23]
    assert batch.loss_weight.tolist() == [[*[1] * 5, *[0] * 3, *[1] * 3, *[0] * 5]]
    assert batch.position_ids.tolist() == [[*range(8), *range(4), *range(4)]]
    assert batch.padding_mask[0].nonzero().flatten().tolist() == [6, 7, 12, 13, 14, 15]
