"""One sample as arrays of its room: tokens, shifted labels, weights, positions; and padding of the same form."""

from __future__ import annotations

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
class Row:
    """One segment: arrays of its room, of which the first `num_tokens` positions are real."""

    num_tokens: int
    tokens_t: NDArray[np.int64]
    labels_t: NDArray[np.int64]
    weight_t: NDArray[np.float32]
    positions_at: NDArray[np.int64]  # (1, room), or (4, room) for M-RoPE

    @classmethod
    def padding(cls, room: int, style: RowStyle, *, num_tokens: int = 0) -> Row:
        """Padding; the first `num_tokens` positions are to be filled in."""
        axes = 1 if style.merge_size is None else 4
        return cls(
            num_tokens=num_tokens,
            tokens_t=np.full(room, style.pad_token_id, dtype=np.int64),
            labels_t=np.full(room, IGNORE_INDEX, dtype=np.int64),
            weight_t=np.zeros(room, dtype=np.float32),
            positions_at=np.tile(np.arange(room, dtype=np.int64), (axes, 1)),
        )

    @classmethod
    def of(cls, sample: EncodedSample, room: int, style: RowStyle) -> Row:
        """The sample with every placeholder expanded to its picture's embeddings, padded to `room`."""
        if isinstance(sample, EncodedPair):
            raise ConfigError(
                f"{sample.key}: a pair of preference data cannot be one sequence; collate with "
                "mmpack.collate.PairCollator, which makes two of it"
            )
        is_picture = sample.token_ids_n == IMAGE_TOKEN_INDEX
        counts = np.ones(len(sample.token_ids_n), dtype=np.int64)
        counts[is_picture] = [picture.num_tokens for picture in sample.pictures]
        tokens = np.repeat(sample.token_ids_n, counts)
        trained = np.repeat(sample.trained_n, counts)
        assert len(tokens) == sample.num_tokens, f"{sample.key}: planned {sample.num_tokens}, got {len(tokens)}"
        row = cls.padding(room, style, num_tokens=len(tokens))
        row.tokens_t[: len(tokens)] = tokens
        row.labels_t[: len(tokens) - 1] = np.where(trained[1:], tokens[1:], IGNORE_INDEX)
        num_targets = max(1, int(np.count_nonzero(trained[1:])))
        weight = {"token": 1.0, "sample": 1.0 / num_targets, "sqrt": num_targets**-0.5}[style.loss_weight]
        row.weight_t[: len(tokens) - 1] = np.where(trained[1:], np.float32(weight), np.float32(0))
        if style.merge_size is not None and sample.pictures:
            merge = style.merge_size
            grids = [(p.grid.rows // merge, p.grid.columns // merge) for p in sample.pictures]
            row.positions_at[1:] = mrope_positions(is_picture, grids, room)
        return row
