"""mmpack: exactly filled, balanced, resumable THD batches of image-text data.

The names below are imported when they are first used, so that ``import mmpack`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmpack.batch import PackedBatch as PackedBatch
    from mmpack.config.load import load as load
    from mmpack.config.load import read_config as read_config
    from mmpack.datamodules import EnergonMultiModalDataModule as EnergonMultiModalDataModule
    from mmpack.errors import ConfigError as ConfigError
    from mmpack.errors import SampleError as SampleError
    from mmpack.errors import StateError as StateError
    from mmpack.images import decode_image as decode_image
    from mmpack.images import image_size as image_size
    from mmpack.loader import PackLoader as PackLoader
    from mmpack.packing import pack_lengths as pack_lengths
    from mmpack.window import stream_packs as stream_packs

__version__ = "0.1.0"

_LAZY = {
    "ConfigError": "mmpack.errors",
    "EnergonMultiModalDataModule": "mmpack.datamodules",
    "PackLoader": "mmpack.loader",
    "PackedBatch": "mmpack.batch",
    "SampleError": "mmpack.errors",
    "StateError": "mmpack.errors",
    "decode_image": "mmpack.images",
    "image_size": "mmpack.images",
    "load": "mmpack.config",
    "pack_lengths": "mmpack.packing",
    "read_config": "mmpack.config",
    "stream_packs": "mmpack.window",
}

__all__ = ["__version__", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mmpack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
