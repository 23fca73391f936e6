"""`DollyDataModule`: the raw Dolly file, made ready and split, as fine-tuning batches, under NeMo's names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.datamodules.kinds import checked
from mmpack.errors import ConfigError
from mmpack.indexed import Permutation
from mmpack.offline import PackedSequenceSpecs
from mmpack.offline.dolly import prepare_dolly
from mmpack.offline.files import whole_file

FILE_NAME = "databricks-dolly-15k.jsonl"
_REPOSITORY = "databricks/databricks-dolly-15k"
_FILES = {"train": "training.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}


def split_counts(num_records: int, shares: Sequence[float]) -> tuple[int, int, int]:
    """Records of training, validation and test: at least one each of training and, with three records, of the others.

    >>> split_counts(15011, (0.8, 0.05, 0.15)), split_counts(3, (0.8, 0.05, 0.15)), split_counts(1, (0.8, 0.1, 0.1))
    ((12009, 750, 2252), (1, 1, 1), (1, 0, 0))
    """
    if num_records < 3:
        return num_records, 0, 0
    total = sum(shares)
    validation = max(1, int(num_records * shares[1] / total)) if shares[1] else 0
    test = max(1, round(num_records * shares[2] / total)) if shares[2] else 0
    return max(1, num_records - validation - test), validation, test


class DollyDataModule(FineTuningDataModule):
    """Instructions of Dolly's form (instruction, context, response, category), split by seed.

    The file is made into inputs and outputs as `mmpack prepare-dolly` does, and its records are dealt to training,
    validation and test by a permutation that `split_seed` decides. Nothing is looked for before the data is prepared.

    Args:
        seq_length, tokenizer, micro_batch_size, global_batch_size, rampup_batch_size, seed, memmap_workers,
            num_workers, pin_memory, persistent_workers, packed_sequence_specs, dataset_kwargs: of
            `FineTuningDataModule`.
        force_redownload: NeMo's; prepares and splits anew.
        delete_raw: NeMo's; the raw file is never deleted, so True is refused.
        path: the raw file; None for Hugging Face's copy of databricks-dolly-15k, from its cache or fetched when the
            data is prepared.
        split: shares of training, validation and test.
        split_seed: of the split, and of the order of context and instruction.
        prepared_dir: gets the three files; None for a folder beside the raw file.
        settings: further fields of `FinetuneConfig`, such as ``batching``.

    Raises:
        ConfigError: settings that cannot work, or `path` is no file.
    """

    @checked
    def __init__(
        self,
        seq_length: int = 2048,
        tokenizer: Any = None,
        micro_batch_size: int | None = None,
        global_batch_size: int | str | None = 8,
        rampup_batch_size: Sequence[int] | None = None,
        force_redownload: bool = False,
        delete_raw: bool = False,
        seed: int = 1234,
        memmap_workers: int = 1,
        num_workers: int = 1,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        packed_sequence_specs: PackedSequenceSpecs | None = None,
        dataset_kwargs: dict[str, Any] | None = None,
        *,
        path: str | Path | None = None,
        split: tuple[float, float, float] = (0.8, 0.05, 0.15),
        split_seed: int = 1234,
        prepared_dir: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if delete_raw:
            raise ConfigError("delete_raw=True: the raw file is yours; delete it yourself, and leave delete_raw out")
        if min(split) < 0 or not split[0] > 0:
            raise ConfigError(f"split={list(split)}; give three shares, of training above 0")
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"path={str(path)!r} is no file; give a JSONL file of Dolly's form")
        self._path = None if path is None else Path(path)
        self._split, self._split_seed, self._anew = tuple(split), split_seed, force_redownload
        self._prepared = None if prepared_dir is None else Path(prepared_dir)
        super().__init__(
            None,
            seq_length,
            tokenizer,
            micro_batch_size,
            global_batch_size,
            rampup_batch_size,
            seed,
            memmap_workers,
            num_workers,
            pin_memory,
            persistent_workers,
            packed_sequence_specs,
            dataset_kwargs,
            **settings,
        )
        self._folder: Path | None = None

    def file(self, split: str) -> Path | None:
        """The prepared file of a split, which this makes at the first call."""
        if self._folder is None:
            self._folder = split_dolly(
                self._path or find_dolly(), self._prepared, self._split, self._split_seed, anew=self._anew
            )
        path = self._folder / _FILES[split]
        return path if path.is_file() else None


def find_dolly() -> Path:
    """Hugging Face's copy of the raw file. Raises ConfigError, with the remedy, if it cannot be had."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(_REPOSITORY, FILE_NAME, repo_type="dataset"))
    except Exception as error:  # no network, no cache, no permission: each a class of its own
        text = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"{FILE_NAME} is not in Hugging Face's cache and cannot be fetched ({text}); give the file with path="
        ) from None


def split_dolly(path: Path, folder: Path | None, shares: Sequence[float], seed: int, *, anew: bool = False) -> Path:
    """The folder with the prepared splits of a raw file; made once for the same bytes and settings."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(json.dumps([list(shares), seed]).encode())
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    target = (folder or path.parent / "prepared") / f"{name}-{digest.hexdigest()[:12]}"
    if not anew and (target / _FILES["train"]).is_file():
        return target
    whole = target / f"{name}-output.jsonl"
    prepare_dolly(path, whole, seed=seed)
    lines = whole.read_bytes().splitlines(keepends=True)
    order = Permutation(len(lines), seed)
    at = 0
    written = dict(zip(_FILES, split_counts(len(lines), shares), strict=True))
    bounds = {}
    for split, count in written.items():
        bounds[split], at = (at, at + count), at + count
    for split in ("test", "validation", "train"):  # training last: it says that all is there
        start, end = bounds[split]
        if end > start:
            with whole_file(target / _FILES[split]) as out:
                out.writelines(lines[order(i)] for i in range(start, end))
    return target
