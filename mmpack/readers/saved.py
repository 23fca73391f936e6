"""Data sets that Hugging Face's ``datasets`` saved on disk (``Dataset.save_to_disk``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError
from mmpack.readers.contract import FoundSample, Place
from mmpack.readers.extras import library
from mmpack.readers.parquet import found_row, values_of

_BATCH_ROWS = 32


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``datasets.load_from_disk`` reads `folder`."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


class SavedReader:
    """Rows of a saved data set, memory-mapped. Pictures are taken as they are stored, not decoded.

    Raises:
        ConfigError: ``datasets`` is not installed, the folder cannot be read, or it holds several splits.
    """

    def __init__(self, folder: Path) -> None:
        datasets = library("datasets", "a data set saved by Hugging Face's datasets")
        self.what = "a saved data set"
        self.notes: list[str] = []
        try:
            data = datasets.load_from_disk(str(folder), keep_in_memory=False)
        except Exception as error:  # whatever the library meets
            raise ConfigError(f"{folder} cannot be read by datasets: {' '.join(str(error).split())[:200]}") from None
        if isinstance(data, datasets.DatasetDict):
            names = list(data)
            raise ConfigError(f"{folder} holds the splits {', '.join(names)}; give one of them: {folder / names[0]}")
        if not len(data):
            raise ConfigError(f"{folder} holds no rows")
        self._data: Any = data.with_format("arrow")

    def scan(self) -> Iterator[FoundSample]:
        for start in range(0, len(self._data), _BATCH_ROWS):
            rows = values_of(self._data[start : start + _BATCH_ROWS])
            for row, data in enumerate(rows, start=start):
                yield found_row(Place(0, row, 1, row + 1), f"row {row + 1}", data)

    def fetch(self, places: Sequence[Place]) -> Iterator[FoundSample]:
        for place in places:
            (data,) = values_of(self._data[place.start : place.start + 1])
            yield found_row(place, f"row {place.number}", data)
