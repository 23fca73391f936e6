"""Limits: bytes of a shard, share of bad records, memory, what a report shows; and the rules of pictures' places."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mmpack.convert import ConvertConfig
from mmpack.errors import ConfigError, DataError
from tests.convert.helpers import jpeg, members, run, samples, turns


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps(records))
    return path


def texts(count: int, length: int = 10) -> list[dict[str, Any]]:
    return [{"id": i, "conversations": turns("q", "x" * length)} for i in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_would_get_too_large_is_cut(tmp_path: Path, workers: int) -> None:
    source = write(tmp_path, texts(40, 1500))
    whole = run(source, tmp_path / "whole", max_samples_per_shard=20)
    report = run(source, tmp_path / "out", max_samples_per_shard=20, max_bytes_per_shard=8000, workers=workers)
    assert (report.kept, whole.kept) == (40, 40)
    assert report.num_shards == len(list((tmp_path / "out").glob("*.tar"))) > whole.num_shards
    for shard in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(shard) as tar:
            assert sum(512 + -(-m.size // 512) * 512 for m in tar.getmembers()) <= 8000
        assert shard.with_suffix(".tar.idx").is_file()
    assert sorted(members(tmp_path / "out")) == sorted(members(tmp_path / "whole"))
    split = (tmp_path / "out" / ".nv-meta" / "split.yaml").read_text()
    assert all(shard.name in split for shard in (tmp_path / "out").glob("*.tar"))


def test_a_sample_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    source = write(tmp_path, [*texts(2), *texts(1, 9000), *texts(2)])
    report = run(source, tmp_path / "out", max_bytes_per_shard=2000, max_samples_per_shard=5)
    assert (report.kept, report.num_shards) == (5, 5)


def test_energon_reads_shards_that_were_cut(tmp_path: Path) -> None:
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset

    run(write(tmp_path, texts(20, 1500)), tmp_path / "out", max_bytes_per_shard=5000)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    dataset = get_train_dataset(tmp_path / "out", worker_config=worker, batch_size=None, **options)
    assert sorted(int(sample.__key__) for sample in get_loader(dataset)) == list(range(20))


@pytest.mark.parametrize("fault", ["in the text", "in the picture"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_of_bad_records_is_allowed_and_no_more(tmp_path: Path, fault: str, workers: int) -> None:
    bad = {"conversations": []} if fault == "in the text" else {"image": "no.jpg", "conversations": turns()}
    source = write(tmp_path, [*texts(96), *[bad] * 4])
    options: dict[str, Any] = {"workers": workers, "max_samples_per_shard": 10}
    assert run(source, tmp_path / "out", max_bad_share=0.04, **options).kept == 96
    with pytest.raises(DataError, match=r"4 of 100 records are bad \(4 .*max_bad_share=0\.03"):
        run(source, tmp_path / "out2", max_bad_share=0.03, **options)
    assert not (tmp_path / "out2").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "out"]
    assert run(write(tmp_path, texts(3)), tmp_path / "out3", max_bad_share=0).kept == 3


def test_the_command_ends_with_1_beyond_the_share(tmp_path: Path) -> None:
    source = write(tmp_path, [*texts(9), {"conversations": []}])
    command = [
        sys.executable,
        "-c",
        "from mmpack.cli import main; main()",
        "convert",
        str(source),
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, "--set", "convert.max_bad_share=0.05"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 of 10 records are bad (1 empty_conversation" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_one(share: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_bad_share"):
        ConvertConfig(src=tmp_path, dst=tmp_path / "out", max_bad_share=share)
    with pytest.raises(ConfigError, match="max_bytes_per_shard=0"):
        ConvertConfig(src=tmp_path, dst=tmp_path / "out", max_bytes_per_shard=0)


def test_a_report_as_one_object_shows_the_first_samples_and_its_file_all(tmp_path: Path) -> None:
    report = run(write(tmp_path, [*texts(30), {"id": "bad"}]), tmp_path / "out")
    shown = report.to_json(max_samples=10)
    assert (len(shown["samples"]), shown["samples_cut"], shown["kept"]) == (10, 21, 30)
    written = json.loads((tmp_path / "out" / "convert-report.json").read_text())
    assert [entry["id"] for entry in written["samples"]] == [*range(30), "bad"]
    assert written == report.to_json()
    assert len(report.samples) == len(list(report.samples)) == len(list(report.samples)) == 31


def test_pictures_are_found_below_the_image_folder_however_their_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "images" / "deep").mkdir(parents=True)
    (tmp_path / "images" / "deep" / "a.jpg").write_bytes(jpeg())
    (tmp_path / "images-2").mkdir()
    (tmp_path / "images-2" / "a.jpg").write_bytes(jpeg())
    inside = [
        "deep/a.jpg",
        "./deep//a.jpg",
        "no/../deep/a.jpg",
        "../images/deep/a.jpg",
        str(tmp_path / "images/deep/a.jpg"),
    ]
    outside = ["../images-2/a.jpg", str(tmp_path / "images-2/a.jpg"), "deep", "", "deep/a.jpg\0", "x" * 5000]
    records = [{"image": name, "conversations": turns()} for name in (*inside, *outside)]
    report = run(write(tmp_path, records), tmp_path / "out", image_root=tmp_path / "images")
    assert report.kept == len(inside)
    assert report.skipped == {"image_missing": len(outside)}


def test_a_picture_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(1 << 40)  # takes no room on disk
    records = [{"image": "huge.jpg", "conversations": turns()}, *texts(1)]
    assert run(write(tmp_path, records), tmp_path / "out").skipped == {"image_too_large": 1}


def test_pictures_that_end_early_are_skipped_and_odd_ends_are_not(tmp_path: Path) -> None:
    import io

    from PIL import Image

    kinds = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "QOI": "qoi"}
    records: list[dict[str, Any]] = []
    picture = Image.effect_mandelbrot((70, 50), (-2, -1, 1, 1), 30).convert("RGB")
    for kind, ending in kinds.items():
        out = io.BytesIO()
        picture.save(out, kind)
        versions = {
            "whole": out.getvalue(),
            "longer": out.getvalue() + b"\0junk",
            "cut": out.getvalue()[: len(out.getvalue()) // 2],
        }
        for what, data in versions.items():
            name = f"{what}.{ending}"
            (tmp_path / name).write_bytes(data)
            records.append({"id": name, "image": name, "conversations": turns()})
    report = run(write(tmp_path, records), tmp_path / "out")
    assert {s.id for s in report.samples if s.reason} == {f"cut.{ending}" for ending in kinds.values()}
    for record, (data,) in samples(tmp_path / "out").values():
        assert data == (tmp_path / record["id"]).read_bytes()


def _growth(tmp_path: Path, count: int, kind: str) -> float:
    """Megabytes by which a conversion and its processes grow, measured in a process of its own."""
    path = tmp_path / f"a.{kind}"
    lines = (json.dumps({"id": f"s{i}", "conversations": turns("q?", f"a{i}")}) for i in range(count))
    with path.open("w") as file:
        if kind == "json":
            file.write("[" + next(lines))
            file.writelines(",\n" + line for line in lines)
            file.write("]")
        else:
            file.writelines(line + "\n" for line in lines)
    code = Path(__file__).with_name("measure_memory.py")
    command = [sys.executable, str(code), str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, kept = done.stdout.split()
    assert int(kept) == count
    return float(grown) / 1e6


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_memory_does_not_grow_with_the_records(tmp_path: Path, kind: str) -> None:
    assert _growth(tmp_path, 20_000, kind) < 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_memory_does_not_grow_with_many_records(tmp_path: Path, kind: str) -> None:
    assert _growth(tmp_path, 200_000, kind) < 60
