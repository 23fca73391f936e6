"""Fixtures shared by the suite: a tokenizer trained on the spot, LLaVA-style data on disk, an Energon dataset of it."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # tests fork; the tokenizers library warns otherwise
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level BPE of 600 entries with the control tokens of LLaVA's template and of ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    own_source = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
    texts = [own_source, *(words(random.Random(i), 40) for i in range(50))]
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


WORDS = ["the", "a", "picture", "shows", "red", "green", "small", "large", "dog", "bird", "house", "river", "under"]
WORDS += ["over", "near", "two", "three", "light", "dark", "sky"]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def png(rng: random.Random, width_px: int, height_px: int) -> bytes:
    """A picture whose content differs from every other's: coloured blocks."""
    from PIL import Image

    small = Image.frombytes("RGB", (4, 3), bytes(rng.randrange(256) for _ in range(36)))
    out = io.BytesIO()
    small.resize((width_px, height_px), Image.Resampling.BILINEAR).save(out, "PNG")
    return out.getvalue()


def write_llava(folder: Path, num_samples: int, seed: int = 0) -> Path:
    """`num_samples` samples with 0 to 3 pictures, 1 to 3 turns and lognormal answers; returns the JSON file."""
    rng = random.Random(seed)
    images = folder / "images"
    images.mkdir(parents=True)
    records = []
    for i in range(num_samples):
        names = []
        for j in range(rng.choice([0, 1, 1, 1, 2, 3])):
            names.append(f"{i:05d}_{j}.png")
            (images / names[-1]).write_bytes(png(rng, rng.randint(20, 90), rng.randint(20, 90)))
        turns = []
        for k in range(rng.randint(1, 3)):
            marks = "<image>\n" * len(names) if k == 0 else ""
            turns.append({"from": "human", "value": f"{marks}question {i} {words(rng, rng.randint(2, 9))}?"})
            turns.append({"from": "gpt", "value": words(rng, min(120, 1 + int(rng.lognormvariate(2.5, 0.8)))) + "."})
        record: dict[str, Any] = {"id": f"s{i}", "conversations": turns}
        if names:
            record["image"] = names[0] if len(names) == 1 else names
        records.append(record)
    path = folder / "llava.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def energon_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 samples as a real Energon dataset with the splits train (0.85) and val (0.15)."""
    return convert_llava(tmp_path_factory.mktemp("dataset"), 400)


def convert_llava(folder: Path, num_samples: int, *, seed: int = 0, **options: Any) -> Path:
    from mmpack.convert import ConvertConfig, convert

    source = write_llava(folder / "llava", num_samples, seed)
    options.setdefault("split", {"train": 0.85, "val": 0.15})
    convert(ConvertConfig(src=source, dst=folder / "energon", image_root=source.parent / "images", **options))
    return folder / "energon"


def tile_spec(**changes: Any) -> Any:
    """Tiles of 28 px with 4 embeddings each."""
    from mmpack.tiling import TileSpec

    options: dict[str, Any] = {"tile_size_px": 28, "embeddings_per_tile": 4}
    return TileSpec(**(options | changes))


def data_module(path: Path, default_tokenizer: Any, /, **changes: Any) -> Any:
    """A data module over `path` with small packs; `changes` replace its arguments or its encoder's."""
    from mmpack.datamodules import EnergonMultiModalDataModule, MultiModalTaskEncoder

    encoder_options: dict[str, Any] = {
        "tokenizer": default_tokenizer,
        "image_processor": tile_spec(),
        "packed_sequence_size": 512,
        "num_image_embeddings_per_tile": 4,
        "oversize": "drop",
    }
    for name in list(changes):
        if name in MultiModalTaskEncoder.__dataclass_fields__:
            encoder_options[name] = changes.pop(name)
    options: dict[str, Any] = {
        "seq_length": 512,
        "num_workers": 0,
        "packing_buffer_size": 40,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 10,
        "task_encoder": MultiModalTaskEncoder(**encoder_options),
    }
    return EnergonMultiModalDataModule(path, **(options | changes))


def digest(batch: Any) -> str:
    """A hash of everything in a batch that training sees, and of its place."""
    import dataclasses
    import hashlib

    import torch

    total = hashlib.sha256(repr((batch.sample_keys, batch.pack_index, getattr(batch, "max_seqlen", None))).encode())
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor):
            total.update(repr((field.name, value.dtype, tuple(value.shape))).encode())
            total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
