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
from mmpack.collate.rows import Row, RowStyle, check_loss_weight
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
        style = self._style()
        pixels = Pixels(pack, self.tiling, allocate)
        rows: list[Row] = []
        lost: list[LostSample] = []
        kept: list[EncodedSample] = []
        for sample in pack:
            room = self.layout.room(sample.num_tokens)
            decoded = pixels.decode(sample)
            if isinstance(decoded, LostSample):
                lost.append(decoded)
                rows.append(Row.padding(room, style))
                continue
            kept.append(decoded)
            rows.append(Row.of(decoded, room, style))
        offsets = self.layout.offsets([row.num_tokens for row in rows], [len(row.tokens_t) for row in rows])
        tail = offsets.total - sum(len(row.tokens_t) for row in rows)
        if tail:
            rows.append(Row.padding(tail, style))
        labels = np.concatenate([row.labels_t for row in rows])
        positions = torch.from_numpy(np.concatenate([row.positions_at for row in rows], axis=1))
        batch = PackedBatch(
            tokens=torch.from_numpy(np.concatenate([row.tokens_t for row in rows])).unsqueeze(0),
            labels=torch.from_numpy(labels).unsqueeze(0),
            loss_weight=torch.from_numpy(np.concatenate([row.weight_t for row in rows])).unsqueeze(0),
            position_ids=positions if len(positions) == 1 else positions.unsqueeze(1),
            cu_seqlens=torch.tensor(offsets.cu_seqlens, dtype=torch.int32),
            cu_seqlens_padded=torch.tensor(offsets.cu_seqlens_padded, dtype=torch.int32),
            max_seqlen=offsets.max_seqlen,
            padding_mask=torch.from_numpy(offsets.padding_mask()).unsqueeze(0),
            num_loss_tokens=int(np.count_nonzero(labels != IGNORE_INDEX)),
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
