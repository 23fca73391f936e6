"""Tiling policies: how many tiles a picture of some size becomes, and which.

A policy answers twice. When a sample is planned it is asked for the `grid` of a size read from a header; after the
picture's pack has been chosen it `cut`s the decoded picture by that same grid. A new policy is a file in this folder
and a line in `TILINGS`: a class whose first argument is a `TileSpec` and whose keyword arguments are its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, nearest
from mmpack.registry import Registry
from mmpack.sample import PixelKind, TileGrid
from mmpack.tiling.conform import check_follows
from mmpack.tiling.pixels import resize
from mmpack.tiling.processor import options_of, policy_of
from mmpack.tiling.spec import Decode, TileSpec

__all__ = [
    "TILINGS",
    "Decode",
    "TileSpec",
    "TilingPolicy",
    "check_follows",
    "make_tiling",
    "resize",
    "tiling_from_processor",
]

# How a vision tower takes a picture's tiles: each by itself; one overview and a grid that is put together again; or
# patches of one picture, in the tower's own order.


class TilingPolicy(Protocol):
    """How pictures become tiles of S x S pixels, S = ``spec.tile_size_px``. Pure: equal arguments, equal answers.

    Settings are compared by ``repr``: it is stable and names everything that changes an answer.
    """

    @property
    def spec(self) -> TileSpec: ...

    @property
    def kind(self) -> PixelKind: ...

    def grid(self, width_px: int, height_px: int) -> TileGrid:
        """The grid for a picture of that size, of at least 1 x 1.

        Raises:
            SampleError: a shape that the vision tower cannot take.
        """
        ...

    def num_tokens(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """Positions of the sequence that a picture of that size takes when it is cut by `grid`."""
        ...

    def cut(
        self, rgb_HWC: NDArray[np.uint8], grid: TileGrid, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """The picture (H, W, 3) as (grid.num_tiles, 3, S, S) uint8, contiguous; written into `out` if that is given."""
        ...

    def reduction(self, grid: TileGrid, width_px: int, height_px: int) -> int:
        """The part, 1, 2, 4 or 8, at which a picture of that size may be decoded before `cut`, which stretches none."""
        ...

    def smaller(self, width_px: int, height_px: int, max_tokens: int) -> TileGrid | None:
        """The best grid by the same rule that takes at most `max_tokens`, or None if the rule has none."""
        ...


TILINGS: Registry[Callable[..., TilingPolicy]] = Registry(
    "tiling policy",
    {
        "single": "mmpack.tiling.single:SingleTile",
        "dynamic": "mmpack.tiling.dynamic:DynamicTiles",
        "anyres": "mmpack.tiling.anyres:AnyresTiles",
        "native": "mmpack.tiling.native:NativePatches",
    },
)


def make_tiling(name: str, spec: TileSpec, **options: Any) -> TilingPolicy:
    """The policy called `name` for tiles as `spec` says, with the policy's own options.

    Raises:
        ConfigError: unknown policy, unknown option (with the nearest name), or a value that cannot work.

    >>> spec = TileSpec(tile_size_px=448, embeddings_per_tile=256)
    >>> make_tiling("dynamic", spec, max_tiles=6).grid(800, 400)
    TileGrid(columns=2, rows=1, thumbnail=True)
    """
    factory = TILINGS.get(name)
    allowed = list(inspect.signature(factory).parameters)[1:]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"tiling {name!r} has no option {option!r}; {nearest(option, allowed)}")
    return factory(spec, **options)


def tiling_from_processor(
    image_processor: Any, *, embeddings_per_tile: int, name: str | None = None, **options: Any
) -> TilingPolicy:
    """The policy that cuts pictures as an image processor of transformers does, with the processor's own numbers.

    Args:
        image_processor: LLaVA-NeXT's gives `anyres` with its pinpoints, Qwen2-VL's gives `native` with its bounds and
            merge size, InternVL's with ``crop_to_patches`` gives `dynamic`. Any other gives `single`, padded, cropped
            or neither as ``do_pad`` and ``do_center_crop`` say.
        embeddings_per_tile: positions of the sequence that one tile takes; of no meaning for `native`.
        name: a policy of your choice instead.
        options: the policy's own, before what the processor says.

    Raises:
        ConfigError: the processor lacks a number, follows a rule that is not known here, or does not suit the policy;
            or, without a name and options, it gives other tiles than the policy read from it (`conform`).
    """
    chosen = policy_of(image_processor) if name is None else name
    TILINGS.get(chosen)
    read = options_of(image_processor, chosen, fit=name is None)
    spec = TileSpec.from_processor(
        image_processor, embeddings_per_tile=1 if chosen == "native" else embeddings_per_tile
    )
    policy = make_tiling(chosen, spec, **(read | options))
    if name is None and not options:
        check_follows(image_processor, policy)
    return policy
