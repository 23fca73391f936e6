"""pydantic's findings, and the stages' own, in words: where, which key, what was met, what to change."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from mmpack.config.document import Document, Place, dotted
from mmpack.errors import ConfigError, nearest

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_LEADING_NAME = re.compile(r"^(\w+)=")  # how stages begin an error about one of their settings


def explain(error: ValidationError, document: Document, model: type[BaseModel]) -> ConfigError:
    """A ConfigError with one line per finding."""
    return ConfigError("\n".join(_line(finding, document, model) for finding in error.errors()))


def _line(finding: Any, document: Document, model: type[BaseModel]) -> str:
    place: Place = finding["loc"]
    kind, message = finding["type"], finding["msg"]
    if kind == "value_error":  # a stage's own check
        return _placed(str(finding["ctx"]["error"]), place, document)
    where = f"{document.where(place)}: {dotted(place)}"
    if kind in _UNKNOWN:
        allowed = _keys(model, place[:-1])
        hint = nearest(str(place[-1]), allowed)
        if hint.startswith("allowed") and (others := _sections_with(model, str(place[-1]))):
            hint = f"there is {' and '.join(others)}"
        return f"{where}: unknown setting; {hint}"
    if kind == "missing":
        return f"{where} is not set; add it, or give it with --set {dotted(place)}=..."
    said = message[:1].lower() + message[1:]
    return f"{where}={finding['input']!r}: {said.removeprefix('input ')}"


@contextmanager
def at(document: Document, *place: str) -> Iterator[None]:
    """A ConfigError raised within gets the place of the section, or of the setting that it begins with."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_placed(str(error), place, document)) from error


def _placed(message: str, place: Place, document: Document) -> str:
    """`message` with where its setting stands; a setting that it begins with gets its full path instead."""
    exact = _pinpoint(message, place, document)
    if exact == place:
        return f"{document.where(place)}: {dotted(place)}: {message}"
    return f"{document.where(exact)}: {dotted(place)}.{message}"


def _pinpoint(message: str, place: Place, document: Document) -> Place:
    """`place`, or the setting of that section that `message` begins with."""
    found = _LEADING_NAME.match(message)
    if found is None:
        return place
    value: Any = document.values
    for key in place:
        if not isinstance(value, dict) or key not in value:
            return place
        value = value[key]
    return (*place, found[1]) if isinstance(value, dict) and found[1] in value else place


def _keys(model: type, place: Place) -> list[str]:
    """The settings that exist at `place`."""
    for key in place:
        inner = _inner(_annotations(model).get(str(key)))
        if inner is None:
            return []
        model = inner
    return list(_annotations(model))


def _annotations(model: type) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return typing.get_type_hints(model) if dataclasses.is_dataclass(model) else {}


def _inner(annotation: Any) -> type | None:
    """The class in ``Class`` or ``Class | None``, if it has settings of its own."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    for option in (*options, *typing.get_args(annotation)):
        if isinstance(option, type) and _annotations(option):
            return option
    return None


def _sections_with(model: type[BaseModel], key: str) -> list[str]:
    """Where else a setting of that name exists.

    A key is often right and merely in the wrong section.
    """
    inner = {name: _inner(annotation) for name, annotation in _annotations(model).items()}
    return [f"{name}.{key}" for name, section in inner.items() if section and key in _annotations(section)]
