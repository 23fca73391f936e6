"""A small real training run: packs from a data module, a model that consumes them, checkpoints with the data's state.

The loss of a step is normalised over its whole global batch: the weighted sum over all packs of all ranks, divided
by the sum of their weights. So the number of packs per step or rank does not change what a token counts.
"""

from mmpack.train.checkpoint import load_checkpoint, newest_checkpoint
from mmpack.train.contract import DataModule, TrainableModel, TrainConfig, TrainResult
from mmpack.train.generate import FineTuned, generate, load_fine_tuned
from mmpack.train.ranks import join_ranks, leave_ranks
from mmpack.train.recipe import FinetuneRecipe, finetune_recipe
from mmpack.train.run import train

__all__ = [
    "DataModule",
    "FineTuned",
    "FinetuneRecipe",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "finetune_recipe",
    "generate",
    "join_ranks",
    "leave_ranks",
    "load_checkpoint",
    "load_fine_tuned",
    "newest_checkpoint",
    "train",
]
