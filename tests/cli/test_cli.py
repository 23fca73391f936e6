"""The command line as a user meets it: output, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).parents[2]
COMMANDS = ("demo", "convert", "plan", "inspect", "train", "report", "bench")


@pytest.fixture(scope="module")
def folder(energon_dataset: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, over a dataset that was converted in it."""
    folder = tmp_path_factory.mktemp("cli")
    tokenizer.save_pretrained(folder / "tokenizer")
    values = {
        "data": {
            "path": str(energon_dataset),
            "tokenizer": "./tokenizer",
            "tile": {"tile_size_px": 28},
            "num_image_embeddings_per_tile": 4,
            "seq_length": 512,
            "packed_sequence_size": 512,
            "packing_buffer_size": 40,
            "num_workers": 1,
        },
        "model": {"image_size_px": 28, "patch_size_px": 14},
        "train": {"output_dir": "run", "max_steps": 3, "val_check_interval": 3, "limit_val_batches": 2},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return folder


def mmpack(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    code = "from mmpack.cli import main; main()"
    command = [sys.executable, "-W", "error::UserWarning", "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def ok(folder: Path, *words: str) -> str:
    done = mmpack(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_has_an_example_for_every_command(folder: Path) -> None:
    listed = ok(folder, "--help")
    for command in COMMANDS:
        assert command in listed
        text = ok(folder, command, "--help")
        assert f"Example: mmpack {command}" in " ".join(text.split())
        assert "--json" in text
        assert "--set" in text


def test_version(folder: Path) -> None:
    from mmpack import __version__

    assert ok(folder, "--version") == f"mmpack {__version__}\n"


def test_plan_prints_both_n_and_the_batch_size(folder: Path) -> None:
    text = ok(folder, "plan", "c.yaml", "--global-batch-size", "64")
    for words in ("n = samples / packs", "n = pack size / mean length", "global batch size to set", "340"):
        assert words in text
    plan = json.loads(ok(folder, "plan", "c.yaml", "--global-batch-size", "64", "--data-parallel-size", "4", "--json"))
    assert plan["num_samples"] == 340
    assert plan["fill_percent"] > 98
    assert plan["global_batch_size"] % 4 == 0
    assert abs(plan["global_batch_size"] - 64 / plan["n_from_packs"]) <= 2


def test_plan_says_that_a_run_would_stop_at_a_sample_that_is_too_long(folder: Path) -> None:
    text = " ".join(ok(folder, "plan", "c.yaml", "--set", "data.seq_length=200").split())
    assert "oversize='raise' stops a run" in text
    text = ok(folder, "plan", "c.yaml", "--set", "data.seq_length=200", "--set", "data.oversize=drop")
    assert "oversize" in text
    assert "stops a run" not in text


def test_inspect_shows_the_pack_that_the_loader_gives(folder: Path, tmp_path: Path) -> None:
    import itertools

    from mmpack.config import load, read_config

    html, png = tmp_path / "a" / "p.html", tmp_path / "p.png"
    pack = json.loads(ok(folder, "inspect", "c.yaml", "--pack", "6", "--html", str(html), "--png", str(png), "--json"))
    settings = [f"data.tokenizer={folder / 'tokenizer'}", "data.num_workers=0"]
    batch = next(itertools.islice(load(read_config(folder / "c.yaml", settings)), 6, None))
    assert [segment["key"] for segment in pack["segments"]] == list(batch.sample_keys)
    assert pack["fill_percent"] == 100 * batch.num_real_tokens / 512
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_inspect_takes_a_dataset(folder: Path, energon_dataset: Path) -> None:
    done = mmpack(folder, "inspect", str(energon_dataset), "--json")
    assert done.returncode == 0, done.stderr
    assert "settings of the demo" in done.stderr
    assert json.loads(done.stdout)["positions"] <= 2048


def test_train_then_report(folder: Path) -> None:
    result = json.loads(ok(folder, "train", "c.yaml", "--json"))
    assert result["steps"] == 3
    records = folder / "run" / "train.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert result["first_loss"] == steps[0]["loss"]
    real = sum(step["num_tokens"] for step in steps) / sum(step["num_packs"] for step in steps)
    assert result["fill_percent"] == pytest.approx(100 * real / 512)
    assert json.loads((folder / "run" / "run.json").read_text())["packed_sequence_size"] == 512
    # started again it goes on, and has nothing left to do
    assert json.loads(ok(folder, "train", "c.yaml", "--json"))["steps"] == 3
    said = ok(folder, "report", "run/train.jsonl", "--html", "r.html", "--png", "r.png", "--set", "title=A <run>")
    assert "r.html" in said
    assert "A &lt;run&gt;" in (folder / "r.html").read_text(encoding="utf-8")
    assert (folder / "r.png").read_bytes().startswith(b"\x89PNG")


def test_convert_from_words_and_from_a_config(folder: Path, tmp_path: Path) -> None:
    from tests.conftest import write_llava

    source = write_llava(tmp_path / "llava", 30)
    words = ("--image-root", str(source.parent / "images"), "--split", "train=0.8,val=0.2", "--workers", "1")
    report = json.loads(ok(folder, "convert", str(source), str(tmp_path / "a"), *words, "--json"))
    assert (report["kept"], report["splits"]) == (30, {"train": 24, "val": 6})
    (tmp_path / "v.yaml").write_text(
        yaml.safe_dump(
            {
                "data": yaml.safe_load((folder / "c.yaml").read_text())["data"],
                "convert": {
                    "src": str(source),
                    "dst": str(tmp_path / "b"),
                    "image_root": str(source.parent / "images"),
                    "split": {"train": 0.5, "val": 0.5},
                },
            }
        )
    )
    report = json.loads(ok(folder, "convert", str(tmp_path / "v.yaml"), "--set", "convert.seed=3", "--json"))
    assert report["splits"] == {"train": 15, "val": 15}
    again = mmpack(folder, "convert", str(source), str(tmp_path / "a"), *words)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    ok(folder, "convert", str(source), str(tmp_path / "a"), *words, "--overwrite", "--set", "convert.seed=2")


def test_bench_prints_a_table_and_records(folder: Path) -> None:
    sizes = ("--set", "num_samples=400", "--set", "windows=[50]", "--set", "whole_sets=[]", "--set", "balance_ranks=0")
    config = str(REPO / "configs" / "bench" / "packers.yaml")
    table = ok(folder, "bench", config, *sizes)
    assert "fill_percent" in table
    lines = ok(folder, "bench", config, *sizes, "--json").splitlines()
    assert {json.loads(line)["bench"] for line in lines} == {"packers"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "c.yaml", "--set", "train.max_stps=3"), "did you mean 'max_steps'"),
        (("train", "c.yaml", "--set", "data.micro_batch_size=2"), "set micro_batch_size=1"),
        (("plan", "none.yaml"), "none.yaml: cannot be read"),
        (("plan", "c.yaml", "--split", "tran"), "tran"),
        (("plan", "c.yaml", "--data-parallel-size", "0"), "data_parallel_size=0"),
        (("inspect", "c.yaml", "--pack", "-1"), "counted from 0"),
        (("inspect", "c.yaml", "--pack", "9999", "--split", "val"), "fewer packs"),
        (("inspect", "c.yaml", "--split", "vall"), "did you mean 'val'"),
        (("report", "c.yaml"), "cannot be read as a record"),
        (("report", "run/none.jsonl", "--set", "titel=x"), "did you mean 'title'"),
        (("convert", "a.json"), "DST is missing"),
        (("convert", "none.json", "out"), "none.json"),
        (("convert", "none.json", "out", "--set", "convert.sed=1"), "did you mean 'seed'"),
        (("convert", "none.json", "out", "--split", "train"), "--split 'train'"),
        (("bench", "c.yaml"), "is no bench"),
        (("demo", "--out", "tokenizer"), "holds other things"),
        (("nothing",), "No such command"),
        (("plan", "c.yaml", "--samples", "many"), "--samples"),
    ],
)
def test_a_bad_request_is_one_line_and_exit_code_2(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = mmpack(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_where(folder: Path) -> None:
    done = mmpack(folder, "plan", "none.yaml", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_a_failure_is_exit_code_1(folder: Path, tmp_path: Path) -> None:
    from tests.conftest import write_llava

    source = write_llava(tmp_path / "llava", 5)
    next(iter((source.parent / "images").iterdir())).unlink()
    words = ("--image-root", str(source.parent / "images"), "--on-error", "raise")
    done = mmpack(folder, "convert", str(source), str(tmp_path / "x"), *words)
    assert done.returncode == 1
    assert "image_missing" in done.stderr
    assert not (tmp_path / "x").exists()


def test_an_output_that_cannot_be_written_is_a_bad_request(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "x"):
        done = mmpack(folder, "inspect", "c.yaml", "--html", str(place))
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
