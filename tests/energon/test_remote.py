"""Datasets in an S3 store: a server in a process of its own, with slow answers, errors, cut connections and kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmpack.check import dataset_splits
from mmpack.convert import ConvertConfig, convert
from mmpack.energon import store as requests
from mmpack.energon.reader import SourceConfig
from mmpack.energon.remote import UNFINISHED, forget, local, local_file, shown
from mmpack.errors import ConfigError, StorageError
from tests.conftest import data_module, digest, write_llava
from tests.energon.s3_server import BUCKET, Fault, Store, running

pytest.importorskip("boto3")
pytest.importorskip("moto")

COMMAND = "from mmpack.cli import main; main()"


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    with running() as store:
        yield store


@pytest.fixture
def lab(server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store through a profile, an empty cache, and little patience."""
    monkeypatch.setenv("MSC_CONFIG", str(server.profile(tmp_path / "msc.json")))
    monkeypatch.setenv("MMPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MMPACK_STORE_WAIT_S", "0.01")
    server.faults.clear()
    server.log.clear()
    server.released.clear()
    requests.counts.clear()
    return server


@pytest.fixture(scope="module")
def on_disk(server: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of all datasets here, converted to the disk; the store has the same under ``mix``."""
    folder = tmp_path_factory.mktemp("remote")
    source = write_llava(folder / "llava", 160, 0)
    options: dict[str, Any] = {"split": {"train": 0.8, "val": 0.2}, "max_samples_per_shard": 16}
    convert(ConvertConfig(src=source, dst=folder / "mix", image_root=source.parent / "images", **options))
    server.put_folder(folder / "mix", "sets/mix")
    return folder / "mix"


MIX = f"msc://lab/{BUCKET}/sets/mix"


def batches(path: Path | str, tokenizer: Any, count: int = 12, state: Any = None, **changes: Any) -> list[str]:
    return [digest(batch) for batch in loaded(path, tokenizer, count, state, **changes)[0]]


def loaded(path: Path | str, tokenizer: Any, count: int, state: Any = None, **changes: Any) -> tuple[list[Any], Any]:
    loader = data_module(path, tokenizer, num_streams=4, **changes).train_dataloader()
    if state is not None:
        loader.load_state_dict(state)
    found = list(islice(loader, count))
    return found, loader


def fetched(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.tar"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_disk_also_after_a_resume(
    lab: Store, on_disk: Path, tokenizer: Any, num_workers: int
) -> None:
    expected = batches(on_disk, tokenizer, 20)
    first, loader = loaded(MIX, tokenizer, 9, num_workers=num_workers)
    assert [digest(batch) for batch in first] == expected[:9]
    state = loader.state_dict()
    assert batches(MIX, tokenizer, 11, state, num_workers=num_workers) == expected[9:]
    assert batches(on_disk, tokenizer, 11, state) == expected[9:]  # the state fits the dataset, wherever it is
    assert all(lab.asked("GET", f"{name}.tar") <= 2 for name in ("train-000000", "train-000001"))  # shard and index


def test_a_shard_comes_when_it_is_read_and_once_only(lab: Store, on_disk: Path, tokenizer: Any) -> None:
    module = data_module(MIX, tokenizer, num_streams=1, shuffle_buffer_size=None, packing_buffer_size=2)
    copy = local(MIX)
    assert fetched(copy) == []
    next(iter(module.train_dataloader()))
    assert 0 < len(fetched(copy)) < len(fetched(on_disk))
    list(islice(data_module(MIX, tokenizer, num_workers=2).train_dataloader(), 60))
    assert fetched(copy) == [name for name in fetched(on_disk) if name.startswith("train")]
    shards = [path for method, path in lab.log if method == "GET" and path.endswith(".tar")]
    assert len(shards) == len(set(shards)) == len(fetched(copy))
    assert {path.name: path.read_bytes() for path in copy.glob("train*.tar")} == {
        path.name: path.read_bytes() for path in on_disk.glob("train*.tar")
    }


@pytest.mark.parametrize(
    ("kind", "part"),
    [("500", r"\.tar$"), ("slow", r"\.tar$"), ("cut", r"\.tar$"), ("500", "list-type=2"), ("cut", "index.sqlite")],
)
def test_trouble_costs_time_and_no_sample(
    lab: Store, on_disk: Path, tokenizer: Any, kind: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    lab.faults.append(Fault(kind, "GET", part, times=2))
    expected, there = loaded(on_disk, tokenizer, 6)
    found, loader = loaded(MIX, tokenizer, 6)
    assert [digest(batch) for batch in found] == [digest(batch) for batch in expected]
    assert loader.drops.to_dict() == there.drops.to_dict()
    assert requests.counts["repeated"] == 2
    said = [record.getMessage() for record in caplog.records if "once more" in record.getMessage()]
    assert len(said) == 2
    assert all(f"msc://lab/{BUCKET}/sets/mix" in text and "attempt" in text for text in said)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_store_that_stays_away_ends_the_run_and_loses_no_sample(
    lab: Store, on_disk: Path, tokenizer: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMPACK_STORE_ATTEMPTS", "3")
    loader = data_module(MIX, tokenizer, num_streams=4, num_workers=num_workers).train_dataloader()
    lab.log.clear()
    lab.faults.append(Fault("500", "GET", r"train-000003\.tar$", times=10**6))
    with pytest.raises(StorageError, match=rf"^msc://lab/{BUCKET}/sets/mix/train-000003\.tar.*failed 3 times.*: 500"):
        list(islice(loader, 400))
    lab.faults.clear()
    assert batches(MIX, tokenizer, 12, num_workers=num_workers) == batches(on_disk, tokenizer, 12)


def test_a_resume_without_the_store_fails_and_pads_nothing(
    lab: Store, on_disk: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMPACK_STORE_ATTEMPTS", "2")
    _, loader = loaded(MIX, tokenizer, 5)
    state = loader.state_dict()
    monkeypatch.setenv("MMPACK_CACHE", str(tmp_path / "another"))  # another machine
    again = data_module(MIX, tokenizer, num_streams=4).train_dataloader()
    lab.faults.append(Fault("500", "GET", r"\.tar$", times=10**6))
    again.load_state_dict(state)
    with pytest.raises(StorageError, match="failed 2 times"):
        list(islice(again, 10))


def test_no_way_to_the_store(lab: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMPACK_STORE_ATTEMPTS", "2")
    nobody = lab.profile(tmp_path / "nobody.json", port=9)
    monkeypatch.setenv("MSC_CONFIG", str(nobody))
    with pytest.raises(StorageError, match="listing failed 2 times"):
        SourceConfig(path=MIX)
    with pytest.raises(ConfigError, match="no profile 'lap' \\(did you mean 'lab'"):
        SourceConfig(path="msc://lap/data/x")
    monkeypatch.setenv("MSC_CONFIG", str(lab.profile(tmp_path / "msc.json")))
    with pytest.raises(ConfigError, match="holds nothing"):
        SourceConfig(path=f"msc://lab/{BUCKET}/not/there")
    with pytest.raises(ConfigError, match="bucket"):
        SourceConfig(path="msc://lab/no-such-bucket/x")


@pytest.mark.slow
def test_without_boto3_the_extra_is_named(lab: Store) -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from mmpack.energon.reader import SourceConfig\n"
        f"SourceConfig(path={MIX!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "ConfigError" in run.stderr
    assert "pip install 'mmpack[s3]'" in run.stderr


@pytest.mark.slow
def test_a_dataset_that_changes_in_a_run_is_an_error_and_another_one_when_opened_again(
    lab: Store, on_disk: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put_folder(on_disk, "sets/changing")
    url = f"msc://lab/{BUCKET}/sets/changing"
    loader = data_module(url, tokenizer, num_streams=4).train_dataloader()
    for shard in on_disk.glob("train*.tar"):
        data = bytearray(shard.read_bytes())
        data[600] ^= 1  # the same size
        lab.client().put_object(Bucket=BUCKET, Key=f"sets/changing/{shard.name}", Body=bytes(data))
    with pytest.raises(StorageError, match="was changed or removed"):
        next(iter(loader))
    before = local(url)
    requests_again = subprocess.run(
        [sys.executable, "-c", f"from mmpack.energon.remote import local; print(local({url!r}))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(requests_again.stdout.strip()) != before


def test_metadatasets(lab: Store, on_disk: Path, tokenizer: Any, tmp_path: Path) -> None:
    def blend(path: str) -> str:
        entries = [{"weight": 1, "path": path, "split_part": "train"}, {"weight": 1, "path": path, "split_part": "val"}]
        content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        return yaml.safe_dump({**content, "splits": {"train": {"blend": entries}}})

    here, mixed = tmp_path / "here.yaml", tmp_path / "mixed.yaml"
    here.write_text(blend(str(on_disk)))
    mixed.write_text(blend(MIX))
    lab.client().put_object(Bucket=BUCKET, Key="sets/there.yaml", Body=blend("mix").encode())
    for by in ("samples", "tokens"):
        expected = batches(here, tokenizer, 6, blend_by=by)
        assert batches(mixed, tokenizer, 6, blend_by=by) == expected
        assert batches(f"msc://lab/{BUCKET}/sets/there.yaml", tokenizer, 6, blend_by=by) == expected


def test_a_changed_dataset_shares_what_has_not_changed(lab: Store, on_disk: Path) -> None:
    lab.put_folder(on_disk, "sets/grown")
    url = f"msc://lab/{BUCKET}/sets/grown"
    before = local(url, whole=True)
    changed = (on_disk / "train-000001.tar").read_bytes() + bytes(512)
    lab.client().put_object(Bucket=BUCKET, Key="sets/grown/train-000001.tar", Body=changed)
    forget(url)
    lab.log.clear()
    after = local(url, whole=True)
    assert after != before
    assert (after / "train-000001.tar").read_bytes() == changed
    assert (before / "train-000001.tar").read_bytes() != changed
    got = [path for method, path in lab.log if method == "GET" and "list-type=2" not in path]
    assert [path.partition("?")[0] for path in got] == [f"/{BUCKET}/sets/grown/train-000001.tar"]


def test_a_global_plan(lab: Store, on_disk: Path, tokenizer: Any, tmp_path: Path) -> None:
    def epoch(path: Path | str) -> list[str]:
        loader = data_module(path, tokenizer, order="global_plan", packing_buffer_size=None).train_dataloader()
        return [digest(batch) for batch in islice(loader, 8)]

    assert epoch(MIX) == epoch(shutil.copytree(on_disk, tmp_path / "mix"))  # lengths are kept in it


def test_names(lab: Store, on_disk: Path) -> None:
    copy = local(Path(MIX))
    assert copy.name == "mix"
    assert shown(copy) == MIX == shown(Path(MIX))
    assert dataset_splits(copy) == ["train", "val"]
    assert local_file(f"{MIX}/convert-report.json").read_bytes() == (on_disk / "convert-report.json").read_bytes()


def mmpack(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def conversion(on_disk: Path, url: str, *more: str) -> list[str]:
    source = on_disk.parent / "llava" / "llava.json"
    root = source.parent / "images"
    words = ["convert", str(source), url, "--image-root", str(root), "--split", "train=0.8,val=0.2"]
    return [*words, "--max-samples-per-shard", "16", "--workers", "1", *more]


def expect_same(found: dict[str, bytes], on_disk: Path, url: str) -> None:
    """The bytes of the same conversion to the disk, but for what is drawn or measured anew each time."""
    files = {path.relative_to(on_disk).as_posix(): path for path in on_disk.rglob("*") if path.is_file()}
    assert found.keys() == files.keys()
    other = {".nv-meta/index.uuid", ".nv-meta/index.sqlite", "convert-report.json"}
    assert all(found[name] == path.read_bytes() for name, path in files.items() if name not in other)
    assert len(found[".nv-meta/index.sqlite"]) == files[".nv-meta/index.sqlite"].stat().st_size
    report, there = json.loads(found["convert-report.json"]), json.loads(files["convert-report.json"].read_bytes())
    assert report["path"] == url
    assert {**report, "path": 0, "seconds": 0} == {**there, "path": 0, "seconds": 0}


def test_convert(lab: Store, on_disk: Path) -> None:
    source, url = on_disk.parent / "llava", f"msc://lab/{BUCKET}/by/call"
    report = convert(
        ConvertConfig(
            src=source / "llava.json",
            dst=Path(url),
            image_root=source / "images",
            split={"train": 0.8, "val": 0.2},
            max_samples_per_shard=16,
        )
    )
    assert [sample.reason for sample in report.samples] == [None] * 160
    expect_same(lab.contents("by/call"), on_disk, url)


@pytest.mark.slow
def test_convert_and_check_by_command(lab: Store, on_disk: Path, tmp_path: Path) -> None:
    url = f"msc://lab/{BUCKET}/made/mix"
    staging = tmp_path / "staging"
    lab.faults += [Fault("500", "PUT", r"train-000001\.tar$", times=1), Fault("slow", "PUT", "split.yaml", times=1)]
    done = mmpack(*conversion(on_disk, url, "--staging", str(staging), "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == url
    assert len(json.loads(done.stdout)["samples"]) == 160
    assert done.stderr.count("once more") == 2
    assert list(staging.iterdir()) == []
    expect_same(lab.contents("made/mix"), on_disk, url)
    puts = [path.partition("?")[0].rpartition("/made/mix/")[2] for method, path in lab.log if method == "PUT"]
    assert (puts[0], puts[-1]) == (UNFINISHED, ".nv-meta/dataset.yaml")

    checked = mmpack("check", url, "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["path"] == url
    assert json.loads(checked.stdout)["samples"] == 160
    refused = mmpack("check", url, "--quarantine")
    assert (refused.returncode, "is remote" in refused.stderr) == (2, True)
    shown_pack = mmpack("inspect", url, "--json")
    assert shown_pack.returncode == 0, shown_pack.stderr

    again = mmpack(*conversion(on_disk, url))
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    replaced = mmpack(*conversion(on_disk, url, "--overwrite"))
    assert replaced.returncode == 0, replaced.stderr
    expect_same(lab.contents("made/mix"), on_disk, url)


def test_what_is_not_ours_is_not_replaced(lab: Store, on_disk: Path) -> None:
    lab.client().put_object(Bucket=BUCKET, Key="precious/notes.txt", Body=b"mine")
    config = ConvertConfig(
        src=on_disk.parent / "llava" / "llava.json", dst=Path(f"msc://lab/{BUCKET}/precious"), overwrite=True
    )
    with pytest.raises(ConfigError, match="not a dataset that mmpack made"):
        convert(config)
    assert lab.contents("precious") == {"notes.txt": b"mine"}
    with pytest.raises(ConfigError, match="is remote; only DST"):
        ConvertConfig(src=Path(MIX), dst=Path("x"))


@pytest.mark.parametrize(
    "at",
    [
        "train-000004.tar",
        pytest.param("index.sqlite", marks=pytest.mark.slow),
        pytest.param("dataset.yaml", marks=pytest.mark.slow),
    ],
)
def test_a_killed_conversion_leaves_no_dataset_and_is_run_again(
    lab: Store, on_disk: Path, tmp_path: Path, at: str
) -> None:
    place = f"killed/{at.partition('.')[0]}"
    url = f"msc://lab/{BUCKET}/{place}"
    held = threading.Event()
    lab.on_request = lambda method, path: held.set()
    lab.faults.append(Fault("hold", "PUT", rf"{place}/(\.nv-meta/)?{at}$", times=1))
    command = [sys.executable, "-c", COMMAND, *conversion(on_disk, url, "--staging", str(tmp_path / "staging"))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert held.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = lab.contents(place)
    assert UNFINISHED in there
    assert ".nv-meta/dataset.yaml" not in there
    with pytest.raises(ConfigError, match="no whole Energon dataset"):
        SourceConfig(path=url)
    lab.faults.clear()
    lab.log.clear()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert lab.asked("PUT", "train-000000.tar") == 0  # it is there
    expect_same(lab.contents(place), on_disk, url)
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.slow
def test_an_upload_that_fails_says_so_and_can_be_run_again(lab: Store, on_disk: Path, tmp_path: Path) -> None:
    url = f"msc://lab/{BUCKET}/failed/mix"
    lab.faults.append(Fault("500", "PUT", r"train-000002\.tar$", times=10**6))
    words = conversion(on_disk, url, "--staging", str(tmp_path / "staging"))
    failed = mmpack(*words, env={**os.environ, "MMPACK_STORE_ATTEMPTS": "2"})
    assert failed.returncode == 1
    assert f"{url}/train-000002.tar: writing failed 2 times" in " ".join(failed.stderr.split())
    assert ".nv-meta/dataset.yaml" not in lab.contents("failed/mix")
    lab.faults.clear()
    done = mmpack(*words)
    assert done.returncode == 0, done.stderr
    expect_same(lab.contents("failed/mix"), on_disk, url)


@pytest.mark.slow
def test_train_by_command(lab: Store, on_disk: Path, tmp_path: Path) -> None:
    def losses(path: Path | str, name: str) -> list[float]:
        out = tmp_path / name
        words = ["train", "configs/demo.yaml", "--set", f"data.path={path}", "--set", f"train.output_dir={out}"]
        done = mmpack(*words, "--set", "train.max_steps=3", cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        lines = (out / "train.jsonl").read_text(encoding="utf-8").splitlines()
        return [record["loss"] for record in map(json.loads, lines) if "loss" in record]

    assert losses(MIX, "remote") == losses(on_disk, "local") != []


def test_a_killed_reader_leaves_nothing_that_is_taken_for_a_shard(lab: Store, on_disk: Path, tokenizer: Any) -> None:
    held = threading.Event()
    lab.on_request = lambda method, path: held.set()
    lab.faults.append(Fault("hold", "GET", r"train-000002\.tar$", times=1))
    code = f"from mmpack.energon.remote import local; local({MIX!r}, whole=True)"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert held.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    copy = local(MIX)
    parts = list((copy.parent / "locks").glob("*.part"))
    assert [part.name.partition(".tar")[0] for part in parts] == ["train-000002"]
    assert "train-000002.tar" not in fetched(copy)
    assert batches(MIX, tokenizer, 40) == batches(on_disk, tokenizer, 40)
    assert not list((copy.parent / "locks").glob("*.part"))
    shards = [path for method, path in lab.log if method == "GET" and path.partition("?")[0].endswith(".tar")]
    assert len(shards) == len(set(shards)) + 1  # the one that was broken off


@pytest.mark.slow
def test_a_server_that_hangs_for_a_while(lab: Store, on_disk: Path, tokenizer: Any) -> None:
    loader = data_module(MIX, tokenizer, num_streams=4, num_workers=2).train_dataloader()
    os.kill(lab.server_pid, signal.SIGSTOP)
    timer = threading.Timer(2.5, os.kill, (lab.server_pid, signal.SIGCONT))
    timer.start()
    try:
        assert [digest(batch) for batch in islice(loader, 12)] == batches(on_disk, tokenizer, 12)
    finally:
        timer.join()


@pytest.mark.slow
def test_stores_whose_tags_are_no_checksums(lab: Store, on_disk: Path, tokenizer: Any) -> None:
    lab.put_folder(on_disk, "sets/parts")
    client, place = lab.client(), {"Bucket": BUCKET, "Key": "sets/parts/train-000000.tar"}
    upload = client.create_multipart_upload(**place)["UploadId"]
    body = (on_disk / "train-000000.tar").read_bytes()
    part = client.upload_part(**place, UploadId=upload, PartNumber=1, Body=body)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts)
    client.put_object(Bucket=BUCKET, Key="sets/parts/", Body=b"")  # as a browser's "new folder"
    copy = local(f"msc://lab/{BUCKET}/sets/parts", whole=True)
    assert (copy / "train-000000.tar").read_bytes() == body
    assert lab.asked("HEAD", "train-000000.tar") == 1
