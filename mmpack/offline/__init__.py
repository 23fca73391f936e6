"""Text that is packed before training: rows of tokens, the packed store, NeMo's packed file, raw sets made ready.

`pack_dataset` makes a store, `PackedStore` reads it, `pack_row_to_batch` makes batches of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mmpack.offline.config import PackConfig
from mmpack.offline.nemo import prepare_packed_sequence_data
from mmpack.offline.nemo_rows import NemoPackedRows
from mmpack.offline.pack import PackReport, pack_dataset
from mmpack.offline.specs import PackedSequenceSpecs, check_micro_batch_size
from mmpack.offline.store import PackedStore, PackRow

if TYPE_CHECKING:
    from mmpack.offline.batches import nemo_collate, pack_row_to_batch

__all__ = [
    "NemoPackedRows",
    "PackConfig",
    "PackReport",
    "PackRow",
    "PackedSequenceSpecs",
    "PackedStore",
    "check_micro_batch_size",
    "nemo_collate",
    "pack_dataset",
    "pack_row_to_batch",
    "prepare_packed_sequence_data",
]


def __getattr__(name: str) -> Any:
    if name in ("nemo_collate", "pack_row_to_batch"):  # they need torch, packing does not
        return getattr(importlib.import_module("mmpack.offline.batches"), name)
    raise AttributeError(f"module 'mmpack.offline' has no attribute {name!r}")
