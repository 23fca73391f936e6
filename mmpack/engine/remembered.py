"""Results that outlive the process that asked for them."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.engine.task import stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """A task's function whose results are kept in files, so that a task that was done is not done again.

    The file is written by whoever ran the task, as soon as it is done: nothing is lost with the process that started
    the tasks, nor with a machine that dies before its result was fetched.

    Args:
        function: of a job and a task; all three and the result can be pickled.
        folder: for the files, on a file system that all workers share. It belongs to one job: another job, or the same
            over changed data, needs another folder.
        name_of: a file name for a task; tasks of one name have one result.
        still_good: whether what a result of the job says is there still is; one that is not is made again.
    """

    function: Callable[[Any, Any], Any]
    folder: Path
    name_of: Callable[[Any], str]
    still_good: Callable[[Any, Any], bool]

    def __call__(self, job: Any, task: Any) -> Any:
        path = self.folder / self.name_of(task)
        found = _read(path)
        if found is not None and self.still_good(job, found[0]):
            return found[0]
        result = self.function(job, task)
        if stopped():
            return result  # it may be a part only
        partial = self.folder / f".{uuid.uuid4().hex}"  # two workers may run the task: each renames a whole file
        with partial.open("wb") as file:
            pickle.dump((result,), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return result


def _read(path: Path) -> tuple[Any] | None:
    try:
        found = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError, ValueError, TypeError):
        return None  # not there, or cut by whatever ended the machine
    return found if isinstance(found, tuple) and len(found) == 1 else None
