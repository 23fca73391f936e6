"""The loader: worker processes, the transfer of packs, their global order, and the state to resume from."""

from mmpack.loader.contract import Stream, StreamFactory
from mmpack.loader.packs import PackLoader

__all__ = ["PackLoader", "Stream", "StreamFactory"]
