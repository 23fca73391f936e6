"""The mock module: the published snippet, every kind of batch, splits of their own, settings that cannot work."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmpack import vlm
from mmpack.batch import PackedBatch, PaddedBatch
from mmpack.errors import ConfigError
from mmpack.layout import Layout
from tests.datamodules.helpers import batches, digest, keys, mock


def test_the_published_snippet_runs() -> None:
    data = vlm.NevaMockDataModule(
        seq_length=2048,
        global_batch_size=128,
        micro_batch_size=4,
        tokenizer=None,
        image_processor=None,
        num_workers=4,
        packed_sequence=True,
    )
    batch = next(iter(data.train_dataloader())).check()
    assert isinstance(batch, PackedBatch)
    assert batch.cu_seqlens.tolist() == [0, 2048, 4096, 6144, 8192]
    assert batch.pixels.shape == (4, 3, 336, 336)
    assert (batch.tokens == -200).sum() == 4 * 576
    assert data.gradient_accumulation_steps == 32


def test_the_defaults_are_nemos() -> None:
    data = vlm.NevaMockDataModule(num_workers=0)
    batch = next(iter(data.train_dataloader())).check()
    assert isinstance(batch, PaddedBatch)
    assert batch.tokens.shape == (4, 2048)
    assert batch.tiles_per_image.tolist() == [1] * 4
    assert batch.padding_mask.sum() == 0


def test_nothing_is_downloaded_or_imported_that_is_heavy() -> None:
    code = (
        "import sys; from mmpack import vlm; next(iter(vlm.NevaMockDataModule(num_workers=0).train_dataloader()));"
        "assert not {'transformers', 'megatron.core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_packed_is_the_micro_batch_as_one_row() -> None:
    packed, padded = mock(packed_sequence=True), mock(packed_sequence=False)
    for row, rows in zip(batches(packed, 10), batches(padded, 10), strict=True):
        assert row.sample_keys == rows.sample_keys
        assert len(row.sample_keys) == 3
        assert row.cu_seqlens.diff().tolist() == rows.lengths.tolist()
        for number, (start, end) in enumerate(pairwise(row.cu_seqlens.tolist())):
            length = end - start
            for name in ("tokens", "labels", "loss_weight", "position_ids"):
                whole, one = getattr(row, name)[0, start:end], getattr(rows, name)[number, :length]
                assert torch.equal(whole, one), name
        assert torch.equal(row.pixels, rows.pixels)
        assert rows.tokens.shape == (3, 60)


def test_a_window_fills_rows() -> None:
    found = batches(mock(packed_sequence=True, packing_buffer_size=60, packed_sequence_size=256), 20)
    assert [batch.num_tokens for batch in found].count(256) >= 18
    assert all(batch.num_tokens <= 256 for batch in found)
    default = mock(packed_sequence=True, packing_buffer_size=60)
    assert default.rows.row_size == 3 * 60
    assert default.gradient_accumulation_steps == 2


@pytest.mark.parametrize("packed", [True, False])
def test_splits_have_samples_of_their_own(packed: bool) -> None:
    module = mock(packed_sequence=packed, num_train_samples=20)
    found = {split: batches(module, 5, split) for split in ("train", "val", "test")}
    tokens = {split: {tuple(b.tokens.flatten().tolist()) for b in each} for split, each in found.items()}
    assert not tokens["train"] & tokens["val"]
    assert not tokens["val"] & tokens["test"]
    assert not tokens["train"] & tokens["test"]
    for split in ("val", "test"):
        every = batches(module, None, split)
        assert len(set(keys(every))) == len(keys(every)) == 20
        assert [digest(b) for b in every] == [digest(b) for b in batches(module, None, split)]


def test_samples_come_again_after_the_last_and_not_before() -> None:
    endless = keys(batches(mock(num_train_samples=24), 16))
    assert len(set(endless[:24])) == 24
    assert endless[:24] == endless[24:48]
    assert len(keys(batches(mock(num_train_samples=25, repeat=False)))) == 25


def test_a_seed_is_other_samples() -> None:
    first, second = (batches(mock(seed=seed, packed_sequence=True), 4) for seed in (1, 2))
    assert not {digest(b) for b in first} & {digest(b) for b in second}


@pytest.mark.parametrize("embeddings", [1, 4, 144, 576, 729])
def test_any_number_of_embeddings(embeddings: int) -> None:
    module = mock(seq_length=3 * 2 * embeddings + 1, num_image_embeddings_per_tile=embeddings, packed_sequence=True)
    for batch in batches(module, 5):
        assert (batch.tokens == -200).sum() == embeddings * batch.pixels.shape[0]


def test_tokenizer_and_image_processor_are_used_together(tokenizer: Any) -> None:
    from transformers import CLIPImageProcessorPil

    image_processor = CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    module = mock(tokenizer=tokenizer, image_processor=image_processor, num_image_embeddings_per_tile=16)
    special = set(tokenizer.all_special_ids)
    for batch in batches(module, 5):
        text = batch.tokens[~batch.padding_mask & (batch.tokens >= 0)]
        assert text.max() < len(tokenizer)
        assert not special & set(text.tolist())
        assert set(batch.tokens[batch.padding_mask].tolist()) <= {tokenizer.pad_token_id}
        assert batch.pixels.shape[1:] == (3, 56, 56)
        assert batch.pixel_norm.mean == pytest.approx(image_processor.image_mean)


def test_a_tokenizer_inside_nemos_is_found(tokenizer: Any) -> None:
    class Wrapper:
        def __init__(self) -> None:
            self.tokenizer = tokenizer

    assert mock(tokenizer=Wrapper()).tokenizer is tokenizer


def test_lengths_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("\n".join(map(str, [7, 60, 31, 2])))
    module = mock(length_distribution=tmp_path / "lengths", num_streams=1, packed_sequence=True, micro_batch_size=4,
                  global_batch_size=4)  # fmt: skip
    assert [b.cu_seqlens.diff().tolist() for b in batches(module, 3)] == [[7, 60, 31, 2]] * 3


def test_layouts() -> None:
    module = mock(packed_sequence=True, layout=Layout(sequence_multiple=4, total_multiple=16))
    for batch in batches(module, 5):
        assert batch.num_tokens % 16 == 0
        assert all(room % 4 == 0 for room in batch.cu_seqlens_padded.diff().tolist())
    fixed = mock(packed_sequence=True, decoder_seq_length=200)
    assert {b.num_tokens for b in batches(fixed, 5)} == {200}
    assert {b.tokens.shape for b in batches(mock(decoder_seq_length=64), 3)} == {(3, 64)}
    window = mock(packed_sequence=True, decoder_seq_length=200, packing_buffer_size=40)
    assert {b.num_tokens for b in batches(window, 5)} == {200}
    graphs = {"packed_sequence": True, "decoder_seq_length": 200, "layout": Layout(fixed_total=200, cu_seqlens_size=6)}
    for options in ({"packing_buffer_size": 40, "micro_batch_size": 1}, {}):
        assert {(len(b.check().cu_seqlens), b.max_seqlen) for b in batches(mock(**graphs, **options), 5)} == {(6, 200)}
    with pytest.raises(ConfigError, match=r"micro_batch_size=3 with layout.cu_seqlens_size=4.*set .*=5"):
        mock(**graphs | {"layout": Layout(fixed_total=200, cu_seqlens_size=4)})


@pytest.mark.parametrize("options", [{}, {"packed_sequence": True},
                                     {"packed_sequence": True, "packing_buffer_size": 30}])  # fmt: skip
def test_the_same_batches_from_every_layout_of_ranks_and_workers(options: dict[str, Any]) -> None:
    expected = [digest(b) for b in batches(mock(**options), 12)]
    assert len(set(expected)) == 12
    assert [digest(b) for b in batches(mock(num_workers=2, **options), 12)] == expected
    ranks = [batches(mock(num_workers=2, data_parallel_rank=r, data_parallel_size=2, **options), 6) for r in (0, 1)]
    assert [digest(b) for pair in zip(*ranks, strict=True) for b in pair] == expected


def test_short_sequences_are_refused_with_the_remedy_or_work() -> None:
    with pytest.raises(
        ConfigError, match=r"seq_length=576: .*takes 577 tokens at least .*576 embeddings.*set seq_length to 577"
    ):
        vlm.NevaMockDataModule(seq_length=576, num_workers=0)
    batch = next(iter(vlm.NevaMockDataModule(seq_length=577, num_workers=0).train_dataloader())).check()
    assert batch.num_loss_tokens == 4
    text_only = next(iter(mock(seq_length=8, num_images_per_sample=0).train_dataloader())).check()
    assert text_only.pixels.shape[0] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rampup_batch_size": [2, 2, 100]}, r"rampup_batch_size=\[2, 2, 100\].*gradient accumulation"),
        ({"global_batch_size": 8}, r"=8 is not a multiple of micro_batch_size=3 x 1 .*set it to 6 or 9"),
        ({"global_batch_size": 6, "data_parallel_size": 4, "data_parallel_rank": 0}, r"set it to 12 or 24"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"num_image_embeddings_per_tile": 0}, "num_image_embeddings_per_tile=0"),
        ({"num_train_samples": 0}, "num_streams=4: there are 0 training samples"),
        ({"num_train_samples": -1}, "num_train_samples=-1"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"packing_buffer_size": 9}, "packing_buffer_size=9 with packed_sequence=False"),
        ({"packed_sequence": True, "packed_sequence_size": 99}, "packed_sequence_size=99 without packing_buffer_size"),
        ({"packed_sequence": True, "packing_buffer_size": 9, "packed_sequence_size": 50}, "below seq_length=60"),
        ({"packed_sequence": True, "decoder_seq_length": 179}, r"decoder_seq_length=179: .* 180 .*packing_buffer_size"),
        ({"decoder_seq_length": 5}, r"decoder_seq_length=5: .*set decoder_seq_length to"),
        ({"vocab_size": 3}, "vocab_size=3"),
        ({"length_distribution": "poisson"}, "length_distribution='poisson'"),
        ({"num_tiles_per_image": (3, 1)}, r"num_tiles_per_image=\(3, 1\)"),
    ],
)  # fmt: skip
def test_a_wrong_setting_fails_at_construction(changes: dict[str, Any], words: str) -> None:
    if changes == {"decoder_seq_length": 5}:
        changes["num_images_per_sample"] = (2, 2)
    with pytest.raises(ConfigError, match=words):
        mock(**changes)


def test_native_patches_are_refused() -> None:
    from transformers import Qwen2VLImageProcessorPil

    with pytest.raises(ConfigError, match="makes patches of native resolution"):
        mock(image_processor=Qwen2VLImageProcessorPil())


def test_a_state_of_other_samples_is_refused() -> None:
    from mmpack.errors import StateError

    first = mock()
    next(iter(first.train_dataloader()))
    for changes in ({"seed": 3}, {"length_distribution": "zipf"}, {"num_tiles_per_image": 1}, {"vocab_size": 500}):
        with pytest.raises(StateError, match="data: saved"):
            mock(**changes).load_state_dict(first.state_dict())
    with pytest.raises(StateError, match=r"stream.samples_per_pack: saved 3, now 2"):
        mock(micro_batch_size=2).load_state_dict(first.state_dict())


def test_drawing_does_not_touch_global_generators() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    list(islice(mock(packed_sequence=True).train_dataloader(), 5))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
