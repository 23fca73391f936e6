"""A seeded order of n things that takes no memory, whatever n is."""

from __future__ import annotations

from math import isqrt

_MASK = 2**64 - 1
_NUM_ROUNDS = 6


def mix64(*numbers: int) -> int:
    """64 bits that the numbers decide: splitmix64's finalizer over each in turn (Steele, Lea and Flood, 2014).

    >>> mix64(1, 2) == mix64(1, 2), mix64(1, 2) == mix64(2, 1)
    (True, False)
    """
    z = 0
    for number in numbers:
        z = (z + 0x9E3779B97F4A7C15 + int(number)) & _MASK  # numpy's integers would overflow
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return z


class Permutation:
    """The numbers 0 to `size` - 1 in an order that `keys` decide.

    A position is written as (left, right) in a rectangle of `rows` x `columns` >= `size` cells, both about the root of
    `size`; each round adds a hash of one half to the other, which can be undone, so it maps the rectangle to itself one
    to one. What lands behind `size` is mapped again until it does not ("cycle walking"). Source: Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002.

    >>> order = Permutation(5, 1234)
    >>> sorted(order(i) for i in range(5))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, *keys: int) -> None:
        assert size >= 1, f"a permutation of {size} things"
        self.size = size
        self._rows = isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        self._round_keys = [mix64(*keys, number) for number in range(_NUM_ROUNDS)]

    def __call__(self, position: int) -> int:
        """What stands at `position`."""
        assert 0 <= position < self.size, f"position {position} of {self.size}"
        rows, columns = self._rows, self._columns
        cell = position
        while True:
            left, right = divmod(cell, columns)
            for number, key in enumerate(self._round_keys):
                if number % 2:
                    right = (right + mix64(key ^ left)) % columns
                else:
                    left = (left + mix64(key ^ right)) % rows
            cell = left * columns + right
            if cell < self.size:
                return cell
