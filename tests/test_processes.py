"""The heap that forked workers share: what stands at the fork is not walked through by the collector until release."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import WorkerError
from mmpack.loader import workers
from mmpack.processes import SharedHeap
from tests.conftest import data_module


class Knot:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_what_stands_at_the_fork_is_left_alone_until_the_last_release() -> None:
    before = weakref.ref(Knot())  # garbage already, but no reference count will free it
    standing = Knot()
    watched = weakref.ref(standing)
    first, second = SharedHeap(), SharedHeap()
    assert before() is None
    assert gc.get_freeze_count() > 10_000
    later = weakref.ref(Knot())
    gc.collect()
    assert later() is None  # new garbage goes as ever
    del standing
    first.release()
    first.release()
    gc.collect()
    assert watched() is not None
    second.release()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert watched() is None


def test_what_others_have_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        SharedHeap().release()
        assert gc.get_freeze_count() > 0.9 * count > 0  # reference counts may free some
    finally:
        gc.unfreeze()


def test_a_loader_lets_go_however_its_iteration_ends(
    energon_dataset: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = data_module(energon_dataset, tokenizer, num_workers=2)
    iterator = iter(module.train_dataloader())
    next(iterator)
    assert gc.get_freeze_count() > 0
    validation = data_module(energon_dataset, tokenizer, num_workers=1).val_dataloader()
    assert len(list(itertools.islice(validation, 2))) == 2
    assert gc.get_freeze_count() > 0  # the workers of training are still there
    iterator.close()
    assert gc.get_freeze_count() == 0

    started = workers._Worker.__init__

    def second_fails(self: Any, number: int, *rest: Any) -> None:
        if number == 1:
            raise WorkerError("no more processes")
        started(self, number, *rest)

    monkeypatch.setattr(workers._Worker, "__init__", second_fails)
    with pytest.raises(WorkerError, match="no more processes"):
        next(iter(module.train_dataloader()))
    assert gc.get_freeze_count() == 0
