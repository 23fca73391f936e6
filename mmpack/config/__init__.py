"""Config files: strict YAML of the stages' own settings, ``--set a.b=c``, and the objects that they describe."""

from __future__ import annotations

from mmpack.config.document import Document, package_path, parse_document, parse_scalar, read_document
from mmpack.config.load import Config, convert_config, load, read_config

__all__ = [
    "Config",
    "Document",
    "convert_config",
    "load",
    "package_path",
    "parse_document",
    "parse_scalar",
    "read_config",
    "read_document",
]
