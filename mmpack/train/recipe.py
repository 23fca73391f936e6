"""Fine-tuning recipes under NeMo's names: a configuration to look at, to change and to run."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mmpack.datamodules.dolly import DollyDataModule
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.datamodules.finetune_config import AUTO, FinetuneConfig
from mmpack.datamodules.kinds import checked
from mmpack.errors import ConfigError, nearest
from mmpack.model.causal import CausalModel, CausalSpec, LoraSpec
from mmpack.offline import PackedSequenceSpecs
from mmpack.train.contract import TrainConfig, TrainResult
from mmpack.train.ranks import join_ranks
from mmpack.train.run import train

SEQ_LENGTH = 2048
PEFT_SCHEMES = ("lora",)
# What NeMo's documentation trains with: all weights slowly, adapters faster.
_LEARNING_RATES = {None: 5e-6, "lora": 1e-4}


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneRecipe:
    """A whole fine-tuning run. Change it with `dataclasses.replace`, or `with_model` and `with_data`.

    Args:
        name: of the run.
        dir: the run goes to ``dir/name``.
        model_name: what the recipe is for.
        num_nodes, num_gpus_per_node: processes that `run` expects to be.
        model: what to train; its ``causal_lm`` is the folder of the model, which has to be given.
        tokenizer: folder of the tokenizer; None for the model's.
        data: how text becomes batches. Without files in it, `dolly_path` is read.
        dolly_path: raw file of Dolly's form; None for Hugging Face's copy.
        trainer: steps, validation, checkpoints.
    """

    name: str
    dir: Path
    model_name: str
    num_nodes: int
    num_gpus_per_node: int
    model: CausalSpec
    tokenizer: Path | None
    data: FinetuneConfig
    dolly_path: Path | None
    trainer: TrainConfig

    def __post_init__(self) -> None:
        for name in ("num_nodes", "num_gpus_per_node"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; it must be at least 1")

    def with_model(self, path: str | Path, *, tokenizer: str | Path | None = None) -> FinetuneRecipe:
        """With the model in a local folder. Raises ConfigError if there is none."""
        given = None if tokenizer is None else Path(tokenizer)
        return replace(self, model=replace(self.model, causal_lm=Path(path)), tokenizer=given)

    def with_data(self, **changes: Any) -> FinetuneRecipe:
        """With other fields of `data`. Raises ConfigError as `FinetuneConfig` does."""
        return replace(self, data=replace(self.data, **changes))

    def with_trainer(self, **changes: Any) -> FinetuneRecipe:
        """With other fields of `trainer`. Raises ConfigError as `TrainConfig` does."""
        return replace(self, trainer=replace(self.trainer, **changes))

    def data_module(self) -> FineTuningDataModule:
        """The data, not read yet. Raises ConfigError without a tokenizer."""
        folder = self.tokenizer or self.model.causal_lm
        if folder is None:
            raise ConfigError(self._no_model())
        if self.data.file("train") is not None or self.data.specs.packed_train_data_path is not None:
            return FineTuningDataModule.of(self.data, folder)
        own = {field.name: getattr(self.data, field.name) for field in fields(self.data)}
        for name in ("dataset_root", "train", "validation", "test"):
            del own[name]
        return DollyDataModule(tokenizer=folder, path=self.dolly_path, packed_sequence_specs=own.pop("specs"), **own)

    def build(self) -> tuple[FineTuningDataModule, CausalModel]:
        """Data and model. Raises ConfigError without a model's folder."""
        if self.model.causal_lm is None:
            raise ConfigError(self._no_model())
        data = self.data_module()
        return data, self.model.build(data.tokenizer)

    def _no_model(self) -> str:
        return (
            f"the recipe {self.name!r} has no model yet: give the local folder of {self.model_name} with "
            "recipe.with_model(path)"
        )

    def run(self) -> TrainResult:
        """Trains. With several processes it is to be started by torchrun.

        Raises:
            ConfigError: no model, or another number of processes than the recipe is for.
        """
        wanted = self.num_nodes * self.num_gpus_per_node
        found = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_initialized():
            found = dist.get_world_size()
        if found != wanted:
            raise ConfigError(
                f"the recipe is for {wanted} processes, this is one of {found}; start it with torchrun --nnodes "
                f"{self.num_nodes} --nproc-per-node {self.num_gpus_per_node} SCRIPT, or change the recipe's numbers"
            )
        join_ranks()
        data, model = self.build()
        return train(self.trainer, data, model)


@checked
def finetune_recipe(
    name: str = "default",
    dir: str | Path = "nemo_experiments",
    num_nodes: int = 1,
    num_gpus_per_node: int = 8,
    packed_sequence: bool = False,
    peft_scheme: str | None = None,
    *,
    model_path: str | Path | None = None,
    model_name: str = "a causal language model",
    seq_length: int = SEQ_LENGTH,
    global_batch_samples: int = 128,
    dolly_path: str | Path | None = None,
    max_steps: int = -1,
) -> FinetuneRecipe:
    """A fine-tuning run with the numbers of NeMo's documentation.

    Args:
        name, dir: of the run; it goes to ``dir/name``.
        num_nodes, num_gpus_per_node: processes, one a GPU.
        packed_sequence: pack into `seq_length` tokens; the global batch is then `global_batch_samples` divided by the
            mean number of sequences in a pack, which is known once the data is packed.
        peft_scheme: "lora" trains adapters, None all weights.
        model_path: local folder of the model; may be given later.
        dolly_path: raw file of Dolly's form; None for Hugging Face's copy.
        max_steps: -1 for one pass over the data.

    Raises:
        ConfigError: a number that cannot work, or an unknown scheme.
    """
    if peft_scheme is not None and peft_scheme not in PEFT_SCHEMES:
        raise ConfigError(f"peft_scheme={peft_scheme!r}; {nearest(peft_scheme, PEFT_SCHEMES)}, or None for all weights")
    folder = Path(dir) / name
    return FinetuneRecipe(
        name=name,
        dir=Path(dir),
        model_name=model_name,
        num_nodes=num_nodes,
        num_gpus_per_node=num_gpus_per_node,
        model=CausalSpec(
            causal_lm=None if model_path is None else Path(model_path), lora=LoraSpec() if peft_scheme else None
        ),
        tokenizer=None,
        data=FinetuneConfig(
            seq_length=seq_length,
            micro_batch_size=1,
            global_batch_size=AUTO,
            global_batch_samples=global_batch_samples,
            specs=PackedSequenceSpecs(packed_sequence_size=seq_length if packed_sequence else -1),
        ),
        dolly_path=None if dolly_path is None else Path(dolly_path),
        trainer=TrainConfig(
            output_dir=folder,
            max_steps=max_steps,
            learning_rate=_LEARNING_RATES[peft_scheme],
            precision="auto",
            val_check_interval=1000,
            limit_val_batches=40,
            save_interval=1000,
            monitor="val_loss",
        ),
    )


@dataclass(frozen=True, slots=True)
class ModelRecipes:
    """The recipes of one model, where NeMo has a module of that name."""

    model_name: str

    def finetune_recipe(
        self,
        name: str = "default",
        dir: str | Path = "nemo_experiments",
        num_nodes: int = 1,
        num_gpus_per_node: int = 8,
        packed_sequence: bool = False,
        peft_scheme: str | None = None,
        **options: Any,
    ) -> FinetuneRecipe:
        """`finetune_recipe` for this model."""
        return finetune_recipe(
            name, dir, num_nodes, num_gpus_per_node, packed_sequence, peft_scheme, model_name=self.model_name, **options
        )
