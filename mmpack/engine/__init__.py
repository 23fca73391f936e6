"""Where the tasks of a conversion, a check or a packing run: in processes of this machine, or on a Ray cluster."""

from mmpack.engine.contract import ENGINES, Engine, check_engine, open_engine
from mmpack.engine.remembered import Remembered
from mmpack.engine.task import stopped, tick

__all__ = ["ENGINES", "Engine", "Remembered", "check_engine", "open_engine", "stopped", "tick"]
