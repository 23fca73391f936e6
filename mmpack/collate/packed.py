"""One planned pack -> PackedBatch: pictures are decoded now, after their pack has been chosen.

A picture that turns out to be damaged does not change the plan: its whole sample becomes padding of the planned
length, with weight 0, and is counted. So the order of everything else never depends on faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmpack.batch import PackedBatch
from mmpack.batch.memory import Allocate, on_heap
from mmpack.collate.pictures import Pixels, picture_fields
from mmpack.collate.rows import RowStyle, check_loss_weight, lay_out
from mmpack.errors import Reason, SampleError
from mmpack.layout import Layout
from mmpack.sample import IGNORE_INDEX, EncodedSample, LostSample, PlannedSample
from mmpack.tiling import TilingPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Collator:
    """Lays a pack out as one THD row.

    Args:
        tiling: cuts decoded pictures into the tiles that were counted when the pack was planned.
        layout: multiples and fixed length of the row.
        pad_token_id: what padding positions hold.
        loss_weight: weight of a label in a sample with n of them: ``token`` 1, ``sample`` 1/n, ``sqrt`` 1/sqrt(n).
    """

    tiling: TilingPolicy
    layout: Layout
    pad_token_id: int = 0
    loss_weight: str = "token"

    def __post_init__(self) -> None:
        check_loss_weight(self.loss_weight)

    def room(self, num_tokens: int) -> int:
        """Positions that a sample of `num_tokens` takes in a row."""
        return self.layout.room(num_tokens)

    def collate(
        self, pack: Sequence[PlannedSample], *, pack_index: int, allocate: Allocate = on_heap
    ) -> tuple[PackedBatch, list[LostSample]]:
        """The batch, and the samples of the pack that were lost after planning (already known ones included).

        `allocate` gives the memory for its pixels.
        """
        pixels = Pixels(pack, self.tiling, allocate)
        parts: list[tuple[EncodedSample | None, int]] = []  # with their rooms
        lost: list[LostSample] = []
        kept: list[EncodedSample] = []
        for sample in pack:
            room = self.layout.room(sample.num_tokens)
            decoded = pixels.decode(sample)
            if isinstance(decoded, LostSample):
                lost.append(decoded)
                parts.append((None, room))
                continue
            kept.append(decoded)
            parts.append((decoded, room))
        used = [0 if sample is None else sample.num_tokens for sample, _ in parts]
        offsets = self.layout.offsets(used, [room for _, room in parts])
        tail = offsets.total - sum(room for _, room in parts)
        if tail:
            parts.append((None, tail))
        laid = lay_out(parts, self._style())
        positions = torch.from_numpy(laid.positions_at)
        batch = PackedBatch(
            tokens=torch.from_numpy(laid.tokens_t).unsqueeze(0),
            labels=torch.from_numpy(laid.labels_t).unsqueeze(0),
            loss_weight=torch.from_numpy(laid.weight_t).unsqueeze(0),
            position_ids=positions if len(positions) == 1 else positions.unsqueeze(1),
            cu_seqlens=torch.tensor(offsets.cu_seqlens, dtype=torch.int32),
            cu_seqlens_padded=torch.tensor(offsets.cu_seqlens_padded, dtype=torch.int32),
            max_seqlen=offsets.max_seqlen,
            padding_mask=torch.from_numpy(offsets.padding_mask()).unsqueeze(0),
            num_loss_tokens=int(np.count_nonzero(laid.labels_t != IGNORE_INDEX)),
            pack_index=pack_index,
            **picture_fields(kept, pixels, self.tiling),
        )
        return batch, lost

    def filler(self, *, pack_index: int) -> PackedBatch:
        """A batch that teaches nothing, for a rank that has none while others have."""
        lost = LostSample(key="", source="", num_tokens=1, error=SampleError(Reason.UNREADABLE, "a filler"))
        return self.collate([lost], pack_index=pack_index)[0]

    def _style(self) -> RowStyle:
        return RowStyle(
            pad_token_id=self.pad_token_id,
            loss_weight=self.loss_weight,
            merge_size=getattr(self.tiling, "merge_size", None),
        )
