"""Numbers that NeMo's own code gives for lengths and packs, and what must come out where it loses something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mmpack.batch import PackedBatch
from mmpack.collate import Collator
from mmpack.indexed import CellTiles
from mmpack.indexed.mock_tiles import CELL_PX, cells_png
from mmpack.layout import Layout, round_up
from mmpack.sample import IMAGE_TOKEN_INDEX, EncodedSample, Picture, PlannedPicture, TileGrid
from mmpack.window import stream_packs
from tests.conftest import tile_spec

I = IMAGE_TOKEN_INDEX  # noqa: E741
SEQUENCES = {"A": [1, I, 11, 12, 13, 2], "B": [21, 22, 23, 2], "C": [I, 31, 32, 33, 34, 2]}
TRAINED = {"A": [12, 13, 2], "B": [22, 23, 2], "C": [32, 33, 34, 2]}


def sample(key: str, token_ids: Sequence[int], trained: Sequence[bool], embeddings: int) -> EncodedSample:
    """A sample of ready token ids with a picture of one tile for each placeholder."""
    planned = PlannedPicture(
        picture=Picture(name="p.png", data=cells_png(bytes(3 * CELL_PX * CELL_PX), 1)),
        width_px=CELL_PX, height_px=CELL_PX, grid=TileGrid(columns=1, rows=1), num_tokens=embeddings,
    )  # fmt: skip
    num_pictures = list(token_ids).count(I)
    return EncodedSample(
        key=key, source="vectors", token_ids_n=np.array(token_ids, dtype=np.int64), trained_n=np.array(trained),
        pictures=(planned,) * num_pictures, num_tokens=len(token_ids) + num_pictures * (embeddings - 1),
    )  # fmt: skip


def of_letter(letter: str) -> EncodedSample:
    """A, B or C; NeMo's rows hold the tokens without the last and the labels without the first."""
    ids = SEQUENCES[letter]
    trained = [token in TRAINED[letter] for token in ids]
    return sample(letter, ids, trained, 4)


def packed(samples: Sequence[EncodedSample], embeddings: int, **layout: Any) -> PackedBatch:
    tiling = CellTiles(tile_spec(embeddings_per_tile=embeddings))
    batch, lost = Collator(tiling=tiling, layout=Layout(**layout)).collate(samples, pack_index=0)
    assert not lost
    return batch.check()


@pytest.mark.parametrize(("token_ids", "length"), [([1, I, 5, I, 7], 1155), ([1, 2, 3], 3)])
def test_lengths_of_one_sample(token_ids: list[int], length: int) -> None:
    assert sample("s", token_ids, [False] * (len(token_ids) - 1) + [True], 576).num_tokens == length


def test_room_in_multiples_of_64() -> None:
    assert [round_up(n, 64) for n in (65, 64, 0)] == [128, 64, 0]
    assert [Layout(sequence_multiple=64).room(n) for n in (65, 64)] == [128, 64]


def test_three_samples_in_multiples_of_64() -> None:
    def of_length(key: str, num_tokens: int, num_pictures: int) -> EncodedSample:
        ids = [I] * num_pictures + [5] * (num_tokens - num_pictures)
        return sample(key, ids, [False] * (num_tokens - 1) + [True], 576)

    three = [of_length("a", 65, 1), of_length("b", 20, 0), of_length("c", 64, 1)]
    assert [s.num_tokens for s in three] == [640, 20, 639]
    batch = packed(three, 576, sequence_multiple=64)
    assert batch.cu_seqlens.tolist() == [0, 640, 660, 1299]
    assert batch.cu_seqlens_padded.tolist() == [0, 640, 704, 1344]
    assert batch.max_seqlen == 640
    # NeMo pads the compact tokens, 128 + 64 + 64 of them, and cuts to 194; here a picture keeps one position of its row
    compact = batch.to_megatron(image_token_layout="compact")["tokens"]
    assert compact.shape[1] == 1344 - 2 * 575 == 194


def test_packs_never_grow_beyond_the_capacity_by_padding() -> None:
    layout = Layout(sequence_multiple=64)
    capacity = layout.capacity(1040)
    assert capacity == 1024
    bins = list(stream_packs([layout.room(65)] * 16, capacity, window=16))
    assert [len(pack) for pack in bins] == [8, 8]
    for pack in bins:
        batch = packed([sample(str(i), [5] * 65, [False] * 64 + [True], 4) for i in pack], 4, sequence_multiple=64)
        assert batch.num_tokens <= 1040


def expanded(pad: int, **layout: Any) -> PackedBatch:
    """A, B, C with one position fewer each: the last token is a label only, as in NeMo's rows."""
    return packed([of_letter(letter) for letter in "ABC"], 4, sequence_multiple=pad, **layout)


def without_last(batch: PackedBatch, name: str) -> list[list[Any]]:
    """Of every sample the positions but its last, which has no label: NeMo's row of that sample."""
    values = getattr(batch, name)[0].tolist()
    padded = batch.cu_seqlens_padded.tolist()
    used = batch.cu_seqlens.diff().tolist()
    return [values[start : start + length - 1] for start, length in zip(padded, used, strict=False)]


@pytest.mark.parametrize("pad", [1, 4, 8])
def test_no_label_is_lost_where_the_next_sample_begins_with_a_picture(pad: int) -> None:
    batch = expanded(pad)
    lengths = [length - 1 for length in batch.cu_seqlens.diff().tolist()]
    assert lengths == [8, 3, 8]  # NeMo's cu 0, 8, 11, 19
    assert without_last(batch, "labels") == [
        [-100, -100, -100, -100, -100, 12, 13, 2],
        [22, 23, 2],
        [-100, -100, -100, -100, 32, 33, 34, 2],
    ]
    assert without_last(batch, "loss_weight") == [[0] * 5 + [1] * 3, [1] * 3, [0] * 4 + [1] * 4]
    assert without_last(batch, "position_ids") == [list(range(8)), list(range(3)), list(range(8))]
    assert batch.num_loss_tokens == 10


def test_the_compact_row_has_one_placeholder_a_picture() -> None:
    view = expanded(1).to_megatron(image_token_layout="compact")
    assert view["tokens"][0].tolist() == SEQUENCES["A"] + SEQUENCES["B"] + SEQUENCES["C"]
    assert view["labels"][0].tolist() == [
        *[-100, -100, 12, 13, 2, -100],
        *[22, 23, 2, -100],
        *[-100, 32, 33, 34, 2, -100],
    ]  # fmt: skip
    assert view["num_media_tiles"].tolist() == [1, 1]
    assert view["packed_seq_params"].cu_seqlens_q.tolist() == [0, 9, 13, 22]
    assert view["position_ids"][0].tolist() == [*range(6), *range(4), *range(6)]


def test_a_fixed_row_ends_in_a_segment_of_its_own() -> None:
    batch = expanded(4, fixed_total=40)
    assert batch.cu_seqlens.tolist() == [0, 9, 13, 22, 22]  # NeMo stretches the last sample to the end instead
    assert batch.cu_seqlens_padded.tolist() == [0, 12, 16, 28, 40]
    assert batch.max_seqlen == 12
    assert batch.labels[0, 28:].tolist() == [-100] * 12


def test_three_of_the_task_encoders_samples() -> None:
    three = [sample(f"k{i}", [I] + [5] * 34, [False] * 34 + [True], 4) for i in range(3)]
    batch = packed(three, 4, sequence_multiple=64)
    assert [s.num_tokens for s in three] == [38] * 3
    assert batch.cu_seqlens.tolist() == [0, 38, 76, 114]
    assert batch.cu_seqlens_padded.tolist() == [0, 64, 128, 192]
    assert (batch.position_ids[0] == 0).nonzero().flatten().tolist() == [0, 64, 128]
    compact = batch.to_megatron(image_token_layout="compact")
    assert compact["tokens"].shape[1] == 183
    starts = [0, *(1 + (compact["position_ids"][0].diff() < 0).nonzero().flatten()).tolist()]
    assert starts == [0, 61, 122]


def expanding(ids: Sequence[int], tiles: Sequence[int], embeddings: int) -> PackedBatch:
    """One sample of which all text is learned, with pictures of so many tiles."""
    pictures = tuple(
        PlannedPicture(
            picture=Picture(name="p.png", data=cells_png(bytes(3 * CELL_PX * CELL_PX * num), num)),
            width_px=CELL_PX * num, height_px=CELL_PX, grid=TileGrid(columns=num, rows=1), num_tokens=num * embeddings,
        )
        for num in tiles
    )  # fmt: skip
    one = EncodedSample(
        key="k", source="vectors", token_ids_n=np.array(ids), trained_n=np.array(ids) != I, pictures=pictures,
        num_tokens=len(ids) - len(tiles) + sum(p.num_tokens for p in pictures),
    )  # fmt: skip
    return packed([one], embeddings)


@pytest.mark.parametrize(
    ("ids", "tiles", "embeddings", "labels"),
    [
        ([0, 1, I, 2, 3, 4], [1], 3, [1, -100, -100, -100, 2, 3, 4]),
        ([0, 1, I, 2, 3, 4], [2], 3, [1, *[-100] * 6, 2, 3, 4]),
        ([I, 5, 6, I, 7, 8], [1, 2], 2, [-100, 5, 6, *[-100] * 4, 7, 8]),
    ],
)
def test_labels_of_expanded_pictures(ids: list[int], tiles: list[int], embeddings: int, labels: list[int]) -> None:
    """Megatron's labels; it masks the last embedding of a picture as well, where ours learns the token behind it."""
    batch = expanding(ids, tiles, embeddings)
    assert batch.labels[0].tolist() == [*labels, -100]
    assert batch.loss_weight[0].tolist() == [float(label != -100) for label in [*labels, -100]]
    text = [(place, token) for place, token in enumerate(batch.tokens[0].tolist()) if token != I]
    assert [token for _, token in text] == [token for token in ids if token != I]
    if ids[0] == 0 and tiles == [1]:
        assert [place for place, _ in text][:4] == [0, 1, 5, 6]
