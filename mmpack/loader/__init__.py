"""The loader: worker processes, the transfer of packs, their global order, and the state to resume from."""

from mmpack.loader.contract import Stream, StreamFactory
from mmpack.loader.device import DeviceLoader, ahead_on
from mmpack.loader.packs import PackLoader

__all__ = ["DeviceLoader", "PackLoader", "Stream", "StreamFactory", "ahead_on"]
