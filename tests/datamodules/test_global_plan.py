"""`order="global_plan"` of the Energon module: one line turns it on, and everything around it still works."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.epoch import GlobalPlanLoader
from mmpack.errors import ConfigError, StateError
from tests.conftest import data_module, digest
from tests.loader.jobs import Job, named, start_job

ON: dict[str, Any] = {"order": "global_plan"}


@pytest.fixture(scope="module")
def uncut(energon_dataset: Path, tokenizer: Any) -> list[Any]:
    """An epoch of one rank without workers."""
    return list(data_module(energon_dataset, tokenizer, **ON).train_dataloader())


def real(batches: list[Any]) -> list[tuple[int, str]]:
    return named([batch for batch in batches if batch.num_samples])


def test_an_epoch_is_every_sample_once_and_the_next_is_another(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, num_workers=2, **ON)
    loader = module.train_dataloader()
    assert isinstance(loader, GlobalPlanLoader)
    assert (module.pack_capacity, module.num_streams) == (512, None)
    first, second = list(loader), list(loader)
    keys = [[key for batch in epoch for key in batch.sample_keys] for epoch in (first, second)]
    assert len(keys[0]) == len(set(keys[0])) == 340
    assert Counter(keys[0]) == Counter(keys[1])
    assert keys[0] != keys[1]
    assert (energon_dataset / ".nv-meta" / "mmpack-lengths").is_dir()


@pytest.mark.parametrize("going_on", [(5, 1), (1, 0), (3, 2)])
def test_2x2_goes_on_with_any_other_number(
    uncut: list[Any], energon_dataset: Path, tokenizer: Any, going_on: tuple[int, int]
) -> None:
    job = start_job(energon_dataset, tokenizer, 2, 2, **ON)
    begun = job.take(6)
    state = job.save()
    other = start_job(energon_dataset, tokenizer, *going_on, **ON).load(state)
    for rank in other.ranks:
        rank.setup("fit")  # as a Trainer does it, before or after
    assert other.save()["next_pack"] == 12
    assert named(begun) + real(other.take(None)) == real(uncut)


def test_a_rank_found_late_keeps_the_plan(
    uncut: list[Any], energon_dataset: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [data_module(energon_dataset, tokenizer, **ON) for _ in range(3)]
    for rank, module in enumerate(modules):
        monkeypatch.setattr("mmpack.datamodules.base.data_parallel", lambda *asked, rank=rank: (rank, 3))
        whole = module.train_dataloader().whole
        module.setup("fit")
        loader = module.train_dataloader()
        assert (loader.rank, loader.world_size, loader.whole) == (rank, 3, whole)
    assert real(Job(modules).take(None)) == real(uncut)


def test_validation_reads_streams_once_in_order(energon_dataset: Path, tokenizer: Any) -> None:
    planned = data_module(energon_dataset, tokenizer, data_parallel_rank=1, data_parallel_size=5, **ON)
    assert planned.val_dataloader().num_streams == 5
    alone = data_module(energon_dataset, tokenizer, packing_buffer_size=None, **ON)
    keys = [key for batch in alone.val_dataloader() for key in batch.sample_keys]
    assert len(keys) == len(set(keys)) == 60
    with pytest.raises(StateError, match="made by logical streams, this run uses the global plan mode"):
        alone.load_state_dict(alone.val_dataloader().state_dict())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": "global"}, r"order='global'.*global_plan"),
        (ON | {"num_streams": 4}, "num_streams=4 with order='global_plan'"),
        (ON | {"align_window": 4}, "align_window=4 with order='global_plan'"),
        (ON | {"blend_by": "tokens"}, "blend_by='tokens' with order='global_plan'"),
        (ON | {"batching": "buckets"}, "batching='buckets'"),
        (ON | {"num_workers": -1}, "num_workers=-1"),
    ],
)
def test_settings_that_do_not_go_together(
    energon_dataset: Path, tokenizer: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        data_module(energon_dataset, tokenizer, **changes)


def test_states_twice_with_weights_only_and_of_others(
    uncut: list[Any], energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    module = data_module(energon_dataset, tokenizer, **ON)
    saved = {}
    for step, _ in enumerate(itertools.islice(module.train_dataloader(), 9), 1):
        saved[step] = module.state_dict()
    torch.save(saved[9], tmp_path / "state.pt")
    module.load_state_dict(saved[3])
    module.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert named(list(module.train_dataloader())) == named(uncut[9:])
    other = data_module(energon_dataset, tokenizer, seed=4, packed_sequence_size=400, **ON)
    with pytest.raises(StateError, match=r"plan\.capacity: saved 512, now 400.*plan\.seed: saved 0, now 4"):
        other.load_state_dict(saved[9])
    with pytest.raises(StateError, match="made by the global plan mode, this run uses logical streams"):
        data_module(energon_dataset, tokenizer).load_state_dict(saved[9])


def test_training_stopped_on_one_layout_goes_on_on_another(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    from mmpack.train import train
    from tests.train.test_train import config, records, tiny_model

    # 8 steps of 4 packs: the epoch of fewer packs ends on the way.
    straight = tiny_model(tokenizer)
    options = {**ON, "global_batch_size": 4}
    train(config(tmp_path / "straight", 8), data_module(energon_dataset, tokenizer, **options), straight)
    for max_steps, num_workers in ((3, 2), (8, 1)):
        resumed = tiny_model(tokenizer)
        data = data_module(energon_dataset, tokenizer, num_workers=num_workers, **options)
        train(config(tmp_path / "parts", max_steps), data, resumed)
    losses = [[r["loss"] for r in records(tmp_path / part)] for part in ("straight", "parts")]
    assert losses[0] == losses[1]
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_configuration_switches_it_on_with_one_line(run_cli: Callable[..., str]) -> None:
    planned = json.loads(run_cli("plan", "--set", "data.order=global_plan", "--json", "--data-parallel-size", "2"))
    assert planned["fill_percent"] > 95
    assert planned["num_samples"] == 340
    assert planned["steps"] == -(-planned["num_packs"] // planned["global_batch_size"])
    shown = json.loads(run_cli("inspect", "--set", "data.order=global_plan", "--json", "--pack", "3"))
    assert shown["pack"] == 3 or shown.get("index") == 3
    first = run_cli("train", "--set", "data.order=global_plan", "--set", "train.max_steps=3", "--json")
    assert json.loads(first)["steps"] == 3
    again = run_cli("train", "--set", "data.order=global_plan", "--set", "train.max_steps=5", "--json",
                    "--set", "data.num_workers=2")  # fmt: skip
    assert json.loads(again)["steps"] == 5


@pytest.fixture
def run_cli(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> Callable[..., str]:
    """Runs a command on a configuration of the suite's dataset; what it printed."""
    from typer.testing import CliRunner

    from mmpack.cli.app import app

    config = write_config(tmp_path, tokenizer, energon_dataset)

    def run(command: str, *arguments: str) -> str:
        result = CliRunner().invoke(app, [command, str(config), *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def write_config(tmp_path: Path, tokenizer: Any, dataset: Path = Path("nowhere")) -> Path:
    """A configuration of packs as small as the suite's."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "config.yaml").write_text(
        f"""
data:
  path: {dataset}
  tokenizer: {tmp_path / "tokenizer"}
  tile: {{tile_size_px: 28, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}
  num_image_embeddings_per_tile: 4
  seq_length: 512
  packed_sequence_size: 512
  packing_buffer_size: 40
  num_workers: 0
model: {{image_size_px: 28, patch_size_px: 14, vision_hidden_size: 32, text_hidden_size: 32}}
train: {{output_dir: {tmp_path / "run"}, max_steps: 3}}
""",
        encoding="utf-8",
    )
    return tmp_path / "config.yaml"


def test_convert_and_check_measure_what_training_will_use(tokenizer: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from mmpack.cli.app import app
    from mmpack.config import read_config
    from tests.conftest import write_llava

    source, dataset, config = write_llava(tmp_path, 30), tmp_path / "energon", str(write_config(tmp_path, tokenizer))

    def shown(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*arguments, "--workers", "1", "--json"], catch_exceptions=False)
        return json.loads(result.stdout)["length_index"]  # type: ignore[no-any-return]

    converted = shown("convert", str(source), str(dataset), "--image-root", str(source.parent / "images"), 
                      "--split", "train=0.5,val=0.5", "--length-index", config)  # fmt: skip
    assert (converted["split"], converted["samples"], converted["usable"]) == ("train", 15, 15)
    checked = shown("check", str(dataset), "--config", config, "--length-index")
    assert checked == converted
    module = read_config(config, [f"data.path={dataset}", "data.order=global_plan"]).data_module()
    assert str(module.train_dataloader().whole.index.folder) == converted["folder"]
    assert len(list(Path(converted["folder"]).parent.iterdir())) == 1  # training did not measure again


def test_digest_tells_batches_apart(uncut: list[Any]) -> None:
    assert len({digest(batch) for batch in uncut}) == len(uncut)


def test_a_killed_worker_loses_nothing_and_dcp_keeps_the_state(
    uncut: list[Any], energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    import psutil
    import torch.distributed.checkpoint as dcp

    from mmpack.errors import WorkerError
    from mmpack.state import DistributedState

    module = data_module(energon_dataset, tokenizer, num_workers=2, prefetch=1, **ON)
    iterator = iter(module.train_dataloader())
    got = [next(iterator) for _ in range(3)]
    for worker in psutil.Process().children():
        worker.kill()
    with pytest.raises(WorkerError, match="died: killed by SIGKILL"):
        got.extend(iterator)
    dcp.save({"data": DistributedState(module)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    other = data_module(energon_dataset, tokenizer, **ON)
    dcp.load({"data": DistributedState(other)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert named(got) + named(list(other.train_dataloader())) == named(uncut)
