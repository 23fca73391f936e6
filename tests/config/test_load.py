"""A config file becomes the stages' own objects, or one line for each fault with its place."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

import mmpack
from mmpack.config import Config, load, read_config
from mmpack.config.sections import DataSection, Sections, model_section
from mmpack.errors import ConfigError
from mmpack.model import LlavaSpec
from tests.conftest import digest

DEMO = Path(mmpack.__file__).parent / "demo_data" / "demo.yaml"


@pytest.fixture(scope="module")
def values(energon_dataset: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a small config says."""
    folder = tmp_path_factory.mktemp("config")
    tokenizer.save_pretrained(folder / "tokenizer")
    return {
        "data": {
            "path": str(energon_dataset),
            "tokenizer": str(folder / "tokenizer"),
            "tile": {"tile_size_px": 28},
            "num_image_embeddings_per_tile": 4,
            "seq_length": 512,
            "packed_sequence_size": 512,
            "packing_buffer_size": 40,
            "oversize": "drop",
            "num_workers": 0,
        },
        "model": {"image_size_px": 28, "patch_size_px": 14},
        "train": {"output_dir": str(folder / "run"), "max_steps": 2},
    }


@pytest.fixture
def config(values: dict[str, Any], tmp_path: Path) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return read_config(path)


def test_the_demo_config_is_in_the_package_and_in_configs() -> None:
    assert read_config(DEMO).train.max_steps >= 40
    assert (DEMO.parents[2] / "configs" / "demo.yaml").read_text() == DEMO.read_text()


def test_every_setting_of_the_data_module_can_be_set_with_the_same_default() -> None:
    from mmpack.datamodules import EnergonMultiModalDataModule, MultiModalTaskEncoder

    taken = {*inspect.signature(EnergonMultiModalDataModule).parameters} - {
        *("task_encoder", "validation_task_encoder", "multimodal_sample_config", "packed_sequence"),
        *("data_parallel_rank", "data_parallel_size"),
    }
    assert taken <= set(DataSection.model_fields)
    for owner in (EnergonMultiModalDataModule, MultiModalTaskEncoder):
        for name, parameter in inspect.signature(owner).parameters.items():
            field = DataSection.model_fields.get(name)
            if field is None or field.is_required() or field.default_factory is not None:
                continue
            if parameter.default not in (None, inspect.Parameter.empty):
                assert field.default == parameter.default, name


def test_the_model_section_has_the_sizes_of_a_spec_with_its_defaults() -> None:
    spec = LlavaSpec(vocab_size=10)
    for name in LlavaSpec.__dataclass_fields__:
        if name != "vocab_size":
            assert model_section("llava").model_fields[name].default == getattr(spec, name)


def test_objects_are_built_from_it(config: Config, tokenizer: Any) -> None:
    assert config.model_spec.vocab_size == len(tokenizer)
    module = config.data_module()
    batch = next(iter(module.train_dataloader())).check()
    model = config.build_model()
    assert float(model(batch).loss_sum.detach()) > 0
    assert config.train.max_steps == 2
    with pytest.raises(ConfigError, match=r"c.yaml: has no section 'convert'"):
        config.convert  # noqa: B018


def test_load_gives_a_loader_that_can_be_resumed(config: Config) -> None:
    loader = mmpack.load(config, packing_buffer_size=30)
    head = [digest(batch) for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    tail = [digest(batch) for batch in itertools.islice(loader, 3)]
    again = load(config, packing_buffer_size=30)
    again.load_state_dict(state)
    assert [digest(batch) for batch in itertools.islice(again, 3)] == tail
    assert [digest(batch) for batch in itertools.islice(load(config, packing_buffer_size=30), 3)] == head


def test_load_knows_splits_ranks_and_overrides(config: Config) -> None:
    assert sum(batch.num_samples for batch in load(config, split="val")) == 60
    halves = [load(config, rank=r, world_size=2, settings=["data.num_streams=4"]) for r in (0, 1)]
    assert [next(iter(half)).pack_index for half in halves] == [0, 1]
    with pytest.raises(ConfigError, match="split='validation'; allowed: test, train, val"):
        load(config, split="validation")
    with pytest.raises(ConfigError, match="did you mean 'num_workers'"):
        load(config, num_worker=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "data.packd_sequence_size=3",
            "data.packd_sequence_size: unknown setting; did you mean 'packed_sequence_size'?",
        ),
        ("data.tile.tile_size=3", "data.tile.tile_size: unknown setting; did you mean 'tile_size_px'?"),
        ("data.layout.fixed=3", "data.layout.fixed: unknown setting; did you mean 'fixed_total'?"),
        ("train.max_step=3", "train.max_step: unknown setting; did you mean 'max_steps'?"),
        (
            "train.packing_buffer_size=3",
            "train.packing_buffer_size: unknown setting; there is data.packing_buffer_size",
        ),
        ("daat.path=3", "daat: unknown setting; did you mean 'data'?"),
        ("train.max_steps=many", "train.max_steps='many': should be a valid integer"),
        ("train.max_steps='3'", "train.max_steps='3': should be a valid integer"),
        ("data.repeat=1", "data.repeat=1: should be a valid boolean"),
        ("data.seq_length=1.5", "data.seq_length=1.5: should be a valid integer"),
        ("train.max_steps=0", "train.max_steps=0; it must be at least 1, or -1 for one pass over the data"),
        ("data.layout.sequence_multiple=0", "data.layout.sequence_multiple=0; give a whole number of at least 1"),
        ("data.tile.std=[1, 1, 0]", "data.tile.std=(1.0, 1.0, 0.0); each of the three above 0"),
        ("data.path=2026-12-01", ""),
    ],
)
def test_a_wrong_setting_is_named_with_its_full_path(config: Config, setting: str, message: str) -> None:
    if not message:
        assert config.with_settings(setting).data.path == "2026-12-01"
        return
    with pytest.raises(ConfigError) as error:
        config.with_settings(setting)
    assert str(error.value) == f"--set {setting}: {message}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.micro_batch_size=2", "data.micro_batch_size=2 with packing_buffer_size=40: a pack is one row already"),
        ("data.packed_sequence_size=0", "data.packed_sequence_size=0: the length of a pack is not set"),
        ("data.num_image_embeddings_per_tile=576", "num_image_embeddings_per_tile=576, but the vision tower gives 4"),
        ("data.tile.tile_size_px=56", "pictures are cut into tiles of 56 px, the vision tower wants 28"),
        ("data.tiling=dynamc", "unknown tiling policy 'dynamc'; did you mean 'dynamic'?"),
        ("data.template=v2", "unknown conversation template 'v2'; allowed: "),
        ("data.tokenizer=./nowhere", "'./nowhere' is not a folder"),
        ("data.path=nowhere", "path='nowhere' does not exist"),
        ("data.loss_weight=tokens", "loss_weight='tokens'; did you mean 'token'?"),
        ("data.num_workers=9", "num_workers=9; this rank reads 4 of 4 streams, so 0..4 workers can be used"),
        ("data.global_batch_size=0", "global_batch_size=0"),
        ("data.tile=null", "set either tile"),
        ("data.video_frames=midle", "did you mean 'middle'"),
    ],
)
def test_what_a_stage_refuses_is_named_before_data_is_read(config: Config, setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.with_settings(setting).data_module()
    assert message in str(error.value)
    assert " data" in str(error.value)


def test_a_pack_below_the_longest_sample_needs_a_policy(config: Config) -> None:
    with pytest.raises(ConfigError, match="packed_sequence_size=256 holds 256 tokens, below seq_length=512"):
        config.with_settings("data.packed_sequence_size=256", "data.oversize=null").data_module()
    config.with_settings("data.packed_sequence_size=256", "data.oversize=drop").data_module()


@pytest.mark.parametrize("setting", ["model.text_heads=7", "model.dtype=float3", "model.vocab_size=5"])
def test_a_model_that_cannot_be_is_refused(config: Config, setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.with_settings(setting).build_model()
    assert setting.partition(".")[2].partition("=")[0] in str(error.value)
    assert ": model" in str(error.value)


def test_faults_of_a_file_come_with_their_lines_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("data:\n  path: x\n  tokenizer: 3\n  layuot: {}\ntrain:\n  output_dir: r\n  max_steps: 1.5\n")
    with pytest.raises(ConfigError) as error:
        read_config(path)
    lines = str(error.value).splitlines()
    assert f"{path}:3: data.tokenizer=3: should be a valid string" in lines
    assert f"{path}:4: data.layuot: unknown setting; did you mean 'layout'?" in lines
    assert f"{path}:7: train.max_steps=1.5: should be a valid integer" in lines
    missing = "data.seq_length is not set; add it, or give it with --set data.seq_length=..."
    assert f"{path}:1: {missing}" in lines


def test_sections_have_no_unchecked_values() -> None:
    """Every section refuses unknown keys and converts nothing."""
    assert Sections.model_config["extra"] == "forbid"
    assert Sections.model_config["strict"] is True
