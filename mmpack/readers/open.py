"""What a source is, by content, and the reader for it."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmpack.errors import ConfigError
from mmpack.readers.contract import Reader, and_more
from mmpack.readers.json_reader import JsonFile, JsonReader
from mmpack.readers.pairs import METADATA_NAMES, read_captioned, read_table, with_picture_name
from mmpack.readers.parquet import ParquetReader
from mmpack.readers.saved import SavedReader, is_saved_dataset
from mmpack.readers.settle import is_picture
from mmpack.readers.tar_members import BLOCK_BYTES, looks_like_tar
from mmpack.readers.tar_reader import TarFile, TarReader
from mmpack.readers.unpacked import is_gzip, unpack
from mmpack.sources.json_files import is_list

_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
_JSON_ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
_TABLE_ENDINGS = (".csv", ".tsv")
_SPLIT_NAMES = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source that has been looked at.

    `image_root` is the folder that picture paths are relative to unless another is given. `open` makes its reader;
    what has to be unpacked or rewritten for it goes into the folder that it is called with.
    """

    kind: str  # json, table, tar, parquet, saved, captioned
    files: tuple[Path, ...]
    image_root: Path
    open: Callable[[Path], Reader]


def find_source(path: Path) -> Source:
    """What stands at `path`: a file, a folder, or several files by a pattern such as ``data/train-*.parquet``.

    A file is known by its content, a folder by the kinds of its files; of several kinds, the first of: a saved data
    set, tar files, parquet files, ``metadata.*`` beside pictures, pictures with texts, JSON files, one table.

    Raises:
        ConfigError: nothing is there, nothing in it can be read, or its files are of several splits.
    """
    if not path.exists():
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        if not files or not glob.has_magic(str(path)):
            raise ConfigError(f"{path} does not exist or is not a file")
        return _several([file for file in files if file.is_file()], path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist or is not a file")
    kind = _kind_of_file(path)
    return _source(kind, [path], path.parent)


@dataclass(slots=True)
class _Survey:
    """What a folder holds, folders below included; names that begin with a dot are not looked at."""

    tars: list[Path] = field(default_factory=list)
    parquets: list[Path] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    jsons: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # a few
    has_pictures: bool = False
    has_captions: bool = False


def _survey(folder: Path) -> _Survey:
    found = _Survey()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        pictures = {stem for name in names if is_picture(name) for stem in (name, Path(name).stem)}
        found.has_pictures = found.has_pictures or bool(pictures)
        for name in sorted(names):
            lower = name.lower()
            lists = {_TAR_ENDINGS: found.tars, (".parquet",): found.parquets, _TABLE_ENDINGS: found.tables}
            chosen = next((files for endings, files in lists.items() if lower.endswith(endings)), None)
            if name.startswith(".") or is_picture(name):
                continue
            if chosen is not None:
                chosen.append(Path(place, name))
            elif lower.endswith((".txt", ".caption", ".json")) and Path(name).stem in pictures:
                found.has_captions = True
            elif lower.endswith(_JSON_ENDINGS):
                found.jsons.append(Path(place, name))
            elif len(found.others) < 10:
                found.others.append(Path(place, name))
    return found


def _folder(folder: Path) -> Source:
    if is_saved_dataset(folder):
        return Source(kind="saved", files=(folder,), image_root=folder, open=lambda spool: SavedReader(folder))
    found = _survey(folder)
    for kind, files in (("tar", found.tars), ("parquet", found.parquets)):
        if files:
            _refuse_several_splits(files, folder)
            return _source(kind, files, folder)
    for name in METADATA_NAMES if found.has_pictures else ():
        if (folder / name).is_file():
            return _source(_kind_of_file(folder / name), [folder / name], folder, metadata=True)
    if found.has_pictures and (found.has_captions or not (found.jsons or found.tables)):
        return Source(
            kind="captioned",
            files=(folder,),
            image_root=folder,
            open=lambda spool: read_captioned(folder, spool / "pictures.jsonl"),
        )
    if found.jsons:
        _refuse_several_splits(found.jsons, folder)
        return _source("json", found.jsons, folder)
    if len(found.tables) == 1:
        return _source("table", found.tables, folder)
    what = and_more([file.name for file in (*found.tables, *found.others)]) or "no files"
    raise ConfigError(f"{folder} holds no tar, parquet or JSON files and no pictures with texts, but {what}")


def _several(files: Sequence[Path], pattern: Path) -> Source:
    kinds = {_kind_of_file(file) for file in files if file.stat().st_size} or {"json"}
    if len(kinds) > 1:
        raise ConfigError(f"{pattern} matches files of several kinds: {', '.join(sorted(kinds))}")
    (kind,) = kinds
    if kind == "table" and len(files) > 1:
        raise ConfigError(f"{pattern} matches {len(files)} tables; convert one at a time")
    return _source(kind, files, files[0].parent)


def _source(kind: str, files: Sequence[Path], image_root: Path, *, metadata: bool = False) -> Source:
    def open_reader(spool: Path) -> Reader:
        names = [str(file) if len(files) == 1 else file.name for file in files]
        if kind == "parquet":
            return ParquetReader(files, spool)
        if kind == "table":
            path, _ = _unpacked(files[0], spool / "table")
            return read_table(path, names[0], spool / "rows.jsonl")
        if kind == "tar":
            numbered = enumerate(zip(files, names, strict=True))
            return TarReader(
                [_tar(file, name, spool / f"{i:05d}", alone=len(files) == 1) for i, (file, name) in numbered]
            )
        plain = [_unpacked(file, spool / f"{number:05d}") for number, file in enumerate(files)]
        jsons = [JsonFile(path=path, name=name, cut=cut) for (path, cut), name in zip(plain, names, strict=True)]
        return JsonReader(jsons, change=with_picture_name) if metadata else JsonReader(jsons)

    return Source(kind=kind, files=tuple(files), image_root=image_root, open=open_reader)


def _tar(file: Path, name: str, spool: Path, *, alone: bool) -> TarFile:
    """One archive. Of several, one that cannot be unpacked is left to the reader, which counts it as bad."""
    try:
        path, cut = _unpacked(file, spool)
    except ConfigError as error:
        if alone:
            raise
        return TarFile(path=file, name=name, problem=str(error))
    return TarFile(path=path, name=name, cut=cut)


def _unpacked(file: Path, out: Path) -> tuple[Path, str]:
    """The file, or what it unpacks to, and why that ended early."""
    if not is_gzip(file):
        return file, ""
    cut = unpack(file, out)
    if not out.stat().st_size:
        raise ConfigError(f"{file} unpacks to nothing" + (f": {cut}" if cut else ": no samples in it"))
    return out, cut


def _kind_of_file(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(BLOCK_BYTES)
    name = path.name.lower().removesuffix(".gz")
    if head.startswith(b"PAR1"):
        return "parquet"
    if name.endswith((".tar", ".tgz")):
        is_gzip(path)  # refuses what is compressed under a plain name
        return "tar"
    if name.endswith(".parquet"):
        raise ConfigError(f"{path} is not a parquet file, whatever its name says")
    if name.endswith(_TABLE_ENDINGS):
        return "table"
    if head[257:262] == b"ustar" and looks_like_tar(head):
        return "tar"
    if not is_gzip(path):
        is_list(path)  # refuses what is neither JSON nor text
    return "json"


def _refuse_several_splits(files: Iterable[Path], folder: Path) -> None:
    """Files that are called after splits must not be mixed: the test set would end up among the training samples."""
    found: dict[str, Path] = {}
    for file in files:
        inside = file.relative_to(folder)
        for part in inside.parts:
            word = part.lower().replace("_", "-").replace(".", "-").partition("-")[0]
            if word in _SPLIT_NAMES:
                found.setdefault({"training": "train", "testing": "test", "valid": "val", "validation": "val"}
                                 .get(word, word), file)  # fmt: skip
                break
    if len(found) > 1:
        example = next(iter(found.values()))
        pattern = example.parent / f"{next(iter(found))}*{example.suffix}"
        raise ConfigError(
            f"{folder} holds files of the splits {', '.join(found)}; convert each by itself, with a pattern such as "
            f"{json.dumps(str(pattern))}"
        )
