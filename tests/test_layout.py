"""THD arithmetic: the vectors of public systems, and properties that must hold for any lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.layout import Layout, round_up


def test_offsets_with_a_multiple_of_4_and_a_fixed_row() -> None:
    # Lengths 5, 8, 1, 3 at a multiple of 4 give these padded offsets in Megatron; the tail is a segment of its own.
    layout = Layout(sequence_multiple=4, fixed_total=32)
    offsets = layout.offsets([5, 8, 1, 3], [layout.room(n) for n in (5, 8, 1, 3)])
    assert offsets.cu_seqlens == (0, 5, 13, 14, 17, 17)
    assert offsets.cu_seqlens_padded == (0, 8, 16, 20, 24, 32)
    assert offsets.max_seqlen == 8


def test_positions_and_padding_of_two_padded_segments_and_a_tail() -> None:
    # 5 and 3 real tokens, each in a multiple of 4, in a row of 16.
    layout = Layout(sequence_multiple=4, fixed_total=16)
    offsets = layout.offsets([5, 3], [8, 4])
    assert offsets.position_ids().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3]
    assert np.flatnonzero(offsets.padding_mask()).tolist() == [5, 6, 7, 11, 12, 13, 14, 15]


def test_total_multiple_pads_the_end_of_the_row_only() -> None:
    offsets = Layout(total_multiple=16).offsets([5, 8, 1, 3], [5, 8, 1, 3])
    assert offsets.cu_seqlens_padded == (0, 5, 13, 14, 17, 32)
    assert offsets.cu_seqlens == (0, 5, 13, 14, 17, 17)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sequence_multiple": 0}, "sequence_multiple=0"),
        ({"total_multiple": -1}, "total_multiple=-1"),
        ({"fixed_total": 0}, "fixed_total=0"),
        ({"fixed_total": 10, "total_multiple": 4}, "not a multiple of 4"),
    ],
)
def test_impossible_layouts_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Layout(**options)


def test_a_row_that_is_too_full_is_refused() -> None:
    with pytest.raises(ConfigError, match="fixed_total=8"):
        Layout(fixed_total=8).offsets([5, 4], [5, 4])


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    sequence_multiple=st.integers(1, 16),
    total_multiple=st.integers(1, 64),
)
def test_offsets_equal_a_slow_walk(lengths: list[int], sequence_multiple: int, total_multiple: int) -> None:
    layout = Layout(sequence_multiple=sequence_multiple, total_multiple=total_multiple)
    rooms = [layout.room(n) for n in lengths]
    offsets = layout.offsets(lengths, rooms)
    positions, padding = [], []
    for length, room in zip(lengths, rooms, strict=True):
        assert room % sequence_multiple == 0
        assert length <= room < length + sequence_multiple
        positions += list(range(room))
        padding += [i >= length for i in range(room)]
    tail = offsets.total - len(positions)
    assert 0 <= tail < total_multiple
    assert offsets.total % total_multiple == 0
    assert offsets.position_ids().tolist() == positions + list(range(tail))
    assert offsets.padding_mask().tolist() == padding + [True] * tail
    assert offsets.max_seqlen == max([*rooms, tail])


@given(n=st.integers(0, 10**6), multiple=st.integers(1, 1000))
def test_round_up_is_the_smallest_multiple_not_below(n: int, multiple: int) -> None:
    up = round_up(n, multiple)
    assert up % multiple == 0
    assert n <= up < n + multiple
