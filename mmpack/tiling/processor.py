"""Which tiling policy does what an image processor of transformers does, read from its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmpack.errors import ConfigError

_ANYRES = "LlavaNextImageProcessor"
_NATIVE = "Qwen2VLImageProcessor"
_SUFFIXES = ("", "Pil", "Fast")


def policy_of(image_processor: Any) -> str:
    """The name of the policy that cuts pictures as the processor does.

    Raises:
        ConfigError: a processor that chooses canvases or patches by a rule of its own.
    """
    kind = type(image_processor).__name__
    for name, family, attributes in (
        ("anyres", _ANYRES, ("image_grid_pinpoints",)),
        ("native", _NATIVE, ("merge_size", "patch_size")),
    ):
        if kind in [family + suffix for suffix in _SUFFIXES]:
            return name
        if all(getattr(image_processor, attribute, None) is not None for attribute in attributes):
            raise ConfigError(
                f"{kind} has {' and '.join(attributes)} as {family} has, but may count otherwise; if it does count "
                f"alike, pass name={name!r} (`tiling: {name}`)"
            )
    return "dynamic" if getattr(image_processor, "crop_to_patches", False) else "single"


def options_of(image_processor: Any, name: str, *, fit: bool) -> dict[str, Any]:
    """Options of the policy called `name` that the processor's attributes give; `fit`: that of a single tile too.

    Raises:
        ConfigError: the processor's tile is not of the size that the policy needs.
    """
    kind = type(image_processor).__name__
    is_native = getattr(image_processor, "merge_size", None) is not None
    if is_native != (name == "native") and name in ("single", "dynamic", "anyres", "native"):
        what = "cuts patches of native resolution" if is_native else "has no patch_size and merge_size"
        raise ConfigError(f"{kind} {what}; tiling {name!r} cannot follow it: choose another or pass a TileSpec")
    if name == "native":
        return _native(kind, image_processor)
    if name == "anyres":
        return _anyres(kind, image_processor)
    if name == "dynamic":
        return _given(image_processor, {"min_tiles": "min_patches", "max_tiles": "max_patches"})
    if name == "single" and fit:
        if getattr(image_processor, "do_pad", None):
            return {"fit": "pad"}
        return {"fit": "crop" if getattr(image_processor, "do_center_crop", None) else "square"}
    return {}


def _native(kind: str, image_processor: Any) -> dict[str, Any]:
    if getattr(image_processor, "do_resize", True) is False:
        raise ConfigError(f"{kind}.do_resize is False; tiling 'native' resizes to whole patches: set it to True")
    options = _given(image_processor, {"merge_size": "merge_size", "temporal_patch_size": "temporal_patch_size"})
    size = getattr(image_processor, "size", None)
    for option, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        value = size.get(edge) if isinstance(size, dict) else getattr(size, edge, None)
        if value is None:
            value = getattr(image_processor, option, None)
        if value is not None:
            options[option] = int(value)
    return options


def _anyres(kind: str, image_processor: Any) -> dict[str, Any]:
    crop, size = getattr(image_processor, "crop_size", None), getattr(image_processor, "size", None)
    sides = [_sides(value) for value in (crop, size)]
    if all(sides) and sides[0] != sides[1]:
        raise ConfigError(f"{kind}: crop_size {crop} and size {size} differ; anyres tiles are never cropped")
    pinpoints = getattr(image_processor, "image_grid_pinpoints", None)
    if pinpoints is None:
        return {}
    if not isinstance(pinpoints, Sequence):
        raise ConfigError(f"{kind}.image_grid_pinpoints is {pinpoints!r}; a list of (height, width)")
    return {"image_grid_pinpoints": tuple(tuple(pinpoint) for pinpoint in pinpoints)}


def _sides(size: Any) -> set[int]:
    """The sides that an int, a dict or an object names."""
    if isinstance(size, int):
        return {size}
    names = ("height", "width", "shortest_edge")
    values = [size.get(name) if isinstance(size, dict) else getattr(size, name, None) for name in names]
    return {int(value) for value in values if value is not None}


def _given(image_processor: Any, attributes: dict[str, str]) -> dict[str, Any]:
    """Option -> value for those attributes that the processor has."""
    found = {option: getattr(image_processor, name, None) for option, name in attributes.items()}
    return {option: int(value) for option, value in found.items() if value is not None}
