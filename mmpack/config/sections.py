"""What a config file may hold. Types and checks of a stage are its own frozen dataclass; pydantic only reads them.

Strict: no value is converted to another type, unknown keys are refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from mmpack.convert import ConvertConfig
from mmpack.layout import Layout
from mmpack.model import LlavaSpec
from mmpack.tiling import TileSpec
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

    path: str
    tokenizer: str
    image_processor: str | None = None
    tile: TileSpec | None = None
    num_image_embeddings_per_tile: int
    template: str = "v1"
    system: str | None = None
    stop_string: str | None = None
    tiling: str | None = None
    tiling_options: dict[str, Any] = Field(default_factory=dict)
    seq_length: int
    packed_sequence_size: int
    packing_buffer_size: int
    oversize: str | None = None
    loss_weight: str = "token"
    layout: Layout = Field(default_factory=Layout)
    micro_batch_size: int = 1
    global_batch_size: int | None = None
    num_workers: int = 1
    num_val_workers: int | None = None
    num_streams: int | None = None
    align_window: int = 1
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
        default = ... if field.default is dataclasses.MISSING else field.default
        found[field.name] = (hints[field.name], default)
    return found | changed


# vocab_size may be left out: it is the tokenizer's then, so the spec itself is built once that has been read
_ModelSizes: type[Section] = create_model(
    "_ModelSizes", __base__=Section, **_fields_of(LlavaSpec, vocab_size=(int | None, None))
)


class ModelSection(_ModelSizes):  # type: ignore[valid-type, misc]  # fields read from LlavaSpec
    """The sizes of a `LlavaSpec`, and how it is built; `vocab_size` is the tokenizer's if it is left out."""

    attention: str = "auto"
    mask: str = "varlen"
    dtype: str = "float32"
    seed: int = 0


class Sections(Section):
    """A whole file."""

    data: DataSection
    model: ModelSection | None = None
    train: TrainConfig | None = None
    convert: ConvertConfig | None = None
