"""The main job end to end on the bundled data: convert, pack, and learn the same packed as unpacked."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.batch import IGNORE_INDEX, PackedBatch
from mmpack.convert import ConvertConfig, convert
from mmpack.datamodules import EnergonMultiModalDataModule, LLaVATemplateConfig, MultiModalSampleConfig
from mmpack.datamodules import MultiModalTaskEncoder as TaskEncoder
from mmpack.model import LlavaSpec, assert_loss_neutral, unpack
from mmpack.tiling import TileSpec

DEMO = Path(__file__).parents[1] / "mmpack" / "demo_data"
CAPACITY = 2048


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dst = tmp_path_factory.mktemp("demo") / "energon"
    report = convert(
        ConvertConfig(
            src=DEMO / "llava.json", dst=dst, image_root=DEMO / "images", split={"train": 0.9, "val": 0.1}, workers=2
        )
    )
    assert report.skipped == {}
    return dst


@pytest.fixture(scope="module")
def demo_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "tokenizer")


def module(demo: Path, tokenizer: Any, **changes: Any) -> EnergonMultiModalDataModule:
    encoder = TaskEncoder(
        tokenizer=tokenizer,
        image_processor=TileSpec(tile_size_px=112, embeddings_per_tile=64),
        multimodal_sample_config=MultiModalSampleConfig(conversation_template_config=LLaVATemplateConfig()),
        packed_sequence_size=CAPACITY,
        num_image_embeddings_per_tile=64,
        tiling=changes.pop("tiling", "single"),
        tiling_options=changes.pop("tiling_options", {}),
    )
    options: dict[str, Any] = {"seq_length": CAPACITY, "packing_buffer_size": 200, "num_workers": 0}
    return EnergonMultiModalDataModule(demo, task_encoder=encoder, **(options | changes))


def test_packs_of_the_demo_data_are_full(demo: Path, demo_tokenizer: Any) -> None:
    batches = list(itertools.islice(module(demo, demo_tokenizer, num_workers=2).train_dataloader(), 100))
    real = [batch.check().num_real_tokens for batch in batches]
    assert max(real) <= CAPACITY
    assert sum(real) / len(real) >= 0.999 * CAPACITY


def test_an_epoch_of_the_demo_data_is_complete_and_its_labels_are_the_answers(demo: Path, demo_tokenizer: Any) -> None:
    # The expected texts come from the raw JSON; nothing of mmpack reads them.
    answers = {
        i: [turn["value"] for turn in record["conversations"] if turn["from"] == "gpt"]
        for i, record in enumerate(json.loads((DEMO / "llava.json").read_text(encoding="utf-8")))
    }
    seen = []
    data = module(demo, demo_tokenizer, repeat=False)
    for batch in itertools.chain(data.train_dataloader(), data.val_dataloader()):
        bounds = batch.cu_seqlens_padded.tolist()
        for key, start, end in zip(batch.sample_keys, bounds, bounds[1:], strict=False):
            labels = batch.labels[0, start:end]
            text = demo_tokenizer.decode(labels[labels != IGNORE_INDEX].tolist())
            assert text == "".join(answer + "</s>" for answer in answers[int(key)]), key
            seen.append(int(key))
    assert sorted(seen) == sorted(answers)
    assert data.train_dataloader().drops.total == 0


@pytest.mark.parametrize("attention", ["reference", "sdpa_loop"])
@pytest.mark.parametrize("tiling", ["single", "dynamic"])
def test_a_real_full_pack_is_loss_neutral(demo: Path, demo_tokenizer: Any, attention: str, tiling: str) -> None:
    options: dict[str, Any] = {"tiling_options": {"max_tiles": 4}} if tiling == "dynamic" else {}
    packs = module(demo, demo_tokenizer, tiling=tiling, **options).train_dataloader()
    batch = next(batch for batch in packs if is_interesting(batch))
    model = LlavaSpec(vocab_size=len(demo_tokenizer), image_size_px=112, patch_size_px=14).build(
        seed=0, attention=attention
    )
    model.eval()
    comparison = assert_loss_neutral(model, batch, unpack(batch.check()))
    assert comparison.worst_loss_difference <= 1e-5
    assert len(comparison.sample_keys) == batch.num_samples


def is_interesting(batch: PackedBatch) -> bool:
    """Filled to the last token, with samples of no, one and several pictures."""
    counts = set(batch.images_per_sample.tolist())
    return batch.num_real_tokens == CAPACITY and {0, 1} <= counts and max(counts) > 1


def test_changing_one_sample_moves_no_other(demo: Path, demo_tokenizer: Any) -> None:
    import dataclasses

    batch = next(iter(module(demo, demo_tokenizer).train_dataloader()))
    model = LlavaSpec(vocab_size=len(demo_tokenizer), image_size_px=112, patch_size_px=14).build(seed=0)
    model.eval()
    start, end = batch.cu_seqlens_padded[1:3].tolist()
    tokens = batch.tokens.clone()
    tokens[0, start] = (int(tokens[0, start]) + 7) % 1000
    with torch.no_grad():
        difference = (model.logits(batch) - model.logits(dataclasses.replace(batch, tokens=tokens))).abs().amax(1)
    assert float(difference[start:end].max()) > 0
    assert float(difference[:start].max()) == 0.0
    assert float(difference[end:].max()) == 0.0
