"""The run options: epochs, validation, the best checkpoint, resume flags, optimizers, precision, loggers, export."""

from __future__ import annotations

import itertools
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.errors import ConfigError, StateError
from mmpack.model.causal import CausalModel, CausalSpec, LoraSpec
from mmpack.train import TrainConfig, load_checkpoint, newest_checkpoint, train
from mmpack.train.metrics import metrics_of
from tests.conftest import data_module
from tests.datamodules.helpers import lazy
from tests.llm.texts import write_sets


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def data(sets: Path, tokenizer: Any, **changes: Any) -> FineTuningDataModule:
    options: dict[str, Any] = {"global_batch_size": 16, "num_workers": 0, "batching": "dynamic"}
    return FineTuningDataModule(sets, 192, tokenizer, **(options | changes))


def model(tokenizer: Any, **changes: Any) -> CausalModel:
    return CausalSpec(hidden_size=32, **changes).build(tokenizer)


def config(folder: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(output_dir=folder, **({"learning_rate": 3e-3} | changes))


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("streaming", [False, True])
def test_minus_one_is_one_pass(sets: Path, tokenizer: Any, tmp_path: Path, streaming: bool) -> None:
    options = {"batching": "packing", "global_batch_size": 3, "streaming": streaming, "packing_buffer_size": 20}
    result = train(config(tmp_path, val_check_interval=100), data(sets, tokenizer, **options), model(tokenizer))
    assert sum(record["num_samples"] for record in records(tmp_path, "step")) == 90
    assert [record["step"] for record in records(tmp_path, "val")] == [result.steps]  # at the end
    assert newest_checkpoint(tmp_path) == result.checkpoint
    again = train(config(tmp_path, val_check_interval=100), data(sets, tokenizer, **options), model(tokenizer))
    assert again.steps == result.steps  # nothing is left to do
    longer = train(config(tmp_path, max_epochs=2), data(sets, tokenizer, **options), model(tokenizer))
    assert longer.steps == pytest.approx(2 * result.steps, abs=1)
    assert sum(record["num_samples"] for record in records(tmp_path, "step")) == 180


def test_data_without_an_end_needs_a_number_of_steps(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repeats for ever"):
        train(config(tmp_path), data_module(energon_dataset, tokenizer), model(tokenizer))


def test_the_best_checkpoint_is_kept(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    settings = config(
        tmp_path, max_steps=12, val_check_interval=2, monitor="val_loss", learning_rate=0.3, limit_val_batches=1
    )
    result = train(settings, data(sets, tokenizer), model(tokenizer))
    validations = records(tmp_path, "val")
    best = min(validations, key=lambda record: record["val_loss"])
    assert all(record["num_packs"] == 1 for record in validations)
    assert result.best_checkpoint is not None
    saved = load_checkpoint(result.best_checkpoint)
    assert (saved["step"], saved["best"]["val_loss"]) == (best["step"], best["val_loss"])
    assert newest_checkpoint(tmp_path) == result.checkpoint


def test_resume_flags(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        train(config(tmp_path, resume_ignore_no_checkpoint=False), data(sets, tokenizer), model(tokenizer))
    train(config(tmp_path, max_steps=1), data(sets, tokenizer), model(tokenizer))
    with pytest.raises(ConfigError, match="already holds"):
        train(config(tmp_path, max_steps=2, resume_if_exists=False), data(sets, tokenizer), model(tokenizer))
    settings = config(tmp_path, max_steps=2, resume_ignore_no_checkpoint=False)
    assert train(settings, data(sets, tokenizer), model(tokenizer)).steps == 2


def test_a_changed_setting_of_the_optimizer_is_used_and_told(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    train(config(tmp_path, max_steps=1), data(sets, tokenizer), model(tokenizer))
    with pytest.warns(UserWarning, match=r"weight_decay: saved 0\.0, now 0\.5\. It goes on with those of now"):
        result = train(config(tmp_path, max_steps=2, weight_decay=0.5), data(sets, tokenizer), model(tokenizer))
    (group,) = load_checkpoint(result.checkpoint)["optimizer"]["param_groups"]
    assert group["weight_decay"] == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(config(tmp_path, max_steps=3, weight_decay=0.5), data(sets, tokenizer), model(tokenizer))


@pytest.mark.parametrize(
    ("spec", "changes", "words"),
    [
        ({"num_heads": 2, "intermediate_size": 48}, {}, "step-000001.pt holds another model: size mismatch for "),
        ({"num_layers": 3}, {}, "step-000001.pt holds another model: Missing key"),
        ({"num_layers": 1}, {}, "step-000001.pt holds another model: Unexpected key"),
        ({}, {"optimizer": "sgd"}, "another optimizer than SGD"),
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_named(
    sets: Path, tokenizer: Any, tmp_path: Path, spec: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    train(config(tmp_path, max_steps=1), data(sets, tokenizer), model(tokenizer))
    with pytest.raises(StateError, match=words):
        train(config(tmp_path, max_steps=2, **changes), data(sets, tokenizer), model(tokenizer, **spec))


def test_lora_names_layers_that_the_model_lacks(tokenizer: Any) -> None:
    pytest.importorskip("peft")
    with pytest.raises(ConfigError, match=r"target_modules=\('nosuch',\).*not found"):
        model(tokenizer, lora=LoraSpec(target_modules=("nosuch",)))


def test_sgd_makes_the_step_that_it_should(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    module = data(sets, tokenizer)
    before = model(tokenizer)
    step = list(next(data(sets, tokenizer).train_dataloader().steps()))
    weight = sum(float(batch.loss_weight.sum()) for batch in step)
    for batch in step:
        (before(batch).loss_sum / weight).backward()
    after = model(tokenizer)
    train(config(tmp_path, max_steps=1, optimizer="sgd", learning_rate=0.5, grad_clip=0.0), module, after)
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert old.grad is not None
        torch.testing.assert_close(new.detach(), old.detach() - 0.5 * old.grad, atol=1e-6, rtol=1e-5)


def test_bf16_learns_about_as_much(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    losses = {}
    for precision in ("32", "bf16"):
        settings = config(tmp_path / precision, max_steps=15, precision=precision)
        used = model(tokenizer)
        losses[precision] = train(settings, data(sets, tokenizer, batching="packing", global_batch_size=2), used)
        assert used.dtype == torch.float32
    full, half = losses["32"], losses["bf16"]
    assert half.last_loss == pytest.approx(full.last_loss, abs=0.05)
    assert half.last_loss != full.last_loss
    assert half.last_loss < half.first_loss - 0.5


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_lora_trains_its_adapters_alone(sets: Path, tokenizer: Any, tmp_path: Path, family: str) -> None:
    used = model(tokenizer, family=family, lora=LoraSpec(rank=4))
    start = {name: value.clone() for name, value in used.state_dict().items()}
    settings = config(tmp_path, max_steps=8, learning_rate=0.05)
    result = train(settings, data(sets, tokenizer, batching="packing", global_batch_size=2), used)
    moved = {name for name, value in used.state_dict().items() if not torch.equal(value, start[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert result.last_loss < result.first_loss
    assert set(load_checkpoint(result.checkpoint)["model"]) >= moved
    assert all("lora_" in name for name in load_checkpoint(result.checkpoint)["model"])
    assert (tmp_path / "final" / "adapter_config.json").is_file()


@pytest.mark.skipif(find_spec("peft") is not None, reason="peft is installed")
def test_lora_without_peft_says_what_to_install(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="pip install 'mmpack"):
        model(tokenizer, lora=LoraSpec())


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_metrics_reach_tensorboard(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config(tmp_path, max_steps=3, val_check_interval=3, create_tensorboard_logger=True)
    train(settings, data(sets, tokenizer), model(tokenizer))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    written = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert written == [(r["step"], pytest.approx(r["loss"], rel=1e-6)) for r in records(tmp_path, "step")]
    assert [event.step for event in events.Scalars("val/val_loss")] == [3]


def test_prometheus_finds_the_newest_step(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    import urllib.request

    from mmpack.train.metrics import MetricLoggers

    loggers = MetricLoggers(TrainConfig(output_dir=tmp_path, max_steps=1, prometheus_port=0))
    drops = {"web": {"no_answer": {"count": 3, "keys": []}}}
    for step in (1, 2):
        loggers.log({"kind": "step", "step": step, "loss": 4.5 - step, "wait_s": 0.1, "drops": drops})
    loggers.log({"kind": "val", "step": 2, "val_loss": 2.25})
    assert loggers.prometheus_url is not None
    with urllib.request.urlopen(loggers.prometheus_url, timeout=10) as page:
        lines = page.read().decode().splitlines()
    assert {"mmpack_train_step 2.0", "mmpack_train_loss 2.5", "mmpack_val_val_loss 2.25"} <= set(lines)
    assert 'mmpack_left_out{dataset="web",reason="no_answer"} 3.0' in lines
    port = int(loggers.prometheus_url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConfigError, match=f"prometheus_port={port}: .*in use"):
        MetricLoggers(TrainConfig(output_dir=tmp_path, max_steps=1, prometheus_port=port))
    loggers.close()


@pytest.mark.parametrize(
    ("setting", "package"), [("create_tensorboard_logger", "tensorboard"), ("create_wandb_logger", "wandb")]
)
def test_a_logger_that_is_not_there_is_named(
    sets: Path, tokenizer: Any, tmp_path: Path, setting: str, package: str
) -> None:
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    with pytest.raises(ConfigError, match=f"{setting}=True needs {package}"):
        train(config(tmp_path, max_steps=1, **{setting: True}), data(sets, tokenizer), model(tokenizer))


def test_metrics_are_numbers_only() -> None:
    assert metrics_of({"kind": "step", "step": 1, "loss": 2, "drops": {}}) == {"train/loss": 2.0}


def test_a_model_with_fewer_positions_than_the_sequences_is_refused(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seq_length=192 is above the model's max_position_embeddings=128"):
        train(config(tmp_path), data(sets, tokenizer), model(tokenizer, max_position_embeddings=128))


def test_packs_may_be_longer_than_the_model_s_positions(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    from mmpack.offline import PackedSequenceSpecs

    module = data(
        sets, tokenizer, batching="packing", global_batch_size=1,
        packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=768),
    )  # fmt: skip
    used = model(tokenizer, family="gpt2", max_position_embeddings=192)
    assert train(config(tmp_path, max_steps=2), module, used).steps == 2
    assert max(record["num_positions"] for record in records(tmp_path, "step")) > 192


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_steps": -2}, "max_steps=-2"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"monitor": "val_loss"}, "needs validation"),
        ({"monitor": "valloss", "val_check_interval": 1}, "did you mean 'val_loss'"),
        ({"max_epochs": 0}, "max_epochs=0"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, **changes)


def test_validation_data_that_is_not_there_is_told_before_anything_is_trained(tokenizer: Any, tmp_path: Path) -> None:
    record = {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    file = tmp_path / "only.json"
    file.write_text(json.dumps([record] * 20))
    module = lazy(file, tokenizer, tmp_path)
    settings = {"max_steps": 2, "val_check_interval": 1}
    with pytest.raises(ConfigError, match=r"no data for 'val'.*or set val_check_interval=0"):
        train(config(tmp_path / "run", **settings), module, model(tokenizer))
    assert not (tmp_path / "run").exists()
    assert train(config(tmp_path / "run", **settings | {"val_check_interval": 0}), module, model(tokenizer)).steps == 2


def test_train_and_validation_batches_of_different_kinds(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    """The same model on the same validation data gives the same loss, packed or padded."""
    losses = []
    for training, validation in itertools.product(("packing", "padding"), repeat=2):
        module = data(sets, tokenizer, batching=training, validation_batching=validation, global_batch_size=8)
        settings = config(tmp_path / f"{training}-{validation}", max_steps=1, val_check_interval=1, learning_rate=1e-12)
        losses.append(train(settings, module, model(tokenizer)).val_loss)
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
