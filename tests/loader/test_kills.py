"""Killed at random moments: nothing hangs, nothing is left behind, and the resumed stream is the uninterrupted one."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmpack import state as states
from mmpack.errors import WorkerError
from tests.conftest import data_module, digest

SAVE_EVERY = 3  # packs
MOST_PACKS = 30  # of one life
WORKER_DIED = 7  # exit code of a trainer that was told so
OPTIONS: dict[str, Any] = {"num_workers": 2, "num_streams": 4, "prefetch": 2}


def train(dataset: Path, tokenizer: Any, state_file: Path, log: Path) -> None:
    """A trainer: goes on from the state if there is one, notes each pack, and saves now and then."""
    module = data_module(dataset, tokenizer, **OPTIONS)
    count = 0
    if state_file.exists():
        saved = states.load_state(state_file)
        module.load_state_dict(saved["loader"])
        count = saved["count"]
    with log.open("ab", buffering=0) as file:
        file.write(b"starts %d\n" % count)
        try:
            for batch in itertools.islice(module.train_dataloader(), MOST_PACKS):
                file.write(f"{digest(batch)}\n".encode())
                count += 1
                if count % SAVE_EVERY == 0:
                    states.save_state(state_file, {"loader": module.state_dict(), "count": count})
        except WorkerError as error:
            file.write(f"told {' '.join(str(error).split())}\n".encode())
            os._exit(WORKER_DIED)
        file.write(b"waits\n")
        time.sleep(600)


class Life:
    """One trainer, from its start to a kill."""

    def __init__(self, dataset: Path, tokenizer: Any, folder: Path) -> None:
        self.log = folder / "log"
        self.log.unlink(missing_ok=True)
        self.process = multiprocessing.get_context("fork").Process(
            target=train, args=(dataset, tokenizer, folder / "state.pt", self.log)
        )
        self.process.start()
        assert self.process.pid is not None
        self.handle = psutil.Process(self.process.pid)
        self.workers: list[psutil.Process] = []

    def look(self) -> list[psutil.Process]:
        """The workers that it has now."""
        self.workers = self.handle.children(recursive=True) or self.workers
        return self.workers

    def kill_trainer(self) -> None:
        self.look()
        self.process.kill()
        self.process.join(10)
        assert not self.process.is_alive()

    def kill_worker(self, rng: random.Random) -> None:
        """Kills one of its workers; the trainer must say so soon, unless it had taken all its packs."""
        workers = self.look()
        if not workers:
            self.kill_trainer()
            return
        rng.choice(workers).kill()
        deadline = time.monotonic() + 20
        while self.process.is_alive() and "waits" not in self.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.process.is_alive():
            assert "waits" in self.log.read_text(), "the trainer hangs: its worker was killed 20 s ago"
            self.kill_trainer()
            return
        self.process.join()
        assert self.process.exitcode == WORKER_DIED, self.log.read_text()
        assert "died: killed by SIGKILL" in self.log.read_text()

    def taken(self) -> tuple[int | None, list[str]]:
        """Where it started, None if it did not come to that, and the packs it took after that."""
        lines = self.log.read_text().split("\n") if self.log.exists() else [""]
        start = int(lines[0].removeprefix("starts ")) if len(lines) > 1 else None
        return start, [line for line in lines[1:] if len(line) == 16]


class Uninterrupted:
    """The digests of the run that nobody kills, made as far as they are asked for."""

    def __init__(self, dataset: Path, tokenizer: Any) -> None:
        module = data_module(dataset, tokenizer, **{**OPTIONS, "num_workers": 0})
        self._batches: Iterator[Any] = iter(module.train_dataloader())
        self._digests: list[str] = []

    def packs(self, start: int, stop: int) -> list[str]:
        while len(self._digests) < stop:
            self._digests.append(digest(next(self._batches)))
        return self._digests[start:stop]


def shared_memory() -> set[str]:
    """What lies in shared memory and belongs to somebody's names."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def survive(num_kills: int, dataset: Path, tokenizer: Any, folder: Path, *, seed: int) -> int:
    """Kills `num_kills` times; how many packs came to be saved."""
    rng = random.Random(seed)
    uninterrupted = Uninterrupted(dataset, tokenizer)
    shared_before, state_file = shared_memory(), folder / "state.pt"
    for number in range(num_kills):
        life = Life(dataset, tokenizer, folder)
        time.sleep(rng.uniform(0.02, 0.7))
        deadline = time.monotonic() + 60
        while number == num_kills - 1 and not state_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # a busy machine: no life has come to save anything yet
        if rng.random() < 0.5:
            life.kill_worker(rng)
        else:
            life.kill_trainer()
        _, alive = psutil.wait_procs(life.workers, timeout=10)
        assert not alive, f"kill {number}: orphans {alive}"
        start, packs = life.taken()
        saved = states.load_state(state_file) if state_file.exists() else None  # whole, whenever the kill came
        if start is None:
            continue
        assert packs == uninterrupted.packs(start, start + len(packs)), f"kill {number}"
        if saved is not None:
            assert start + len(packs) - SAVE_EVERY <= saved["count"] <= start + len(packs), f"kill {number}"
    assert shared_memory() <= shared_before
    left = {path.name for path in folder.iterdir() if not path.name.endswith(".partial")}
    assert left <= {"state.pt", "log"}
    return int(states.load_state(state_file)["count"]) if state_file.exists() else 0


def test_five_kills_at_random_moments(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    assert survive(5, energon_dataset, tokenizer, tmp_path, seed=1) > 0


@pytest.mark.slow
def test_two_hundred_kills_at_random_moments(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> None:
    assert survive(200, energon_dataset, tokenizer, tmp_path, seed=2) > 200


def test_a_worker_that_dies_in_the_middle_of_a_message_is_told(energon_dataset: Path, tokenizer: Any) -> None:
    # Packs larger than a slot travel as long messages, of which the pipe holds a part.
    module = data_module(energon_dataset, tokenizer, num_workers=1, packed_sequence_size=512)
    factory = module.train_dataloader().factory
    module.train_dataloader().factory = dataclasses.replace(factory, max_batch_bytes=64)
    iterator = iter(module.train_dataloader())
    next(iterator)
    time.sleep(0.5)
    (worker,) = psutil.Process().children()
    worker.send_signal(signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerError, match="died: killed by SIGKILL"):
        list(itertools.islice(iterator, 200))
    assert time.monotonic() - started < 20


def test_a_stopped_trainer_holds_its_workers_and_loses_nothing(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path
) -> None:
    life = Life(energon_dataset, tokenizer, tmp_path)
    deadline = time.monotonic() + 20
    while not life.look() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(life.handle.pid, signal.SIGSTOP)
    time.sleep(1.0)
    assert all(worker.is_running() for worker in life.look())
    os.kill(life.handle.pid, signal.SIGCONT)
    while "waits" not in (life.log.read_text() if life.log.exists() else "") and time.monotonic() < deadline:
        time.sleep(0.05)
    start, packs = life.taken()
    life.kill_trainer()
    assert (start, len(packs)) == (0, MOST_PACKS)
    assert packs == Uninterrupted(energon_dataset, tokenizer).packs(0, MOST_PACKS)
    _, alive = psutil.wait_procs(life.workers, timeout=10)
    assert not alive
