"""Worker processes: they end with the trainer, their death is told, and their errors arrive as what they are."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmpack.errors import ConfigError, WorkerError
from tests.conftest import data_module, digest

REPO = Path(__file__).parents[2]


def test_a_killed_worker_is_a_clear_error_and_loses_nothing(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, num_workers=2)
    expected = [digest(b) for b in itertools.islice(data_module(energon_dataset, tokenizer).train_dataloader(), 20)]
    iterator = iter(module.train_dataloader())
    got = [digest(next(iterator)) for _ in range(3)]
    children = psutil.Process().children()
    victim = next(child for child in children if child.name())
    os.kill(victim.pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerError, match="died: killed by SIGKILL"):
        got.extend(digest(batch) for batch in iterator)
    assert time.monotonic() - started < 20
    got += [digest(b) for b in itertools.islice(module.train_dataloader(), 20 - len(got))]
    assert got == expected


def test_workers_end_with_the_iterator(energon_dataset: Path, tokenizer: Any) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    iterator = iter(data_module(energon_dataset, tokenizer, num_workers=2).train_dataloader())
    next(iterator)
    assert len({p.pid for p in psutil.Process().children(recursive=True)} - before) == 2
    iterator.close()
    assert {p.pid for p in psutil.Process().children(recursive=True)} - before == set()


def test_workers_end_when_the_trainer_is_killed(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from transformers import AutoTokenizer\n"
        "from tests.conftest import data_module\n"
        f"tok = AutoTokenizer.from_pretrained({str(tmp_path / 'tokenizer')!r})\n"
        f"it = iter(data_module(Path({str(energon_dataset)!r}), tok, num_workers=2).train_dataloader())\n"
        "next(it)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline().strip() == "ready"
    workers = psutil.Process(trainer.pid).children(recursive=True)
    assert len(workers) == 2
    trainer.kill()
    trainer.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []


def test_a_configuration_error_in_a_worker_arrives_as_one(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, num_workers=1, seq_length=60, oversize="raise")
    with pytest.raises(ConfigError, match=r"seq_length=60: sample '\d+' of 'energon' needs"):
        list(itertools.islice(module.train_dataloader(), 200))
