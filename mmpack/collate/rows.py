"""Samples as arrays of their rooms: tokens, shifted labels, weights, positions; and padding of the same form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, nearest
from mmpack.layout import mrope_positions
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX, EncodedPair, EncodedSample

LOSS_WEIGHTS = ("token", "sample", "sqrt")


def check_loss_weight(loss_weight: str) -> None:
    """Raises ConfigError for an unknown weighting."""
    if loss_weight not in LOSS_WEIGHTS:
        raise ConfigError(f"loss_weight={loss_weight!r}; {nearest(loss_weight, LOSS_WEIGHTS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowStyle:
    """What rows of one collator have in common.

    Args:
        pad_token_id: what padding positions hold.
        loss_weight: weight of a label in a sample with n of them: ``token`` 1, ``sample`` 1/n, ``sqrt`` 1/sqrt(n).
        merge_size: for M-RoPE, patches per side that make one embedding; None for plain positions.
    """

    pad_token_id: int
    loss_weight: str
    merge_size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Laid:
    """Segments one behind the other, T positions in all."""

    num_tokens_of: list[int]  # of each segment; the rest of its room is padding
    tokens_t: NDArray[np.int64]
    labels_t: NDArray[np.int64]
    weight_t: NDArray[np.float32]
    positions_at: NDArray[np.int64]  # (1, T), or (4, T) for M-RoPE; they restart in every segment


def lay_out(parts: Sequence[tuple[EncodedSample | None, int]], style: RowStyle) -> Laid:
    """Each sample in its room, every placeholder expanded to its picture's embeddings; None is padding.

    All samples together, since a call of numpy takes longer than the work on one of them.
    """
    ids_n, trained_n, counts_n, first_n = _spans(parts, style)
    rooms = np.array([room for _, room in parts], dtype=np.int64)
    found = np.add.reduceat(counts_n, first_n)
    if not np.array_equal(found, rooms):
        wrong = int(np.flatnonzero(found != rooms)[0])
        sample, room = parts[wrong]
        raise AssertionError(
            f"{sample.key if sample else 'padding'}: {int(found[wrong])} positions in a room of {room}"
        )
    tokens = np.repeat(ids_n, counts_n)
    trained = np.repeat(trained_n, counts_n)
    starts = np.cumsum(rooms) - rooms
    trained[starts] = False  # nothing before it in its segment predicts it
    labels = np.full(len(tokens), IGNORE_INDEX, dtype=np.int64)
    labels[:-1] = np.where(trained[1:], tokens[1:], IGNORE_INDEX)
    weight = np.zeros(len(tokens), dtype=np.float32)
    if style.loss_weight == "token":
        weight[:-1] = trained[1:]
    else:
        num_targets = np.maximum(1, np.add.reduceat(trained, starts, dtype=np.int64)).tolist()
        each = [1.0 / n if style.loss_weight == "sample" else n**-0.5 for n in num_targets]
        of_t = np.repeat(np.array(each, dtype=np.float32), rooms)
        weight[:-1] = np.where(trained[1:], of_t[1:], np.float32(0))
    return Laid(
        num_tokens_of=[0 if sample is None else sample.num_tokens for sample, _ in parts],
        tokens_t=tokens,
        labels_t=labels,
        weight_t=weight,
        positions_at=_positions(parts, starts.tolist(), np.repeat(starts, rooms), style),
    )


def _spans(
    parts: Sequence[tuple[EncodedSample | None, int]], style: RowStyle
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], list[int]]:
    """Token ids of all parts, whether trained, how many positions each takes, and where each part begins among them.

    Every part ends with one id that stands for all of its padding, often none.
    """
    pad_ids = np.array([style.pad_token_id], dtype=np.int64)
    no = np.zeros(1, dtype=np.bool_)
    ids, trained, first, pad_places, pads, expanded = [], [], [], [], [], []
    end = 0
    for sample, room in parts:
        first.append(end)
        if sample is not None:
            _refuse_pair(sample)
            ids.append(sample.token_ids_n)
            trained.append(sample.trained_n)
            expanded += [picture.num_tokens for picture in sample.pictures]
            end += len(sample.token_ids_n)
        ids.append(pad_ids)
        trained.append(no)
        pad_places.append(end)
        pads.append(room - (0 if sample is None else sample.num_tokens))
        end += 1
    ids_n = np.concatenate(ids)
    counts = np.ones(end, dtype=np.int64)
    counts[ids_n == IMAGE_TOKEN_INDEX] = expanded
    counts[pad_places] = pads
    return ids_n, np.concatenate(trained), counts, first


def _refuse_pair(sample: EncodedSample) -> None:
    if isinstance(sample, EncodedPair):
        raise ConfigError(
            f"{sample.key}: a pair of preference data cannot be one sequence; collate with "
            "mmpack.collate.PairCollator, which makes two of it"
        )


def _positions(
    parts: Sequence[tuple[EncodedSample | None, int]], starts: list[int], start_t: NDArray[np.int64], style: RowStyle
) -> NDArray[np.int64]:
    plain = np.arange(len(start_t), dtype=np.int64) - start_t
    if style.merge_size is None:
        return plain[np.newaxis]
    positions = np.tile(plain, (4, 1))
    merge = style.merge_size
    for (sample, room), start in zip(parts, starts, strict=True):
        if sample is not None and sample.pictures:
            grids = [(p.grid.rows // merge, p.grid.columns // merge) for p in sample.pictures]
            is_picture = sample.token_ids_n == IMAGE_TOKEN_INDEX
            positions[1:, start : start + room] = mrope_positions(is_picture, grids, room)
    return positions
