"""`PackedBatch`: what `check` refuses, and the view for transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch, PixelNorm
from mmpack.batch.transformers import block_diagonal_mask, model_inputs, refuse_traps, to_transformers
from mmpack.errors import ConfigError
from tests.loss_neutral.packs import VOCAB, mixed_samples, pack, sample

SAMPLES = mixed_samples()
IMAGE_ID = VOCAB


def with_changed(batch: PackedBatch, name: str, index: int, value: Any) -> PackedBatch:
    tensor = getattr(batch, name).clone()
    tensor[(0, index) if tensor.ndim == 2 else index] = value
    return dataclasses.replace(batch, **{name: tensor})


def tailed() -> PackedBatch:
    return pack(SAMPLES, multiple=4, total=200)


def test_check_accepts_every_layout() -> None:
    for options in (
        {},
        {"multiple": 8},
        {"total": 200},
        {"multiple": 4, "total": 200},
        {"weight": "sqrt"},
        {"total": 200, "offsets": 16},
    ):
        batch = pack(SAMPLES, **options)
        assert batch.check() is batch
    assert tailed().num_tokens == 200
    assert tailed().num_real_tokens == sum(len(s.tokens) for s in SAMPLES)


def first_label(batch: PackedBatch) -> int:
    return int(torch.nonzero(batch.labels[0] != IGNORE_INDEX)[0])


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("cu_seqlens_padded", 1, 23, "more tokens than its room"),
        ("cu_seqlens_padded", 1, 21, "padding_mask does not follow"),
        ("cu_seqlens_padded", -1, 199, "cu_seqlens_padded ends at 199"),
        ("cu_seqlens_padded", 0, 1, "start at 0"),
        ("cu_seqlens", -1, 140, "7 segments hold tokens, 6 samples"),
        ("position_ids", 5, 0, "position_ids"),
        ("padding_mask", 0, True, "padding_mask"),
        ("labels", -1, 5, "padding position has a label"),
        ("labels", 0, 5, "positive where there is a label"),
        ("loss_weight", 0, 1.0, "must be 0"),
        ("tiles_per_image", 0, 2, "tiles announced"),
        ("images_per_sample", 0, 2, "images_per_sample"),
        ("tokens", 0, IMAGE_TOKEN_INDEX, "image positions"),
    ],
)
def test_check_names_a_changed_field(field: str, index: int, value: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        with_changed(tailed(), field, index, value).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seqlen": 7}, "max_seqlen is 7"),
        (
            {
                "cu_seqlens": torch.tensor([0, 0, 1], dtype=torch.int32),
                "cu_seqlens_padded": torch.tensor([0, 0, 200], dtype=torch.int32),
            },
            "empty segment before the last",
        ),
        ({"num_loss_tokens": 1}, "num_loss_tokens"),
        ({"sample_keys": ("a",)}, "samples"),
        ({"labels": torch.zeros(1, 3, dtype=torch.int64)}, "labels has shape"),
        ({"pixels": torch.zeros(11, 3, 28, 28)}, "uint8"),
    ],
)
def test_check_names_a_wrong_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        dataclasses.replace(tailed(), **changes).check()


def test_check_wants_distinct_offset_tensors() -> None:
    batch = pack(SAMPLES)
    with pytest.raises(AssertionError, match="distinct"):
        dataclasses.replace(batch, cu_seqlens_padded=batch.cu_seqlens).check()


def test_check_refuses_a_label_across_the_seam_and_a_wrong_label() -> None:
    batch = pack(SAMPLES)
    end = int(batch.cu_seqlens_padded[1]) - 1
    crossing = with_changed(with_changed(batch, "labels", end, int(batch.tokens[0, end + 1])), "loss_weight", end, 1.0)
    crossing = dataclasses.replace(crossing, num_loss_tokens=batch.num_loss_tokens + 1)
    with pytest.raises(AssertionError, match="another segment's token"):
        crossing.check()
    at = first_label(batch)
    with pytest.raises(AssertionError, match="not the next token"):
        with_changed(batch, "labels", at, int(batch.labels[0, at]) + 1).check()


def test_pixel_norm_is_the_formula() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(1, 3, 2, 4)
    out = PixelNorm(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))(pixels)
    assert out.dtype == torch.float32
    assert out[0, 1, 0, 0].item() == pytest.approx((8 / 255 - 0.2) / 0.25)
    assert out[0, 2, 1, 3].item() == pytest.approx((23 / 255 - 0.3) / 2.0)


# --- transformers ------------------------------------------------------------------------------------------------


def test_transformers_view_says_what_the_row_holds() -> None:
    batch = tailed()
    view = batch.to_transformers(image_token_id=IMAGE_ID)
    assert set(view) == {
        *("input_ids", "position_ids", "attention_mask", "use_cache", "labels", "shift_labels", "num_items_in_batch"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "pixel_values"),
    }
    is_image = batch.tokens == IMAGE_TOKEN_INDEX
    assert torch.equal(view["input_ids"] == IMAGE_ID, is_image)
    assert torch.equal(view["input_ids"][~is_image], batch.tokens[~is_image])
    assert view["attention_mask"] is None
    assert view["use_cache"] is False
    assert view["cu_seq_lens_q"].dtype == view["cu_seq_lens_k"].dtype == torch.int32
    assert view["cu_seq_lens_q"].tolist() == batch.cu_seqlens_padded.tolist()
    assert view["cu_seq_lens_q"][-1] == 200, "the tail is a segment: rows past the last offset are undefined"
    assert type(view["max_length_q"]) is type(view["max_length_k"]) is int
    assert view["num_items_in_batch"] == batch.num_loss_tokens
    assert torch.equal(view["pixel_values"], batch.pixel_norm(batch.pixels))


def test_transformers_labels_shift_to_ours() -> None:
    batch = tailed()
    view = to_transformers(batch, image_token_id=IMAGE_ID)
    assert torch.equal(view["shift_labels"], batch.labels)
    assert torch.equal(view["labels"][0, 1:], batch.labels[0, :-1])
    starts = batch.cu_seqlens_padded[:-1].long()
    assert (view["labels"][0, starts] == IGNORE_INDEX).all()
    trained = view["labels"] != IGNORE_INDEX
    assert torch.equal(view["labels"][trained], batch.tokens[trained])


def test_transformers_view_without_pictures_has_no_pixels() -> None:
    view = to_transformers(pack([SAMPLES[1]]), image_token_id=IMAGE_ID)
    assert "pixel_values" not in view


def test_transformers_view_of_a_pack_that_teaches_nothing_divides_by_one() -> None:
    assert to_transformers(pack([sample("q", ("ask", 4))]), image_token_id=IMAGE_ID)["num_items_in_batch"] == 1


def test_block_diagonal_mask_by_hand() -> None:
    batch = pack(SAMPLES, total=150)
    view = to_transformers(batch, image_token_id=IMAGE_ID, mask="block_diagonal")
    assert "cu_seq_lens_q" not in view
    mask = view["attention_mask"]
    assert mask.dtype == torch.float32
    assert mask.shape == (1, 1, 150, 150)
    segment = [sum(t >= end for end in batch.cu_seqlens_padded.tolist()[1:]) for t in range(150)]
    expected = [[segment[q] == segment[k] and k <= q for k in range(150)] for q in range(150)]
    assert torch.equal(mask[0, 0] == 0, torch.tensor(expected))
    assert bool((mask[0, 0][~torch.tensor(expected)] == torch.finfo(torch.float32).min).all())
    assert torch.equal(mask == 0, block_diagonal_mask(batch.cu_seqlens_padded))


def test_a_text_token_that_is_the_image_token_is_refused() -> None:
    batch = tailed()
    taken = int(batch.tokens[0, 0])
    with pytest.raises(ConfigError, match=f"text token has the id {taken}"):
        to_transformers(batch, image_token_id=taken)


@pytest.mark.parametrize("image_token_id", ["a", 1.5, -1, -200, True, 2**40])
def test_an_image_token_that_no_model_has_is_refused(image_token_id: Any) -> None:
    with pytest.raises(ConfigError, match=f"image_token_id={image_token_id!r}; give the model's"):
        to_transformers(tailed(), image_token_id=image_token_id)


def test_pictures_without_an_image_token_are_refused() -> None:
    with pytest.raises(ConfigError, match="image_token_id"):
        model_inputs(tailed(), image_token_id=None)
    assert model_inputs(pack([SAMPLES[1]]), image_token_id=None)["input_ids"].min() >= 0


def test_unknown_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'varlen'"):
        to_transformers(tailed(), image_token_id=IMAGE_ID, mask="varlan")


@pytest.mark.parametrize("weight", ["sample", "sqrt"])
def test_weighted_labels_are_refused(weight: str) -> None:
    with pytest.raises(ConfigError, match="PackedModel"):
        to_transformers(pack(SAMPLES, weight=weight), image_token_id=IMAGE_ID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_cache": True}, "use_cache"),
        ({"use_cache": None}, "use_cache"),
        ({"position_ids": None}, "position_ids"),
        ({"position_ids": torch.zeros(3, 1, 200)}, "M-RoPE"),
        ({"attention_mask": torch.ones(1, 200)}, "2-D attention_mask"),
    ],
)
def test_traps_are_refused(changes: dict[str, Any], message: str) -> None:
    inputs = to_transformers(tailed(), image_token_id=IMAGE_ID)
    refuse_traps(inputs)
    with pytest.raises(ConfigError, match=message):
        refuse_traps(inputs | changes)


def test_traps_of_an_attention_are_refused() -> None:
    masked = to_transformers(tailed(), image_token_id=IMAGE_ID, mask="block_diagonal")
    refuse_traps(masked, attention="sdpa")
    refuse_traps(masked, attention="eager")
    with pytest.raises(ConfigError, match="eager"):
        refuse_traps({**masked, "attention_mask": masked["attention_mask"] == 0}, attention="eager")
    with pytest.raises(ConfigError, match="needs cu_seq_lens_q"):
        refuse_traps(masked, attention="mmpack_varlen")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [((0, 0), "name every sample"), ((-1, 0, 1, 0, 1, -1), "not whole"), ((-1, -1, 0, -1, -1, -1), "not whole")],
)
def test_check_knows_whole_pairs(pairs: tuple[int, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        dataclasses.replace(tailed(), pair_of_sample=pairs).check()
