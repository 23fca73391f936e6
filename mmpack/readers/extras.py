"""Libraries that only some sources need."""

from __future__ import annotations

import importlib
from typing import Any

from mmpack.errors import ConfigError


def library(name: str, why: str) -> Any:
    """The module `name` of the extra ``hf``. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigError(f"{why} needs {package}, which is not here ({error}); pip install 'mmpack[hf]'") from None
