"""What goes wrong in NeMo's Energon module and does not here; the other modules' defects are in their own tests."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.layout import Layout
from tests.conftest import convert_llava, data_module
from tests.datamodules.helpers import batches, digest, keys


def test_an_oversize_sample_is_dropped_alone(energon_dataset: Path, tokenizer: Any) -> None:
    everything = set(keys(batches(data_module(energon_dataset, tokenizer, repeat=False))))
    short = data_module(energon_dataset, tokenizer, repeat=False, seq_length=120)
    kept = keys(batches(short))
    drops = short.train_dataloader().drops.counts()
    assert set(drops) == {"oversize"}
    assert len(set(kept)) == len(kept) == len(everything) - drops["oversize"]
    assert drops["oversize"] > 10


def test_padding_of_sequences_is_planned(energon_dataset: Path, tokenizer: Any) -> None:
    layout = Layout(sequence_multiple=64)
    for batch in batches(data_module(energon_dataset, tokenizer, packed_sequence_size=1024, layout=layout), 20):
        assert batch.num_tokens <= 1024
        assert all(room % 64 == 0 for room in batch.cu_seqlens_padded.diff().tolist())


def test_every_tile_counts(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(
        energon_dataset, tokenizer, tiling="dynamic", tiling_options={"max_tiles": 6}, packed_sequence_size=1024
    )
    seen: Counter[int] = Counter()
    for batch in batches(module, 20):
        per_picture = (batch.tiles_per_image * 4).tolist()
        assert batch.tokens_per_image.tolist() == per_picture
        seen.update(batch.tiles_per_image.tolist())
        pictures = iter(per_picture)
        in_samples = [sum(itertools.islice(pictures, n)) for n in batch.images_per_sample.tolist()]
        placeholders = [
            int((batch.tokens[0, a:b] == -200).sum()) for a, b in itertools.pairwise(batch.cu_seqlens_padded.tolist())
        ]
        assert placeholders[: len(in_samples)] == in_samples  # no sample reaches into its neighbour
    assert len(seen) > 2


def test_positions_count_from_0_in_every_sample(energon_dataset: Path, tokenizer: Any) -> None:
    for batch in batches(data_module(energon_dataset, tokenizer), 10):
        for start, end in itertools.pairwise(batch.cu_seqlens_padded.tolist()):
            assert batch.position_ids[0, start:end].tolist() == list(range(end - start))


def test_a_micro_batch_of_packs_is_refused_with_the_remedy(energon_dataset: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"micro_batch_size=4 .*set micro_batch_size=1 .*packed_sequence_size=2048"):
        data_module(energon_dataset, tokenizer, micro_batch_size=4)


def test_validation_may_have_data_of_its_own(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    other = convert_llava(tmp_path, 80, seed=9, split={"train": 0.5, "val": 0.25, "test": 0.25})
    module = data_module(energon_dataset, tokenizer, validation_path=other, test_path=other)
    reading_other = data_module(other, tokenizer, validation_path=energon_dataset)
    for split in ("val", "test"):
        found = batches(module, None, split)
        assert len(set(keys(found))) == len(keys(found)) == 20
        assert {digest(b) for b in found} == {digest(b) for b in batches(data_module(other, tokenizer), None, split)}
    assert len(keys(batches(reading_other, None, "val"))) == 60
