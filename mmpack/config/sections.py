"""What a config file may hold. Types and checks of a stage are its own frozen dataclass; pydantic only reads them.

Strict: no value is converted to another type, unknown keys are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import operator
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from mmpack.config.policy import PolicySection
from mmpack.convert import ConvertConfig
from mmpack.dynamic import MicrobatchOrder
from mmpack.errors import ConfigError, nearest
from mmpack.layout import Layout
from mmpack.model import MODELS
from mmpack.tiling import Decode, TileSpec
from mmpack.train import TrainConfig


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class DataSection(Section):
    """Where the samples come from and how they are packed; see `mmpack.datamodules` for what each means.

    `tokenizer` is a folder (or a name that transformers knows) of a fast tokenizer. Pictures are described either by
    `image_processor`, a folder with transformers' ``preprocessor_config.json``, or by `tile`; the embeddings of a tile
    are `num_image_embeddings_per_tile`. `template`, `system` and `stop_string` are the conversation template's.
    """

    module: Literal["energon"] = "energon"
    path: str
    validation_path: str | None = None
    test_path: str | None = None
    tokenizer: str
    image_processor: str | None = None
    tile: TileSpec | None = None
    num_image_embeddings_per_tile: int
    template: str = "v1"
    system: str | None = None
    stop_string: str | None = None
    tiling: str | None = None
    tiling_options: dict[str, Any] = Field(default_factory=dict)
    decode: Decode | None = None
    video_frames: int | str | None = None
    seq_length: int
    packed_sequence: bool = True
    packed_sequence_size: int | None = None
    packing_buffer_size: int | None = None
    packing_buffer_tokens: int | None = None
    batching: str | None = None
    tokens_per_microbatch: int | None = None
    sequence_length_round: int = 1
    microbatch_order: MicrobatchOrder = "packer"
    bucket_boundaries: list[int] | None = None
    length_tolerance: int | None = None
    max_tiles_per_pack: int | None = None
    max_images_per_pack: int | None = None
    max_samples_per_pack: int | None = None
    blend_by: str = "samples"
    order: str = "stream"
    oversize: str | dict[str, str] | None = None
    loss_weight: str = "token"
    layout: Layout = Field(default_factory=Layout)
    micro_batch_size: int = 1
    global_batch_size: int | None = None
    num_workers: int = 1
    num_val_workers: int | None = None
    num_streams: int | None = None
    align_window: int = 1
    max_bad_share: float | None = None
    bad_share_window: int = 1000
    shuffle_buffer_size: int | None = 20
    max_samples_per_sequence: int | None = 100
    seed: int = 0
    repeat: bool = True
    prefetch: int = 2


def _fields_of(cls: type, **changed: Any) -> dict[str, Any]:
    """Fields of a dataclass as pydantic's `create_model` takes them."""
    hints = get_type_hints(cls)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        default: Any = ... if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=field.default_factory)
        found[field.name] = (hints[field.name], default)
    return found | changed


FINETUNE = "finetune"  # text; its settings are `mmpack.datamodules.finetune_config.FinetuneConfig`
MODULES = {
    "energon": "mmpack.datamodules:EnergonMultiModalDataModule",
    "mock": "mmpack.datamodules:NevaMockDataModule",
    "lazy": "mmpack.datamodules:NevaLazyDataModule",
}
_NOT_IN_FILES = ("self", "data_parallel_rank", "data_parallel_size", "rampup_batch_size")


@cache
def data_section(module: str) -> type[Section]:
    """The settings of a data module: the arguments of its class, with the tokenizer and the pictures named.

    Raises:
        ConfigError: there is no such module.
    """
    if module == "energon":
        return DataSection
    if module == FINETUNE:
        from mmpack.datamodules.finetune_config import FinetuneConfig

        own: dict[str, Any] = {"module": (Literal["finetune"], FINETUNE), "tokenizer": (str, ...), "prefetch": (int, 2)}
        return create_model("finetune_data", __base__=Section, **own, **_fields_of(FinetuneConfig))
    if module not in MODULES:
        raise ConfigError(f"module={module!r}; {nearest(module, [*MODULES, FINETUNE])}")
    cls = module_class(module)
    hints = get_type_hints(cls.__init__)
    found: dict[str, Any] = {"module": (Literal[module], module), "tile": (TileSpec | None, None)}
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in ("tokenizer", "image_processor"):
            found[name] = (str | None, None)
        elif name not in _NOT_IN_FILES:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (_without_classes(hints[name]), default)
    return create_model(f"{module}_data", __base__=Section, **found)


def module_class(module: str) -> Any:
    """The class of a data module."""
    where, _, name = MODULES[module].partition(":")
    return getattr(importlib.import_module(where), name)


def _without_classes(hint: Any) -> Any:
    """A union without its ``type[...]``: a file can describe an object, not a class."""
    if not isinstance(hint, types.UnionType):
        return hint
    kept = [option for option in get_args(hint) if get_origin(option) is not type]
    return functools.reduce(operator.or_, kept)


class ModelSection(Section):
    """How a model is built. The sizes of its family's spec are added to it; see `model_section`."""

    family: str = "llava"
    attention: str = "auto"
    mask: str = "varlen"
    dtype: str = "float32"
    seed: int = 0


@cache
def model_section(family: str) -> type[ModelSection]:
    """`ModelSection` with the sizes of a family; `vocab_size` is the tokenizer's if it is left out."""
    # the spec itself is built once the tokenizer has been read
    sizes = _fields_of(MODELS.get(family), vocab_size=(int | None, None))
    return create_model(f"{family}_model", __base__=ModelSection, **sizes)


@cache
def causal_section() -> type[Section]:
    """The model of a text module: the fields of a `CausalSpec`."""
    from mmpack.model.causal import CausalSpec

    return create_model("causal_model", __base__=Section, **_fields_of(CausalSpec))


class Sections(Section):
    """A whole file."""

    data: Section
    model: Section | None = None
    train: TrainConfig | None = None
    convert: ConvertConfig | None = None
    policy: PolicySection | None = None


def sections_for(values: Mapping[str, Any]) -> type[Sections]:
    """`Sections` as the file needs them: with the settings of its data module and the sizes of its model's family.

    Raises:
        ConfigError: an unknown module or family.
    """
    module, family = _named(values, "data", "module", "energon"), _named(values, "model", "family", "llava")
    model = causal_section() if module == FINETUNE else model_section(family)
    chosen: dict[str, Any] = {"data": (data_section(module), ...), "model": (model | None, None)}
    return create_model("Sections", __base__=Sections, **chosen)


def _named(values: Mapping[str, Any], section: str, key: str, default: str) -> str:
    inside = values.get(section)
    name = inside.get(key, default) if isinstance(inside, Mapping) else default
    return name if isinstance(name, str) else str(name)
