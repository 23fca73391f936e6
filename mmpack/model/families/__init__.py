"""Model families by name. A new one is a file with a `ModelSpec` and a line in `MODELS`."""

from __future__ import annotations

import dataclasses
from typing import Any

from mmpack.errors import ConfigError, nearest
from mmpack.model.spec import ModelSpec
from mmpack.registry import Registry

__all__ = ["MODELS", "make_model_spec"]

MODELS: Registry[type[ModelSpec]] = Registry(
    "model family",
    {
        "llava": "mmpack.model.families.llava:LlavaSpec",
        "llava_next": "mmpack.model.families.llava_next:LlavaNextSpec",
        "qwen2_vl": "mmpack.model.families.qwen2_vl:Qwen2VLSpec",
        "qwen2_5_vl": "mmpack.model.families.qwen2_5_vl:Qwen25VLSpec",
        "internvl": "mmpack.model.families.internvl:InternVLSpec",
    },
)


def make_model_spec(family: str, **sizes: Any) -> ModelSpec:
    """The spec of a model of `family` with those sizes.

    Raises:
        ConfigError: unknown family or size (with the nearest name), or sizes that do not fit each other.

    >>> make_model_spec("qwen2_5_vl", vocab_size=1000).pictures.merge_size
    2
    """
    spec = MODELS.get(family)
    allowed = [field.name for field in dataclasses.fields(spec)]
    for name in sizes:
        if name not in allowed:
            raise ConfigError(f"model family {family!r} has no size {name!r}; {nearest(name, allowed)}")
    return spec(**sizes)
