"""Leaves bad samples out of training: writes them into ``exclude`` of the dataset's split file, as energon reads it."""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from mmpack.check.facts import BadSample
from mmpack.energon.reader import META_FOLDER
from mmpack.errors import ConfigError

SPLIT_FILE = "split.yaml"


def quarantine(bad: Iterable[BadSample]) -> list[tuple[Path, int]]:
    """Adds ``shard.tar/key`` of each sample to the split files of its dataset; what they held before is kept beside.

    A sample whose shard cannot say its key is entered as ``shard.tar/#i``, its number in the shard, which mmpack
    understands and energon takes for a key that never comes.

    Returns:
        Each split file, and the number of entries that are new in it.

    Raises:
        ConfigError: the samples are records of a file, or a split file cannot be read or written.
    """
    entries: dict[Path, list[str]] = defaultdict(list)
    for sample in bad:
        if not sample.shard:
            raise ConfigError(
                f"{sample.folder} is no Energon dataset, so nothing can be left out in it; mend the file, or let "
                "`mmpack convert` skip its bad samples"
            )
        entries[Path(sample.folder)].append(literal(sample.name))
    return [(_split_file(folder), _exclude(_split_file(folder), names)) for folder, names in sorted(entries.items())]


def literal(name: str) -> str:
    r"""`name` as energon's brace patterns write it: braces mean themselves.

    >>> print(literal("shard.tar/a{1,2}"))
    shard.tar/a\{1,2\}
    """
    return re.sub(r"([\\{}])", r"\\\1", name)


def _split_file(folder: Path) -> Path:
    return folder / META_FOLDER / SPLIT_FILE


def _exclude(path: Path, names: list[str]) -> int:
    try:
        before = path.read_bytes()
        content: Any = yaml.safe_load(before)
        known = list(content.get("exclude") or [])
    except (OSError, ValueError, yaml.YAMLError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    new = [name for name in dict.fromkeys(names) if name not in set(known)]
    if not new:
        return 0
    content["exclude"] = [*known, *new]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    try:
        _free_name(path).write_bytes(before)
        _replace(path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    return len(new)


def _free_name(path: Path) -> Path:
    """Where the file as it was is kept: ``split.yaml.1.bak``, or the next number."""
    number = 1
    while (backup := path.with_name(f"{path.name}.{number}.bak")).exists():
        number += 1
    return backup


def _replace(path: Path, data: bytes) -> None:
    """Writes the file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
