"""One logical stream of packs: the contract of the sources that feed it, and `PackStream`, which makes the packs."""

from mmpack.stream.config import StreamConfig
from mmpack.stream.contract import Drawn, FaultHandler, OpenSource, Sample, Source
from mmpack.stream.packs import PackStream
from mmpack.stream.selection import DynamicBatching, LengthBuckets

__all__ = [
    "Drawn",
    "DynamicBatching",
    "FaultHandler",
    "LengthBuckets",
    "OpenSource",
    "PackStream",
    "Sample",
    "Source",
    "StreamConfig",
]
