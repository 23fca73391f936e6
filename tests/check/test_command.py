"""What ``mmpack check`` prints, writes and returns."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmpack.cli.check import run
from mmpack.errors import ConfigError
from tests.conftest import convert_llava, write_llava


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_llava(tmp_path_factory.mktemp("command"), 24, split={"train": 0.7, "val": 0.3})


def call(path: Path, **changes: Any) -> int:
    options: dict[str, Any] = {
        "config": None,
        "overrides": [],
        "split": None,
        "image_root": None,
        "record_format": "auto",
        "deep": False,
        "leave_out": False,
        "max_bad": 0.0,
        "workers": 1,
        "html": None,
        "as_json": False,
    }
    return run(path, **(options | changes))


def cut_last_shard(good: Path, folder: Path) -> Path:
    bad = folder / "energon"
    shutil.copytree(good, bad)
    shard = sorted(bad.glob("train-*.tar"))[-1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size - 11_000])
    return bad


def test_videos_without_a_setting_for_them_are_told_and_never_left_out(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "energon"
    shutil.copytree(good, path)
    shard = sorted(path.glob("train-*.tar"))[0]
    with tarfile.open(shard) as tar:
        picture = next(member for member in tar if member.name.endswith((".jpg", ".png")))
    data = bytearray(shard.read_bytes())
    data[picture.offset_data : picture.offset_data + 12] = b"\0\0\0\x20ftypisom"
    shard.write_bytes(data)
    before = (path / ".nv-meta" / "split.yaml").read_bytes()
    assert call(path, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["faults"]["video_frames_unset"]["count"] == 1
    with pytest.raises(ConfigError, match=r"1 samples hold videos.*data\.video_frames=8"):
        call(path, leave_out=True)
    assert (path / ".nv-meta" / "split.yaml").read_bytes() == before


def test_clean_data_gives_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(good) == 0
    said = capsys.readouterr().out
    for words in ("24 with", "expected fill", "the demo's settings", "Tokens of a sample", "####"):
        assert words in said
    assert call(good, as_json=True, split="val") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["splits"] == ["val"]
    assert (found["bad"], found["passed"], found["quarantined"]) == (0, True, [])
    assert sum(count for _, _, count in found["tokens"]) == found["samples"]


def test_faults_give_1_and_are_left_out(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = cut_last_shard(good, tmp_path)
    page = tmp_path / "out" / "check.html"
    assert call(bad, html=page, workers=2) == 1
    assert "unreadable" in capsys.readouterr().out
    assert "unreadable" in page.read_text()
    assert call(bad, max_bad=0.9) == 0
    assert call(bad, leave_out=True, as_json=True) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    entries = yaml.safe_load((bad / ".nv-meta" / "split.yaml").read_text())["exclude"]
    assert found["quarantined"] == [{"file": str(bad / ".nv-meta" / "split.yaml"), "entries": len(entries)}]
    assert len(entries) == found["bad"] > 0
    assert call(bad) == 0


def test_a_file_of_records_and_a_config(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_llava(tmp_path / "llava", 8)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    data = {
        "path": "unused",
        "tokenizer": str(tmp_path / "tokenizer"),
        "tile": {"tile_size_px": 28},
        "num_image_embeddings_per_tile": 4,
        "seq_length": 512,
        "packed_sequence_size": 512,
        "packing_buffer_size": 40,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"data": data}))
    options = {"config": str(tmp_path / "c.yaml"), "image_root": file.parent / "images", "as_json": True}
    assert call(file, **options) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["fill"]["packed_sequence_size"]) == (8, 512)
    assert "c.yaml: tokenizer tokenizer" in found["counted_with"]


def test_bad_requests(good: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        call(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no splits|not an Energon dataset"):
        call(tmp_path)
    with pytest.raises(ConfigError, match="max_bad"):
        call(good, max_bad=-1.0)
    file = write_llava(tmp_path / "llava", 2)
    with pytest.raises(ConfigError, match="--quarantine"):
        call(file, leave_out=True)
    with pytest.raises(ConfigError, match="split 'dev'"):
        call(good, split="dev")
