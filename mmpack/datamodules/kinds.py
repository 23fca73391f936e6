"""Arguments of the wrong kind are named when a data module is built, not by what fails over them much later."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mmpack.errors import ConfigError, whole_number
from mmpack.layout import Layout
from mmpack.offline.specs import PackedSequenceSpecs

P = ParamSpec("P")
R = TypeVar("R")

_NONE = " | None"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# annotation, as it is written -> whether a value is of that kind, and what to call it
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: whole_number(value) is not None, "a whole number"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "float": (_is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "text"),
    "str | Mapping[str, str]": (
        lambda value: isinstance(value, str | Mapping),
        "text, or a mapping from datasets to texts",
    ),
    "Mapping[str, Any]": (lambda value: isinstance(value, Mapping), "a mapping of names to values"),
    "str | Path": (lambda value: isinstance(value, str | Path), "a path"),
    "Sequence[int]": (
        lambda value: isinstance(value, Sequence) and all(whole_number(each) is not None for each in value),
        "a list of whole numbers",
    ),
    "dict[str, Any]": (lambda value: isinstance(value, Mapping), "a mapping of names to values"),
    "PackedSequenceSpecs": (
        lambda value: isinstance(value, PackedSequenceSpecs),
        "a PackedSequenceSpecs(packed_sequence_size=...)",
    ),
    "tuple[float, float, float]": (
        lambda value: isinstance(value, Sequence) and len(value) == 3 and all(map(_is_number, value)),
        "three numbers",
    ),
    "Path": (lambda value: isinstance(value, str | Path), "a path"),
    "Layout": (lambda value: isinstance(value, Layout), "an mmpack.layout.Layout"),
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with its arguments compared with its annotations before it is called; see `plain_kinds`."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says whose argument is missing or unknown
        bound.arguments |= plain_kinds(function.__annotations__, bound.arguments)
        return function(*bound.args, **bound.kwargs)

    return call


def check_fields(made: Any) -> None:
    """The same for a dataclass that has been filled, frozen or not; to be called in its ``__post_init__``."""
    given = {name: getattr(made, name) for name in made.__dataclass_fields__}
    for name, number in plain_kinds(type(made).__annotations__, given).items():
        object.__setattr__(made, name, number)


def plain_kinds(annotations: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, object]:
    """Compares arguments with their annotations, as far as these are written as in `_KINDS`.

    Args:
        annotations: of a function or a dataclass, as text (``from __future__ import annotations``).
        given: the arguments by name; other names are left alone.

    Returns:
        Whole numbers as Python's, whatever integers of numpy they were: they are written into states.

    Raises:
        ConfigError: names the first argument of another kind.

    >>> plain_kinds({"seq_length": "int", "seed": "int | None"}, {"seq_length": 8, "seed": None})
    {'seq_length': 8}
    """
    numbers: dict[str, object] = {}
    for name, annotation in annotations.items():
        written = str(annotation)
        optional = written.endswith(_NONE)
        kind = _KINDS.get(written.removesuffix(_NONE))
        if kind is None or name not in given or (optional and given[name] is None):
            continue
        fits, words = kind
        if not fits(given[name]):
            raise ConfigError(f"{name}={given[name]!r}; give {words}{', or None' if optional else ''}")
        if (whole := whole_number(given[name])) is not None:
            numbers[name] = whole
    return numbers
