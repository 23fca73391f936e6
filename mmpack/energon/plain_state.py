"""Energon's state objects as plain dicts, lists, numbers, strings and bytes, and back.

So a checkpoint needs none of energon's classes to be loaded, and `torch.load(weights_only=True)` accepts it.
A tagged list stands for what has no plain twin: ``["tuple", ...]`` and ``["slice", index, current]``.
"""

from __future__ import annotations

from typing import Any

from megatron.energon.flavors.webdataset.sample_loader import SliceState
from megatron.energon.state import FlexState

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def to_plain(value: Any) -> Any:
    """`value` without classes. Raises TypeError for a class that has no plain form here."""
    if type(value) in _PLAIN:  # nearly all of them
        return value
    if isinstance(value, FlexState):
        return {"flex": {name: to_plain(item) for name, item in value.items()}}
    if isinstance(value, dict):
        return {"dict": [[to_plain(name), to_plain(item)] for name, item in value.items()]}
    if isinstance(value, tuple):
        return ["tuple", *map(to_plain, value)]
    if isinstance(value, list):
        return ["list", *map(to_plain, value)]
    if isinstance(value, SliceState):
        return ["slice", value.index, value.current]
    if isinstance(value, str | int | float | bytes):
        return value
    raise TypeError(f"energon's state holds a {type(value).__name__}, which mmpack cannot save")


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    if isinstance(value, dict):
        if "flex" in value:
            return FlexState({name: from_plain(item) for name, item in value["flex"].items()})
        return {from_plain(name): from_plain(item) for name, item in value["dict"]}
    if isinstance(value, list):
        kind, *items = value
        if kind == "tuple":
            return tuple(map(from_plain, items))
        if kind == "slice":
            return SliceState(index=items[0], current=items[1])
        return [from_plain(item) for item in items]
    return value
