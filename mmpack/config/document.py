"""YAML as plain values that still know where they were written: file and line, or the ``--set`` that gave them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmpack.errors import ConfigError, nearest

Place = tuple[str | int, ...]  # keys and list positions from the top
PACKAGE_PREFIX = "package:"


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of YAML 1.2: ``1e-3`` is a number; ``no``, ``1:30`` and ``010`` are text."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), None)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), None)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|nan)$"),
    None,
)


def parse_scalar(text: str) -> Any:
    """A value as YAML reads it.

    >>> [parse_scalar(text) for text in ("8192", "1e-3", "true", "no", "[1, 2]", "a/b", "")]
    [8192, 0.001, True, 'no', [1, 2], 'a/b', None]
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except _NOT_YAML as error:
        raise ConfigError(f"{text!r} is not a YAML value: {_one_line(error)}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A mapping read from `name`, and the line of every value in it. `settings` are the overrides applied so far."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)
    settings: tuple[tuple[Place, str], ...] = ()

    def where(self, place: Place) -> str:
        """Where the value at `place`, or else what encloses it, was written: ``file:line`` or ``--set a.b=c``."""
        if place not in self.lines:
            for target, text in reversed(self.settings):
                if target[: len(place)] == place:  # it made the section that `place` is
                    return f"--set {text}"
        for length in range(len(place), 0, -1):
            for target, text in reversed(self.settings):
                if target == place[:length]:
                    return f"--set {text}"
            if place[:length] in self.lines:
                return f"{self.name}:{self.lines[place[:length]]}"
        return self.name

    def with_settings(self, settings: Sequence[str]) -> Document:
        """With every ``a.b=c`` of `settings` applied in turn; the values are read as YAML.

        Raises:
            ConfigError: one that is not of that form, or that leads through something that has no keys.
        """
        values: dict[str, Any] = copy.deepcopy(dict(self.values))
        applied = list(self.settings)
        for text in settings:
            path, equals, value = text.partition("=")
            keys = tuple(part.strip() for part in path.split("."))
            if not equals or not all(keys):
                raise ConfigError(f"--set {text}: give it as section.key=value, such as --set train.max_steps=100")
            target = values
            for depth, key in enumerate(keys[:-1]):
                inner = target.setdefault(key, {})
                if inner is None:
                    inner = target[key] = {}
                if not isinstance(inner, dict):
                    raise ConfigError(f"--set {text}: {'.'.join(keys[: depth + 1])} is {inner!r} and has no keys in it")
                target = inner
            target[keys[-1]] = parse_scalar(value)
            applied.append((keys, text))
        return Document(name=self.name, values=values, lines=self.lines, settings=tuple(applied))

    def with_package_paths(self) -> Document:
        """With every ``package:...`` value replaced by the path of that file inside the installed package."""
        return Document(
            name=self.name,
            values=self._resolved(self.values, ()),
            lines=self.lines,
            settings=self.settings,
        )

    def _resolved(self, value: Any, place: Place) -> Any:
        if isinstance(value, Mapping):
            return {key: self._resolved(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item, (*place, i)) for i, item in enumerate(value)]
        if not (isinstance(value, str) and value.startswith(PACKAGE_PREFIX)):
            return value
        path = package_path(value.removeprefix(PACKAGE_PREFIX))
        if not path.exists():
            siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = f"; {nearest(path.name, siblings)}" if siblings else ""
            raise ConfigError(f"{self.where(place)}: {dotted(place)}={value!r} is not in the package{hint}")
        return str(path)


def package_path(relative: str) -> Path:
    """A file that was installed with mmpack, by its path inside the package."""
    return Path(__file__).parents[1] / relative


def read_document(path: Path) -> Document:
    """The YAML file at `path`. Raises ConfigError if it cannot be read, or is not a mapping with unique text keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{path}: cannot be read: {what}") from None
    return parse_document(text, name=str(path))


# What PyYAML raises for text that is wrong, nested without end, or tagged as what it is not (`!!int foo`).
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


def parse_document(text: str, *, name: str) -> Document:
    """YAML text as a `Document`; see `read_document`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        lines: dict[Place, int] = {}
        if root is not None:
            _collect(root, (), lines, name)
        values = yaml.load(text, Loader=_Loader)
    except ConfigError:
        raise
    except _NOT_YAML as error:
        raise ConfigError(f"{name}: not valid YAML: {_one_line(error) or type(error).__name__}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: holds {type(values).__name__}, not sections such as 'data:' and 'train:'")
    return Document(name=name, values=values, lines=lines)


def _collect(node: yaml.Node, place: Place, lines: dict[Place, int], name: str) -> None:
    """Notes the line of every key and list item below `node`."""
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                raise ConfigError(f"{name}:{line}: key {dotted((*place, str(key)))} is not text; put it in quotes")
            if (*place, key) in lines:
                first = lines[(*place, key)]
                raise ConfigError(f"{name}:{line}: {dotted((*place, key))} is set twice, first in line {first}")
            lines[(*place, key)] = line
            _collect(value_node, (*place, key), lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*place, i)] = item.start_mark.line + 1
            _collect(item, (*place, i), lines, name)


def dotted(place: Place) -> str:
    """The path as people write it.

    >>> dotted(("data", "layout", "fixed_total")), dotted(("windows", 1))
    ('data.layout.fixed_total', 'windows[1]')
    """
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
