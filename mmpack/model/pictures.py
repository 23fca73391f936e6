"""How a vision tower takes pictures, as plain numbers: what a data module's tiling must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.batch import Batch
from mmpack.errors import ConfigError
from mmpack.sample import PixelKind
from mmpack.tiling import TilingPolicy

# tiling policies that cut pictures for each kind of tower, for error texts
_POLICIES = {"tiles": "'single' or 'dynamic'", "anyres": "'anyres'", "patches": "'native'"}


def embeddings_per_tile(image_size_px: int, patch_size_px: int, *, keeps_class_token: bool = False) -> int:
    """Positions that one tile takes in the sequence: one per patch of a square tile.

    >>> embeddings_per_tile(336, 14), embeddings_per_tile(224, 32, keeps_class_token=True)
    (576, 50)
    """
    return (image_size_px // patch_size_px) ** 2 + int(keeps_class_token)


def check_embeddings_per_tile(from_tower: int, expected: int) -> None:
    """Raises ConfigError, with the remedy, if the data is planned for another number than the tower gives."""
    if from_tower != expected:
        raise ConfigError(
            f"num_image_embeddings_per_tile={expected}, but the vision tower gives {from_tower} embeddings per tile; "
            f"set num_image_embeddings_per_tile={from_tower}, or change the tower's image or patch size"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureRules:
    """What a vision tower expects of the pictures it is given.

    Args:
        kind: tiles each by themselves, tiles that are put together again, or patches.
        tile_size_px: side of a tile; of a patch for ``patches``.
        embeddings_per_tile: positions of the sequence that a tile takes; None for ``patches``.
        merge_size: for ``patches``, how many a side become one embedding.
        frames_per_patch: for ``patches``, frames that the tower expects in one.
        pinpoints: for ``anyres``, the canvases (height, width) in pixels that the model chooses from, in its order.
    """

    kind: PixelKind
    tile_size_px: int
    embeddings_per_tile: int | None = None
    merge_size: int | None = None
    frames_per_patch: int = 1
    pinpoints: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, config: Any) -> PictureRules | None:
        """The rules that a transformers config implies; None for a family that is not known here."""
        tower = getattr(config, "vision_config", None)
        if tower is None:
            return None
        if config.model_type in ("qwen2_vl", "qwen2_5_vl"):
            return cls(
                kind="patches",
                tile_size_px=_side(tower.patch_size),
                merge_size=tower.spatial_merge_size,
                frames_per_patch=_side(tower.temporal_patch_size),
            )
        if config.model_type not in ("llava", "llava_next", "internvl"):
            return None
        has_class_token = {"clip_vision_model": 1, "siglip_vision_model": 0, "internvl_vision": 1}.get(tower.model_type)
        if has_class_token is None:
            return None
        size, dropped = _side(tower.image_size), int(config.vision_feature_select_strategy == "default")
        per_tile = embeddings_per_tile(size, _side(tower.patch_size)) + has_class_token - dropped
        if config.model_type == "internvl":
            per_tile = int(per_tile * config.downsample_ratio**2)
        if config.model_type != "llava_next":
            return cls(kind="tiles", tile_size_px=size, embeddings_per_tile=per_tile)
        pinpoints = tuple((int(height), int(width)) for height, width in config.image_grid_pinpoints)
        return cls(kind="anyres", tile_size_px=size, embeddings_per_tile=per_tile, pinpoints=pinpoints)

    def check(self, tiling: TilingPolicy) -> None:
        """Raises ConfigError, with the remedy, if pictures cut by `tiling` are not what the tower expects."""
        self._check_kind(tiling.kind)
        self._check_size(tiling.spec.tile_size_px)
        if self.kind == "patches":
            for name, wanted in (("merge_size", self.merge_size), ("temporal_patch_size", self.frames_per_patch)):
                given = getattr(tiling, name, None)
                if given != wanted:
                    raise ConfigError(f"the tiling has {name}={given}, the vision tower wants {wanted}; set it to that")
        elif self.embeddings_per_tile is not None:
            check_embeddings_per_tile(self.embeddings_per_tile, tiling.spec.embeddings_per_tile)
        if self.kind == "anyres":
            given = tuple(tuple(pinpoint) for pinpoint in getattr(tiling, "image_grid_pinpoints", ()))
            if given != self.pinpoints:
                raise ConfigError(
                    f"the tiling has image_grid_pinpoints={list(given)}, the model {list(self.pinpoints)}; the same in "
                    "the same order, or the model puts the tiles together wrongly"
                )

    def check_batch(self, batch: Batch) -> None:
        """Raises ConfigError if the pictures in `batch`, where it has any, are not what the tower expects."""
        num_tiles = batch.pixels.shape[0]
        if num_tiles == 0:
            return
        self._check_kind(batch.pixel_kind)
        self._check_size(batch.pixels.shape[-1])
        frames = batch.pixel_norm.frames_per_patch
        if frames != self.frames_per_patch:
            raise ConfigError(
                f"the batch's patches have temporal_patch_size={frames}, the vision tower wants {self.frames_per_patch}"
            )
        if self.kind == "tiles" and self.embeddings_per_tile is not None:
            check_embeddings_per_tile(self.embeddings_per_tile, int(batch.tokens_per_image.sum()) // num_tiles)
        if self.kind == "patches" and self.merge_size is not None:
            num_embeddings = int(batch.tokens_per_image.sum())
            if num_embeddings * self.merge_size**2 != num_tiles:
                raise ConfigError(
                    f"{num_tiles} patches are planned as {num_embeddings} embeddings, but the vision tower merges "
                    f"{self.merge_size} x {self.merge_size}; set the tiling's merge_size={self.merge_size}"
                )

    def _check_kind(self, kind: str) -> None:
        if kind != self.kind:
            raise ConfigError(
                f"pictures come as {kind!r}, this model takes {self.kind!r}; use tiling {_POLICIES[self.kind]}"
            )

    def _check_size(self, size_px: int) -> None:
        if size_px != self.tile_size_px:
            what = "patches" if self.kind == "patches" else "tiles"
            raise ConfigError(
                f"pictures are cut into {what} of {size_px} px, the vision tower wants {self.tile_size_px}; use the "
                f"tower's own image processor, or set tile_size_px={self.tile_size_px}"
            )


def _side(value: Any) -> int:
    """A side that a config may name once or for both directions."""
    if isinstance(value, int):
        return value
    sides = {int(side) for side in value}
    if len(sides) != 1:
        raise ConfigError(f"the vision tower has a side of {value!r}; only square tiles and patches are supported")
    return sides.pop()
