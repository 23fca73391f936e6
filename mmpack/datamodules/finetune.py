"""`FineTuningDataModule`: text records as packed or padded batches, under NeMo's names and arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mmpack.batch import Batch
from mmpack.datamodules.base import PackDataModule
from mmpack.datamodules.factory import PackStreamFactory
from mmpack.datamodules.finetune_config import AUTO, FinetuneConfig
from mmpack.datamodules.finetune_data import described, ledger_of, plan_loader, prepare_split
from mmpack.datamodules.indexed import pad_token_id, refuse_rampup, wrapped_tokenizer
from mmpack.datamodules.kinds import checked
from mmpack.datamodules.step_loader import StepLoader
from mmpack.datamodules.text_form import TextForm
from mmpack.datamodules.text_stream import format_of
from mmpack.datamodules.text_streams import stream_factory
from mmpack.errors import ConfigError
from mmpack.loader import PackLoader
from mmpack.offline import NemoPackedRows, PackedSequenceSpecs, PackedStore, PackReport

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


class FineTuningDataModule(PackDataModule[Batch]):
    """Train, validation and test batches of text files.

    Each file is tokenized and packed once, before training starts, into a store that the next run finds again; with
    ``streaming=True`` while training. Batches of a step may vary in number (``dynamic``, ``global_packing``): ask
    ``train_dataloader().steps()`` for whole steps, as `mmpack.train` does.

    Args:
        dataset_root: folder with ``training.jsonl``, ``validation.jsonl`` and ``test.jsonl``; or give the files.
        seq_length, micro_batch_size, global_batch_size, seed, memmap_workers, num_workers: see `FinetuneConfig`.
        tokenizer: a fast tokenizer of transformers, or its folder; None for that in
            ``packed_sequence_specs.tokenizer_model_name``.
        rampup_batch_size: refused.
        pin_memory, persistent_workers: NeMo's; nothing depends on them.
        packed_sequence_specs: size of packs; None for no packing unless `batching` asks for it.
        dataset_kwargs: what a record looks like; see `mmpack.datamodules.text_form.TextForm.of`.
        settings: further fields of `FinetuneConfig`, such as ``train`` or ``batching``.
        data_parallel_rank, data_parallel_size: as in `PackDataModule`.

    Raises:
        ConfigError: settings that cannot work together, with the remedy. What is wrong with the data itself is said
            when it is prepared.
    """

    @checked
    def __init__(
        self,
        dataset_root: str | Path | None = None,
        seq_length: int = 2048,
        tokenizer: Any = None,
        micro_batch_size: int | None = None,
        global_batch_size: int | str | None = 8,
        rampup_batch_size: Sequence[int] | None = None,
        seed: int = 1234,
        memmap_workers: int = 1,
        num_workers: int = 1,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        packed_sequence_specs: PackedSequenceSpecs | None = None,
        dataset_kwargs: dict[str, Any] | None = None,
        *,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        prefetch: int = 2,
        **settings: Any,
    ) -> None:
        refuse_rampup(rampup_batch_size)
        given: dict[str, Any] = {name: _path(name, value) for name, value in settings.items()}
        given.setdefault("form", TextForm.of(dataset_kwargs))
        config = FinetuneConfig(
            dataset_root=None if dataset_root is None else Path(dataset_root),
            seq_length=seq_length,
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            seed=seed,
            memmap_workers=memmap_workers,
            num_workers=num_workers,
            specs=packed_sequence_specs or PackedSequenceSpecs(),
            **given,
        )
        self._set_up(config, tokenizer, data_parallel_rank, data_parallel_size, prefetch)

    @classmethod
    def of(
        cls,
        config: FinetuneConfig,
        tokenizer: Any,
        *,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        prefetch: int = 2,
    ) -> FineTuningDataModule:
        """The module of a whole configuration."""
        module = cls.__new__(cls)
        FineTuningDataModule._set_up(module, config, tokenizer, data_parallel_rank, data_parallel_size, prefetch)
        return module

    def _set_up(
        self, config: FinetuneConfig, tokenizer: Any, rank: int | None, world_size: int | None, prefetch: int
    ) -> None:
        varying = config.chosen_batching in ("dynamic", "global_packing") and not config.streaming
        auto = config.global_batch_size == AUTO
        super().__init__(
            micro_batch_size=1 if varying else config.sequences_of("train"),
            global_batch_size=None
            if auto or not isinstance(config.global_batch_size, int)
            else config.global_batch_size,
            num_workers=config.num_workers if config.streaming else 0,
            prefetch=prefetch,
            data_parallel_rank=rank,
            data_parallel_size=world_size,
        )
        self.settings = config
        self.seq_length = config.seq_length
        self.reports: dict[str, PackReport] = {}  # of what was packed, by split
        self._given_tokenizer = tokenizer
        self._rows: dict[str, PackedStore | NemoPackedRows] = {}
        self._loaded: StepLoader[Batch] | PackLoader[Batch] | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded when it is needed. Raises ConfigError if there is none."""
        given = self._given_tokenizer
        if given is None and self.settings.specs.tokenizer_model_name is not None:
            given = self.settings.specs.tokenizer_model_name
        if given is None:
            raise ConfigError("no tokenizer; pass tokenizer=, a fast one of transformers or its folder")
        if isinstance(given, str | Path):
            from transformers import AutoTokenizer

            try:
                return AutoTokenizer.from_pretrained(given)
            except (OSError, ValueError, ImportError) as error:
                text = " ".join(str(error).split())[:200]
                raise ConfigError(f"tokenizer {str(given)!r} cannot be loaded; pass tokenizer=: {text}") from None
        return wrapped_tokenizer(given)

    def file(self, split: str) -> Path | None:
        """The records of ``train``, ``validation`` or ``test``; None if there are none."""
        return self.settings.file(split)

    @property
    def record_format(self) -> str:
        """The format that the training records are read as."""
        if "train" in self.reports:
            return self.reports["train"].record_format
        path = None if self._ready_made("train") is not None else self.file("train")
        if path is not None:
            return format_of(path, self.settings.form)
        rows = self._rows.get("train")
        made = rows.meta.get("record_format") if isinstance(rows, PackedStore) else None
        return str(made or self.settings.form.record_format or "prompt_response")

    def prepare_data(self) -> None:
        """Tokenizes and packs the files, or finds what an earlier run made. May be called any number of times.

        With several processes the first one packs and the others wait. Prints n, the mean number of sequences in a
        pack.
        """
        if self.settings.streaming or "train" in self._rows:
            return
        shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if shared and dist.get_rank() != 0:
            dist.barrier()
        self._open("train")
        for split in ("validation", "test"):
            if self._has(split):
                self._open(split)
        if shared and dist.get_rank() == 0:
            dist.barrier()
        self._find_global_batch()

    def setup(self, stage: str | None = None) -> None:
        """Prepares the data, and finds this process's rank."""
        self.prepare_data()
        before = (self.rank, self.world_size)
        self._find_global_batch()
        if (self.rank, self.world_size) != before:
            self._loaded = None

    def _has(self, split: str) -> bool:
        return self._ready_made(split) is not None or self.file(split) is not None

    def _ready_made(self, split: str) -> str | Path | None:
        specs = self.settings.specs
        return {"train": specs.packed_train_data_path, "validation": specs.packed_val_data_path}.get(split)

    def _open(self, split: str) -> PackedStore | NemoPackedRows:
        if split not in self._rows:
            ready = self._ready_made(split)
            if ready is not None:
                self._rows[split] = PackedStore.open(ready) if Path(ready).is_dir() else NemoPackedRows(ready)
            else:
                path = self.file(split)
                if path is None:
                    raise ConfigError(f"there is no {split} data; give {split}=, or dataset_root=")
                self._rows[split], self.reports[split] = prepare_split(self.settings, split, path, self.tokenizer)
                if not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0:
                    print(described(self.reports[split], split), file=sys.stderr, flush=True)
        return self._rows[split]

    @property
    def sequences_per_pack(self) -> float:
        """n, of the training data as it is packed."""
        if self.settings.streaming:
            factory = self._train.factory if self._loaded is not None else self.factory("train", training=True)
            return float(getattr(factory, "sequences_per_pack", 1.0))
        rows = self._open("train")
        if isinstance(rows, PackedStore):
            return rows.num_sequences / max(1, len(rows))
        return sum(len(row.seq_start_ids) for row in rows) / max(1, len(rows))

    def _find_global_batch(self) -> None:
        self._asked_global_batch_size = None
        self._find_place()
        n = 1.0
        if self.settings.global_batch_size == AUTO and self.settings.chosen_batching == "packing":
            n = self.sequences_per_pack
        per_step = self.micro_batch_size * self.world_size
        self._asked_global_batch_size = self.settings.global_batch(per_step, n)
        self._find_place()

    @property
    def _train(self) -> Any:
        if self._loaded is None:
            self.prepare_data()
            self._find_global_batch()
            if self.settings.streaming:
                self._loaded = self._loader(self.factory("train", training=True), training=True)
            else:
                self._loaded = self._steps("train")
        return self._loaded

    @_train.setter
    def _train(self, value: Any) -> None:
        self._loaded = value

    def train_dataloader(self) -> Any:
        """Training batches: the same loader every time, with ``state_dict``, and ``steps`` if it is not streaming."""
        varying = self.settings.chosen_batching in ("dynamic", "global_packing") and not self.settings.streaming
        if varying and getattr(self, "trainer", None) is not None:
            raise ConfigError(
                f"batching={self.settings.chosen_batching!r}: a step's micro batches vary in number, and Lightning "
                "takes a fixed number; train with mmpack.train, or choose padding, buckets or packing"
            )
        return super().train_dataloader()

    def val_dataloader(self) -> Any:
        """Every validation sample once, the same every time."""
        return self._evaluation("validation")

    def test_dataloader(self) -> Any:
        """Every test sample once, the same every time."""
        return self._evaluation("test")

    def _evaluation(self, split: str) -> Any:
        if not self._has(split):
            raise ConfigError(f"there is no {split} data; give {split}=, or put it into dataset_root")
        if self.settings.streaming:
            return self._for_trainer(self._loader(self.factory(split), training=False))
        loader: Any = self._steps(split)
        return self._for_trainer(loader)

    def _steps(self, split: str) -> StepLoader[Batch]:
        config = self.settings
        global_batch_size = self.global_batch_size
        if config.batching_of(split) != config.chosen_batching:  # another unit than the training's
            global_batch_size = config.sequences_of(split) * self.world_size
        return plan_loader(
            replace(config, global_batch_size=global_batch_size),
            split,
            self._open(split),
            ledger_of(self.reports.get(split), split),
            pad_token_id=pad_token_id(self.tokenizer) if self._given_tokenizer is not None else 0,
            rank=self.rank,
            world_size=self.world_size,
        )

    def factory(self, split: str, *, training: bool = False) -> PackStreamFactory[Batch]:
        """With ``streaming=True``: opens the logical streams of a split, one pass at a time."""
        name = _SPLITS[split]
        path = self.file(name)
        if path is None:
            raise ConfigError(f"there is no {name} data; give {name}=, or dataset_root=")
        return stream_factory(
            self.settings,
            name,
            path,
            self.tokenizer,
            pad_token_id=pad_token_id(self.tokenizer),
            world_size=self.world_size,
            training=training,
        )


def _path(name: str, value: Any) -> Any:
    """Text in place of a path."""
    is_path = name in ("train", "validation", "test", "cache_dir") and isinstance(value, str | os.PathLike)
    return Path(value) if is_path else value
