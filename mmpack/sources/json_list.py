"""The elements of a file that holds one JSON list, parsed one by one as the file is read.

Python's own parser reads each element, so what it accepts and what it refuses is what ``json.loads`` of the whole file
would; only a few chunks are in memory, or one element if that is larger.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from mmpack.errors import ConfigError

_CHUNK_BYTES = 1 << 18
_BLANKS = re.compile(r"[ \t\r\n]*")
_BEHIND = tuple(",] \t\r\n")  # what ends an element; a number before anything else may have been cut
_LONGEST_WORD = 16  # characters that the parser may look back: "-Infinity", an escape of a surrogate pair


@dataclass(frozen=True, slots=True)
class Element:
    """One element, and the bytes that it stands in."""

    value: Any
    start: int
    size: int


def scan_list(file: IO[bytes], begin: int, name: str, max_bytes: int) -> Iterator[Element]:
    """The elements of the list that begins at offset `begin` of `file`.

    Args:
        file: seekable.
        begin: where the list's text begins; blanks may stand before its bracket.
        name: what errors call the file.
        max_bytes: largest element.

    Raises:
        ConfigError: the file is not UTF-8, not one list of JSON, or the list is empty; with line and column.
    """
    return _Scanner(file, begin, name, max_bytes).elements()


class _Scanner:
    """A window of decoded text that moves along the file. `_at` is where the next thing is expected in it."""

    def __init__(self, file: IO[bytes], begin: int, name: str, max_bytes: int) -> None:
        self._file = file
        self._name = name
        self._max_bytes = max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parse = json.JSONDecoder().raw_decode
        self._num_read = begin  # bytes of the file that have been decoded
        self._text = ""
        self._at = 0
        self._offset = begin  # in the file, of what is at `_at`
        self._line = 1  # of the first character of `_text`
        self._column = 1
        self._ended = False
        file.seek(begin)

    def elements(self) -> Iterator[Element]:
        self._expect("[", "Expecting a list")
        if self._next() == "]":
            self._step(1)
            self._only_blanks_follow()
            raise ConfigError(f"{self._name} holds an empty list: no samples in it")
        while True:
            yield self._element()
            if self._next() == "]":
                self._step(1)
                break
            self._expect(",", "Expecting ',' delimiter")
            self._next()
        self._only_blanks_follow()

    def _element(self) -> Element:
        """The element that begins at `_at`: tried, and tried again with more text while it may have been cut."""
        if self._at > _CHUNK_BYTES:
            self._forget()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                whole = error.pos < len(self._text) - _LONGEST_WORD and not error.msg.startswith("Unterminated")
                behind = error.pos - self._at
                if whole or not self._double():
                    self._fail(error.msg, self._at + behind)
            except RecursionError:
                raise ConfigError(f"{self._name}: nested too deeply to be records") from None
            except ValueError as error:  # a number too long to be one
                if not self._double():
                    self._fail(str(error), self._at)
            else:
                length = end - self._at
                if end < len(self._text) - _LONGEST_WORD or self._text[end : end + 1] in _BEHIND or not self._double():
                    return self._passed(value, length)

    def _passed(self, value: Any, length: int) -> Element:
        """The element of so many characters at `_at`, which moves behind it."""
        text = self._text[self._at : self._at + length]
        element = Element(value, self._offset, length if text.isascii() else len(text.encode("utf-8")))
        self._at += length
        self._offset += element.size
        return element

    def _next(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            match = _BLANKS.match(self._text, self._at)
            assert match is not None
            self._step(match.end() - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            self._forget()
            if not self._more(_CHUNK_BYTES):
                return ""

    def _expect(self, character: str, message: str) -> None:
        if self._next() != character:
            self._fail(message, self._at)
        self._step(1)

    def _only_blanks_follow(self) -> None:
        if self._next():
            self._fail("Extra data", self._at)

    def _step(self, num_characters: int) -> None:
        """Passes characters of one byte each."""
        self._at += num_characters
        self._offset += num_characters

    def _forget(self) -> None:
        """Lets go of the text before `_at`."""
        gone, self._text = self._text[: self._at], self._text[self._at :]
        self._at = 0
        self._line, self._column = self._place(gone)

    def _place(self, passed: str) -> tuple[int, int]:
        """Line and column behind the text `passed`, which is the front of the window."""
        lines = passed.count("\n")
        column = len(passed) - passed.rindex("\n") if lines else self._column + len(passed)
        return self._line + lines, column

    def _double(self) -> bool:
        """Reads as much again as is there, for an element that may have been cut."""
        self._forget()
        size = len(self._text)
        if size > self._max_bytes:
            self._fail(f"a record of more than {self._max_bytes} characters, which is not read into memory", 0)
        return self._more(max(_CHUNK_BYTES, size))

    def _more(self, num_bytes: int) -> bool:
        """Reads on; False at the end of the file."""
        if self._ended:
            return False
        chunk = self._file.read(num_bytes)
        pending = len(self._decoder.getstate()[0])
        try:
            self._text += self._decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            place = self._num_read - pending + error.start
            raise ConfigError(f"{self._name} is not UTF-8: byte {place} cannot be read; save it as UTF-8") from None
        self._num_read += len(chunk)
        self._ended = not chunk
        return not self._ended

    def _fail(self, message: str, at: int) -> NoReturn:
        line, column = self._place(self._text[:at])
        cut = "" if self._is_closed() else " (the list is not closed: was the file cut?)"
        raise ConfigError(f"{self._name}: line {line} column {column}: {message}{cut}")

    def _is_closed(self) -> bool:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - 4096))
        return self._file.read().rstrip().endswith(b"]")
