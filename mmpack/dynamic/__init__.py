"""Micro batches of padded or packed rows, planned from lengths alone, for all ranks at once.

`dynamic_batches` sorts inside the global batch and cuts by a budget of tokens, as NeMo-RL documents it;
`packed_microbatches` packs each global batch for its ranks, as NeMo-RL does. `padded_batches` and `bucket_batches` are
the plain ways to measure against. `deal_packs` shares finished packs out to ranks and
steps.

Nobody is repeated and nobody is left out: where samples do not fit the number of ranks, fillers of weight 0 stand in.
"""

from __future__ import annotations

from mmpack.dynamic.baselines import bucket_batches, padded_batches
from mmpack.dynamic.batches import MicroBatch, MicrobatchOrder, dynamic_batches
from mmpack.dynamic.packed import deal_packs, packed_microbatches

__all__ = [
    "MicroBatch",
    "MicrobatchOrder",
    "bucket_batches",
    "deal_packs",
    "dynamic_batches",
    "packed_microbatches",
    "padded_batches",
]
