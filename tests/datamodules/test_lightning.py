"""The modules under a real Lightning Trainer: it fetches ahead, checkpoints, and resumes with the same packs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.datamodules.base import Plain, lightning_class
from tests.conftest import data_module
from tests.datamodules.helpers import digest, files, lazy, mock

lightning = pytest.importorskip("lightning", reason="needs lightning (pip install 'mmpack[lightning]')")

NUM_STEPS = 12


class Recorder(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Learns nothing; notes which batch it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[str] = []
        self.validated: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(digest(batch.check()))
        return self.weight * batch.num_loss_tokens

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(digest(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(digest(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, **options: Any) -> Any:
    defaults = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False, "default_root_dir": folder,
        "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1, "limit_val_batches": 3,
        "val_check_interval": 5, "check_val_every_n_epoch": None,
    }  # fmt: skip
    return lightning.Trainer(**(defaults | options))


def fit(module: Any, folder: Path, *, ckpt: Path | None = None, **options: Any) -> tuple[Any, Recorder]:
    model, run = Recorder(), trainer(folder, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=module, ckpt_path=ckpt)
    return run, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lightning")
    files(folder, {"first": 60})
    return folder


def make(kind: str, folder: Path, dataset: Path, tokenizer: Any, **options: Any) -> Any:
    if kind == "energon":
        return data_module(dataset, tokenizer, **options)
    if kind == "mock":
        return mock(packed_sequence=True, **options)
    return lazy(folder / "first.json", tokenizer, folder / "images", split="0.8,0.2", **options)


@pytest.mark.parametrize("kind", ["mock", "lazy", "energon"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_stopped_and_resumed_is_as_never_stopped(
    kind: str, num_workers: int, folder: Path, energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    def fresh() -> Any:
        return make(kind, folder, energon_dataset, tokenizer, num_workers=num_workers)

    assert isinstance(fresh(), lightning.LightningDataModule)
    expected = [digest(b) for b in itertools.islice(fresh().train_dataloader(), NUM_STEPS)]
    _, whole = fit(fresh(), tmp_path, max_steps=NUM_STEPS)
    assert whole.seen == expected
    assert len(whole.validated) >= 6
    assert set(whole.validated) == {digest(b) for b in itertools.islice(fresh().val_dataloader(), 3)}
    for stop in (3, 7):
        run, first = fit(fresh(), tmp_path, max_steps=stop)
        run.save_checkpoint(tmp_path / "saved.ckpt")
        _, second = fit(fresh(), tmp_path, ckpt=tmp_path / "saved.ckpt", max_steps=NUM_STEPS)
        assert first.seen + second.seen == expected, f"stopped after {stop}"


def test_the_state_within_training_is_behind_the_pack_that_was_consumed(tmp_path: Path) -> None:
    class Saver(lightning.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.states: list[Any] = []

        def on_train_start(self, trainer: Any, model: Any) -> None:
            self.states.append(trainer.datamodule.state_dict())

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            self.states.append(trainer.datamodule.state_dict())

    saver = Saver()
    fit(mock(), tmp_path, max_steps=6, callbacks=[saver])
    plain = mock()
    expected = [plain.state_dict()]
    expected += [plain.state_dict() for _ in itertools.islice(plain.train_dataloader(), 6)]
    assert saver.states == expected


def test_epochs_end_and_go_on(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    def fresh() -> Any:
        return lazy(folder / "first.json", tokenizer, folder / "images", repeat=False)

    loader = fresh().train_dataloader()
    expected = [digest(b) for _ in range(3) for b in loader]
    options: dict[str, Any] = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0}
    run, first = fit(fresh(), tmp_path, max_epochs=2, **options)
    run.save_checkpoint(tmp_path / "epochs.ckpt")
    _, second = fit(fresh(), tmp_path, ckpt=tmp_path / "epochs.ckpt", max_epochs=3, **options)
    assert first.seen == expected[: len(first.seen)]
    assert first.seen + second.seen == expected


def test_without_validation_data_training_goes_on_with_a_warning(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    module = lazy(folder / "first.json", tokenizer, folder / "images")
    with pytest.warns(UserWarning, match="no validation data"):
        trainer(tmp_path, max_steps=2).fit(Recorder(), datamodule=module)


def test_validate_and_test_loops(tmp_path: Path) -> None:
    for verb in ("validate", "test"):
        model = Recorder()
        getattr(trainer(tmp_path, limit_test_batches=2, limit_val_batches=2), verb)(model, datamodule=mock())
        loader = getattr(mock(), {"validate": "val_dataloader", "test": "test_dataloader"}[verb])()
        assert model.validated == [digest(b) for b in itertools.islice(loader, 2)]


RANKS = """
import sys
from pathlib import Path
import lightning
from tests.datamodules.helpers import mock
from tests.datamodules.test_lightning import Recorder, trainer

class Writer(lightning.Callback):
    def on_train_end(self, trainer, model):
        Path(sys.argv[1], f"{sys.argv[2]}-{trainer.global_rank}").write_text(" ".join(model.seen))

if __name__ == "__main__":
    folder, name, ckpt = Path(sys.argv[1]), sys.argv[2], sys.argv[5:]
    devices, steps = int(sys.argv[3]), int(sys.argv[4])
    options = {"devices": devices, "strategy": "ddp" if devices > 1 else "auto", "limit_val_batches": 0}
    run = trainer(folder, max_steps=steps, callbacks=[Writer()], **options)
    run.fit(Recorder(), datamodule=mock(global_batch_size=12), ckpt_path=ckpt[0] if ckpt else None)
    run.save_checkpoint(folder / f"{name}.ckpt")
"""


@pytest.mark.slow
def test_two_ranks_save_one_state_from_which_one_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    repo = Path(__file__).parents[2]

    def run(name: str, devices: int, steps: int, *ckpt: str) -> list[list[str]]:
        path = os.pathsep.join([str(repo), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), name, str(devices), str(steps), *ckpt],
            cwd=repo, capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return [(tmp_path / f"{name}-{rank}").read_text().split() for rank in range(devices)]

    expected = [digest(b) for b in itertools.islice(mock(global_batch_size=12).train_dataloader(), 16)]
    two = run("two", 2, 4)
    assert [d for turn in zip(*two, strict=True) for d in turn] == expected[:8]
    (one,) = run("one", 1, 8, str(tmp_path / "two.ckpt"))
    assert one == expected[8:12]
    again = run("again", 2, 8, str(tmp_path / "two.ckpt"))
    assert [d for turn in zip(*again, strict=True) for d in turn] == expected[8:16]


def test_lightning_is_found_and_is_not_imported_by_mmpack_alone() -> None:
    assert lightning_class() is lightning.LightningDataModule
    assert not isinstance(mock(), Plain)
    code = "import sys, mmpack; assert not [m for m in sys.modules if 'lightning' in m]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
