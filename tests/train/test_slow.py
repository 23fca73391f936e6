"""A run that waits for its data says so, and what the data waits for."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mmpack.loader.work import Work
from mmpack.train import slow, train
from mmpack.train.slow import SlowDataWatch
from tests.conftest import data_module
from tests.train.test_train import config, tiny_model


@dataclass
class Loader:
    num_workers: int = 1
    work: Work = field(default_factory=Work)


def said(loader: Any, *, wait_s: float, steps: int = 51, cpu_s: float = 0.0, wall_s: float = 0.0) -> list[str]:
    watch, messages = SlowDataWatch(loader), []
    for _ in range(steps):
        if wall_s:
            loader.work.add(cpu_s, wall_s)
        messages.append(watch.step(wait_s, 1.0))
    return [message for message in messages if message is not None]


def test_short_waits_are_not_worth_a_word() -> None:
    assert said(Loader(), wait_s=0.15, cpu_s=1, wall_s=1) == []
    assert said(Loader(), wait_s=0.9, cpu_s=1, wall_s=1, steps=50) == []  # the first step is not counted


def test_the_bound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (message,) = said(Loader(num_workers=2), wait_s=0.4, cpu_s=0.9, wall_s=1.0)
    assert message.startswith("40 % of the last 50 steps went by waiting for data. A pack takes a worker 1 s, 90 % of")
    assert "CPU bounds" in message
    assert "num_workers=2, 8 cores" in message
    assert "reading bounds" in said(Loader(num_workers=2), wait_s=0.4, cpu_s=0.1, wall_s=1.0)[0]
    assert "9 workers and the trainer share 8 cores" in said(Loader(num_workers=9), wait_s=0.4, cpu_s=0.1, wall_s=1)[0]
    assert "set num_workers" in said(Loader(num_workers=0), wait_s=0.4, cpu_s=0.1, wall_s=1.0)[0]
    assert "in the training process" in said(object(), wait_s=0.4)[0]
    assert "No pack came" in said(Loader(), wait_s=0.4)[0]


def test_it_is_said_now_and_then() -> None:
    assert len(said(Loader(), wait_s=0.5, cpu_s=1, wall_s=1, steps=1 + 50 * 21)) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_logs_what_bounds_its_data(
    energon_dataset: Path,
    tokenizer: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
) -> None:
    from mmpack.collate import pictures

    def slowly(data: bytes, **options: Any) -> Any:
        time.sleep(0.02)
        return decode_image(data, **options)

    decode_image = pictures.decode_image
    monkeypatch.setattr(pictures, "decode_image", slowly)
    monkeypatch.setattr(slow, "_STEPS", 5)
    monkeypatch.setattr(slow, "_SHARE", -1.0)  # how long steps take here is not for this test to say
    data = data_module(energon_dataset, tokenizer, num_workers=num_workers)
    with caplog.at_level(logging.WARNING, "mmpack.train.run"):
        train(config(tmp_path, 6, val_check_interval=0), data, tiny_model(tokenizer))
    (message,) = [record.getMessage() for record in caplog.records if record.name == "mmpack.train.run"]
    assert message.startswith("step 6: ")
    assert ("A pack takes a worker" if num_workers else "set num_workers") in message
    work = data.train_dataloader().work
    assert work.num_packs >= 6
    assert 0 < work.cpu_s < work.wall_s


def test_packs_in_slots_and_packs_beside_them_are_counted(energon_dataset: Path, tokenizer: Any) -> None:
    loader = data_module(energon_dataset, tokenizer, num_workers=2).train_dataloader()
    before = loader.work.copy()
    taken = sum(1 for _, _ in zip(loader, range(5), strict=False))
    done = loader.work.since(before)
    assert taken <= done.num_packs <= taken + 1
    assert 0 < done.cpu_s <= 1.5 * done.wall_s
