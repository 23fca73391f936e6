"""`Config`: what a file describes, and the objects built from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from mmpack.batch import PackedBatch
from mmpack.config.document import Document, read_document
from mmpack.config.errors import at, explain
from mmpack.config.policy import PolicySection
from mmpack.config.sections import FINETUNE, Section, Sections, module_class, sections_for
from mmpack.convert import ConvertConfig
from mmpack.errors import ConfigError, nearest
from mmpack.loader import PackLoader
from mmpack.model import MODELS, ModelSpec, make_model_spec
from mmpack.train import TrainConfig

if TYPE_CHECKING:
    from mmpack.datamodules.base import PackDataModule
    from mmpack.model import PackedModel

T = TypeVar("T")
DEFAULT_VOCAB_SIZE = 32_000  # of mock data
SPLITS = ("train", "val", "test")
DTYPES = ("float32", "bfloat16", "float16")
# keys of the data section that go to the encoder, and those that describe its pieces; the rest are the module's
_ENCODER_KEYS = (
    "packed_sequence", "packed_sequence_size", "num_image_embeddings_per_tile", "tiling", "tiling_options", "decode",
    "oversize", "loss_weight", "layout", "video_frames",
)  # fmt: skip
_PIECE_KEYS = ("tokenizer", "image_processor", "tile", "template", "system", "stop_string")


@dataclass(frozen=True)
class Config:
    """A checked config file.

    Sections are read as `data`, `model`, `train` and `convert`; the methods build what they describe. A setting that
    a stage refuses comes out as a ConfigError with the key's full path and its line.
    """

    document: Document
    sections: Sections

    @property
    def data(self) -> Any:
        """What to read and how to pack it: the settings of its data module."""
        return self.sections.data

    @property
    def model(self) -> Any:
        """The model. Raises ConfigError if the file has none; so do `train` and `convert`."""
        return self._section("model", self.sections.model)

    @property
    def train(self) -> TrainConfig:
        """The training run."""
        return self._section("train", self.sections.train)

    @property
    def convert(self) -> ConvertConfig:
        """The conversion that makes the dataset."""
        return self._section("convert", self.sections.convert)

    def _section(self, name: str, section: T | None) -> T:
        if section is None:
            raise ConfigError(f"{self.document.name}: has no section {name!r}, which this command needs")
        return section

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that ``data.tokenizer`` names, loaded once."""
        from transformers import AutoTokenizer

        with at(self.document, "data", "tokenizer"):
            name = self.data.tokenizer
            if name is None:
                raise ConfigError("is not set; give the folder of a tokenizer")
            if _looks_like_a_path(name) and not Path(name).is_dir():
                raise ConfigError(f"{name!r} is not a folder; give one with a tokenizer.json")
            try:
                return AutoTokenizer.from_pretrained(name)
            except (OSError, ValueError, ImportError) as error:
                raise ConfigError(f"cannot load {name!r}: {_one_line(error)}") from error

    @cached_property
    def model_spec(self) -> ModelSpec:
        """Sizes of the model; its vocabulary is the tokenizer's unless the file says otherwise."""
        section = self.model
        sizes = {name: getattr(section, name) for name in MODELS.get(section.family).__dataclass_fields__}
        num_ids = self._tokenizer_size()
        with at(self.document, "model"):
            if sizes["vocab_size"] is None:
                sizes["vocab_size"] = num_ids
            if sizes["vocab_size"] < num_ids:
                raise ConfigError(
                    f"vocab_size={sizes['vocab_size']}, but the tokenizer has {num_ids} ids; leave it out"
                )
            if section.dtype not in DTYPES:
                raise ConfigError(f"dtype={section.dtype!r}; {nearest(section.dtype, DTYPES)}")
            return make_model_spec(section.family, **sizes)

    def build_model(self) -> PackedModel:
        """The model with fresh weights."""
        import torch

        if self.data.module == FINETUNE:
            from mmpack.model.causal import CausalSpec

            with at(self.document, "model"):
                return CausalSpec(**_values(self.model)).build(self.tokenizer)
        spec, section = self.model_spec, self.model
        with at(self.document, "model"):
            return spec.build(
                seed=section.seed,
                attention=section.attention,
                mask=section.mask,
                dtype=getattr(torch, section.dtype),
            )

    def task_encoder(self) -> Any:
        """The `MultiModalTaskEncoder`; checked against the model's vision tower if the file describes a model."""
        from mmpack.datamodules import LLaVATemplateConfig, MultiModalSampleConfig, MultiModalTaskEncoder

        data = self.data
        image_processor = self._image_processor()
        tokenizer = self.tokenizer
        with at(self.document, "data"):
            template = LLaVATemplateConfig(
                system=data.system, stop_string=data.stop_string, chat_template=data.template
            )
            encoder = MultiModalTaskEncoder(
                tokenizer=tokenizer,
                image_processor=image_processor,
                multimodal_sample_config=MultiModalSampleConfig(conversation_template_config=template),
                **{name: getattr(data, name) for name in _ENCODER_KEYS},
            )
            if self.sections.model is not None:
                self.model_spec.check_tiling(encoder.build_tiling())
            return encoder

    def _tokenizer_size(self) -> int:
        """Ids of the data: the tokenizer's, or what mock data without one is drawn from."""
        if self.data.module == "mock" and self.data.tokenizer is None:
            return self.data.vocab_size or DEFAULT_VOCAB_SIZE
        return len(self.tokenizer)

    def _image_processor(self, *, required: bool = True) -> Any:
        data = self.data
        with at(self.document, "data"):
            if data.tile is not None and data.image_processor is not None:
                raise ConfigError("set tile or image_processor, not both")
            if data.tile is None and data.image_processor is None:
                if not required:
                    return None
                raise ConfigError("set either tile (size, mean and std of a tile) or image_processor (a folder)")
        if data.tile is not None:
            return data.tile
        from transformers import AutoImageProcessor

        with at(self.document, "data", "image_processor"):
            try:
                return AutoImageProcessor.from_pretrained(data.image_processor)
            except (OSError, ValueError, ImportError) as error:
                raise ConfigError(f"cannot load {data.image_processor!r}: {_one_line(error)}") from error

    def data_module(self, *, rank: int | None = None, world_size: int | None = None) -> PackDataModule[Any]:
        """The data module, for one data-parallel rank; None asks torch.distributed."""
        section = self.data
        own = _values(section)
        if section.module == FINETUNE:
            return self._text_module(own, rank, world_size)
        if section.module == "energon":
            own = {name: value for name, value in own.items() if name not in (*_ENCODER_KEYS, *_PIECE_KEYS)}
            own["task_encoder"] = self.task_encoder()
        else:
            own["image_processor"] = self._image_processor(required=section.module != "mock")
            own["tokenizer"] = None if section.tokenizer is None else self.tokenizer
            del own["tile"]
        with at(self.document, "data"):
            module: PackDataModule[Any] = module_class(own.pop("module"))(
                data_parallel_rank=rank, data_parallel_size=world_size, **own
            )
            tiling = getattr(module, "tiling", None)
            if tiling is not None and self.sections.model is not None:
                self.model_spec.check_tiling(tiling)
        return module

    def _text_module(self, own: dict[str, Any], rank: int | None, world_size: int | None) -> PackDataModule[Any]:
        from mmpack.datamodules.finetune import FineTuningDataModule
        from mmpack.datamodules.finetune_config import FinetuneConfig

        tokenizer, prefetch = own.pop("tokenizer"), own.pop("prefetch")
        del own["module"]
        with at(self.document, "data"):
            return FineTuningDataModule.of(
                FinetuneConfig(**own),
                Path(tokenizer) if Path(tokenizer).is_dir() else self.tokenizer,
                data_parallel_rank=rank,
                data_parallel_size=world_size,
                prefetch=prefetch,
            )

    def with_settings(self, *settings: str) -> Config:
        """With more ``a.b=c`` applied."""
        return check(self.document.with_settings(settings))

    def with_values(self, section: str, values: Mapping[str, Any]) -> Config:
        """With `values` in place of those of the same name in `section`."""
        return self.with_settings(*(f"{section}.{name}={json.dumps(_plain(value))}" for name, value in values.items()))


def read_config(path: str | Path, settings: Sequence[str] = ()) -> Config:
    """The config file at `path` with the overrides ``a.b=c`` of `settings` applied.

    Relative paths in it are relative to the working directory; ``package:...`` is a file installed with mmpack.

    Raises:
        ConfigError: one line per fault, with the place in the file, the key's full path, and the nearest name.
    """
    return check(read_document(Path(path)).with_settings(settings))


class _OnlyConvert(Section):
    convert: ConvertConfig


def convert_config(values: Mapping[str, Any], settings: Sequence[str] = ()) -> ConvertConfig:
    """A conversion from its own settings by name, with the overrides ``convert.a=b`` of `settings` applied.

    Raises:
        ConfigError: as `read_config`.
    """
    plain = {name: _plain(value) for name, value in values.items()}
    document = Document(name="the command line", values={"convert": plain}).with_settings(settings)
    try:
        return _OnlyConvert.model_validate_json(json.dumps(document.with_package_paths().values)).convert
    except ValidationError as error:
        raise explain(error, document, _OnlyConvert) from None


def check(document: Document) -> Config:
    """The config in a document. Raises ConfigError as `read_config` does."""
    resolved = document.with_package_paths()
    values = dict(resolved.values)
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("tile"), dict):
        # a tile costs what the section says; the tile's own entry would only repeat it
        embeddings = data.get("num_image_embeddings_per_tile", 1)
        values["data"] = data | {"tile": {"embeddings_per_tile": embeddings} | data["tile"]}
    values = _with_policy(values, resolved)
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{document.name}: only text, numbers, true/false, lists and mappings: {error}") from None
    sections = sections_for(values)
    try:
        # as JSON, so that strict means: no "3" for 3, but a list for a tuple and text for a path
        return Config(resolved, sections.model_validate_json(text))
    except ValidationError as error:
        raise explain(error, resolved, sections) from None


def _with_policy(values: dict[str, Any], document: Document) -> dict[str, Any]:
    """The values with what NeMo-RL's section ``policy`` decides put into ``data``."""
    data = values.get("data")
    if not isinstance(values.get("policy"), dict) or not isinstance(data, dict):
        return values

    class OnlyPolicy(Section):
        policy: PolicySection

    try:
        policy = OnlyPolicy.model_validate_json(json.dumps({"policy": values["policy"]})).policy
    except ValidationError as error:
        raise explain(error, document, OnlyPolicy) from None
    with at(document, "policy"):
        return {**values, "data": {**data, **policy.data_settings(data)}}


def load(
    config: Config | str | Path,
    *,
    split: str = "train",
    settings: Sequence[str] = (),
    rank: int | None = None,
    world_size: int | None = None,
    **data: Any,
) -> PackLoader[PackedBatch]:
    """The packs that a config describes.

    Args:
        config: a config file, or a `Config`.
        split: "train" (goes on for ever unless ``repeat=False``), "val" or "test" (every sample once).
        settings: overrides, each ``"section.key=value"``.
        rank, world_size: place among the data-parallel ranks; None asks torch.distributed.
        data: settings of the section ``data`` by name, such as ``num_workers=0``.

    Returns:
        An iterable of `PackedBatch` with ``state_dict()`` and ``load_state_dict(state)``.

    Raises:
        ConfigError: a setting that cannot work; nothing has been read then.
    """
    if split not in SPLITS:
        raise ConfigError(f"split={split!r}; {nearest(split, SPLITS)}")
    chosen = config if isinstance(config, Config) else read_config(config)
    if settings:
        chosen = chosen.with_settings(*settings)
    if data:
        chosen = chosen.with_values("data", data)
    module = chosen.data_module(rank=rank, world_size=world_size)
    loaders = {"train": module.train_dataloader, "val": module.val_dataloader, "test": module.test_dataloader}
    loader: PackLoader[PackedBatch] = loaders[split]()
    return loader


def _values(section: Section) -> dict[str, Any]:
    """The settings of a section by name."""
    return {name: getattr(section, name) for name in type(section).model_fields}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
