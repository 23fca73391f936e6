"""Samples -> PaddedBatch: one row a sample, padded to a common length. What packing is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmpack.batch import PaddedBatch
from mmpack.batch.memory import Allocate, on_heap
from mmpack.collate.pictures import Pixels, picture_fields
from mmpack.collate.rows import RowStyle, check_loss_weight, lay_out
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import round_up
from mmpack.sample import IGNORE_INDEX, EncodedSample, LostSample, PlannedSample
from mmpack.tiling import TilingPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedCollator:
    """Lays samples out as the rows of a padded batch.

    Args:
        tiling, pad_token_id, loss_weight: as in `mmpack.collate.Collator`.
        width: length of every row; None for that of the longest sample, rounded up to `width_multiple`.
        width_multiple: multiple that rows are padded to; never beyond `max_width`.
        max_width: longest row that rounding may give; None for no such limit.
    """

    tiling: TilingPolicy
    pad_token_id: int = 0
    loss_weight: str = "token"
    width: int | None = None
    width_multiple: int = 1
    max_width: int | None = None

    def __post_init__(self) -> None:
        check_loss_weight(self.loss_weight)
        if self.width_multiple < 1:
            raise ConfigError(f"width_multiple={self.width_multiple}; it must be at least 1")

    def room(self, num_tokens: int) -> int:
        """Positions that planning counts for a sample of `num_tokens`: padding is the batch's, not the sample's."""
        return num_tokens

    def row_length(self, longest: int) -> int:
        """Length of the rows of a batch whose longest sample has `longest` tokens."""
        if self.width is not None:
            return max(self.width, longest)
        rounded = round_up(longest, self.width_multiple)
        return rounded if self.max_width is None else max(longest, min(rounded, self.max_width))

    def collate(
        self, pack: Sequence[PlannedSample], *, pack_index: int, allocate: Allocate = on_heap
    ) -> tuple[PaddedBatch, list[LostSample]]:
        """The batch, and the samples that were lost after planning: rows of padding only.

        `allocate` gives the memory for its pixels.
        """
        width = self.row_length(max(sample.num_tokens for sample in pack))
        pixels = Pixels(pack, self.tiling, allocate)
        parts: list[tuple[EncodedSample | None, int]] = []
        lost: list[LostSample] = []
        kept: list[EncodedSample] = []
        for sample in pack:
            decoded = pixels.decode(sample)
            if isinstance(decoded, LostSample):
                lost.append(decoded)
                parts.append((None, width))
                continue
            kept.append(decoded)
            parts.append((decoded, width))
        laid = lay_out(parts, self._style())
        lengths = np.array(laid.num_tokens_of, dtype=np.int32)
        form = (len(parts), width)
        positions = torch.from_numpy(laid.positions_at).view(-1, *form)
        batch = PaddedBatch(
            tokens=torch.from_numpy(laid.tokens_t).view(form),
            labels=torch.from_numpy(laid.labels_t).view(form),
            loss_weight=torch.from_numpy(laid.weight_t).view(form),
            position_ids=positions[0] if len(positions) == 1 else positions,
            lengths=torch.from_numpy(lengths),
            padding_mask=torch.from_numpy(np.arange(width)[None, :] >= lengths[:, None]),
            num_loss_tokens=int(np.count_nonzero(laid.labels_t != IGNORE_INDEX)),
            pack_index=pack_index,
            **picture_fields(kept, pixels, self.tiling),
        )
        return batch, lost

    def filler(self, *, pack_index: int) -> PaddedBatch:
        """A batch that teaches nothing, for a rank that has none while others have."""
        lost = LostSample(key="", source="", num_tokens=1, error=SampleError(Reason.UNREADABLE, "a filler"))
        return self.collate([lost], pack_index=pack_index)[0]

    def _style(self) -> RowStyle:
        return RowStyle(
            pad_token_id=self.pad_token_id,
            loss_weight=self.loss_weight,
            merge_size=getattr(self.tiling, "merge_size", None),
        )
