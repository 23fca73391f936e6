"""`PackedBatch.to_megatron`: NeMo's key names, and both layouts of image tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch, PixelNorm
from mmpack.batch import megatron as megatron_module
from mmpack.batch.megatron import PackedSeqParams, to_megatron
from mmpack.errors import ConfigError
from tests.loss_neutral import families
from tests.loss_neutral.packs import PER_TILE, mixed_samples, pack

SAMPLES = mixed_samples()


def tailed() -> PackedBatch:
    return pack(SAMPLES, multiple=4, total=200)


def test_megatron_view_has_nemo_keys() -> None:
    batch = tailed()
    view = batch.to_megatron()
    assert set(view) == {
        *("tokens", "labels", "loss_mask", "position_ids", "attention_mask"),
        *("media", "num_media_tiles", "packed_seq_params"),
    }
    assert view["attention_mask"] is None
    assert torch.equal(view["loss_mask"], batch.loss_weight)
    assert view["media"].shape == batch.pixels.shape
    assert view["media"].dtype == torch.float32
    assert view["num_media_tiles"].tolist() == batch.tiles_per_image.tolist()


def test_packed_seq_params() -> None:
    batch = tailed()
    params = batch.to_megatron()["packed_seq_params"]
    assert params.qkv_format == "thd"
    names = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    tensors: list[Tensor] = [getattr(params, name) for name in names]
    assert all(t.dtype == torch.int32 for t in tensors)
    pointers = {t.data_ptr() for t in tensors} | {batch.cu_seqlens.data_ptr(), batch.cu_seqlens_padded.data_ptr()}
    assert len(pointers) == 6, "NeVA writes into them in place"
    for t, expected in zip(tensors, [batch.cu_seqlens] * 2 + [batch.cu_seqlens_padded] * 2, strict=True):
        assert torch.equal(t, expected)
    assert params.max_seqlen_q == params.max_seqlen_kv == batch.max_seqlen
    params.cu_seqlens_q = params.cu_seqlens_q.clone()  # what NeMo's data step does


def test_packed_seq_params_of_megatron_core_are_used_when_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed(PackedSeqParams):
        pass

    monkeypatch.setattr(megatron_module, "_params_class", lambda: Installed)
    assert type(tailed().to_megatron()["packed_seq_params"]) is Installed


def test_compact_layout_keeps_one_placeholder_per_picture() -> None:
    batch = tailed()
    view = to_megatron(batch, image_token_layout="compact")
    tokens, labels = view["tokens"][0].tolist(), view["labels"][0].tolist()
    num_pictures, num_tiles = len(batch.tiles_per_image), int(batch.tiles_per_image.sum())
    assert tokens.count(IMAGE_TOKEN_INDEX) == num_pictures
    assert len(tokens) == 200 - num_tiles * PER_TILE + num_pictures
    # adjacent pictures stay apart, and expanding again by the tile counts gives the row back
    tiles = iter(batch.tiles_per_image.tolist())
    again = [t for token in tokens for t in ([token] * (next(tiles) * PER_TILE) if token < 0 else [token])]
    assert again == batch.tokens[0].tolist()
    assert [x for x in labels if x != IGNORE_INDEX] == [x for x in batch.labels[0].tolist() if x != IGNORE_INDEX]
    for token, label, following in zip(tokens, labels, tokens[1:], strict=False):
        if token == IMAGE_TOKEN_INDEX and label != IGNORE_INDEX:
            assert label == following
    assert (
        to_megatron(batch)["packed_seq_params"].cu_seqlens_q.tolist() == view["packed_seq_params"].cu_seqlens_q.tolist()
    )


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        to_megatron(tailed(), image_token_layout="compakt")


# --- the compact layout by the numbers -----------------------------------------------------------------------------

# Three samples as NeMo's encoder gives them: a placeholder for a picture of four embeddings, labels shifted, the last
# label (an end token, 2) without a token of its own.
PICTURE = IMAGE_TOKEN_INDEX
A = ([1, PICTURE, 11, 12, 13], [-100, -100, 12, 13, 2])
B = ([21, 22, 23], [22, 23, 2])
C = ([PICTURE, 31, 32, 33, 34], [-100, 32, 33, 34, 2])


def expanded(values: list[int], tokens: list[int]) -> list[int]:
    """What a model that expands placeholders makes of a row: the last embedding of a picture keeps its entry."""
    row: list[int] = []
    for value, token in zip(values, tokens, strict=True):
        row += [token if value == token else -100] * 3 + [value] if token == PICTURE else [value]
    return row


def row_of(*samples: tuple[list[int], list[int]], multiple: int, total: int | None = None) -> PackedBatch:
    """A pack of samples in NeMo's form: like ours but for the last label, so `check` is not asked."""
    tokens: list[int] = []
    labels: list[int] = []
    cu, padded, positions = [0], [0], []
    for own_tokens, own_labels in samples:
        ids, wanted = expanded(own_tokens, own_tokens), expanded(own_labels, own_tokens)
        room = -(-len(ids) // multiple) * multiple
        tokens += ids + [0] * (room - len(ids))
        labels += wanted + [-100] * (room - len(ids))
        positions += range(room)
        cu.append(cu[-1] + len(ids))
        padded.append(padded[-1] + room)
    if total is not None:
        tail = total - len(tokens)
        tokens, labels, positions = tokens + [0] * tail, labels + [-100] * tail, [*positions, *range(tail)]
        cu.append(cu[-1])
        padded.append(total)
    num_pictures = sum(ids.count(PICTURE) for ids, _ in samples)
    label_row = torch.tensor([labels])
    real = [c - b for b, c in pairwise(cu)]
    padding = [t >= n for n, (a, b) in zip(real, pairwise(padded), strict=True) for t in range(b - a)]
    return PackedBatch(
        tokens=torch.tensor([tokens]),
        labels=label_row,
        loss_weight=(label_row != IGNORE_INDEX).float(),
        position_ids=torch.tensor([positions]),
        cu_seqlens=torch.tensor(cu, dtype=torch.int32),
        cu_seqlens_padded=torch.tensor(padded, dtype=torch.int32),
        max_seqlen=max(b - a for a, b in pairwise(padded)),
        padding_mask=torch.tensor([padding]),
        pixels=torch.zeros(num_pictures, 3, 2, 2, dtype=torch.uint8),
        pixel_norm=PixelNorm(),
        tiles_per_image=torch.ones(num_pictures, dtype=torch.int32),
        tokens_per_image=torch.full((num_pictures,), 4, dtype=torch.int32),
        image_sizes=torch.full((num_pictures, 2), 2, dtype=torch.int32),
        image_grids=torch.ones(num_pictures, 2, dtype=torch.int32),
        images_per_sample=torch.tensor([ids.count(PICTURE) for ids, _ in samples], dtype=torch.int32),
        sample_keys=tuple("abc"[: len(samples)]),
        sources=("test",) * len(samples),
        num_loss_tokens=int((label_row != IGNORE_INDEX).sum()),
        num_samples=len(samples),
        pack_index=0,
    )


# multiple, fixed length, offsets, padded offsets, length of the compact row, labels after the model expanded it
ROWS: list[tuple[int, int | None, list[int], list[int], int, list[int]]] = [
    (
        *(1, None, [0, 8, 11, 19], [0, 8, 11, 19], 13),
        [-100] * 5 + [12, 13, 2, 22, 23, 2] + [-100] * 4 + [32, 33, 34, 2],  # the 2 at 10 is not lost at the seam
    ),
    (
        *(4, None, [0, 8, 11, 19], [0, 8, 12, 20], 14),
        [-100] * 5 + [12, 13, 2, 22, 23, 2] + [-100] * 5 + [32, 33, 34, 2],
    ),
    (
        *(8, None, [0, 8, 11, 19], [0, 8, 16, 24], 18),
        [-100] * 5 + [12, 13, 2, 22, 23, 2] + [-100] * 9 + [32, 33, 34, 2],
    ),
    (
        *(4, 32, [0, 8, 11, 19, 19], [0, 8, 12, 20, 32], 26),  # the remainder is a segment of its own
        [-100] * 5 + [12, 13, 2, 22, 23, 2] + [-100] * 5 + [32, 33, 34, 2] + [-100] * 12,
    ),
]


@pytest.mark.parametrize(("multiple", "total", "cu", "padded", "length", "labels"), ROWS)
def test_compact_rows_by_the_numbers(
    multiple: int, total: int | None, cu: list[int], padded: list[int], length: int, labels: list[int]
) -> None:
    view = row_of(A, B, C, multiple=multiple, total=total).to_megatron(image_token_layout="compact")
    tokens = view["tokens"][0].tolist()
    assert len(tokens) == length
    assert [t for t in tokens if t] == [*A[0], *B[0], *C[0]]
    params = view["packed_seq_params"]
    assert params.cu_seqlens_q.tolist() == params.cu_seqlens_kv.tolist() == cu
    assert params.cu_seqlens_q_padded.tolist() == params.cu_seqlens_kv_padded.tolist() == padded
    assert params.max_seqlen_q == max(b - a for a, b in pairwise(padded))
    after = expanded(view["labels"][0].tolist(), tokens)
    assert after == labels
    assert len(after) == padded[-1], "the offsets are those of the row that the model makes"
    mask = expanded([int(m) for m in view["loss_mask"][0].tolist()], tokens)
    assert [m == 1 for m in mask] == [label != -100 for label in labels]


def test_a_compact_row_position_by_position() -> None:
    view = row_of(A, B, C, multiple=4).to_megatron(image_token_layout="compact")
    assert view["tokens"].tolist() == [[1, PICTURE, 11, 12, 13, 21, 22, 23, 0, PICTURE, 31, 32, 33, 34]]
    assert view["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3, 4]]
    assert view["loss_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]]


def test_positions_of_three_padded_samples_restart_in_both_layouts() -> None:
    """Samples of 35 tokens with a picture of four embeddings take 38 positions, and a room of 64."""
    one = ([7] * 5 + [PICTURE] + list(range(8, 37)), [-100] * 35)
    batch = row_of(one, one, one, multiple=64)
    compact, full = batch.to_megatron(image_token_layout="compact"), batch.to_megatron()
    assert full["packed_seq_params"].cu_seqlens_q.tolist() == [0, 38, 76, 114]
    assert full["packed_seq_params"].cu_seqlens_q_padded.tolist() == [0, 64, 128, 192]
    assert compact["tokens"].shape == (1, 183)
    assert torch.nonzero(compact["position_ids"][0] == 0).flatten().tolist() == [0, 61, 122]
    assert torch.nonzero(full["position_ids"][0] == 0).flatten().tolist() == [0, 64, 128]


def test_offsets_of_a_tail_are_the_samples_own() -> None:
    text = ([1, 2, 3, 4, 5], [-100] * 5), ([6, 7, 8], [-100] * 3)
    params = row_of(*text, multiple=4).to_megatron()["packed_seq_params"]
    assert (params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist()) == ([0, 5, 8], [0, 8, 12])
    params = row_of(*text, multiple=4, total=16).to_megatron()["packed_seq_params"]
    assert (params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist()) == ([0, 5, 8, 8], [0, 8, 12, 16])


# --- every family ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", families.FAMILIES)
def test_compact_rows_of_every_family(family: str, tokenizer: Any) -> None:
    """Pictures of different numbers of embeddings: one placeholder each, and expanding them gives the row back."""
    samples = families.encode(family, tokenizer)
    batch = families.pack(family, samples, sequence_multiple=4, fixed_total=512)
    view = batch.to_megatron(image_token_layout="compact")
    tokens = view["tokens"][0].tolist()
    counts = [p.num_tokens for s in samples for p in s.pictures]
    assert tokens.count(IMAGE_TOKEN_INDEX) == len(counts)
    assert len(tokens) == 512 - sum(counts) + len(counts)
    remaining = iter(counts)
    again = [t for token in tokens for t in ([token] * next(remaining) if token == IMAGE_TOKEN_INDEX else [token])]
    assert again == batch.tokens[0].tolist()
    assert view["packed_seq_params"].cu_seqlens_q_padded.tolist() == batch.cu_seqlens_padded.tolist()
    starts, at = [], 0
    for sample in samples:
        starts.append(at)
        room = -(-sample.num_tokens // 4) * 4
        at += len(sample.token_ids_n) + room - sample.num_tokens
    if at < len(tokens):
        starts.append(at)
    assert torch.nonzero(view["position_ids"][0] == 0).flatten().tolist() == starts
    for name, whole in (("labels", batch.labels), ("loss_mask", batch.loss_weight)):
        kept = view[name][0]  # type: ignore[literal-required]
        assert kept[kept > 0].tolist() == whole[0][whole[0] > 0].tolist()


def test_anyres_pictures_bring_their_sizes(tokenizer: Any) -> None:
    samples = families.encode("llava_next", tokenizer)
    batch = families.pack("llava_next", samples)
    view = batch.to_megatron()
    assert view["image_sizes"].tolist() == [[p.height_px, p.width_px] for s in samples for p in s.pictures]
    assert view["num_media_tiles"].tolist() == [p.num_tiles for s in samples for p in s.pictures]
    assert len(view["media"]) == sum(view["num_media_tiles"])
    assert "image_grid_thw" not in view
    assert "image_sizes" not in tailed().to_megatron()


def test_patches_bring_their_grids_and_mrope_positions(tokenizer: Any) -> None:
    samples = families.encode("qwen2_5_vl", tokenizer)
    batch = families.pack("qwen2_5_vl", samples)
    view, call = batch.to_megatron(), batch.to_transformers(image_token_id=len(tokenizer))
    assert torch.equal(view["position_ids"], call["position_ids"][1:])
    assert torch.equal(view["media"], call["pixel_values"])
    assert torch.equal(view["image_grid_thw"], call["image_grid_thw"])
    text = families.pack("qwen2_5_vl", [s for s in samples if not s.pictures]).to_megatron()
    assert text["media"].shape == (0, 3 * 2 * 7 * 7)
    assert text["image_grid_thw"].shape == (0, 3)
