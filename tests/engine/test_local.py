"""The contract of an engine, kept by the local one with and without processes: order, early end, errors, deaths."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmpack.cli import main
from mmpack.convert import ConvertConfig
from mmpack.engine import Remembered, check_engine, open_engine, stopped, tick
from mmpack.engine.local import LocalEngine
from mmpack.errors import ConfigError, Reason, SampleError, WorkerError
from mmpack.offline import PackConfig

REPO = Path(__file__).parents[2]


def engine(workers: int) -> LocalEngine:
    return LocalEngine(workers, what="testing")


def slow_at_first(job: int, task: int) -> tuple[int, int]:
    time.sleep(0.05 if task % 5 == 0 else 0)
    tick(2)
    return job, task


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_in_order_from_a_bounded_look_ahead(workers: int) -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(40):
            drawn.append(task)
            yield task

    seen: list[int] = []
    results = engine(workers).map(7, slow_at_first, tasks(), ticked=seen.append)
    for expected in range(40):
        assert next(results) == (7, expected)
        assert len(drawn) <= expected + 2 + 2 * max(1, workers)
    assert next(results, None) is None
    assert seen == sorted(seen)
    assert seen[-1] == 80


def note(folder: Path, task: int) -> int:
    (folder / str(task)).touch()
    while task > 0 and not stopped():  # only the end of the whole lets it end
        time.sleep(0.01)
    return task


def test_closed_early_it_starts_no_more_and_tells_those_that_run(tmp_path: Path) -> None:
    results = engine(2).map(tmp_path, note, range(100))
    assert next(results) == 0
    results.close()
    started = {int(path.name) for path in tmp_path.iterdir()}
    time.sleep(0.1)
    assert started == {int(path.name) for path in tmp_path.iterdir()}
    assert started <= set(range(7))


def fail_at_five(job: None, task: int) -> int:
    if task == 5:
        raise SampleError(Reason.MISSING_FIELD, "five", key="k")
    return task


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_comes_when_its_turn_comes(workers: int) -> None:
    results = engine(workers).map(None, fail_at_five, range(9))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(SampleError, match=r"^sample 'k': missing_field: five$"):
        next(results)


def time_out(job: None, task: int) -> int:
    raise TimeoutError("the task's own")


def test_a_tasks_own_timeout_is_no_waiting() -> None:
    with pytest.raises(TimeoutError, match="the task's own"):
        list(engine(2).map(None, time_out, range(3), ticked=lambda count: None))


def die_at_four(job: None, task: int) -> int:
    if task == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(WorkerError, match="a testing process died"):
        list(engine(2).map(None, die_at_four, range(9)))


def double(folder: Path, task: int) -> int:
    with (folder / "calls").open("a") as file:
        file.write(f"{task}\n")
    return 2 * task


def name_of(task: int) -> str:
    return f"task-{task}"


def is_not_six(folder: Path, result: int) -> bool:
    return result != 6


@pytest.mark.parametrize("workers", [1, 2])
def test_a_remembered_task_runs_once_unless_its_result_is_no_good(tmp_path: Path, workers: int) -> None:
    done = tmp_path / "done"
    done.mkdir()
    function = Remembered(function=double, folder=done, name_of=name_of, still_good=is_not_six)
    assert list(engine(workers).map(tmp_path, function, range(6))) == [0, 2, 4, 6, 8, 10]
    (done / "task-1").write_bytes((done / "task-1").read_bytes()[:-3])  # cut, as by a power failure
    (done / "task-5").unlink()
    assert list(engine(workers).map(tmp_path, function, range(7))) == [0, 2, 4, 6, 8, 10, 12]
    again = (tmp_path / "calls").read_text().split()[6:]
    assert sorted(again) == ["1", "3", "5", "6"]
    assert {path.name for path in done.iterdir()} == {f"task-{task}" for task in range(7)}


def part_until_stopped(folder: Path, task: int) -> int:
    while task and not stopped():
        time.sleep(0.01)
    return task


def test_a_task_that_was_broken_off_is_not_remembered(tmp_path: Path) -> None:
    function = Remembered(function=part_until_stopped, folder=tmp_path, name_of=name_of, still_good=is_not_six)
    results = engine(2).map(tmp_path, function, range(5))
    assert next(results) == 0
    results.close()
    assert [path.name for path in tmp_path.iterdir()] == ["task-0"]


def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="engine='rai'; did you mean 'ray'"):
        check_engine("rai", None)
    with pytest.raises(ConfigError, match="address='auto' is that of a cluster; add engine=ray"):
        check_engine("local", "auto")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    hint = r"engine='ray' needs Ray, which is not installed; pip install 'mmpack\[ray\]'"
    with pytest.raises(ConfigError, match=hint):
        open_engine("ray", 2, what="testing")
    with pytest.raises(ConfigError, match=hint):
        ConvertConfig(src=Path("a.json"), dst=Path("out"), engine="ray")
    with pytest.raises(ConfigError, match=hint):
        PackConfig(input_path=Path("a.jsonl"), output_path=Path("out"), packed_sequence_size=64, engine="ray")


@pytest.mark.parametrize("command", ["convert a.json out", "check .", "pack a.jsonl out --packed-sequence-size 64"])
def test_every_command_takes_an_engine(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), *(["--tokenizer", "."] if command.startswith("pack") else []), "--engine", "rey"]
    monkeypatch.setattr("sys.argv", ["mmpack", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "engine='rey'; did you mean 'ray'?" in capsys.readouterr().err


def test_the_engine_of_a_file(tmp_path: Path) -> None:
    from mmpack.config import read_config

    file = REPO / "configs" / "demo.yaml"
    with pytest.raises(ConfigError, match="engine='rey'; did you mean 'ray'"):
        read_config(str(file), ["convert.engine=rey"])
    assert read_config(str(file), []).convert.engine == "local"
