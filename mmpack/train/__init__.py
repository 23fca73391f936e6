"""A small real training run: packs from a data module, a model that consumes them, checkpoints with the data's state.

The loss of a step is normalised over its whole global batch: the weighted sum over all packs of all ranks, divided
by the sum of their weights. So the number of packs per step or rank does not change what a token counts.
"""

from mmpack.train.checkpoint import load_checkpoint, newest_checkpoint
from mmpack.train.contract import DataModule, TrainableModel, TrainConfig, TrainResult
from mmpack.train.run import train

__all__ = [
    "DataModule",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "load_checkpoint",
    "newest_checkpoint",
    "train",
]
