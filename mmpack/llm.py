"""NeMo's names for text fine-tuning: change the import line of a script to ``from mmpack import llm``.

`llama3_8b` and the like stand where NeMo has modules of recipes; a model's weights are a local folder to give.
"""

from mmpack.datamodules.dolly import DollyDataModule
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.offline import PackedSequenceSpecs
from mmpack.train.recipe import FinetuneRecipe, ModelRecipes, finetune_recipe

llama3_8b = ModelRecipes("Llama 3 8B")
llama3_70b = ModelRecipes("Llama 3 70B")
mistral_7b = ModelRecipes("Mistral 7B")

__all__ = [
    "DollyDataModule",
    "FineTuningDataModule",
    "FinetuneRecipe",
    "PackedSequenceSpecs",
    "finetune_recipe",
    "llama3_8b",
    "llama3_70b",
    "mistral_7b",
]
