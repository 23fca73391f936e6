"""Packs of a store or of NeMo's ``.npy`` -> batches: mmpack's `PackedBatch`, or the dict of NeMo's collate."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmpack.batch import PackedBatch
from mmpack.collate import Collator
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import Layout, round_up
from mmpack.offline.store import PackRow
from mmpack.sample import EncodedSample, LostSample, PlannedSample
from mmpack.tiling import TileSpec, make_tiling

Metadata = Mapping[str, Any]


def pack_row_to_batch(
    row: PackRow,
    layout: Layout,
    pad_token_id: int,
    *,
    loss_weight: str = "token",
    pack_index: int = 0,
    source: str = "",
) -> PackedBatch:
    """One pack as the batch that image-text packs become as well.

    A sequence without a target becomes padding of its length. `layout` pads sequences and row; a sequence's key is
    the number of its record.

    Raises:
        ConfigError: the row does not fit `layout`, or an unknown `loss_weight`.
    """
    tiling = make_tiling("single", TileSpec(tile_size_px=1, embeddings_per_tile=1))
    collator = Collator(tiling=tiling, layout=layout, pad_token_id=pad_token_id, loss_weight=loss_weight)
    return collator.collate(samples_of(row, source), pack_index=pack_index)[0]


def samples_of(row: PackRow, source: str = "") -> list[PlannedSample]:
    """The sequences of a pack as samples without pictures, ready for a collator or to be mixed with others."""
    bounds = row.seq_bounds
    samples: list[PlannedSample] = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        key = f"{number if row.record_ids is None else int(row.record_ids[number]):08d}"
        trained = np.zeros(end - start, dtype=np.bool_)
        trained[1:] = row.loss_mask[start : end - 1] != 0
        if not trained.any():
            error = SampleError(Reason.NO_ANSWER, "a sequence without a target", key=key)
            samples.append(LostSample(key=key, source=source, num_tokens=end - start, error=error))
            continue
        samples.append(
            EncodedSample(
                key=key,
                source=source,
                token_ids_n=row.input_ids[start:end].astype(np.int64),
                trained_n=trained,
                pictures=(),
                num_tokens=end - start,
            )
        )
    return samples


def nemo_collate(
    rows: Sequence[PackRow],
    *,
    max_length: int,
    eos_id: int,
    pad_to_max_length: bool = False,
    pad_cu_seqlens: bool = False,
    metadata: Metadata | Sequence[Metadata] | None = None,
    answer_only_loss: bool = True,
    attend_tail: bool = True,
    ceil_to: int = 16,
) -> dict[str, Any]:
    """The batch that NeMo's packed data set gives for B rows, under its names.

    Of every sequence the last token is a label only, so a row has T minus S positions. ``cu_seqlens`` ends with the
    row's length and a -1; ``cu_seqlens_argmin`` is the place of that -1. ``cu_seqlens_unpadded`` counts a sequence up
    to its end token: end tokens *inside* a sequence stay, a run of them at its end is padding from the preparation.

    Args:
        rows: packs, with NeMo's shifted loss mask.
        max_length: tokens of a pack.
        eos_id: what pads.
        pad_to_max_length: every row gets `max_length` positions; else the longest row's, rounded up to `ceil_to`.
        pad_cu_seqlens: bring ``cu_seqlens`` to the length that `metadata` says, for CUDA graphs.
        metadata: of the preparation, or a list of such.
        answer_only_loss: use the rows' masks; else every real label is learned.
        attend_tail: whether the kernel is given ``cu_seqlens``, in which the tail of padding is a segment; without,
            it is given ``cu_seqlens_unpadded``, and ``max_seqlen`` need not cover the tail.

    Raises:
        ConfigError: no rows, a row that is too long, or `pad_cu_seqlens` without metadata.
    """
    if not rows:
        raise ConfigError("no rows to collate")
    given = [] if metadata is None else [metadata] if isinstance(metadata, Mapping) else list(metadata)
    if pad_cu_seqlens and not given:
        raise ConfigError("pad_cu_seqlens=True needs metadata: what prepare_packed_sequence_data wrote as JSON")
    parts = [_positions(row, eos_id, answer_only_loss) for row in rows]
    longest = max(len(part["tokens"]) for part in parts)
    if longest > max_length:
        raise ConfigError(f"a row has {longest} positions, max_length is {max_length}; pack again with that size")
    width = max_length if pad_to_max_length or pad_cu_seqlens else min(max_length, round_up(longest, ceil_to))
    padded = [part["cu"] + [width] * (part["cu"][-1] < width) for part in parts]
    unpadded = [
        part["unpadded"] + [part["unpadded"][-1]] * (len(cu) - len(part["unpadded"]))
        for part, cu in zip(parts, padded, strict=True)
    ]
    lengths = np.array([np.diff(cu if attend_tail else real).max() for cu, real in zip(padded, unpadded, strict=True)])
    max_seqlen = torch.from_numpy(lengths.astype(np.int32)).unsqueeze(1)
    if pad_cu_seqlens:
        size = max(int(m["max_samples_per_bin"]) for m in given) + 2
        padded = [cu + [width] * (size - len(cu)) for cu in padded]
        unpadded = [real + [real[-1]] * (size - len(real)) for real in unpadded]
        gap = width - min(int(m["min_packed_seqlen"]) for m in given)
        whole = max(int(m["dataset_max_seqlen"]) for m in given)
        max_seqlen = torch.tensor([max(whole, gap) if attend_tail else whole], dtype=torch.int32)
    cu_seqlens, cu_seqlens_unpadded = _offsets(padded), _offsets(unpadded)
    return {
        "tokens": _stack([p["tokens"] for p in parts], width, eos_id, np.int64),
        "labels": _stack([p["labels"] for p in parts], width, eos_id, np.int64),
        "loss_mask": _stack([p["mask"] for p in parts], width, 0, np.int64),
        "position_ids": _stack([p["positions"] for p in parts], width, 0, np.int64),
        "token_count": [len(p["tokens"]) for p in parts],
        "attention_mask": torch.ones(len(parts), dtype=torch.int64),
        "cu_seqlens": cu_seqlens,
        "cu_seqlens_argmin": torch.argmin(cu_seqlens, dim=1, keepdim=True),
        "cu_seqlens_unpadded": cu_seqlens_unpadded,
        "cu_seqlens_unpadded_argmin": torch.argmin(cu_seqlens_unpadded, dim=1, keepdim=True),
        "max_seqlen": max_seqlen,
    }


def _positions(row: PackRow, eos_id: int, answer_only_loss: bool) -> dict[str, Any]:
    """Tokens, labels, mask and positions of one row, and its two kinds of offsets."""
    bounds = row.seq_bounds
    tokens, labels, mask, positions = [], [], [], []
    cu, unpadded = [0], [0]
    for start, end in itertools.pairwise(bounds):
        ids = row.input_ids[start:end]
        learned = (row.loss_mask[start : end - 1] != 0).astype(np.int64)
        num_labels = _end_of_text(ids, eos_id) - 1
        if not answer_only_loss:
            learned[:] = np.arange(len(ids) - 1) < num_labels
        num_real = min(max(num_labels + 1, int(np.flatnonzero(learned)[-1]) + 1 if learned.any() else 0), len(ids) - 1)
        tokens.append(ids[:-1])
        labels.append(ids[1:])
        mask.append(learned)
        positions.append(np.arange(len(ids) - 1))
        cu.append(cu[-1] + len(ids) - 1)
        unpadded.append(unpadded[-1] + num_real)
    names = {"tokens": tokens, "labels": labels, "mask": mask, "positions": positions}
    return {**{name: np.concatenate(value) for name, value in names.items()}, "cu": cu, "unpadded": unpadded}


def _end_of_text(ids: NDArray[np.int32], eos_id: int) -> int:
    """Tokens up to and with the first of the end tokens at the end; all of them if it does not end with one.

    >>> _end_of_text(np.array([5, 2, 6, 2, 2, 2]), 2), _end_of_text(np.array([5, 2, 6]), 2)
    (4, 3)
    """
    others = np.flatnonzero(ids != eos_id)
    return min((int(others[-1]) + 1 if len(others) else 0) + 1, len(ids))


def _offsets(offsets: Sequence[Sequence[int]]) -> torch.Tensor:
    width = max(map(len, offsets)) + 1  # at least one -1 in every row, which argmin finds
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in offsets], dtype=torch.int32)


def _stack(rows: Sequence[NDArray[Any]], width: int, fill: int, dtype: type[np.int64]) -> torch.Tensor:
    out = np.full((len(rows), width), fill, dtype=dtype)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(out)
