"""The same from a real Ray cluster of two nodes as from this machine, also when a node or the driver is killed midway.

Ray is large, so the suite's environment does without it: `make test` runs this file with the one of ``.venv/ray``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'mmpack[ray]'")

from mmpack.check import CheckConfig, check
from mmpack.convert import ConvertConfig, convert
from mmpack.engine import open_engine
from mmpack.errors import ConfigError, Reason, SampleError, WorkerError
from mmpack.offline import PackConfig, pack_dataset
from tests.conftest import data_module, write_llava

REPO = Path(__file__).parents[2]
SHARD = ["--max-samples-per-shard", "5", "--split", "train=0.8,val=0.2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head has one CPU."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def worker(cluster: Any) -> Any:
    """The second node, with one CPU; a test that kills it has one of its own."""
    return add_node(cluster)


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=100_000_000)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = write_llava(tmp_path_factory.mktemp("source"), 1200)
    damage(file)
    return file


def damage(file: Path) -> None:
    """Every hundredth record loses its answer or its picture."""
    records = json.loads(file.read_text())
    for number, record in enumerate(records):
        if number % 100 == 7:
            record["conversations"] = record["conversations"][:1]
        elif number % 100 == 8 and "image" in record:
            record["image"] = "missing.png"
            record["conversations"] = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "That."}]
    file.write_text(json.dumps(records))


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the local engine makes of `source`."""
    return converted(source, tmp_path_factory.mktemp("plain") / "out")


def converted(source: Path, dst: Path, **options: Any) -> Path:
    config = {"image_root": source.parent / "images", "split": {"train": 0.8, "val": 0.2}, "max_samples_per_shard": 5}
    convert(ConvertConfig(src=source, dst=dst, **(config | options)))
    return dst


def content(dataset: Path) -> dict[str, Any]:
    """Every file, but for times and for the random id that energon wants."""
    found: dict[str, Any] = {}
    for path in sorted(dataset.rglob("*")):
        name = str(path.relative_to(dataset))
        if path.name == "index.sqlite":
            index = sqlite3.connect(path)
            found[name] = [line for line in index.iterdump() if 'INTO "media_filters"' not in line]
            index.close()
        elif path.name == "convert-report.json":
            report = json.loads(path.read_text())
            assert report.pop("seconds") > 0
            assert report.pop("path")
            found[name] = report
        elif path.is_file() and path.name != "index.uuid":
            found[name] = path.read_bytes()
    return found


def start(address: str, source: Path, dst: Path) -> subprocess.Popen[bytes]:
    """The command, as its own process."""
    words = ["convert", str(source), str(dst), "--image-root", str(source.parent / "images"), *SHARD, "--json"]
    call = [sys.executable, "-c", "from mmpack.cli import main; main()", *words, "--engine", "ray"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*call, "--address", address], cwd=REPO, **pipes)  # type: ignore[call-overload, no-any-return]


def finish(process: subprocess.Popen[bytes]) -> Any:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    """The first true value of `what`, while the process runs."""
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return found


def done_names(dst: Path) -> set[str]:
    """Tasks that a run has remembered as finished."""
    return {p.name for p in dst.parent.glob(f".{dst.name}.unfinished-*/.done/*") if not p.name.startswith(".")}


def is_busy(node: Any) -> bool:
    """Whether a task runs on the node."""
    (raylet,) = node.all_processes["raylet"]
    for child in psutil.Process(raylet.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "_run_task" in " ".join(child.cmdline()):
                return True
    return False


def square(job: int, task: int) -> tuple[int, int]:
    if task == job:
        raise SampleError(Reason.MISSING_FIELD, "no field", key="k")
    return task * task, os.getpid()


def test_results_in_order_errors_as_they_are_and_an_early_end(cluster: Any, worker: Any) -> None:
    engine = open_engine("ray", 1, address=cluster.address, what="testing")
    try:
        assert engine.parallel == 2
        results = list(engine.map(-1, square, range(50)))
        assert [value for value, _ in results] == [task * task for task in range(50)]
        failing = engine.map(3, square, iter(range(50)))
        assert [next(failing)[0] for _ in range(3)] == [0, 1, 4]
        with pytest.raises(SampleError, match=r"^sample 'k': missing_field: no field$"):
            next(failing)
        early = engine.map(-1, square, range(10**9))
        assert next(early)[0] == 0
        early.close()
        with pytest.raises(WorkerError, match="nowhere is not there on the cluster's machine"):
            next(engine.map(-1, square, range(9), sees=[Path("/nowhere")]))
        with pytest.raises(TypeError, match="unsupported operand") as caught:
            next(engine.map(-1, square, [None]))  # type: ignore[list-item]
        assert "test_ray.py" in caught.value.__notes__[0]
    finally:
        engine.close()


def die(folder: Path, task: int) -> int:
    """Kills its process once, as a machine that runs out of memory would."""
    mark = folder / str(task)
    if task % 4 == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_process_that_dies_costs_time(cluster: Any, worker: Any, tmp_path: Path) -> None:
    engine = open_engine("ray", 1, address=cluster.address, what="testing")
    try:
        assert list(engine.map(tmp_path, die, range(8))) == list(range(8))
        assert {path.name for path in tmp_path.iterdir()} == {"3", "7"}
    finally:
        engine.close()


def test_the_same_dataset(
    cluster: Any, worker: Any, source: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths are the caller's on all nodes
    converted(source, Path("out"), engine="ray", address=cluster.address)
    assert content(tmp_path / "out") == content(plain)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_same_check(cluster: Any, worker: Any, plain: Path, tokenizer: Any, tmp_path: Path) -> None:
    module = data_module(plain, tokenizer)
    options: dict[str, Any] = {
        "path": plain,
        "encoder": module.task_encoder.build_encoder(512),
        "layout": module.task_encoder.layout,
        "packed_sequence_size": 512,
        "packing_buffer_size": 40,
        "deep": True,
    }
    seen: list[tuple[int, int]] = []
    reports = [
        check(CheckConfig(**options)).to_json(),
        check(CheckConfig(**options, engine="ray", address=cluster.address), lambda *now: seen.append(now)).to_json(),
    ]
    for report in reports:
        assert report.pop("seconds") > 0
    assert reports[0] == reports[1]
    assert seen == sorted(seen)
    assert seen[-1] == (reports[0]["samples"],) * 2


def texts(folder: Path) -> PackConfig:
    lines = [json.dumps({"input": f"question {i}?", "output": f"answer {i * i} " * (i % 9)}) for i in range(4000)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    return PackConfig(input_path=folder / "text.jsonl", output_path=folder / "local", packed_sequence_size=256)


def store(folder: Path) -> dict[str, Any]:
    """The files of a packed store, but for times and the place."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    for name in [name for name in found if name.endswith(".json")]:
        found[name] = json.loads(found[name])
        assert found[name].pop("seconds") > 0
        assert found[name]["settings"].pop("output_path").endswith(folder.name)
    return found


def test_the_same_packs_also_from_a_run_that_was_broken_off(
    cluster: Any, worker: Any, tokenizer: Any, tmp_path: Path
) -> None:
    local = texts(tmp_path)
    pack_dataset(local, tokenizer)
    config = replace(local, engine="ray", address=cluster.address, output_path=tmp_path / "ray")
    pack_dataset(config, tokenizer)
    assert store(tmp_path / "ray") == store(tmp_path / "local")

    config = replace(config, output_path=tmp_path / "again")
    facts: list[dict[str, int]] = []

    def look(done: int, total: int) -> None:
        (unfinished,) = tmp_path.glob(".again.unfinished-*")
        blocks = [path for path in (unfinished / "blocks").iterdir() if not path.name.startswith(".")]
        facts.append({path.name: path.stat().st_ino for path in blocks})

    def stop(done: int, total: int) -> None:
        if done > 1000:
            look(done, total)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_dataset(config, tokenizer, stop)
    pack_dataset(config, tokenizer, look)
    assert facts[0].items() <= facts[-1].items()
    assert 4 <= len(facts[0]) <= len(facts[-1]) == 16
    assert store(tmp_path / "again") == store(tmp_path / "local")
    assert {path.name for path in tmp_path.iterdir()} == {"text.jsonl", "local", "ray", "again"}


def test_a_node_killed_midway_costs_time(cluster: Any, source: Path, plain: Path, tmp_path: Path) -> None:
    node = add_node(cluster)
    process = start(cluster.address, source, tmp_path / "out")
    wait_for(lambda: len(done_names(tmp_path / "out")) > 10, process)
    wait_for(lambda: is_busy(node), process)
    cluster.remove_node(node, allow_graceful=False)
    before = len(done_names(tmp_path / "out"))
    report = finish(process)
    assert before < report["shards"]
    assert content(tmp_path / "out") == content(plain)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_takes_over_what_a_killed_one_has_finished(
    cluster: Any, worker: Any, source: Path, plain: Path, tmp_path: Path
) -> None:
    dst = tmp_path / "out"
    process = start(cluster.address, source, dst)
    names = wait_for(lambda: done_names(dst) if len(done_names(dst)) > 20 else None, process)
    process.kill()
    process.communicate()
    (unfinished,) = tmp_path.iterdir()
    assert not dst.exists()
    shards = sorted({name.rpartition("-")[0] for name in names} & {path.name for path in unfinished.glob("*.tar")})
    assert len(shards) > 15
    for name in shards[:2]:  # what is not as it was written is written again
        (unfinished / name).write_bytes((unfinished / name).read_bytes()[:-1])
    (unfinished / "train-999999.tar").touch()
    facts = {name: (unfinished / name).stat() for name in shards}
    finish(start(cluster.address, source, dst))
    assert content(dst) == content(plain)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    same = [name for name in shards if (dst / name).stat().st_ino == facts[name].st_ino]
    assert same == shards[2:]


def test_two_at_once_are_refused(cluster: Any, worker: Any, source: Path, tmp_path: Path) -> None:
    process = start(cluster.address, source, tmp_path / "out")
    wait_for(lambda: done_names(tmp_path / "out"), process)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConfigError, match=r"another process is writing .* with the same settings"):
            converted(source, tmp_path / "out", engine="ray", address=cluster.address)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    finish(process)


def test_a_cluster_that_is_not_there(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Ray cluster can be used at address='127.0.0.1:1'"):
        converted(source, tmp_path / "out", engine="ray", address="127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ten_thousand_samples_and_a_node_killed(cluster: Any, tmp_path: Path) -> None:
    source = write_llava(tmp_path / "in", 10_000)
    damage(source)
    local = converted(source, tmp_path / "local", workers=2)
    node = add_node(cluster)
    process = start(cluster.address, source, tmp_path / "out")
    wait_for(lambda: len(done_names(tmp_path / "out")) > 600, process)
    wait_for(lambda: is_busy(node), process)
    cluster.remove_node(node, allow_graceful=False)
    report = finish(process)
    assert report["kept"] > 9_700
    assert report["shards"] == 1980  # of five; a hundred records are known to be bad before
    assert content(tmp_path / "out") == content(local)
