"""LLaVA JSON -> Energon dataset: the same bytes from any workers, whole or nothing, opened by energon alone."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmpack.convert import ConvertConfig, ConvertReport, convert
from mmpack.errors import ConfigError, SampleError
from tests.conftest import write_llava

CASES = Path(__file__).parents[1] / "cases" / "llava"
REPO = Path(__file__).parents[2]


def run(src: Path, dst: Path, **options: Any) -> ConvertReport:
    options.setdefault("image_root", src.parent / "images")
    return convert(ConvertConfig(src=src, dst=dst, **options))


def write_records(folder: Path, records: list[dict[str, Any]]) -> Path:
    """A file of `records`, each completed by a question and an answer, and a folder of pictures beside it."""
    shutil.copytree(CASES / "images", folder / "images", dirs_exist_ok=True)
    for record in records:
        mark = "<image>" if "image" in record else ""
        record.setdefault("conversations", [{"from": "human", "value": f"{mark}?"}, {"from": "gpt", "value": "x"}])
    (folder / "llava.json").write_text(json.dumps(records), encoding="utf-8")
    return folder / "llava.json"


def members(dataset: Path) -> list[tuple[str, bytes]]:
    found = []
    for shard in sorted(dataset.glob("*.tar")):
        with tarfile.open(shard) as tar:
            found += [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    return found


def test_keys_are_safe_and_ids_are_kept(tmp_path: Path) -> None:
    report = run(CASES / "odd_ids.json", tmp_path / "out")
    records = {name: json.loads(data) for name, data in members(tmp_path / "out") if name.endswith(".json")}
    for sample in report.samples:
        assert sample.key.isalnum()
        assert records[f"{sample.key}.json"]["id"] == sample.id


def test_parts_of_a_sample_stand_together_pictures_first(tmp_path: Path) -> None:
    source = write_llava(tmp_path / "in", 60)
    run(source, tmp_path / "out", split={"train": 0.7, "val": 0.3})
    originals = json.loads(source.read_text())
    names = [name for name, _ in members(tmp_path / "out")]
    content = dict(members(tmp_path / "out"))
    keys = [name.partition(".")[0] for name in names]
    assert sum(a != b for a, b in itertools.pairwise(keys)) == len(set(keys)) - 1
    assert len(set(keys)) == 60
    for key in set(keys):
        record = json.loads(content[f"{key}.json"])
        original = originals[int(key)]
        files = original.get("image", [])
        files = [files] if isinstance(files, str) else files
        assert record["conversations"] == original["conversations"]
        assert record.get("image", []) == [f"{i}.png" for i in range(len(files))]
        parts = [name for name, owner in zip(names, keys, strict=True) if owner == key]
        assert parts == [f"{key}.{i}.png" for i in range(len(files))] + [f"{key}.json"]
        for i, file in enumerate(files):
            assert content[f"{key}.{i}.png"] == (source.parent / "images" / file).read_bytes()


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    source = write_llava(tmp_path / "in", 50)
    hashes = []
    for workers in (0, 1, 3):
        dst = tmp_path / f"out{workers}"
        run(source, dst, workers=workers, split={"train": 0.8, "val": 0.2}, max_samples_per_shard=7)
        files = sorted([*dst.glob("*.tar"), dst / ".nv-meta" / "split.yaml"])
        hashes.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
    assert len(hashes[0]) > 5
    assert hashes[0] == hashes[1] == hashes[2]


def test_splits_have_their_shares_and_none_is_empty(tmp_path: Path) -> None:
    report = run(write_llava(tmp_path / "in", 40), tmp_path / "out", split={"train": 0.9, "val": 0.08, "test": 0.02})
    assert report.splits == {"train": 36, "val": 3, "test": 1}
    with pytest.raises(ConfigError, match="2 samples cannot fill the splits train, val, test"):
        run(write_llava(tmp_path / "few", 2), tmp_path / "out2", split={"train": 0.9, "val": 0.08, "test": 0.02})


def test_the_report_is_written_and_adds_up(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = ConvertConfig(src=CASES / "mixed_14.json", dst=tmp_path / "out", image_root=CASES / "images")
    report = convert(config, lambda done, total: seen.append((done, total)))
    written = json.loads((tmp_path / "out" / "convert-report.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(report.to_json()))
    assert written["kept"] == 4
    assert sum(written["skipped"].values()) == 10
    assert Counter(s["reason"] for s in written["samples"] if s["reason"]) == written["skipped"]
    assert [s["id"] for s in written["samples"] if s["reason"] is None] == ["g1", "g2", "g3", "g4"]
    assert seen[-1] == (14, 14)
    assert written["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))


def test_on_error_raise_names_the_sample_and_leaves_nothing(tmp_path: Path) -> None:
    for workers in (1, 2):
        with pytest.raises(SampleError, match=r"entry 4, id 'b2'.*missing_field"):  # texts before pictures
            run(CASES / "mixed_14.json", tmp_path / "out", on_error="raise", workers=workers)
        assert list(tmp_path.iterdir()) == []
    source = write_records(tmp_path / "in", [{"id": 1}, {"id": "b1", "image": "nope.jpg"}, {"id": 2}])
    for workers in (1, 2):
        with pytest.raises(SampleError, match=r"entry 2, id 'b1'.*image_missing: 'nope\.jpg'"):
            run(source, tmp_path / "out", on_error="raise", workers=workers)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_pictures_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes((CASES / "images" / "red.jpg").read_bytes())
    (tmp_path / "images").mkdir()
    turns = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "x"}]
    names = ["../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png"]
    records = [{"id": i, "image": name, "conversations": turns} for i, name in enumerate(names)]
    records.append({"id": "text", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "x"}]})
    (tmp_path / "llava.json").write_text(json.dumps(records))
    report = run(tmp_path / "llava.json", tmp_path / "out")
    assert report.skipped == {"image_missing": 3}


def test_an_existing_destination_is_not_touched(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    dst.mkdir()
    (dst / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="already exists"):
        run(CASES / "ok_three.json", dst)
    assert [path.name for path in dst.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="is not a dataset that mmpack made"):
        run(CASES / "ok_three.json", dst, overwrite=True)
    assert [path.name for path in dst.iterdir()] == ["mine.txt"]


def test_overwriting_replaces_a_dataset_and_nothing_else(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    run(CASES / "ok_three.json", dst)
    (dst / "old.txt").write_text("old")
    run(CASES / "ok_three.json", dst, overwrite=True)
    assert not (dst / "old.txt").exists()
    assert (dst / ".nv-meta" / "index.sqlite").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (dst / "llava.json").write_bytes((CASES / "ok_three.json").read_bytes())
    with pytest.raises(ConfigError, match="which is being converted"):
        run(dst / "llava.json", dst, overwrite=True, image_root=CASES / "images")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_no_dataset(tmp_path: Path, number: int) -> None:
    source = write_llava(tmp_path / "in", 300)
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell runs in the background
        "from pathlib import Path\n"
        "from mmpack.convert import ConvertConfig, convert\n"
        f"config = ConvertConfig(src=Path({str(source)!r}), dst=Path({str(tmp_path / 'out')!r}),\n"
        f"    image_root=Path({str(source.parent / 'images')!r}), workers=2, max_samples_per_shard=5)\n"
        "def progress(done, total):\n"
        "    print('going', flush=True)\n"
        "    time.sleep(0.2)\n"
        "convert(config, progress)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) != 0
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_runs_in(tmp_path)):
        time.sleep(0.2)
    assert not (tmp_path / "out").exists()
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
    run(source, tmp_path / "out", max_samples_per_shard=50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def _runs_in(folder: Path) -> list[int]:
    """Processes that hold a file open below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd).startswith(str(folder)) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_energon_opens_it_with_nothing_but_its_own_function(tmp_path: Path) -> None:
    import torch
    from megatron.energon import InterleavedSample, WorkerConfig, get_loader, get_train_dataset

    source = write_llava(tmp_path / "in", 30)
    run(source, tmp_path / "out", split={"train": 0.8, "val": 0.2})
    originals = json.loads(source.read_text())
    dataset = get_train_dataset(
        tmp_path / "out",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    samples = list(get_loader(dataset))
    assert len(samples) == 24
    for sample in samples:
        assert isinstance(sample, InterleavedSample)
        original = originals[int(sample.__key__)]
        marks = sum(turn["value"].count("<image>") for turn in original["conversations"])
        pictures = [item for item in sample.sequence if isinstance(item, torch.Tensor)]
        assert len(pictures) == marks
        assert all(p.ndim == 3 and p.shape[0] == 3 for p in pictures)
        text = "".join(item for item in sample.sequence if isinstance(item, str))
        assert all(turn["value"].replace("<image>", "") in text for turn in original["conversations"])


def test_media_metadata_is_on(tmp_path: Path) -> None:
    import sqlite3

    run(CASES / "ok_three.json", tmp_path / "out")
    with sqlite3.connect(tmp_path / "out" / ".nv-meta" / "index.sqlite") as index:
        rows = index.execute("select entry_key, metadata_json from media_metadata order by entry_key").fetchall()
    assert len(rows) == 2
    for name, metadata in rows:
        assert name.endswith(".0.jpg")
        assert {"width", "height"} <= set(json.loads(metadata))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "lava"}, "unknown record format 'lava'; did you mean 'llava'"),
        ({"split": {"train": 0.0}}, "every share must be above 0"),
        ({"split": {"train": float("inf")}}, "every share must be above 0"),
        ({"split": {"train": 0.9, "val": 0.2}}, "the shares make 1.1, they must make 1"),
        ({"split": {}}, "give names and shares"),
        ({"on_error": "stop"}, "on_error='stop'"),
        ({"workers": -1}, "workers=-1"),
        ({"image_root": Path("no/such/folder")}, "is not a folder"),
    ],
)
def test_wrong_requests_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(CASES / "ok_three.json", tmp_path / "out", **options)


def test_the_index_is_the_one_that_energons_own_preparation_makes(tmp_path: Path) -> None:
    import contextlib
    import io
    import sqlite3

    from megatron.energon import CrudeWebdataset
    from megatron.energon.media.extractor import MediaFilterConfig

    source = write_llava(tmp_path / "in", 40)
    run(source, tmp_path / "out", split={"train": 0.8, "val": 0.2}, max_samples_per_shard=7)
    names = [path.name for path in sorted((tmp_path / "out").glob("*.tar"))]
    oracle = tmp_path / "oracle"
    oracle.mkdir()
    for name in names:
        shutil.copy(tmp_path / "out" / name, oracle / name)
    with contextlib.redirect_stdout(io.StringIO()):
        CrudeWebdataset.prepare_dataset(
            oracle,
            names,
            split_parts_ratio=[("train", 1.0)],
            workers=1,
            media_filter=MediaFilterConfig.parse(glob=None, header=True, extension=False),
        )

    def index(dataset: Path) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(dataset / ".nv-meta" / "index.sqlite")) as file:
            schema = sorted(file.execute("select name, sql from sqlite_master").fetchall())
            tables = ("samples", "sample_parts", "media_metadata")
            rows = {table: sorted(file.execute(f"select * from {table}").fetchall()) for table in tables}
            filters = file.execute("select strategy, patterns from media_filters").fetchall()
        info = json.loads((dataset / ".nv-meta" / ".info.json").read_text())
        return {"schema": schema, **rows, "filters": filters, "info": info}

    assert index(tmp_path / "out") == index(oracle)
    for name in names:
        assert (tmp_path / "out" / f"{name}.idx").read_bytes() == (oracle / f"{name}.idx").read_bytes()


def test_a_picture_damaged_behind_its_header_costs_nothing_else(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in", [{"id": 1}, {"id": 2, "image": "cut.jpg"}, {"id": 3, "image": "red.jpg"}])
    whole = (CASES / "images" / "red.jpg").read_bytes()
    damaged = bytearray(whole)
    damaged[-40:-20] = bytes(20)
    (tmp_path / "in" / "images" / "cut.jpg").write_bytes(damaged)
    report = run(source, tmp_path / "out", max_samples_per_shard=1)
    assert report.kept == 3
    assert len(list((tmp_path / "out").glob("*.tar.idx"))) == 3


def test_energon_hands_out_the_raw_parts_where_it_does_not_decode(tmp_path: Path) -> None:
    from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset

    class Undecoded(DefaultTaskEncoder):  # type: ignore[misc]
        decoder = None

    run(CASES / "ok_three.json", tmp_path / "out")
    dataset = get_train_dataset(
        tmp_path / "out",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=Undecoded(),
    )
    got = {f"{s.__key__}.{name}": data for s in get_loader(dataset) for name, data in s.sequence}
    assert got == dict(members(tmp_path / "out"))


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("JPEG", mode) for mode in ("CMYK", "L")),
        *(("PNG", mode) for mode in ("RGBA", "P", "1")),
        ("WEBP", "RGBA"),
        ("GIF", "P"),
        *((kind, "RGB") for kind in ("BMP", "TIFF", "PPM", "JPEG2000", "QOI", "AVIF")),
    ],
)
def test_energon_decodes_every_kind_of_picture(tmp_path: Path, kind: str, mode: str) -> None:
    import torch
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset
    from PIL import Image, features

    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    source = write_records(tmp_path / "in", [{"id": 1, "image": "picture"}])
    Image.new("RGB", (20, 10), (200, 30, 40)).convert(mode).save(tmp_path / "in" / "images" / "picture", kind)
    run(source, tmp_path / "out")
    dataset = get_train_dataset(
        tmp_path / "out",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    (sample,) = get_loader(dataset)
    (picture,) = [item for item in sample.sequence if not isinstance(item, str)]
    assert picture.shape == (3, 10, 20)
    assert picture.dtype == torch.float32
    assert 0.0 <= float(picture.min()) <= float(picture.max()) <= 1.0


def test_shares_are_dealt_among_samples_that_can_be_used(tmp_path: Path) -> None:
    for seed in range(4):
        report = run(CASES / "mixed_14.json", tmp_path / f"out{seed}", split={"train": 0.9, "val": 0.1}, seed=seed)
        assert report.splits == {"train": 3, "val": 1}


def test_ids_that_json_cannot_hold_do_not_end_the_run(tmp_path: Path) -> None:
    ids = [float("nan"), "\ud83d", {"a": [float("inf")]}, True]
    report = run(write_records(tmp_path / "in", [{"id": i} for i in ids]), tmp_path / "out")
    written = (tmp_path / "out" / "convert-report.json").read_text(encoding="utf-8")
    assert [s["id"] for s in json.loads(written)["samples"]] == [None, "\ufffd", {"a": [None]}, True]
    assert report.kept == 4
    assert len({s.key for s in report.samples}) == 4


def test_a_pipe_among_the_pictures_is_not_waited_for(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in", [{"id": 1, "image": "pipe"}, {"id": 2, "image": "a/../red.jpg"}])
    os.mkfifo(tmp_path / "in" / "images" / "pipe")
    assert run(source, tmp_path / "out").skipped == {"image_missing": 1}


def test_a_dataset_caught_between_two_renames_comes_back(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old = tmp_path / f".out.partial-{dead.pid}-old"
    old.mkdir()
    (old / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="none of 1 samples"):
        run(write_records(tmp_path / "in", [{"conversations": []}]), tmp_path / "out")
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_a_stop_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at the first shard of many, few of the others have been written when the folder is removed."""
    source = write_llava(tmp_path / "in", 200)
    num_written: list[int] = []
    remove = shutil.rmtree

    def rmtree(path: Path, **options: Any) -> None:
        num_written.append(len(list(Path(path).glob("*.tar"))))
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)

    class StoppedError(Exception):
        pass

    def progress(done: int, total: int) -> None:
        raise StoppedError

    config = ConvertConfig(
        src=source, dst=tmp_path / "out", image_root=source.parent / "images", workers=2, max_samples_per_shard=2
    )
    with pytest.raises(StoppedError):
        convert(config, progress)
    assert 1 <= max(num_written) <= 10  # of 100
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_report_says_what_the_records_were_taken_for_and_file_urls_are_paths(tmp_path: Path) -> None:
    shutil.copytree(CASES / "images", tmp_path / "images")
    picture = next(path for path in sorted((tmp_path / "images").iterdir()) if path.suffix in (".jpg", ".png"))
    urls = [picture.as_uri(), "https://example.org/a.jpg"]
    records: list[dict[str, Any]] = [{"image": url, "caption": "a"} for url in urls]
    records += [{"text": "a"}, {"image": picture.name, "question": "q", "options": ["a", "b"], "answer": "A"}]
    src = tmp_path / "records.jsonl"
    src.write_text("\n".join(map(json.dumps, records)))
    report = run(src, tmp_path / "out", split={"train": 1.0})
    assert report.head()["formats"] == {"captioning": 2, "text": 1, "multi_choice": 1}
    assert dict(report.skipped) == {"image_missing": 1}
    detail = next(sample.detail for sample in report.samples if sample.detail is not None)
    assert "is a URL, and nothing is fetched" in detail
