"""NeMo's published snippets run with the import line changed; Dolly's file is split the same way every time."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from mmpack import llm
from mmpack.batch import IGNORE_INDEX
from mmpack.errors import ConfigError
from mmpack.llm import PackedSequenceSpecs
from mmpack.model.causal import CausalSpec
from tests.conftest import words
from tests.llm.texts import write_jsonl


def dolly_records(count: int) -> list[dict[str, str]]:
    rng = random.Random(4)
    return [
        {
            "instruction": f"question {i} {words(rng, 5)}?",
            "context": words(rng, 12) if i % 3 == 0 else "",
            "response": f"answer {i} {words(rng, rng.randint(1, 30))}.",
            "category": "closed_qa",
        }
        for i in range(count)
    ]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return write_jsonl(tmp_path / "raw" / "dolly.jsonl", dolly_records(60))


def test_the_published_recipe_snippet() -> None:
    recipe = llm.llama3_8b.finetune_recipe(
        name="llama3_8b_finetuning",
        dir="/path/to/checkpoints",
        num_nodes=1,
        num_gpus_per_node=8,
        packed_sequence=True,
    )
    assert recipe.data.packed_sequence_size == recipe.data.seq_length == 2048
    assert recipe.data.chosen_batching == "packing"
    assert recipe.data.global_batch_size == "auto"
    assert recipe.trainer.output_dir == Path("/path/to/checkpoints/llama3_8b_finetuning")
    assert (recipe.trainer.max_steps, recipe.trainer.limit_val_batches) == (-1, 40)
    assert "packed_sequence_size=2048" in repr(recipe)
    with pytest.raises(ConfigError, match=r"local folder of Llama 3 8B with recipe\.with_model"):
        recipe.build()
    with pytest.raises(ConfigError, match="torchrun --nnodes 1 --nproc-per-node 8"):
        recipe.run()


def test_the_published_data_snippet() -> None:
    data = llm.DollyDataModule(
        seq_length=2048,
        micro_batch_size=1,
        global_batch_size=8,
        packed_sequence_specs=PackedSequenceSpecs(
            packed_sequence_size=2048,
            tokenizer_model_name="a_unique_tokenizer_name",
        ),
    )
    assert data.global_batch_size == 8
    assert data.settings.chosen_batching == "packing"


def test_its_tokenizer_and_file_are_asked_for_when_they_are_needed(raw: Path, tokenizer: Any) -> None:
    data = llm.DollyDataModule(path=raw)
    with pytest.raises(ConfigError, match="no tokenizer"):
        data.setup()
    with pytest.raises(ConfigError, match="give the file with path="):
        llm.DollyDataModule(tokenizer=tokenizer).setup()


def test_dolly_is_split_by_seed_and_learns_the_responses(raw: Path, tokenizer: Any) -> None:
    def texts(**changes: Any) -> dict[str, list[str]]:
        data = llm.DollyDataModule(256, tokenizer, path=raw, num_workers=0, batching="packing", **changes)
        loaders = {"train": data.train_dataloader(), "val": data.val_dataloader(), "test": data.test_dataloader()}
        found = {}
        for split, loader in loaders.items():
            found[split] = []
            for batch in loader:
                starts, sizes = batch.cu_seqlens_padded[:-1].tolist(), batch.cu_seqlens.diff().tolist()
                for start, size in zip(starts, sizes, strict=True):
                    if size == 0:  # padding
                        continue
                    labels = batch.labels[0, start : start + size]
                    found[split].append(tokenizer.decode(labels[labels != IGNORE_INDEX].tolist()))
        return found

    one = texts()
    assert {split: len(found) for split, found in one.items()} == {"train": 48, "val": 3, "test": 9}
    expected = sorted(record["response"] + "</s>" for record in dolly_records(60))
    assert sorted(text for found in one.values() for text in found) == expected
    assert texts(prepared_dir=raw.parent / "again") == one
    other = texts(split_seed=5)
    assert sorted(other["val"]) != sorted(one["val"])


def test_context_and_instruction_are_joined_by_a_blank_line(raw: Path, tokenizer: Any) -> None:
    data = llm.DollyDataModule(256, tokenizer, path=raw)
    path = data.file("train")
    assert path is not None
    originals = {record["response"]: record for record in dolly_records(60)}
    orders = set()
    for line in path.read_text().splitlines():
        record = json.loads(line)
        raw_record = originals[record["output"]]
        instruction, context = raw_record["instruction"], raw_record["context"]
        if context:
            orders.add(record["input"].startswith(context))
            assert record["input"] in (f"{context}\n\n{instruction}", f"{instruction}\n\n{context}")
        else:
            assert record["input"] == instruction
    assert orders == {True, False}


def test_a_recipe_trains_a_local_model(raw: Path, tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    CausalSpec(max_position_embeddings=512).build(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = llm.finetune_recipe(
        "tiny", tmp_path, 1, 1, packed_sequence=True, model_path=folder, seq_length=256, global_batch_samples=12,
        dolly_path=raw, max_steps=3,
    ).with_trainer(val_check_interval=3, learning_rate=1e-3)  # fmt: skip
    data, _ = recipe.build()
    data.setup()
    n = data.sequences_per_pack
    assert data.global_batch_size == max(1, round(12 / n))
    result = recipe.run()
    assert result.steps == 3
    assert result.val_loss is not None
    assert result.exported == tmp_path / "tiny" / "final"
    again = dataclasses.replace(recipe, name="other").with_data(batching="padding", micro_batch_size=4)
    assert again.data.chosen_batching == "padding"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: llm.finetune_recipe(peft_scheme="dora"), "peft_scheme='dora'"),
        (lambda: llm.finetune_recipe(num_nodes=0), "num_nodes=0"),
        (lambda: llm.finetune_recipe(model_path="no/such"), "holds no config.json"),
        (lambda: llm.DollyDataModule(path="no/such.jsonl"), "is no file"),
        (lambda: llm.DollyDataModule(split=(0.0, 0.5, 0.5)), "give three shares"),
        (lambda: llm.DollyDataModule(delete_raw=True), "delete_raw"),
        (lambda: llm.DollyDataModule(rampup_batch_size=[1, 1, 1]), "rampup_batch_size"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
