"""The data module under NeMo's names: a wrong configuration fails when it is built, with the remedy."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmpack.batch import PaddedBatch
from mmpack.datamodules import (
    EnergonMultiModalDataModule,
    ImageToken,
    LLaVATemplateConfig,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)
from mmpack.errors import ConfigError
from mmpack.layout import Layout
from tests.conftest import data_module, digest, tile_spec


def test_the_published_snippet_runs(energon_dataset: Path, tokenizer: Any) -> None:
    from transformers import CLIPImageProcessorPil

    image_processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    config = MultiModalSampleConfig(
        image_token=ImageToken(token_str="<image>", token_id=-200),
        ignore_place_holder=-100,
        conversation_template_config=LLaVATemplateConfig(),
    )
    data = EnergonMultiModalDataModule(
        path=energon_dataset,
        tokenizer=tokenizer,
        image_processor=image_processor,
        seq_length=2048,
        micro_batch_size=1,
        global_batch_size=32,
        num_workers=0,
        multimodal_sample_config=config,
        task_encoder=MultiModalTaskEncoder(
            tokenizer=tokenizer,
            image_processor=image_processor,
            multimodal_sample_config=config,
            packed_sequence=True,
            packed_sequence_size=8192,
            num_image_embeddings_per_tile=576,
        ),
        packing_buffer_size=200,
    )
    batch = next(iter(data.train_dataloader())).check()
    assert batch.tokens.shape[1] <= 8192
    assert batch.num_samples > 1
    assert (batch.tokens == -200).sum() == 576 * batch.pixels.shape[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batch_size": 2}, r"micro_batch_size=2 .*set micro_batch_size=1 .*packed_sequence_size=1024"),
        ({"packed_sequence_size": None}, r"packed_sequence_size=None.*e\.g\. packed_sequence_size=8192"),
        ({"packed_sequence_size": -1}, r"packed_sequence_size=-1"),
        ({"max_tiles_per_pack": 0}, r"max_tiles_per_pack=0; it must be at least 1"),
        ({"num_val_workers": -1}, r"num_val_workers=-1"),
        ({"bad_share_window": 0}, r"bad_share_window=0"),
        ({"oversize": ""}, r"oversize='' is unknown"),
        (
            {"packed_sequence_size": 300, "oversize": None},
            r"packed_sequence_size=300 .*below seq_length=512.*oversize=",
        ),
        ({"packing_buffer_size": None}, r"packing_buffer_size=None.*e\.g\. 200"),
        ({"packed_sequence": False}, r"packed_sequence=False"),
        ({"batching": "dynamic"}, r"tokens_per_microbatch=None with batching='dynamic'"),
        ({"batching": "dynamic", "tokens_per_microbatch": 64}, r"tokens_per_microbatch=64 is below the longest row"),
        ({"batching": "dynamc"}, r"did you mean 'dynamic'"),
        ({"tokens_per_microbatch": 4096}, r"no meaning for packing"),
        ({"blend_by": "token"}, r"did you mean 'tokens'"),
        ({"blend_by": "tokens"}, r"needs a metadataset"),
        ({"oversize": "cut"}, r"oversize='cut'"),
        (
            {"oversize": {"no_such_set": "drop"}},
            r"oversize names 'no_such_set', which is no dataset here",
        ),
        ({"batching": "padding"}, r"leave it out, or set batching='packing'"),
        ({"loss_weight": "tokens"}, r"loss_weight='tokens'; did you mean 'token'"),
        ({"tiling": "singel"}, r"unknown tiling policy 'singel'; did you mean 'single'"),
        ({"tokenizer": None}, r"tokenizer is None"),
        ({"image_processor": None}, r"image_processor is None"),
        ({"num_image_embeddings_per_tile": 9}, r"num_image_embeddings_per_tile=9, but the TileSpec says 4"),
        ({"global_batch_size": 3, "data_parallel_size": 2, "data_parallel_rank": 0}, r"global_batch_size=3"),
        ({"data_parallel_size": 2, "data_parallel_rank": 2, "global_batch_size": 2}, r"rank=2 is not in 0\.\.1"),
    ],
)
def test_a_wrong_setting_fails_at_construction(
    energon_dataset: Path, tokenizer: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        data_module(energon_dataset, tokenizer, **changes)


def test_an_unknown_option_is_refused(energon_dataset: Path, tokenizer: Any) -> None:
    with pytest.raises(TypeError, match="packing_bufer_size"):
        data_module(energon_dataset, tokenizer, packing_bufer_size=3)


def test_embeddings_must_be_what_the_vision_tower_gives(tokenizer: Any) -> None:
    tower = SimpleNamespace(image_size=28, patch_size=7, model_type="clip_vision_model")
    with pytest.raises(ConfigError, match=r"num_image_embeddings_per_tile=4, but the vision tower gives 16"):
        MultiModalTaskEncoder(
            tokenizer=tokenizer,
            image_processor=tile_spec(),
            packed_sequence_size=512,
            num_image_embeddings_per_tile=4,
            vision_config=tower,
        )


def test_the_vision_tower_may_be_given_within_its_model_and_must_say_its_sizes(tokenizer: Any) -> None:
    tower = SimpleNamespace(image_size=28, patch_size=7, model_type="clip_vision_model")
    pieces: dict[str, Any] = {"image_processor": tile_spec(), "packed_sequence_size": 512}
    pieces |= {"tokenizer": tokenizer, "num_image_embeddings_per_tile": 4}
    for given, words in (
        (SimpleNamespace(vision_config=tower, model_type="llava"), "the vision tower gives 16"),
        (5, "vision_config=int has no whole number 'image_size'"),
        (SimpleNamespace(image_size=28, model_type="clip"), "no whole number 'patch_size'"),
    ):
        with pytest.raises(ConfigError, match=words):
            MultiModalTaskEncoder(vision_config=given, **pieces)
    with pytest.raises(ConfigError, match="vision_feature_select_strategy='patch'; allowed: default, full"):
        MultiModalTaskEncoder(vision_feature_select_strategy="patch", **pieces)


def test_validation_data_that_is_named_is_opened_at_construction(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"validation_path='.*nothing' does not exist"):
        data_module(energon_dataset, tokenizer, validation_path=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="cannot open split 'test'"):
        data_module(energon_dataset, tokenizer, test_path=energon_dataset)


def test_a_size_alone_is_refused_where_nothing_tells_the_rank(energon_dataset: Path, tokenizer: Any) -> None:
    """All processes would take rank 0, and read the same."""
    with pytest.raises(ConfigError, match=r"data_parallel_size=2 without data_parallel_rank.*give both, or neither"):
        data_module(energon_dataset, tokenizer, data_parallel_size=2)
    assert data_module(energon_dataset, tokenizer, data_parallel_size=1).rank == 0


def test_a_path_that_is_no_dataset_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; convert data first"):
        data_module(tmp_path / "nothing", tokenizer)
    with pytest.raises(ConfigError, match=r"has no \.nv-meta folder"):
        data_module(tmp_path, tokenizer)
    (tmp_path / "records.json").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"cannot open .*records\.json.*a file of records becomes .*`mmpack convert`"):
        data_module(tmp_path / "records.json", tokenizer)


def test_oversize_by_dataset_names_the_datasets_of_every_path(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    meta = tmp_path / "meta.yaml"
    blend = {"blend": [{"path": str(energon_dataset), "weight": 1}]}
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": blend, "val": blend}}
    meta.write_text(json.dumps(content))  # YAML, too
    data_module(meta, tokenizer, oversize={energon_dataset.name: "truncate", "*": "drop"})
    with pytest.raises(ConfigError, match=f"no dataset here; did you mean '{energon_dataset.name}'"):
        data_module(meta, tokenizer, oversize={energon_dataset.name.upper(): "truncate"})
    elsewhere = tmp_path / "other"
    elsewhere.symlink_to(energon_dataset)
    data_module(energon_dataset, tokenizer, validation_path=elsewhere, oversize={"other": "drop", "*": "drop"})


def test_a_split_that_is_not_there_is_refused(energon_dataset: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="cannot open split 'test'"):
        data_module(energon_dataset, tokenizer).test_dataloader()


@pytest.mark.parametrize(
    ("settings", "most_positions"),
    [
        ({"batching": "dynamic", "tokens_per_microbatch": 2048, "sequence_length_round": 64}, 2048),
        ({"batching": "buckets", "micro_batch_size": 4, "bucket_boundaries": [64, 128, 256]}, 2048),
        ({"batching": "padding", "micro_batch_size": 4, "packing_buffer_size": None}, 2048),
        ({"packed_sequence": False, "micro_batch_size": 2, "packing_buffer_size": None}, 1024),
    ],
)
def test_padded_batches_hold_every_sample_once(
    energon_dataset: Path, tokenizer: Any, settings: dict[str, Any], most_positions: int
) -> None:
    module = data_module(energon_dataset, tokenizer, repeat=False, **settings)
    packed = data_module(energon_dataset, tokenizer, repeat=False)
    batches = [batch.check() for batch in module.train_dataloader()]
    assert {type(batch) for batch in batches} == {PaddedBatch}
    assert max(batch.num_tokens for batch in batches) <= most_positions
    keys = sorted(key for batch in batches for key in batch.sample_keys)
    assert keys == sorted(key for batch in packed.train_dataloader() for key in batch.sample_keys)


def test_padded_batches_resume(energon_dataset: Path, tokenizer: Any) -> None:
    settings = {"batching": "dynamic", "tokens_per_microbatch": 2048, "sequence_length_round": 64}
    module = data_module(energon_dataset, tokenizer, **settings)
    seen = []
    for batch in itertools.islice(module.train_dataloader(), 9):
        seen.append(digest(batch))
        if len(seen) == 4:
            state = module.state_dict()
    again = data_module(energon_dataset, tokenizer, num_workers=2, **settings)
    again.load_state_dict(state)
    assert [digest(batch) for batch in itertools.islice(again.train_dataloader(), 5)] == seen[4:]


def test_no_pack_is_above_its_limits(energon_dataset: Path, tokenizer: Any) -> None:
    limits = {"max_tiles_per_pack": 4, "max_images_per_pack": 4, "max_samples_per_pack": 6}
    module = data_module(energon_dataset, tokenizer, repeat=False, **limits)
    for batch in module.train_dataloader():
        assert batch.pixels.shape[0] <= 4
        assert len(batch.sample_keys) <= 6


@pytest.mark.parametrize("order", ["stream", "global_plan"])
def test_offsets_of_constant_number(energon_dataset: Path, tokenizer: Any, order: str) -> None:
    layout = Layout(fixed_total=512, cu_seqlens_size=4)
    module = data_module(energon_dataset, tokenizer, repeat=False, layout=layout, order=order, num_workers=1)
    batches = [batch.check() for batch in module.train_dataloader()]
    assert {(len(b.cu_seqlens), len(b.cu_seqlens_padded), b.max_seqlen, b.num_tokens) for b in batches} == {
        (4, 4, 512, 512)
    }
    assert max(len(batch.sample_keys) for batch in batches) == 2  # three would fit
    keys = [key for batch in batches for key in batch.sample_keys]
    assert len(keys) == len(set(keys)) == 340
    params = batches[0].to_megatron()["packed_seq_params"]
    assert (params.max_seqlen_q, len(params.cu_seqlens_q_padded)) == (512, 4)
    with pytest.raises(ConfigError, match=r"max_samples_per_pack=9 with layout.cu_seqlens_size=4.*set .*=11"):
        data_module(energon_dataset, tokenizer, layout=layout, max_samples_per_pack=9)
