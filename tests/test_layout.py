"""THD arithmetic: the vectors of public systems, and properties that must hold for any lengths."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.bench.distributions import DISTRIBUTIONS
from mmpack.errors import ConfigError
from mmpack.layout import FP8_MULTIPLES, Layout, mrope_positions, round_up, zigzag_indices


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


def test_both_multiples_end_in_a_segment_of_its_own() -> None:
    # NeMo's offsets for the same are 0, 8, 16, 20, 32: its last sequence is stretched over the rest.
    offsets = Layout(sequence_multiple=4, total_multiple=16).offsets([5, 8, 1, 3], [8, 8, 4, 4])
    assert offsets.cu_seqlens_padded == (0, 8, 16, 20, 24, 32)
    assert offsets.max_seqlen == 8


@pytest.mark.parametrize(
    ("sizes", "padding"),
    [  # of one sequence of 100; Megatron's numbers but where it forgets the context parallel size or FP8
        ({"context_parallel": 2}, 0),
        ({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}, 0),
        ({"tensor_parallel": 4, "sequence_parallel": True}, 0),
        ({"fp8_multiple": 16}, 12),
        ({"fp8_multiple": 32}, 28),
        ({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True, "fp8_multiple": 16}, 28),
        ({"fp8_recipe": "delayed"}, 12),
        ({"fp8_recipe": "mxfp8"}, 28),
        ({"fp8_recipe": "blockwise"}, 28),
        ({"context_parallel": 2, "fp8_recipe": "blockwise"}, 156),
    ],
)
def test_padding_of_one_sequence(sizes: dict[str, Any], padding: int) -> None:
    layout = Layout.for_parallelism(**sizes)
    assert layout.offsets([100], [layout.room(100)]).total == 100 + padding


@pytest.mark.parametrize(("context_parallel", "most_percent"), [(4, 0.5), (8, 1.1)])
def test_padding_of_sequences_to_their_own_multiple_costs_little(context_parallel: int, most_percent: float) -> None:
    lengths = DISTRIBUTIONS["caption_8k"].lengths(5_000, seed=3)
    wastes = []
    for multiple in (
        2 * context_parallel,
        8 * context_parallel,
        16 * context_parallel,
    ):  # alone; lcm, product with TP 8
        layout = Layout(sequence_multiple=multiple)
        wastes.append(100 * (sum(map(layout.room, lengths)) / sum(lengths) - 1))
    assert wastes[0] < most_percent
    assert 3 * wastes[0] < wastes[1] < wastes[2] / 1.8
    layout = Layout.for_parallelism(context_parallel=context_parallel, tensor_parallel=8, sequence_parallel=True)
    assert layout.sequence_multiple == 2 * context_parallel


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sequence_multiple": 0}, "sequence_multiple=0"),
        ({"sequence_multiple": float("nan")}, "sequence_multiple=nan"),
        ({"total_multiple": "4"}, "total_multiple='4'"),
        ({"total_multiple": True}, "total_multiple=True"),
        ({"fixed_total": 8.5}, "fixed_total=8.5"),
        ({"total_multiple": -1}, "total_multiple=-1"),
        ({"fixed_total": 0}, "fixed_total=0"),
        ({"fixed_total": 10, "total_multiple": 4}, "not a multiple of 4"),
        ({"cu_seqlens_size": 8}, "cu_seqlens_size=8 without fixed_total"),
        ({"cu_seqlens_size": 2, "fixed_total": 8}, "cu_seqlens_size=2; give a whole number of at least 3"),
    ],
)
def test_impossible_layouts_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Layout(**options)


def test_offsets_of_constant_number() -> None:
    layout = Layout(sequence_multiple=4, fixed_total=32, cu_seqlens_size=6)
    assert layout.max_samples == 4
    for lengths in ([5, 8, 1, 3], [32], [1], []):
        offsets = layout.offsets(lengths, [layout.room(n) for n in lengths])
        plain = Layout(sequence_multiple=4, fixed_total=32).offsets(lengths, [layout.room(n) for n in lengths])
        assert len(offsets.cu_seqlens) == len(offsets.cu_seqlens_padded) == 6
        assert offsets.max_seqlen == offsets.total == 32
        missing = 6 - len(plain.cu_seqlens)
        assert offsets.cu_seqlens == plain.cu_seqlens + plain.cu_seqlens[-1:] * missing
        assert offsets.cu_seqlens_padded == plain.cu_seqlens_padded + (32,) * missing
        assert offsets.position_ids().tolist() == plain.position_ids().tolist()
        assert offsets.padding_mask().tolist() == plain.padding_mask().tolist()
    with pytest.raises(ConfigError, match="a pack of 5 samples does not fit cu_seqlens_size=6, which holds 4"):
        layout.offsets([1] * 5, [4] * 5)


def test_a_row_that_is_too_full_is_refused() -> None:
    with pytest.raises(ConfigError, match="fixed_total=8"):
        Layout(fixed_total=8).offsets([5, 4], [5, 4])


@pytest.mark.parametrize(("num_tokens", "rooms"), [([5], [4]), ([5, 3], [5]), ([-1], [4]), ([float("nan")], [4])])
def test_segments_that_their_rooms_do_not_hold_are_refused(num_tokens: list[Any], rooms: list[int]) -> None:
    with pytest.raises(ConfigError, match="give each a room that holds it"):
        Layout().offsets(num_tokens, rooms)


@pytest.mark.parametrize("recipe", FP8_MULTIPLES)
@pytest.mark.parametrize(("context_parallel", "tensor_parallel"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_every_rank_holds_a_multiple_for_fp8(recipe: str, context_parallel: int, tensor_parallel: int) -> None:
    layout = Layout.for_parallelism(
        context_parallel=context_parallel, tensor_parallel=tensor_parallel, sequence_parallel=True, fp8_recipe=recipe
    )
    lengths = [5, 8, 1, 300, 129]
    offsets = layout.offsets(lengths, [layout.room(n) for n in lengths])
    for held in zigzag_indices(offsets.cu_seqlens_padded, context_parallel):  # also refuses what it would cut
        assert len(held) % (tensor_parallel * FP8_MULTIPLES[recipe]) == 0


def test_recipes_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="fp8_recipe='blockwis'; did you mean 'blockwise'"):
        Layout.for_parallelism(fp8_recipe="blockwis")
    with pytest.raises(ConfigError, match="fp8_multiple=16 beside fp8_recipe='mxfp8'; give one"):
        Layout.for_parallelism(fp8_recipe="mxfp8", fp8_multiple=16)


def test_sizes_of_the_wrong_kind_are_named() -> None:
    for sizes in ({"context_parallel": 1.5}, {"tensor_parallel": "2"}, {"fp8_multiple": None}):
        ((name, value),) = sizes.items()
        with pytest.raises(ConfigError, match=f"{name}={value!r}; give a whole number"):
            Layout.for_parallelism(**sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sequence_parallel='yes'; give True or False"):
        Layout.for_parallelism(sequence_parallel="yes")  # type: ignore[arg-type]


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


# --- M-RoPE ------------------------------------------------------------------------------------------------------

Part = int | tuple[int, int]  # a number of text tokens, or the rows and columns of a picture


def slow_mrope(parts: list[Part], room: int) -> list[list[int]]:
    """Token by token, as the paper tells it: each picture's embedding has its own time, row and column."""
    places: list[tuple[int, int, int]] = []
    following = 0
    for part in parts:
        if isinstance(part, int):
            for _ in range(part):
                places.append((following, following, following))
                following += 1
            continue
        rows, columns = part
        places += [(following, following + r, following + c) for r in range(rows) for c in range(columns)]
        following = max(max(place) for place in places) + 1
    while len(places) < room:
        places.append((following, following, following))
        following += 1
    return [list(axis) for axis in zip(*places, strict=True)]


def mrope(parts: list[Part], room: int | None = None) -> list[list[int]]:
    flags: list[bool] = []
    for part in parts:
        flags += [False] * part if isinstance(part, int) else [True]
    grids = [part for part in parts if not isinstance(part, int)]
    length = sum(part if isinstance(part, int) else part[0] * part[1] for part in parts)
    return mrope_positions(np.array(flags, dtype=np.bool_), grids, length if room is None else room).tolist()


def test_mrope_of_a_picture_between_words() -> None:
    # two words, a picture of 2 x 2, one word; then a sample of two words, which starts over
    assert mrope([2, (2, 2), 1]) == [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
    assert mrope([2]) == [[0, 1]] * 3


def test_mrope_of_neighbouring_pictures_and_padding() -> None:
    assert mrope([(1, 3), (2, 1)], 7) == [[0, 0, 0, 3, 3, 5, 6], [0, 0, 0, 3, 4, 5, 6], [0, 1, 2, 3, 3, 5, 6]]


parts = st.lists(st.one_of(st.integers(1, 6), st.tuples(st.integers(1, 5), st.integers(1, 5))), min_size=1, max_size=7)


@given(parts=parts, padding=st.integers(0, 9))
def test_mrope_equals_a_slow_walk(parts: list[Part], padding: int) -> None:
    length = sum(part if isinstance(part, int) else part[0] * part[1] for part in parts)
    assert mrope(parts, length + padding) == slow_mrope(parts, length + padding)


@settings(max_examples=60, deadline=None)
@given(parts=parts)
def test_mrope_equals_that_of_transformers(parts: list[Part]) -> None:
    """Which tells neighbouring pictures apart only by what stands between them, as Qwen's templates always do."""
    torch = pytest.importorskip("torch")
    separated: list[Part] = [piece for part in parts for piece in ((part,) if isinstance(part, int) else (part, 1))]
    types = [0 if isinstance(p, int) else 1 for p in separated for _ in range(p if isinstance(p, int) else p[0] * p[1])]
    grids = [[1, 2 * p[0], 2 * p[1]] for p in separated if not isinstance(p, int)]  # patches, 2 x 2 to an embedding
    for own in rope_indexes():
        theirs, _ = own(
            input_ids=torch.zeros(1, len(types), dtype=torch.long),
            mm_token_type_ids=torch.tensor([types]),
            image_grid_thw=torch.tensor(grids).reshape(-1, 3),
        )
        assert mrope(separated) == theirs[:, 0].tolist()


@cache
def rope_indexes() -> list[Any]:
    """`get_rope_index` of both Qwens, of models without weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    text = sizes | {"vocab_size": 2, "intermediate_size": 8, "rope_parameters": {"mrope_section": [1, 1, 2]}}
    found = []
    with torch.device("meta"):
        for name, tower in (("Qwen2VL", {"embed_dim": 16}), ("Qwen2_5_VL", {"hidden_size": 16})):
            config = getattr(transformers, f"{name}Config")(
                text_config=dict(text), vision_config={"depth": 1, "num_heads": 1, **tower}
            )
            found.append(getattr(transformers, f"{name}Model")(config).get_rope_index)
    return found


@pytest.mark.parametrize("recipe", [[], {}, 3])
def test_a_recipe_that_is_no_name_is_refused(recipe: object) -> None:
    with pytest.raises(ConfigError, match="fp8_recipe="):
        Layout.for_parallelism(fp8_recipe=recipe)  # type: ignore[arg-type]
