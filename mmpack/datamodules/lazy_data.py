"""Which records of which LLaVA files are for training, for validation and for testing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from mmpack.datamodules.image_data import ImageDataConfig
from mmpack.errors import ConfigError, nearest
from mmpack.indexed import IndexedDataset, LlavaFile, Part, PictureStore, open_pictures

Paths = str | Path | Sequence[str | Path]
SPLITS = ("train", "val", "test")
_SPLIT_OF = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def paths_by_split(paths: Paths | Mapping[str, Paths]) -> dict[str, tuple[Path, ...]]:
    """Files of each split.

    Raises:
        ConfigError: an unknown split, no training data, or a file in two splits.

    >>> {name: [str(p) for p in found] for name, found in paths_by_split({"train": "a", "validation": ["b"]}).items()}
    {'train': ['a'], 'val': ['b']}
    """
    given: Mapping[str, Paths] = paths if isinstance(paths, Mapping) else {"train": paths}
    found: dict[str, tuple[Path, ...]] = {}
    for name, value in given.items():
        if name not in _SPLIT_OF:
            raise ConfigError(f"paths: unknown split {name!r}; {nearest(str(name), _SPLIT_OF)}")
        each = [value] if isinstance(value, str | Path) else value
        if not isinstance(each, Sequence) or not all(isinstance(path, str | Path) for path in each):
            raise ConfigError(f"paths: {value!r} for {name!r}; give the path of a file, or a list of them")
        if not each:
            raise ConfigError(f"paths: no file for {name!r}; leave it out, or give one")
        if _SPLIT_OF[name] in found:
            raise ConfigError(f"paths: {list(given)} name split {_SPLIT_OF[name]!r} twice")
        found[_SPLIT_OF[name]] = tuple(Path(path) for path in each)
    if "train" not in found:
        raise ConfigError(f"paths has {', '.join(map(repr, given))}, but no 'train'")
    used: dict[Path, str] = {}
    for split, files in found.items():
        for file in files:
            other = used.setdefault(file.resolve(), split)
            if other != split:
                raise ConfigError(f"paths: {file} is in {other!r} and in {split!r}; give other data, or use split=")
    return found


def split_shares(split: str | Sequence[float] | None) -> dict[str, float] | None:
    """Shares of train, val and test that make 1; as text with commas, or numbers of any sum.

    Raises:
        ConfigError: not two or three numbers, or none for training.

    >>> split_shares("900,50,50")
    {'train': 0.9, 'val': 0.05, 'test': 0.05}
    """
    if split is None:
        return None
    try:
        numbers = [float(part) for part in (split.split(",") if isinstance(split, str) else split)]
    except (TypeError, ValueError):
        numbers = []
    if not 2 <= len(numbers) <= 3 or not all(0 <= n < math.inf for n in numbers) or not numbers[0]:
        raise ConfigError(f"split={split!r}; shares of train, validation and test, such as '0.9,0.05,0.05'")
    total = math.fsum(numbers)
    return dict(zip(SPLITS, [n / total for n in [*numbers, 0.0][:3]], strict=True))


class LazyData:
    """Data sets by split. Files are indexed when their split is first asked for, and once.

    Args:
        paths: as in `NevaLazyDataModule`.
        shares: of each split, of every file alike; None gives every file to the split that `paths` puts it in.
        config: how the files are read.
        seed: of the choice of splits.

    Raises:
        ConfigError: shares beside several splits of paths, or pictures that are not there.
    """

    def __init__(
        self, paths: Paths | Mapping[str, Paths], shares: dict[str, float] | None, config: ImageDataConfig, seed: int
    ) -> None:
        self.paths, self._shares, self._config, self._seed = paths_by_split(paths), shares, config, seed
        if shares is not None and len(self.paths) > 1:
            raise ConfigError(f"split={shares} beside paths for {', '.join(self.paths)}; give one of the two")
        self._files: dict[Path, IndexedDataset] = {}
        self._stores: dict[Path, PictureStore] = {}
        self._names = _names([path for files in self.paths.values() for path in files])

    @property
    def names(self) -> list[str]:
        """Of all files, as counters name them."""
        return list(self._names.values())

    def has(self, split: str) -> bool:
        """Whether there is data for ``train``, ``val`` or ``test``."""
        return split in self.paths if self._shares is None else self._shares[split] > 0

    def datasets(self, split: str) -> tuple[IndexedDataset, ...]:
        """The data sets of a split, one a file.

        Raises:
            ConfigError: there is none, a file that cannot be read, or one too small for its shares.
        """
        if not self.has(split):
            raise ConfigError(
                f"no data for {split!r}: give some with paths={{'train': ..., 'validation': ..., 'test': ...}}, or "
                "take a share of the training data out with split='0.9,0.05,0.05'"
            )
        if self._shares is None:
            return tuple(self._file(path) for path in self.paths[split])
        return tuple(self._part(path, split, self._shares) for path in self.paths["train"])

    def _part(self, path: Path, split: str, shares: Mapping[str, float]) -> IndexedDataset:
        file = self._file(path)
        ends = [round(len(file) * share) for share in accumulate(shares[name] for name in SPLITS)]
        place = SPLITS.index(split)
        start, stop = (ends[place - 1] if place else 0), ends[place]
        if start == stop:
            raise ConfigError(f"{path}: {len(file)} records are too few for a {split!r} share of {shares[split]:g}")
        return Part(file, start, stop, self._seed)

    def _file(self, path: Path) -> IndexedDataset:
        if path not in self._files:
            folder = path.parent if self._config.image_folder is None else Path(self._config.image_folder)
            if folder not in self._stores:
                self._stores[folder] = open_pictures(folder)
            self._files[path] = LlavaFile(
                path,
                pictures=self._stores[folder],
                name=self._names[path],
                record_format=self._config.record_format,
                missing_image=self._config.missing_image,
            )
        return self._files[path]


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for every file: without its ending, and with as many folders before it as tell it from the others."""
    names: dict[Path, str] = {}
    for path in paths:
        if path in names:
            raise ConfigError(f"paths: {path} is given twice; weights make data count more")
        stem, number = path.stem, 2
        folders = list(path.parent.parts)
        while stem in names.values():
            if folders and folders[-1] != path.anchor:
                stem = f"{folders.pop()}/{stem}"
            else:
                stem, number = f"{path.stem} {number}", number + 1
        names[path] = stem
    return names
