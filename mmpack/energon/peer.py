"""Energon as its users pack with it, for measurements: a task encoder whose packing buffer is emptied each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from mmpack.packing.first_fit_decreasing import first_fit_decreasing

Encode = Callable[[bytes, bytes], dict[str, Any]]  # (record, picture) -> tensors "tokens", "labels", "tile"


@edataclass
class Encoded(Sample):  # type: ignore[misc]
    """One sample as tensors."""

    tokens: torch.Tensor
    labels: torch.Tensor
    tile: torch.Tensor
    length: int


@edataclass
class Packed(Sample):  # type: ignore[misc]
    """Samples one behind the other."""

    tokens: torch.Tensor
    labels: torch.Tensor
    tiles: torch.Tensor
    cu_seqlens: torch.Tensor


def energon_packs(path: Path, encode: Encode, **options: int) -> Iterator[int]:
    """The numbers of samples in the packs of `energon_loader`."""
    for pack in energon_loader(path, encode, **options):
        yield len(pack.cu_seqlens) - 1


def energon_loader(
    path: Path, encode: Encode, *, capacity: int, buffer_size: int, picture_tokens: int, num_workers: int
) -> Any:
    """Energon's savable loader of packs of a crude dataset (parts ``json`` and ``0.jpg``), for ever.

    First fit decreasing over a buffer, as NeMo's encoder packs; pictures are decoded when their sample is encoded.
    """

    class PackingEncoder(DefaultTaskEncoder):  # type: ignore[misc]
        cookers = (Cooker(cook=_cook),)
        decoder = None

        @stateless  # type: ignore[untyped-decorator]
        def encode_sample(self, sample: Any) -> Encoded:
            made = encode(sample["json"], sample["0.jpg"])
            length = len(made["tokens"]) - 1 + picture_tokens
            return Encoded(**basic_sample_keys(sample), **made, length=length)

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            packs: Sequence[Sequence[int]] = first_fit_decreasing([sample.length for sample in samples], capacity)
            return [[samples[i] for i in pack] for pack in packs]

        @stateless  # type: ignore[untyped-decorator]
        def pack_selected_samples(self, samples: list[Any]) -> Packed:
            ends = torch.tensor([0, *(sample.length for sample in samples)]).cumsum(0)
            return Packed(
                __key__=",".join(sample.__key__ for sample in samples),
                __restore_key__=(),
                __subflavors__=None,
                __sources__=tuple(source for sample in samples for source in sample.__sources__ or ()),
                tokens=torch.cat([sample.tokens for sample in samples]),
                labels=torch.cat([sample.labels for sample in samples]),
                tiles=torch.stack([sample.tile for sample in samples]),
                cu_seqlens=ends.to(torch.int32),
            )

    dataset = get_train_dataset(
        str(path),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None,
        packing_buffer_size=buffer_size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=100,
        task_encoder=PackingEncoder(),
    )
    return get_savable_loader(dataset)


@stateless  # type: ignore[untyped-decorator]
def _cook(sample: CrudeSample) -> CrudeSample:
    return sample
