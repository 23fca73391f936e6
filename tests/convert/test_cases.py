"""Every case file through the real command, against a table of what is right."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.images import decode_image
from tests.convert.helpers import CASES, PICTURES, run, samples

KINDS = ("llava", "parquet", "sft", "tar")
TABLE = {
    f"{kind}/{name}": expected
    for kind in KINDS
    for name, expected in json.loads((CASES / kind / "expected.json").read_text(encoding="utf-8")).items()
}
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow (extra hf) is not here")


def _parameters() -> list[Any]:
    return [pytest.param(name, marks=needs_pyarrow if name.startswith("parquet/") else ()) for name in sorted(TABLE)]


def image_root(name: str) -> Path | None:
    if "path_only" in name:
        return PICTURES.parent  # its paths begin with ../llava
    return PICTURES if name.startswith(("llava/", "parquet/")) else None


@pytest.mark.parametrize("name", _parameters())
def test_a_case_has_its_outcome(name: str, tmp_path: Path) -> None:
    expected = TABLE[name]
    dst = tmp_path / "out"
    if "error" in expected:
        with pytest.raises(ConfigError, match=expected["error"]) as caught:
            run(CASES / name, dst, image_root=image_root(name))
        assert name.rpartition("/")[2] in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        return
    report = run(CASES / name, dst, image_root=image_root(name))
    assert report.kept == expected["kept"]
    assert report.skipped == expected.get("skipped", {})
    assert report.kept + sum(report.skipped.values()) == len(report.samples)
    written = samples(dst)
    assert sorted(written) == [sample.key for sample in report.samples if sample.reason is None]
    details = "\n".join(str(sample.detail) for sample in report.samples if sample.reason is not None)
    assert expected.get("detail", "") in details
    if "pictures" in expected:
        assert [len(pictures) for _, pictures in written.values()] == expected["pictures"]
    if "note" in expected:
        assert re.search(expected["note"], "\n".join(report.notes)) if expected["note"] else not report.notes
    if "kept_lines" in expected:
        bad = {int(str(s.detail).split(":")[0].removeprefix("line ")) for s in report.samples if s.reason is not None}
        assert sorted(set(range(1, len(report.samples) + 1)) - bad) == expected["kept_lines"]


def test_every_case_file_is_in_the_table() -> None:
    for kind in KINDS:
        files = {f"{kind}/{path.name}" for path in (CASES / kind).iterdir() if path.name != "expected.json"}
        listed = {"/".join(name.split("/")[:2]) for name in TABLE if "*" not in name}
        assert files - {"llava/images"} <= listed


@pytest.mark.parametrize("name", ["llava/mixed_14.json", "sft/chat_bad_lines.jsonl", "tar/one_bad_of_three"])
def test_the_command_itself(name: str, tmp_path: Path) -> None:
    options = ["--json", "--image-root", str(PICTURES), "--split", "train=1", "--format", "auto"]
    command = [sys.executable, "-c", "from mmpack.cli import main; main()", "convert", str(CASES / name)]
    done = subprocess.run([*command, str(tmp_path / "out"), *options], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed["kept"] == TABLE[name]["kept"]
    assert printed["skipped"] == TABLE[name].get("skipped", {})
    assert len(printed["samples"]) == printed["kept"] + sum(printed["skipped"].values())
    assert json.loads((tmp_path / "out" / "convert-report.json").read_text()) == printed


def test_named_pictures_are_the_ones_that_are_meant(tmp_path: Path) -> None:
    run(CASES / "tar" / "plain_and_named_pictures.tar", tmp_path / "out")
    ((record, pictures),) = samples(tmp_path / "out").values()
    assert [int(decode_image(picture).mean((0, 1)).argmax()) for picture in pictures] == [1, 2]  # green, blue
    assert record["image_source"] == ["first.jpg", "second.jpg"]


def test_a_series_keeps_its_order_and_gets_a_mark_for_each_picture(tmp_path: Path) -> None:
    run(CASES / "tar" / "numbered_parts.tar", tmp_path / "out")
    ((record, pictures),) = samples(tmp_path / "out").values()
    assert len(pictures) == 2
    assert record["conversations"][0]["value"] == "<image><image>\nWhat colour is it?"


@needs_pyarrow
def test_pictures_in_tables_are_copied_unchanged_and_in_order(tmp_path: Path) -> None:
    from pyarrow import parquet

    for name in ("image_struct", "image_plain_binary", "dictionary_and_groups"):
        column = parquet.read_table(CASES / "parquet" / f"{name}.parquet").column("image").to_pylist()
        wanted = [[value["bytes"] if isinstance(value, dict) else value] for value in column]
        run(CASES / "parquet" / f"{name}.parquet", tmp_path / name)
        assert [pictures for _, pictures in samples(tmp_path / name).values()] == wanted
    run(CASES / "parquet" / "image_path_string.parquet", tmp_path / "paths", image_root=PICTURES)
    named = [[(PICTURES / f"{colour}.jpg").read_bytes()] for colour in ("red", "green", "blue")]
    assert [pictures for _, pictures in samples(tmp_path / "paths").values()] == named


def test_texts_go_through_unchanged(tmp_path: Path) -> None:
    run(CASES / "sft" / "leading_spaces.jsonl", tmp_path / "a")
    assert samples(tmp_path / "a")["00000000"][0] == {"prompt": "  def f():\n", "response": "    return 1\n"}
    run(CASES / "sft" / "repeated_key_utf8_escape.jsonl", tmp_path / "b")
    assert samples(tmp_path / "b")["00000000"][0] == {"prompt": "\u00e9\U0001f600", "response": "\u2764\ufe0f"}
