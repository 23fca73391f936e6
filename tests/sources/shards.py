"""Small Energon datasets of any kind on disk, prepared by energon itself."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import png

Parts = dict[str, bytes]


def picture(number: int) -> bytes:
    """A PNG that differs from all others."""
    return png(random.Random(number), 20 + number, 30)


def write_tar(path: Path, samples: dict[str, Parts]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, parts in samples.items():
            for name, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def write_dataset(folder: Path, samples: dict[str, Parts], dataset: dict[str, Any], loader: str | None = None) -> Path:
    """One shard with these samples, and ``dataset.yaml``; `loader` is the text of ``sample_loader.py``."""
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    folder.mkdir(parents=True)
    write_tar(folder / "shard.tar", samples)
    WebdatasetPreparator.prepare_dataset(folder, ["shard.tar"], split_parts_ratio=[("train", 1.0)], workers=1)
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(dataset), encoding="utf-8")
    if loader is not None:
        (folder / ".nv-meta" / "sample_loader.py").write_text(loader, encoding="utf-8")
    return folder


def typed(name: str, **rest: Any) -> dict[str, Any]:
    return {"sample_type": {"__module__": "megatron.energon", "__class__": name}, **rest}


WITH_LOADER = {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def read_all(path: Path, split: str = "train") -> Iterator[Any]:
    """The samples of one epoch through energon, as mmpack's reader hands them on."""
    from megatron.energon import WorkerConfig, get_train_dataset

    from mmpack.energon.reader import _Undecoded
    from mmpack.energon.text_decoder import TextDecoder

    class Encoder(_Undecoded):  # type: ignore[misc]
        decoder = TextDecoder()

    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        path,
        split_part=split,
        worker_config=worker,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    worker.worker_activate(0)
    try:
        yield from dataset
    finally:
        worker.worker_deactivate()
