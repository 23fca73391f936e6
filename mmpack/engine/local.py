"""Tasks in this process, or in processes forked from it, which share the job's memory with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from mmpack.engine import task as running
from mmpack.engine.task import Ticked
from mmpack.errors import WorkerError
from mmpack.processes import SharedHeap, end_with_parent, quiet_fork

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

_TICK_SECONDS = 0.2


class LocalEngine:
    """Up to `workers` processes of this machine; 0 and 1 run everything in this one. See `Engine`."""

    def __init__(self, workers: int, *, what: str) -> None:
        self.parallel = max(1, workers)
        self._what = what

    def close(self) -> None:
        pass

    def map(
        self,
        job: Job,
        function: Callable[[Job, Task], Result],
        tasks: Iterable[Task],
        *,
        ticked: Ticked | None = None,
        sees: Sequence[Path] = (),
    ) -> Generator[Result, None, None]:
        if self.parallel == 1:
            return _map_here(job, function, tasks, ticked)
        return self._map_in_pool(job, function, tasks, ticked)

    def _map_in_pool(
        self, job: Job, function: Callable[[Job, Task], Result], tasks: Iterable[Task], ticked: Ticked | None
    ) -> Generator[Result, None, None]:
        waiting: deque[Future[Result]] = deque()
        context = multiprocessing.get_context("fork")
        stop, counter = context.Event(), context.Value("q", 0)
        start = (os.getpid(), stop, counter, job, function)
        heap = SharedHeap()
        try:
            # The pool forks at the first call, not when it is built: all of its use is within quiet_fork.
            with quiet_fork(), ProcessPoolExecutor(self.parallel, context, _start_worker, start) as pool:
                try:
                    for task in tasks:
                        waiting.append(pool.submit(_run_task, task))
                        if len(waiting) > 2 * self.parallel:
                            yield _result(waiting.popleft(), counter, ticked)
                    while waiting:
                        yield _result(waiting.popleft(), counter, ticked)
                except BrokenProcessPool:
                    why = "perhaps for want of memory; try fewer workers"
                    raise WorkerError(f"a {self._what} process died, {why}") from None
                finally:
                    stop.set()
                    for future in waiting:
                        future.cancel()
        finally:
            heap.release()


def _map_here(
    job: Job, function: Callable[[Job, Task], Result], tasks: Iterable[Task], ticked: Ticked | None
) -> Generator[Result, None, None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if ticked is not None:
            ticked(done)

    for task in tasks:
        with running.ticking(count):
            result = function(job, task)
        yield result


def _result(future: Future[Result], counter: Any, ticked: Ticked | None) -> Result:
    while ticked is not None:
        with contextlib.suppress(TimeoutError):
            future.exception(_TICK_SECONDS)  # waits; a TimeoutError that the task raised is not raised here
            ticked(counter.value)
            break
        ticked(counter.value)
    return future.result()


_job: Any = None  # in a worker process: what it was forked with
_function: Callable[[Any, Any], Any] | None = None


def _start_worker(parent: int, stop: Any, counter: Any, job: Any, function: Callable[[Any, Any], Any]) -> None:
    global _job, _function
    _job, _function = job, function

    def count(more: int) -> None:
        with counter.get_lock():
            counter.value += more

    running.connect(count, stop.is_set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def _run_task(task: Any) -> Any:
    assert _function is not None
    return _function(_job, task)
