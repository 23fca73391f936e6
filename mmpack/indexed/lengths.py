"""How long mock samples are: always the same, lognormal, Zipf, or as a file says."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, nearest

KINDS = ("constant", "lognormal", "zipf", "file")
_OPTIONS = {"constant": ("length",), "lognormal": ("median", "sigma"), "zipf": ("exponent",), "file": ("path",)}


class Lengths(Protocol):
    """A distribution of lengths in positions."""

    def draw(self, index: int, uniform: float, normal: float) -> int:
        """Length of sample `index`, from numbers drawn for it: `uniform` in [0, 1), `normal` standard normal."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Every sample has `length`."""

    length: int

    def draw(self, index: int, uniform: float, normal: float) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp(N(ln median, sigma)), rounded, kept within `shortest` and `longest`."""

    median: float
    sigma: float
    shortest: int
    longest: int

    def draw(self, index: int, uniform: float, normal: float) -> int:
        exponent = min(math.log(self.median) + self.sigma * normal, 43.0)  # beyond every length there is
        return min(max(round(math.exp(exponent)), self.shortest), self.longest)


@dataclass(frozen=True, slots=True)
class Zipf:
    """P(n) proportional to (n - shortest + 1) ** -exponent for n from `shortest` to `longest`."""

    exponent: float
    shortest: int
    longest: int
    _cumulated: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = np.arange(1, self.longest - self.shortest + 2, dtype=np.float64) ** -self.exponent
        object.__setattr__(self, "_cumulated", np.cumsum(weights) / weights.sum())

    def draw(self, index: int, uniform: float, normal: float) -> int:
        place = int(np.searchsorted(self._cumulated, uniform, side="right"))
        return self.shortest + min(place, self.longest - self.shortest)


@dataclass(frozen=True, slots=True)
class FromFile:
    """Sample i has the length in line i of a file, which begins anew at its end."""

    path: str
    digest: int
    _lengths: NDArray[np.int64] = field(repr=False, compare=False)

    def draw(self, index: int, uniform: float, normal: float) -> int:
        return int(self._lengths[index % len(self._lengths)])


def make_lengths(spec: str | Path | Mapping[str, Any], *, shortest: int, longest: int) -> Lengths:
    """The distribution that `spec` names.

    Args:
        spec: "constant" (`longest`), "lognormal", "zipf", the path of a file with a whole number a line, or a mapping
            with ``kind`` and its options: ``length``; ``median`` (half of `longest` unless given) and ``sigma`` (0.5);
            ``exponent`` (1.2); ``path``.
        shortest, longest: bounds of the lengths.

    Raises:
        ConfigError: an unknown kind or option, a value that cannot work, or a file with other lengths.

    >>> make_lengths({"kind": "constant", "length": 7}, shortest=2, longest=9).draw(0, 0.5, 0.0)
    7
    """
    if isinstance(spec, Path) or (isinstance(spec, str) and spec not in KINDS):
        if isinstance(spec, str) and not Path(spec).is_file():
            raise ConfigError(f"length_distribution={spec!r} is no file; {nearest(spec, KINDS)}")
        spec = {"kind": "file", "path": spec}
    if not isinstance(spec, str | Mapping):
        raise ConfigError(
            f"length_distribution={spec!r}; a name, the path of a file, or a mapping with kind and options"
        )
    options = {"kind": spec} if isinstance(spec, str) else dict(spec)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(f"length_distribution: kind={kind!r}; {nearest(str(kind), KINDS)}")
    for name in options:
        if name not in _OPTIONS[kind]:
            raise ConfigError(f"length_distribution {kind!r} has no option {name!r}; {nearest(name, _OPTIONS[kind])}")
    if kind == "file":
        if not isinstance(options.get("path"), str | Path):
            raise ConfigError("length_distribution 'file' needs a path")
        return _read_lengths(Path(options["path"]), longest)
    if kind == "constant":
        length = options.get("length", longest)
        if not isinstance(length, int) or not shortest <= length <= longest:
            raise ConfigError(f"length_distribution: length={length!r} is not within {shortest} to {longest}")
        return Constant(length)
    defaults = {"lognormal": {"median": max(longest / 2, 1.0), "sigma": 0.5}, "zipf": {"exponent": 1.2}}[kind]
    numbers = {name: options.get(name, default) for name, default in defaults.items()}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"length_distribution: {name}={value!r}; a number above 0")
    if kind == "lognormal":
        return Lognormal(float(numbers["median"]), float(numbers["sigma"]), shortest, longest)
    return Zipf(float(numbers["exponent"]), shortest, longest)


def _read_lengths(path: Path, longest: int) -> FromFile:
    try:
        lengths = [int(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"length_distribution: {path}: {error}; a file with one whole number a line") from None
    if not lengths or min(lengths) < 2 or max(lengths) > longest:
        what = f"{min(lengths)} to {max(lengths)}" if lengths else "none"
        raise ConfigError(
            f"length_distribution: {path} holds lengths: {what}; allowed 2 to seq_length={longest}: mend the file, or "
            "raise seq_length"
        )
    array = np.array(lengths, dtype=np.int64)
    return FromFile(path.name, zlib.crc32(array.tobytes()), array)
