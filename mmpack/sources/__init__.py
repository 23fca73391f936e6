"""Record formats: how a file's records are read, and how one record becomes checked turns and picture names.

A format is one file and one line in `SOURCES`: a function ``(record) -> ParsedRecord`` that knows nothing of files,
so that it serves the converter and the reader of the converted dataset alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmpack.registry import Registry
from mmpack.sample import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedRecord:
    """A record that passed its checks: one picture slot in the turns for every name, at least one answer."""

    turns: tuple[Turn, ...]
    image_names: tuple[str, ...]  # as the record has them: paths below an image folder, or parts of a sample


RecordParser = Callable[[object], ParsedRecord]

SOURCES: Registry[RecordParser] = Registry("record format", {"llava": "mmpack.sources.llava:parse_llava"})
