"""Arguments of the wrong kind are refused by name when a module is built, whatever the argument."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmpack import llm, vlm
from mmpack.datamodules import EnergonMultiModalDataModule, NevaLazyDataModule, NevaMockDataModule
from mmpack.errors import ConfigError
from tests.conftest import data_module, tile_spec
from tests.datamodules.helpers import batches, files, keys, lazy, mock

WRONG: dict[str, tuple[Any, ...]] = {
    "int": ("8", 2.0, True, [1], None),
    "int | None": ("8", 2.0, True, [1]),
    "bool": ("False", 1, None),
    "bool | None": ("False", 1),
    "float | None": ("0.1", True, [1]),
    "str": (1, None),
    "str | None": (1,),
    "str | Mapping[str, str]": (None, 1, ["drop"]),
    "Mapping[str, Any] | None": ("a", [1]),
    "Layout | None": ({"sequence_multiple": 2}, 8),
    "str | Path | None": (1, ["a"]),
}


def wrong_arguments(function: Any) -> list[tuple[str, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, value) for p in parameters for value in WRONG.get(str(p.annotation), ())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    files(folder, {"first": 20})
    return folder


def test_of_the_mock_module() -> None:
    for name, value in wrong_arguments(NevaMockDataModule.__init__):
        with pytest.raises(ConfigError, match=rf"^{name}="):
            mock(**{name: value})


def test_of_the_lazy_module(folder: Path, tokenizer: Any) -> None:
    for name, value in wrong_arguments(NevaLazyDataModule.__init__):
        with pytest.raises(ConfigError, match=rf"^{name}="):
            lazy(folder / "first.json", tokenizer, folder / "images", **{name: value})


def test_of_the_energon_module(energon_dataset: Path, tokenizer: Any) -> None:
    encoder_has = ("packed_sequence", "packed_sequence_size", "num_image_embeddings_per_tile")
    for name, value in wrong_arguments(EnergonMultiModalDataModule.__init__):
        with pytest.raises(ConfigError, match=rf"^{name}="):
            data_module(energon_dataset, tokenizer, **{name: value})
    assert set(encoder_has) <= {name for name, _ in wrong_arguments(EnergonMultiModalDataModule.__init__)}
    for name, value in (("oversize", 1), ("tiling_options", None), ("layout", {}), ("multimodal_sample_config", {})):
        with pytest.raises(ConfigError, match=rf"^{name}="):
            data_module(energon_dataset, tokenizer, **{name: value})
    with pytest.raises(ConfigError, match=r"^task_encoder='v1'; give a vlm\.MultiModalTaskEncoder"):
        data_module(energon_dataset, tokenizer, task_encoder="v1")


@pytest.mark.parametrize("module", [llm.DollyDataModule, llm.FineTuningDataModule, llm.finetune_recipe])
def test_of_the_text_modules(module: Any) -> None:
    wrong = {
        **WRONG, "str | Path": (1, None), "PackedSequenceSpecs | None": ({}, 512), "Sequence[int] | None": ("8", 8),
        "dict[str, Any] | None": ("chat", [1]), "tuple[float, float, float]": (0.8, (0.8, 0.2), ("a", "b", "c")),
    }  # fmt: skip
    found = [
        (parameter.name, value)
        for parameter in inspect.signature(module).parameters.values()
        for value in wrong.get(str(parameter.annotation), ())
    ]
    assert len(found) > 25
    for name, value in found:
        with pytest.raises(ConfigError, match=rf"^{name}="):
            module(**{name: value})


def test_of_further_settings_of_the_text_modules() -> None:
    for settings in ({"bucket_size": "8"}, {"batching": 1}, {"streaming": "no"}, {"layout": {}}, {"loss_weight": None}):
        with pytest.raises(ConfigError, match=rf"^{next(iter(settings))}="):
            llm.FineTuningDataModule(**settings)
    with pytest.raises(ConfigError, match=r"^oversize=\['drop'\]"):
        llm.FineTuningDataModule(dataset_kwargs={"oversize": ["drop"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": 1.0}, r"weights=1\.0; a list of numbers"),
        ({"weights": ["much"]}, r"weights=\['much'\]; a list of numbers"),
        ({"weights": "1"}, r"weights='1'; a list of numbers"),
        ({"paths": None}, r"paths: None for 'train'"),
        ({"paths": {"train": 3}}, r"paths: 3 for 'train'"),
        ({"paths": [3]}, r"paths: \[3\] for 'train'"),
        ({"data_config": {"image_folder": "x"}}, r"data_config=.*give a vlm\.ImageDataConfig"),
        ({"data_config": 0}, r"data_config=0; give a vlm\.ImageDataConfig"),
        ({"tokenizer": "a-name"}, r"tokenizer str has no `tokenizers` backend"),
    ],
)
def test_of_what_is_no_plain_value(folder: Path, tokenizer: Any, changes: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {
        "paths": folder / "first.json", "tokenizer": tokenizer, "image_processor": tile_spec(),
        "num_image_embeddings_per_tile": 4, "num_workers": 0,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        NevaLazyDataModule(**(options | changes))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: vlm.LLaVATemplateConfig(system=3), r"system=3; give text, or None"),  # type: ignore[arg-type]
        (lambda: vlm.LLaVATemplateConfig(stop_string=3), r"stop_string=3"),  # type: ignore[arg-type]
        (lambda: vlm.LLaVATemplateConfig(roles=None), r"roles=None"),  # type: ignore[arg-type]
        (lambda: vlm.LLaVATemplateConfig(chat_template=["v1"]), r"chat_template="),  # type: ignore[arg-type]
        (lambda: vlm.MultiModalSampleConfig(image_token=None), r"image_token=None"),  # type: ignore[arg-type]
        (
            lambda: vlm.MultiModalSampleConfig(conversation_template_config="v1"),  # type: ignore[arg-type]
            r"give a vlm\.LLaVATemplateConfig",
        ),
        (lambda: vlm.ImageDataConfig(media_token="<image>"), r"give a vlm\.ImageToken"),  # type: ignore[arg-type]
        (lambda: vlm.ImageDataConfig(image_folder=3), r"image_folder=3; give a path"),  # type: ignore[arg-type]
        (lambda: vlm.ImageDataConfig(record_format=["a"]), r"record_format="),  # type: ignore[arg-type]
        (lambda: mock(length_distribution=5), r"length_distribution=5"),
        (lambda: mock(length_distribution=["zipf"]), r"length_distribution=\['zipf'\]"),
        (lambda: mock(length_distribution={"kind": "file", "path": 3}), r"needs a path"),
        (lambda: mock(num_tiles_per_image=(True, 2)), r"num_tiles_per_image=\(True, 2\)"),
        (lambda: mock(data_parallel_size=0), r"data_parallel_size=0; it must be at least 1"),
    ],
)
def test_of_the_pieces(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


def test_of_the_mock_modules_tokenizer() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer='gpt2' tells no size of its vocabulary"):
        mock(tokenizer="gpt2")
    with pytest.raises(ConfigError, match=r"^rampup_batch_size=5"):
        mock(rampup_batch_size=5)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    numbers = {"seq_length": 60, "micro_batch_size": 3, "packing_buffer_size": 20, "num_streams": 4, "seed": 2}
    of_numpy = mock(packed_sequence=True, **{name: np.int64(number) for name, number in numbers.items()})
    plain = mock(packed_sequence=True, **numbers)
    found, wanted = batches(of_numpy, 4), batches(plain, 4)
    assert keys(found) == keys(wanted)
    settings = of_numpy.state_dict()["settings"]
    assert json.loads(json.dumps(settings)) == settings == plain.state_dict()["settings"]


@pytest.mark.parametrize("is_lazy", [True, False])
def test_a_processor_that_would_not_be_followed(
    folder: Path, energon_dataset: Path, tokenizer: Any, is_lazy: bool
) -> None:
    from transformers import CLIPImageProcessorPil, MllamaImageProcessorPil

    def build(processor: Any, **changes: Any) -> Any:
        options = {"image_processor": processor, "num_image_embeddings_per_tile": 4} | changes
        if is_lazy:
            return lazy(folder / "first.json", tokenizer, folder / "images", **options)
        return data_module(energon_dataset, tokenizer, **options)

    crop = {"height": 28, "width": 28}
    for processor in (
        MllamaImageProcessorPil(size=crop),
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=crop),
    ):
        with pytest.raises(ConfigError, match=r"would be followed .* choose a tiling by name"):
            build(processor)
        assert batches(build(processor, tiling="single"), 1)[0].num_samples
