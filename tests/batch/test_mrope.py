"""Batches of patches: M-RoPE positions equal transformers', `check` sees wrong ones, calls without them are refused."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from mmpack.batch import IMAGE_TOKEN_INDEX, PackedBatch
from mmpack.batch.transformers import model_inputs, refuse_traps
from mmpack.errors import ConfigError
from tests.loss_neutral.families import encode, model, pack, pad

FAMILY = "qwen2_5_vl"


def of_transformers(batch: PackedBatch, net: Any) -> torch.Tensor:
    """(3, T) positions of the real tokens from `get_rope_index`, sample by sample; -1 at padding."""
    expected = torch.full((3, batch.num_tokens), -1)
    starts = batch.cu_seqlens_padded.tolist()
    lengths = [n for n in batch.cu_seqlens.diff().tolist() if n]
    grids = torch.cat([torch.ones(len(batch.image_grids), 1, dtype=torch.long), batch.image_grids.long()], dim=1)
    parts = grids.split_with_sizes(batch.images_per_sample.tolist())
    for start, length, grid in zip(starts, lengths, parts, strict=False):
        ids = batch.tokens[:, start : start + length]
        types = (ids == IMAGE_TOKEN_INDEX).int()
        positions, _ = net.hf.model.get_rope_index(ids.clamp(min=0), mm_token_type_ids=types, image_grid_thw=grid)
        expected[:, start : start + length] = positions[:, 0]
    return expected


@pytest.mark.parametrize("layout", [{}, {"sequence_multiple": 8}, {"sequence_multiple": 4, "fixed_total": 1200}])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_rows_equal_those_of_transformers(family: str, layout: dict[str, int], tokenizer: Any) -> None:
    rng = random.Random(repr(layout))
    pictures = [[(rng.randint(8, 120), rng.randint(8, 120)) for _ in range(rng.randint(0, 3))] for _ in range(8)]
    batch = pack(family, encode(family, tokenizer, pictures), **layout)
    expected = of_transformers(batch, model(family, len(tokenizer)))
    real = expected[0] >= 0
    assert torch.equal(real, ~batch.padding_mask[0])
    assert torch.equal(batch.position_ids[1:, 0][:, real], expected[:, real])


def test_padded_rows_equal_those_of_transformers(tokenizer: Any) -> None:
    samples = encode(FAMILY, tokenizer)
    padded = pad(FAMILY, samples)
    grids = torch.cat([torch.ones(len(padded.image_grids), 1, dtype=torch.long), padded.image_grids.long()], dim=1)
    expected, _ = model(FAMILY, len(tokenizer)).hf.model.get_rope_index(
        padded.tokens.clamp(min=0),
        mm_token_type_ids=(padded.tokens == IMAGE_TOKEN_INDEX).int(),
        image_grid_thw=grids,
        attention_mask=(~padded.padding_mask).long(),
    )
    real = ~padded.padding_mask
    assert torch.equal(padded.position_ids[1:][:, real], expected[:, real])


# --- check -------------------------------------------------------------------------------------------------------


def changed(batch: PackedBatch, axis: int, at: int, value: int) -> PackedBatch:
    positions = batch.position_ids.clone()
    positions[axis, 0, at] += value
    return dataclasses.replace(batch, position_ids=positions)


def test_check_finds_every_wrong_row(tokenizer: Any) -> None:
    batch = pack(FAMILY, encode(FAMILY, tokenizer), sequence_multiple=4, fixed_total=512)
    image = torch.nonzero(batch.tokens[0] == IMAGE_TOKEN_INDEX).flatten()
    first, last = int(image[0]), int(image[int(batch.tokens_per_image[0]) - 1])
    segment = int(batch.cu_seqlens_padded[2])
    for axis in (1, 2, 3):
        for at, message in (
            (segment, "start at 0 in every segment"),
            (segment + 1, "a text token has M-RoPE|go on by one"),
            (first, "first M-RoPE position"),
            (last, "last M-RoPE position"),
            (last + 1, "differ"),
        ):
            with pytest.raises(AssertionError, match=message):
                changed(batch, axis, at, 1).check()
    together = batch.position_ids.clone()
    end = int(batch.cu_seqlens_padded[1])
    together[1:, 0, last + 1 : end] += 1
    with pytest.raises(AssertionError, match="behind a picture's larger side"):
        dataclasses.replace(batch, position_ids=together).check()
    with pytest.raises(AssertionError, match=r"start at 0|go on by one"):
        dataclasses.replace(batch, position_ids=batch.position_ids[:1].expand(4, -1, -1) * 2).check()


def test_check_wants_the_rows_where_there_are_patches(tokenizer: Any) -> None:
    batch = pack(FAMILY, encode(FAMILY, tokenizer))
    for positions, message in (
        (batch.position_ids[0], "patches need M-RoPE"),
        (batch.position_ids[:3], r"expected \(4, 1,"),
        (batch.position_ids[:1].expand(4, -1, -1), "last M-RoPE position"),
    ):
        with pytest.raises(AssertionError, match=message):
            dataclasses.replace(batch, position_ids=positions).check()
    grids = batch.image_grids.flip(1)
    with pytest.raises(AssertionError, match="does not fit image_grids"):
        dataclasses.replace(batch, image_grids=grids).check()


def test_check_of_padded_rows(tokenizer: Any) -> None:
    padded = pad(FAMILY, encode(FAMILY, tokenizer))
    positions = padded.position_ids.clone()
    positions[2, 1, 0] += 1
    with pytest.raises(AssertionError, match="start at 0"):
        dataclasses.replace(padded, position_ids=positions).check()


# --- traps -------------------------------------------------------------------------------------------------------


def without(inputs: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in inputs.items() if k != name}


def test_traps_of_families_are_refused(tokenizer: Any) -> None:
    image_id = len(tokenizer)
    patches = model_inputs(pack(FAMILY, encode(FAMILY, tokenizer)), image_token_id=image_id)
    tiles = model_inputs(pack("llava_next", encode("llava_next", tokenizer)), image_token_id=image_id)
    refuse_traps(patches)
    refuse_traps(tiles)
    for inputs, message in (
        (patches | {"position_ids": patches["position_ids"][0]}, r"one row of position_ids.*pass \(4, 1, T\)"),
        (patches | {"position_ids": patches["position_ids"][1:]}, "3 rows of M-RoPE"),
        (without(patches, "image_grid_thw"), "no image_grid_thw"),
        (without(tiles, "image_sizes"), "no image_sizes"),
    ):
        with pytest.raises(ConfigError, match=message):
            refuse_traps(inputs)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 4)], ids=["one row", "three rows"])
def test_what_is_refused_is_really_wrong(rows: slice, tokenizer: Any) -> None:
    """With transformers' own sdpa, which must find the seams in the positions. If it mends this, the refusal can go."""
    batch, net = pack(FAMILY, encode(FAMILY, tokenizer)), model(FAMILY, len(tokenizer), mask="block_diagonal")
    inputs = model_inputs(batch, image_token_id=len(tokenizer))
    positions = inputs["position_ids"][rows]
    wrong = inputs | {"position_ids": positions[0] if len(positions) == 1 else positions}
    with torch.no_grad():
        right = net.logits(batch)
        torch.testing.assert_close(net.hf(**inputs).logits[0], right, atol=2e-5, rtol=0)
        assert (net.hf(**wrong).logits[0] - right).abs().max() > 1e-3
