"""Registries: loaded on use, with a hint for a name that is nearly right."""

from __future__ import annotations

import math

import pytest

from mmpack.errors import ConfigError
from mmpack.registry import Registry


def test_an_entry_is_imported_when_asked_for() -> None:
    table: Registry[object] = Registry("function", {"sqrt": "math:sqrt", "broken": "no_such_module:f"})
    assert table.get("sqrt") is math.sqrt
    assert list(table) == ["sqrt", "broken"]  # listing imports nothing
    with pytest.raises(ModuleNotFoundError):
        table.get("broken")


def test_a_wrong_name_gets_the_nearest_one() -> None:
    table: Registry[object] = Registry("function", {"sqrt": "math:sqrt"})
    with pytest.raises(ConfigError, match="unknown function 'sqr'; did you mean 'sqrt'"):
        table.get("sqr")


def test_a_name_is_registered_once() -> None:
    table: Registry[object] = Registry("function", {"sqrt": "math:sqrt"})
    table.add("own", math.floor)
    assert table.get("own") is math.floor
    with pytest.raises(ConfigError, match="already registered"):
        table.add("sqrt", math.floor)
