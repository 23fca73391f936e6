"""Tables of interchangeable parts: a name maps to ``"module:attribute"``, imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from mmpack.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """A named table of parts of one kind.

    Args:
        kind: what an entry is called in error texts, for example ``"packing algorithm"``.
        entries: name -> ``"module:attribute"``.
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries: dict[str, str | T] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def get(self, name: str) -> T:
        """The part called `name`. Raises ConfigError with the nearest name if there is none."""
        entry = self._entries.get(name) if isinstance(name, str) else None
        if entry is None:
            raise ConfigError(f"unknown {self.kind} {name!r}; {nearest(str(name), self._entries)}")
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = cast(T, getattr(importlib.import_module(module), attribute))
            self._entries[name] = entry
        return entry

    def add(self, name: str, part: T) -> None:
        """Registers a part of the caller's own. Raises ConfigError if the name is taken."""
        if name in self._entries:
            raise ConfigError(f"{self.kind} {name!r} is already registered")
        self._entries[name] = part
