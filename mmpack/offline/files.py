"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmpack.errors import ConfigError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when it is finished; after an error nothing has changed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {path.parent}: {error.strerror}; choose another path") from None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # a device must not be replaced by a file
        raise ConfigError(f"{path} is no plain file; give the name of one, or of a new one")
    growing = path.with_name(f".{path.name[:100]}.partial-{os.getpid()}")
    try:
        with growing.open("wb") as file:
            yield file
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)


def check_path(name: str, path: object) -> None:
    """Raises ConfigError, naming the setting, for what is no path or an empty one."""
    if not isinstance(path, str | Path) or not str(path):
        raise ConfigError(f"{name}={path!r}; give the path of a file")
