"""Finds the elements of a JSON list in a stream of bytes, at the speed of NumPy and without parsing them."""

from __future__ import annotations

import codecs
from array import array

import numpy as np
from numpy.typing import NDArray

_QUOTE, _OPEN, _CLOSE, _COMMA, _BLANK, _CONTROL = 1, 2, 3, 4, 5, 6
_BACKSLASH = ord("\\")


def _classes() -> bytes:
    """What a byte means for the structure; 0 for most. A space is as good as text."""
    table = bytearray(256)
    table[:32] = bytes([_CONTROL]) * 32
    for characters, kind in (("\t\n\r", _BLANK), ('"', _QUOTE), ("[{", _OPEN), ("]}", _CLOSE), (",", _COMMA)):
        for character in characters:
            table[ord(character)] = kind
    return bytes(table)


_CLASS_OF = _classes()


class ListScanner:
    """Eats the bytes of a file that holds one JSON list, and remembers where its elements begin.

    What stands inside a string does not count: whether a position is inside is the parity of the quotes before it that
    no backslash escapes. A line feed or another control character inside a string is no JSON, so a quote too many is
    found at the next line's end at the latest, or at the end of the file.

    Args:
        begin: offset of the first byte that will be fed.
    """

    def __init__(self, begin: int = 0) -> None:
        self._offset = begin
        self._starts = array("q")
        self._end: int | None = None  # offset of the bracket that closes the list
        self._depth = 0
        self._inside = False  # a string
        self._escaped = False  # the next byte stands behind a backslash that counts
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._faulty = False

    def feed(self, chunk: bytes) -> bool:
        """Takes the next bytes of the file; False once it is clear that they are no list."""
        if not self._faulty:
            self._faulty = not (self._is_utf8(chunk) and self._scan(chunk))
            self._offset += len(chunk)
        return not self._faulty

    def finish(self) -> NDArray[np.int64] | None:
        """(n + 1,) offsets of the n elements, and the one behind the closing bracket; None if that was no list."""
        if self._faulty or self._end is None or self._utf8.getstate()[0]:
            return None
        self._starts.append(self._end + 1)
        starts = np.frombuffer(self._starts, dtype=np.int64)
        return None if bool((np.diff(starts) == 1).any()) else starts  # two commas side by side

    def _is_utf8(self, chunk: bytes) -> bool:
        if chunk.isascii() and not self._utf8.getstate()[0]:
            return True
        try:
            self._utf8.decode(chunk)
        except UnicodeDecodeError:
            return False
        return True

    def _scan(self, chunk: bytes) -> bool:
        if self._end is not None:
            return not chunk.strip(b" \t\r\n")
        bytes_n = np.frombuffer(chunk, dtype=np.uint8)
        class_n = np.frombuffer(bytearray(chunk.translate(_CLASS_OF)), dtype=np.uint8)
        class_n[self._escaped_places(bytes_n)] = 0
        places = np.flatnonzero(class_n != 0)
        kinds = class_n[places]
        is_quote = kinds == _QUOTE
        parity = np.bitwise_xor.accumulate(is_quote.view(np.uint8)) ^ np.uint8(self._inside)  # behind each place
        inside = (parity != 0) ^ is_quote
        if len(places):
            self._inside = bool(parity[-1])
        if bool((inside & (kinds >= _BLANK)).any()) or bool((~inside & (kinds == _CONTROL)).any()):
            return False
        outside = np.flatnonzero(~inside & ~is_quote)
        return self._structure(chunk, places[outside], kinds[outside])

    def _structure(self, chunk: bytes, places: NDArray[np.int64], kinds: NDArray[np.uint8]) -> bool:
        """Takes note of the brackets and commas that stand outside of strings."""
        steps = (kinds == _OPEN).astype(np.int32) - (kinds == _CLOSE)
        depth = np.cumsum(steps, dtype=np.int32) + np.int32(self._depth)
        closing = np.flatnonzero((depth == 0) & (steps == -1))
        if len(closing):
            last = int(closing[0])
            self._end, self._inside = self._offset + int(places[last]), False
            places, kinds, depth = places[:last], kinds[:last], depth[:last]
        elif len(depth):
            self._depth = int(depth[-1])
        if not self._starts and len(places):
            self._starts.append(self._offset + int(places[kinds == _OPEN][0]) + 1)
        commas = places[(kinds == _COMMA) & (depth == 1)]
        self._starts.frombytes((commas.astype(np.int64) + self._offset + 1).tobytes())
        return self._end is None or not chunk[self._end - self._offset + 1 :].strip(b" \t\r\n")

    def _escaped_places(self, bytes_n: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Places in the chunk whose byte stands behind an odd number of backslashes."""
        carried, self._escaped = self._escaped, False
        slashes = np.flatnonzero(bytes_n == _BACKSLASH)
        at_front = np.zeros(1 if carried else 0, dtype=np.int64)
        if not len(slashes):
            return at_front
        begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of runs of neighbours
        lengths = np.diff(begins, append=len(slashes))
        behind = slashes[begins] + lengths
        if carried and slashes[0] == 0:
            lengths[0] += 1
            at_front = at_front[:0]
        places = behind[lengths % 2 == 1]
        if len(places) and places[-1] == len(bytes_n):
            self._escaped, places = True, places[:-1]
        return np.concatenate([at_front, places])
