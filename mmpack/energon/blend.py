"""The weighted entries of an energon metadataset, each to be opened by itself, so that mmpack can blend by tokens.

Energon's own blend draws entries at random by their weights, in samples; a dataset of long samples then gives more
than its share of the tokens that a model sees.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mmpack.energon.reader import SourceConfig
from mmpack.errors import ConfigError


def blended_sources(config: SourceConfig) -> list[tuple[SourceConfig, float]]:
    """Every entry of the weighted blend that `config` names, as a source of its own, and its weight.

    Entries keep all that they say (split part, subflavors, subset); paths in them are relative to the YAML file, as
    energon has it. An entry may be a metadataset itself, blended inside as that says.

    Raises:
        ConfigError: the path is no metadataset, or its split is no weighted blend of at least one entry.
    """
    path = Path(config.path)
    if not path.is_file():
        raise ConfigError(f"path={str(path)!r}: blending by tokens needs a metadataset (a YAML file) with a blend")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    splits = content.get("splits") if isinstance(content, Mapping) else None
    split = splits.get(config.split) if isinstance(splits, Mapping) else None
    entries = split.get("blend") if isinstance(split, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{path}: splits.{config.split} has no list 'blend'; blending by tokens needs one, with path and weight in "
            "each entry (blend_epochized and join are energon's to read: leave blend_by='samples')"
        )
    return [_source(config, path, number, entry) for number, entry in enumerate(entries)]


def _source(config: SourceConfig, path: Path, number: int, entry: Any) -> tuple[SourceConfig, float]:
    where = f"{path}: splits.{config.split}.blend[{number}]"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        raise ConfigError(f"{where} has no path")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"{where}: weight={weight!r}; a number above 0")
    inside = {name: value for name, value in entry.items() if name != "weight"}
    if "://" not in inside["path"]:
        inside["path"] = str((path.parent / inside["path"]).resolve())
    alone = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {config.split: inside},
    }
    file = _folder() / f"{path.resolve().as_posix().replace('/', '_')}-{config.split}-{number}.yaml"
    file.write_text(yaml.safe_dump(alone, sort_keys=False), encoding="utf-8")
    name = f"{inside['path']} (blend[{number}] of {path})"
    return dataclasses.replace(config, path=file, name=name), float(weight)


@cache
def _folder_of_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mmpack-blend-", ignore_cleanup_errors=True)


def _folder() -> Path:
    """Where the entries' own YAML files lie until this process ends; energon opens files only."""
    return Path(_folder_of_process().name)
