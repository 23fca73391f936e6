"""Small mock and lazy modules, and their batches."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
from pathlib import Path
from typing import Any

import torch

from mmpack.datamodules import ImageDataConfig, NevaLazyDataModule, NevaMockDataModule
from tests.conftest import png, tile_spec, write_llava


def mock(**changes: Any) -> NevaMockDataModule:
    """Samples of up to 60 tokens with tiles of 28 px and 4 embeddings."""
    options: dict[str, Any] = {
        "seq_length": 60, "image_processor": tile_spec(), "num_image_embeddings_per_tile": 4, "micro_batch_size": 3,
        "global_batch_size": 6, "num_train_samples": 300, "num_val_samples": 20, "num_test_samples": 20,
        "num_workers": 0, "num_tiles_per_image": (1, 3), "num_images_per_sample": (0, 2),
        "length_distribution": "lognormal", "num_streams": 4,
    }  # fmt: skip
    return NevaMockDataModule(**(options | changes))


def lazy(paths: Any, tokenizer: Any, folder: Path, **changes: Any) -> NevaLazyDataModule:
    """LLaVA files of `write_llava`, with tiles as `mock`'s."""
    options: dict[str, Any] = {
        "data_config": ImageDataConfig(image_folder=folder, **changes.pop("config", {})), "seq_length": 512,
        "tokenizer": tokenizer, "image_processor": tile_spec(), "num_image_embeddings_per_tile": 4,
        "micro_batch_size": 3, "global_batch_size": 6, "num_workers": 0, "num_streams": 4,
    }  # fmt: skip
    return NevaLazyDataModule(paths, **(options | changes))


def files(folder: Path, sizes: dict[str, int]) -> dict[str, Path]:
    """LLaVA files by name, whose pictures lie together in ``folder/images``; ids and texts differ between files."""
    (folder / "images").mkdir(parents=True)
    made = {}
    for seed, (name, size) in enumerate(sizes.items()):
        source = write_llava(folder / f"raw-{name}", size, seed)
        records = json.loads(source.read_text())
        for record in records:
            names = record.get("image", [])
            for old in [names] if isinstance(names, str) else names:
                (source.parent / "images" / old).rename(folder / "images" / f"{name}-{old}")
            if names:
                record["image"] = f"{name}-{names}" if isinstance(names, str) else [f"{name}-{old}" for old in names]
        made[name] = folder / f"{name}.json"
        made[name].write_text(json.dumps(records))
    return made


def write_records(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def picture(path: Path, seed: int = 0) -> Path:
    path.write_bytes(png(random.Random(seed), 40, 30))
    return path


def batches(module: Any, count: int | None = None, split: str = "train") -> list[Any]:
    """The first batches of a split, each checked."""
    loader = getattr(module, f"{split}_dataloader")()
    return [batch.check() for batch in itertools.islice(loader, count)]


def keys(found: list[Any]) -> list[tuple[str, str]]:
    return [pair for batch in found for pair in zip(batch.sources, batch.sample_keys, strict=True)]


def digest(batch: Any) -> str:
    """A hash of everything in a batch, packed or padded, that training sees, and of its place."""
    total = hashlib.sha256(repr((batch.sample_keys, batch.sources, batch.pack_index)).encode())
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, torch.Tensor):
            total.update(repr((field.name, value.dtype, tuple(value.shape))).encode())
            total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
