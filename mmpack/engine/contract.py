"""What an engine does, and which there are."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mmpack.engine.local import LocalEngine
from mmpack.engine.task import Ticked
from mmpack.errors import ConfigError, nearest

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "ray")


class Engine(Protocol):
    """Runs many small tasks that share one job."""

    @property
    def parallel(self) -> int:
        """Tasks that run at the same time."""
        ...

    def map(
        self,
        job: Job,
        function: Callable[[Job, Task], Result],
        tasks: Iterable[Task],
        *,
        ticked: Ticked | None = None,
        sees: Sequence[Path] = (),
    ) -> Generator[Result, None, None]:
        """``function(job, task)`` of each task, in order; `tasks` are drawn as room becomes free, a few ahead.

        Closed early, it starts no more of them, tells those that run (`mmpack.engine.stopped`), and waits for them.
        A task may run twice where a machine is lost, so it must leave the same behind whether it ran once or twice.

        Args:
            job: reaches every worker once.
            function: of a module, so that a worker finds it by name.
            ticked: is told now and then how often all tasks have called `mmpack.engine.tick`, where that can be known.
            sees: files and folders that must be there wherever a task runs.

        Raises:
            WorkerError: a worker died, and running its task again does not help; or it does not see a path of `sees`.
            Exception: what a task raised, when its turn comes.
        """
        ...

    def close(self) -> None:
        """Lets go of the workers. May be called more than once."""
        ...


def check_engine(engine: str, address: str | None) -> None:
    """Raises ConfigError for an engine that is not there, is not installed, or takes no address."""
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine!r}; {nearest(engine, ENGINES)}")
    if engine == "local" and address is not None:
        raise ConfigError(f"address={address!r} is that of a cluster; add engine=ray (--engine ray), or leave it out")
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError("engine='ray' needs Ray, which is not installed; pip install 'mmpack[ray]'")


def open_engine(engine: str, workers: int, *, address: str | None = None, what: str) -> Engine:
    """The engine of that name.

    Args:
        workers: processes here; of Ray, the CPUs of a cluster that is started here. A cluster that is there already
            is used with all its CPUs.
        address: of a Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``; None for ``RAY_ADDRESS`` or, without
            that, a cluster of this machine that ends with the engine.
        what: its processes do, for messages, such as "converting".

    Raises:
        ConfigError: see `check_engine`; or the cluster cannot be reached.
    """
    check_engine(engine, address)
    if engine == "local":
        return LocalEngine(workers, what=what)
    from mmpack.engine.ray import RayEngine

    return RayEngine(address, workers=workers, what=what)
