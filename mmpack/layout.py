"""THD arithmetic: where each sequence of a pack starts, where it is padded to, and what the positions are.

Plain integers and NumPy; no torch. Two kinds of padding exist and are never mixed up:

* *inside a segment*, so that its length is a multiple of what context parallelism needs (2 x CP);
* *a tail segment of its own*, so that the row is a multiple of something or has one fixed length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, check_whole, nearest

# Tokens that a rank's part of a row must be a multiple of, by recipe; Transformer Engine's and Megatron's names
FP8_MULTIPLES = {"blockwise": 128, "mxfp8": 32, "delayed": 16, "tensorwise": 16, "custom": 16}


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `n`.

    >>> [round_up(n, 8) for n in (0, 1, 8, 9)]
    [0, 8, 8, 16]
    """
    return -(-n // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The rules for laying samples into a row.

    Args:
        sequence_multiple: every sample's room is a multiple of this (2 x context-parallel size; 1 without).
        total_multiple: the row's length is a multiple of this (sequence parallelism, FP8); the rest is a tail.
        fixed_total: the row always has this length (pipeline parallelism, static shapes); the rest is a tail.
        cu_seqlens_size: offsets always number this many, as CUDA graphs need it: behind the last segment the row's
            end is repeated (segments of no length), and the longest segment is given as `fixed_total`.

    Raises:
        ConfigError: a number below 1, a fixed total that does not divide, or `cu_seqlens_size` without `fixed_total`.
    """

    sequence_multiple: int = 1
    total_multiple: int = 1
    fixed_total: int | None = None
    cu_seqlens_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("sequence_multiple", "total_multiple"):
            check_whole(name, getattr(self, name))
        if self.fixed_total is not None:
            check_whole("fixed_total", self.fixed_total)
            if self.fixed_total % self.total_multiple:
                raise ConfigError(f"fixed_total={self.fixed_total} is not a multiple of {self.total_multiple}")
        if self.cu_seqlens_size is not None:
            check_whole("cu_seqlens_size", self.cu_seqlens_size, 3)
            if self.fixed_total is None:
                raise ConfigError(
                    f"cu_seqlens_size={self.cu_seqlens_size} without fixed_total: offsets of one number are of use "
                    "only where rows have one length; set fixed_total, e.g. to packed_sequence_size"
                )

    @classmethod
    def for_parallelism(
        cls,
        *,
        context_parallel: int = 1,
        tensor_parallel: int = 1,
        sequence_parallel: bool = False,
        fp8_multiple: int = 1,
        fp8_recipe: str | None = None,
        fixed_total: int | None = None,
    ) -> Layout:
        """What a parallel layout needs, and no more.

        Attention with context parallelism needs every sequence to be a multiple of 2 x CP; everything else concerns
        the row alone: sequence parallelism cuts it into CP x TP pieces, and FP8 wants a multiple in each of them.

        Args:
            context_parallel, tensor_parallel: sizes.
            sequence_parallel: whether activations are cut along the row over the tensor-parallel ranks.
            fp8_multiple: of a rank's part of the row; 1 without.
            fp8_recipe: a name in `FP8_MULTIPLES` in its place: 128 for ``blockwise``, 32 for ``mxfp8``, else 16.
            fixed_total: length of every row (pipeline parallelism).

        Raises:
            ConfigError: a size below 1, an unknown recipe, or a fixed total that does not divide.

        >>> layout = Layout.for_parallelism(context_parallel=2, tensor_parallel=4, sequence_parallel=True)
        >>> layout.sequence_multiple, layout.total_multiple
        (4, 8)
        >>> Layout.for_parallelism(context_parallel=2, fp8_recipe="mxfp8").total_multiple
        64
        """
        if fp8_recipe is not None:
            if not isinstance(fp8_recipe, str) or fp8_recipe not in FP8_MULTIPLES:
                raise ConfigError(f"fp8_recipe={fp8_recipe!r}; {nearest(str(fp8_recipe), FP8_MULTIPLES)}")
            if fp8_multiple != 1:
                raise ConfigError(f"fp8_multiple={fp8_multiple} beside fp8_recipe={fp8_recipe!r}; give one of them")
            fp8_multiple = FP8_MULTIPLES[fp8_recipe]
        sizes = {
            "context_parallel": context_parallel,
            "tensor_parallel": tensor_parallel,
            "fp8_multiple": fp8_multiple,
        }
        for name, size in sizes.items():
            check_whole(name, size)
        if not isinstance(sequence_parallel, bool):
            raise ConfigError(f"sequence_parallel={sequence_parallel!r}; give True or False")
        per_sequence = 2 * context_parallel if context_parallel > 1 else 1
        pieces = context_parallel * (tensor_parallel if sequence_parallel else 1) * fp8_multiple
        return cls(
            sequence_multiple=per_sequence,
            total_multiple=math.lcm(per_sequence, pieces),
            fixed_total=fixed_total,
        )

    @property
    def max_samples(self) -> int | None:
        """Samples that a pack may hold so that `cu_seqlens_size` suffices: a first offset and the tail's beside theirs.

        >>> Layout(fixed_total=8, cu_seqlens_size=6).max_samples
        4
        """
        return None if self.cu_seqlens_size is None else self.cu_seqlens_size - 2

    def room(self, num_tokens: int) -> int:
        """Positions that a sample of `num_tokens` takes in a row: the length that planning counts with."""
        return round_up(num_tokens, self.sequence_multiple)

    def capacity(self, packed_sequence_size: int) -> int:
        """Positions that samples may fill in a row of `packed_sequence_size`: whole segments only.

        >>> Layout(sequence_multiple=4).capacity(1023)
        1020
        """
        return packed_sequence_size // self.sequence_multiple * self.sequence_multiple

    def offsets(self, num_tokens: Sequence[int], rooms: Sequence[int]) -> Offsets:
        """The row for segments that hold `num_tokens` real tokens in `rooms` positions each.

        >>> o = Layout(sequence_multiple=4, fixed_total=32).offsets([5, 8, 1, 3], [8, 8, 4, 4])
        >>> o.cu_seqlens, o.cu_seqlens_padded, o.max_seqlen
        ((0, 5, 13, 14, 17, 17), (0, 8, 16, 20, 24, 32), 8)
        """
        used, room = list(num_tokens), list(rooms)
        if len(used) != len(room) or any(not 0 <= n <= have for n, have in zip(used, room, strict=True)):
            raise ConfigError(f"segments of {used} tokens in rooms of {room}; give each a room that holds it")
        filled = sum(room)
        total = self.fixed_total if self.fixed_total is not None else round_up(filled, self.total_multiple)
        if filled > total:
            raise ConfigError(f"segments of {filled} positions do not fit a row of fixed_total={total}")
        if total > filled:
            used.append(0)
            room.append(total - filled)
        longest = max(room, default=0)
        if self.cu_seqlens_size is not None:
            missing = self.cu_seqlens_size - 1 - len(room)
            if missing < 0:
                raise ConfigError(
                    f"a pack of {len(rooms)} samples does not fit cu_seqlens_size={self.cu_seqlens_size}, which holds "
                    f"{self.max_samples} and a tail; raise it, or lower max_samples_per_pack"
                )
            used += [0] * missing
            room += [0] * missing
            longest = total
        return Offsets(
            cu_seqlens=tuple(accumulate(used, initial=0)),
            cu_seqlens_padded=tuple(accumulate(room, initial=0)),
            max_seqlen=longest,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Offsets:
    """Where the segments of a row lie: S + 1 offsets each, as flash attention and Megatron take them."""

    cu_seqlens: tuple[int, ...]  # of the real tokens, if they stood without padding
    cu_seqlens_padded: tuple[int, ...]  # in the row
    max_seqlen: int  # longest segment, padding included; the row's length where the offsets are of constant number

    @property
    def total(self) -> int:
        """Positions in the row."""
        return self.cu_seqlens_padded[-1]

    def position_ids(self) -> NDArray[np.int64]:
        """(T,) counting from 0 in every segment."""
        starts = np.array(self.cu_seqlens_padded[:-1], dtype=np.int64)
        rooms = _differences(self.cu_seqlens_padded)
        return np.arange(self.total, dtype=np.int64) - np.repeat(starts, rooms)

    def padding_mask(self) -> NDArray[np.bool_]:
        """(T,) True where no real token stands."""
        used, rooms = _differences(self.cu_seqlens), _differences(self.cu_seqlens_padded)
        return self.position_ids() >= np.repeat(used, rooms)


def _differences(offsets: Sequence[int]) -> NDArray[np.int64]:
    whole = np.array(offsets, dtype=np.int64)
    return whole[1:] - whole[:-1]


def zigzag_indices(cu_seqlens_padded: Sequence[int], size: int) -> NDArray[np.int64]:
    """(size, T / size) positions of the row that each context-parallel rank holds.

    Every segment is cut into 2 x size pieces; rank r takes pieces r and 2 x size - 1 - r of each, so that causal
    attention costs every rank the same.

    Raises:
        ConfigError: a segment whose length is no multiple of 2 x size: it would lose tokens.

    >>> zigzag_indices([0, 8], 2).tolist()
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_whole("context_parallel", size)
    offsets = np.asarray(cu_seqlens_padded, dtype=np.int64)
    lengths = offsets[1:] - offsets[:-1]
    if not len(offsets) or offsets[0] or (lengths < 0).any():
        raise ConfigError(f"cu_seqlens_padded={offsets.tolist()}; offsets begin with 0 and never fall")
    if size == 1:
        return np.arange(offsets[-1], dtype=np.int64)[None]
    if (lengths % (2 * size)).any():
        bad = int(lengths[lengths % (2 * size) != 0][0])
        raise ConfigError(
            f"a segment of {bad} positions cannot be cut for context_parallel={size}: that needs a multiple of "
            f"{2 * size}; set layout.sequence_multiple={2 * size}, and a total_multiple that {2 * size} divides"
        )
    place = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    piece = place // np.repeat(lengths // (2 * size), lengths)
    rank = np.minimum(piece, 2 * size - 1 - piece)
    return np.argsort(rank, kind="stable").reshape(size, -1)


def mrope_positions(is_picture_n: NDArray[np.bool_], grids: Sequence[tuple[int, int]], room: int) -> NDArray[np.int64]:
    """(3, room) positions in time, height and width of one sample, as Qwen2-VL's M-RoPE counts them.

    Text runs on along all three. A picture of (rows, columns) embeddings stands at one time, its rows and columns
    counted from there, and the text goes on behind the largest position so far. Padding behind the sample runs on too.
    Source: Wang et al., "Qwen2-VL", arXiv:2409.12191, section 2.1.

    Args:
        is_picture_n: (n,) whether a token is a picture's placeholder, one each.
        grids: rows, columns of embeddings of every picture, in order.
        room: positions in all.

    >>> mrope_positions(np.array([False, True, False]), [(1, 2)], 5).tolist()
    [[0, 1, 1, 3, 4], [0, 1, 1, 3, 4], [0, 1, 2, 3, 4]]
    """
    positions = np.empty((3, room), dtype=np.int64)
    filled, following, done = 0, 0, 0  # positions written, next position's number, tokens read
    for token, (rows, columns) in zip(np.flatnonzero(is_picture_n).tolist(), grids, strict=True):
        num_text = token - done
        positions[:, filled : filled + num_text] = following + np.arange(num_text)
        filled, following = filled + num_text, following + num_text
        size = rows * columns
        at = slice(filled, filled + size)
        positions[0, at] = following
        positions[1, at] = following + np.repeat(np.arange(rows), columns)
        positions[2, at] = following + np.tile(np.arange(columns), rows)
        filled, following, done = filled + size, following + max(rows, columns), token + 1
    positions[:, filled:] = following + np.arange(room - filled)
    return positions
