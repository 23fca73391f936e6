"""One logical stream of packs: the contract of the sources that feed it, and `PackStream`, which makes the packs."""

from mmpack.stream.contract import Drawn, FaultHandler, OpenSource, Sample, Source
from mmpack.stream.packs import PackStream, StreamConfig

__all__ = ["Drawn", "FaultHandler", "OpenSource", "PackStream", "Sample", "Source", "StreamConfig"]
