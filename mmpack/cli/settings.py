"""``--set KEY=VALUE`` for commands that have no config file: their own options by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mmpack.errors import ConfigError, nearest


def named_values(settings: Sequence[str]) -> dict[str, Any]:
    """The settings as names and values, read as YAML.

    Raises:
        ConfigError: a setting without ``=``, or a value that is no YAML.

    >>> named_values(["seed=3", "template=v1"])
    {'seed': 3, 'template': 'v1'}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {setting!r}; write it as KEY=VALUE")
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {setting!r}: the value is no YAML{_hint(name, text)}") from None
    return values


def _hint(name: str, text: str) -> str:
    """A template in braces is a mapping to YAML, unless it is quoted once more inside the shell's quotes."""
    return f"; quote it once more: --set '{name}=\"{text}\"'" if text[:1] in "{[&*!|>%@`" else ""


def with_values(options: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`options` with the settings in place. Raises ConfigError for a name that is no option."""
    values = named_values(settings)
    for name in values:
        if name not in options:
            raise ConfigError(f"--set {name}: no such option; {nearest(name, options)}")
    return {**options, **values}
