"""NeMo's packed file: an ``.npy`` with an object array of dicts ``input_ids``, ``loss_mask``, ``seq_start_id``."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from mmpack.errors import ConfigError, DataError
from mmpack.offline.files import whole_file
from mmpack.offline.store import PackRow

KEYS = ("input_ids", "loss_mask", "seq_start_id")


def write_nemo_rows(path: Path, rows: Iterable[PackRow | dict[str, list[int]]]) -> None:
    """Writes the file, whole or not at all."""
    dicts = [_as_dict(row) if isinstance(row, PackRow) else row for row in rows]
    array = np.empty(len(dicts), dtype=object)
    array[:] = dicts
    with whole_file(path) as file:
        np.save(file, array, allow_pickle=True)


def _as_dict(row: PackRow) -> dict[str, list[int]]:
    return {
        "input_ids": row.input_ids.tolist(),
        "loss_mask": row.loss_mask.tolist(),
        "seq_start_id": row.seq_start_ids.tolist(),
    }


class NemoPackedRows(Sequence[PackRow]):
    """The rows of NeMo's file. As in NeMo, a negative index gives that row from the end with nothing to learn.

    NeMo's format is a pickle; only plain numbers, lists, dicts and arrays are let in, so opening a stranger's file
    runs none of its code. The whole file is held in memory: `mmpack pack` makes a store that need not be.

    Raises:
        ConfigError: the file is missing or no such array.
        DataError: a row that does not hold together.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._rows = _load(file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # a pickle can fail in any way
            raise ConfigError(f"{path} is not NeMo's packed file: {error}") from None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self._rows[index]
        if not isinstance(row, dict) or any(key not in row for key in KEYS):
            raise DataError(f"{self.path}, row {index}: expected a dict with {', '.join(KEYS)}")
        ids = np.asarray(row["input_ids"], dtype=np.int32)
        mask = np.asarray(row["loss_mask"]).astype(np.uint8)
        starts = np.asarray(row["seq_start_id"], dtype=np.int32)
        whole = len(starts) and starts[0] == 0 and (np.diff([*starts, len(ids)]) > 0).all()
        if len(mask) != len(ids) or not whole:
            raise DataError(f"{self.path}, row {index}: {len(ids)} ids, {len(mask)} masks, starts {starts.tolist()}")
        mask[[*(starts[1:] - 1), len(ids) - 1]] = 0  # NeMo leaves a 1 there, and its collate drops it
        if index < 0:
            mask[:] = 0
        return PackRow(input_ids=ids, loss_mask=mask, seq_start_ids=starts)


class _PlainUnpickler(pickle.Unpickler):
    """Reads arrays and plain values, and refuses everything else."""

    ALLOWED = ("_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype")

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is no plain data")


def _load(file: IO[bytes]) -> Any:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if not dtype.hasobject or len(shape) != 1:
        raise ValueError(f"an array of {dtype} and shape {shape}, not a list of dicts")
    return _PlainUnpickler(file).load()
