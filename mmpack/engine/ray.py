"""Tasks on a Ray cluster. Ray is imported when an engine is opened, and not before."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mmpack.engine.task import Ticked
from mmpack.errors import ConfigError, MmpackError, WorkerError

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

_MAX_RETRIES = 5  # of a task whose machine or process died; what a task raises is not tried again
_AHEAD = 4  # tasks for each CPU that are drawn before the oldest is done
_CPU_SECONDS = 5.0  # after which the cluster is asked again how large it is
_KNOCK_SECONDS = 10.0  # for the head of a cluster to answer
_GRACE_SECONDS = 30.0  # for tasks to end that were broken off


class RayEngine:
    """The CPUs of a cluster, one a task. See `Engine`; a task whose machine dies is run again on another one.

    Nothing is sent to Ray's makers, and no token file is written, unless ``RAY_USAGE_STATS_ENABLED`` and
    ``RAY_AUTH_MODE`` say so.

    Raises:
        ConfigError: Ray cannot be imported, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None, *, workers: int, what: str) -> None:
        self._what = what
        self._ray = _import_ray()
        self._ours = not self._ray.is_initialized()  # a program that has a cluster open keeps it
        if self._ours:
            _connect(self._ray, address or os.environ.get("RAY_ADDRESS") or "local", workers)
            _keep_stdout_clean()
        self._asked = float("-inf")
        self._num_cpus = 1

    @property
    def parallel(self) -> int:
        if (now := time.monotonic()) > self._asked + _CPU_SECONDS:
            self._asked, self._num_cpus = now, max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        return self._num_cpus

    def close(self) -> None:
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def map(
        self,
        job: Job,
        function: Callable[[Job, Task], Result],
        tasks: Iterable[Task],
        *,
        ticked: Ticked | None = None,
        sees: Sequence[Path] = (),
    ) -> Generator[Result, None, None]:
        ray = self._ray
        shipped = ray.put(_Shipped(job=job, function=function, folder=os.getcwd(), sees=tuple(sees)))
        run = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES, retry_exceptions=False)(_run_task)
        source = enumerate(tasks)
        running: dict[Any, int] = {}  # what Ray gave for a task, and the task's number
        outcomes: dict[int, _Outcome] = {}  # of tasks that ended before their turn
        turn = 0
        try:
            while True:
                while len(running) + len(outcomes) < _AHEAD * self.parallel:
                    if (drawn := next(source, None)) is None:
                        break
                    # In a list: Ray would put the job itself in place of a bare reference, for each task anew.
                    running[run.remote([shipped], drawn[1])] = drawn[0]
                if turn in outcomes:
                    yield outcomes.pop(turn).result()
                    turn += 1
                elif running:
                    for reference in ray.wait(list(running), num_returns=1)[0]:
                        outcomes[running.pop(reference)] = self._outcome(reference)
                else:
                    return
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=_GRACE_SECONDS)

    def _outcome(self, reference: Any) -> _Outcome:
        try:
            outcome: _Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            why = f"its task was run {1 + _MAX_RETRIES} times at most ({type(error).__name__}: {first[:200]})"
            return _Outcome(error=WorkerError(f"a {self._what} process of the cluster died, and {why}"))
        return outcome


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(f"engine='ray' needs Ray ({error}); pip install 'mmpack[ray]'") from None
    return ray


def _connect(ray: Any, address: str, workers: int) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": max(1, workers), "include_dashboard": False}
    try:
        _knock(address)
        ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError, AssertionError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"no Ray cluster can be used at address={address!r}: {first[:300]}"
        raise ConfigError(f"{what}; start one with `ray start --head`, or leave the address out") from None


def _knock(address: str) -> None:
    """Raises OSError if nobody listens at ``host:port``: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _keep_stdout_clean() -> None:
    """Ray tells of lost machines on standard output, where a command's JSON goes; from now on, on standard error."""
    worker = importlib.import_module("ray._private.worker")
    say = getattr(worker, "print_to_stdstream", None)
    if say is None or getattr(say, "is_ours", False):
        return

    def say_on_stderr(data: dict[str, Any], *args: Any, **options: Any) -> None:
        say({**data, "is_err": True}, *args, **options)

    say_on_stderr.is_ours = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = say_on_stderr  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shipped:
    """What every worker gets once."""

    job: Any
    function: Callable[[Any, Any], Any]
    folder: str  # relative paths start there
    sees: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What a task returned or raised. Ray would wrap an error in one of its own."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


_held: tuple[Any, _Shipped] | None = None  # in a worker: the job that it has, and Ray's reference to it


def _run_task(shipped: list[Any], task: Any) -> _Outcome:
    """Runs in a worker process of the cluster."""
    global _held
    import ray

    try:
        if _held is None or _held[0] != shipped[0]:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            _held = (shipped[0], ray.get(shipped[0]))
            _look_around(_held[1])
        return _Outcome(value=_held[1].function(_held[1].job, task))
    except ray.exceptions.RayError:
        raise
    except Exception as error:
        return _Outcome(error=_portable(error))


def _look_around(shipped: _Shipped) -> None:
    """Stands where the caller stands. Raises WorkerError if this machine does not see what the caller sees."""
    if os.path.isdir(shipped.folder):
        os.chdir(shipped.folder)
    for path in shipped.sees:
        if not path.exists():
            raise WorkerError(
                f"{path} is not there on the cluster's machine {socket.gethostname()}; all machines must see the data "
                "and the destination under the same names, as on a shared file system"
            )


def _portable(error: Exception) -> Exception:
    """The error, if it can be sent; where it arose is told of those that mmpack does not raise on purpose."""
    if not isinstance(error, MmpackError):
        error.add_note("On the cluster:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"a task failed: {type(error).__name__}: {error}")
    return error
