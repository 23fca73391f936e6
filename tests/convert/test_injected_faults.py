"""A set with 1 % of each of twenty faults: every good sample comes through unchanged, every other has its reason."""

from __future__ import annotations

import json
import runpy
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mmpack
from tests.conftest import write_llava
from tests.convert.helpers import run, samples

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "inject_faults.py"))


def check(source: Path, images: Path, folder: Path, **options: Any) -> None:
    out = folder / "faulty"
    out.mkdir()
    truth = TOOL["inject"](source, images, out, share=0.01, seed=5)
    originals = json.loads(source.read_text(encoding="utf-8"))
    assert len(Counter(fault["fault"] for fault in truth["faults"].values())) == len(TOOL["FAULTS"]) == 20
    dst = folder / "out"
    report = run(out / "records.jsonl", dst, image_root=out / "images", workers=2, **options)
    reasons = {number: sample.reason for number, sample in enumerate(report.samples) if sample.reason is not None}
    assert reasons == {int(number): fault["reason"] for number, fault in truth["faults"].items()}
    assert report.skipped == truth["skipped"]
    assert (report.kept, len(report.samples)) == (truth["good"], len(originals))
    written = samples(dst)
    assert sorted(map(int, written)) == [i for i in range(len(originals)) if i not in reasons]
    for key, (record, pictures) in written.items():
        original = originals[int(key)]
        names = original.get("image") or []
        names = [names] if isinstance(names, str) else names
        assert record == {
            **original,
            **({"image": record["image"], "image_source": original["image"]} if names else {}),
        }
        assert pictures == [(images / name).read_bytes() for name in names]


def test_all_good_samples_and_all_reasons(tmp_path: Path) -> None:
    source = write_llava(tmp_path / "in", 400, seed=3)
    check(source, source.parent / "images", tmp_path, split={"train": 0.9, "val": 0.1})


@pytest.mark.slow
def test_all_of_ten_thousand_real_samples(tmp_path: Path) -> None:
    demo = Path(mmpack.__file__).parent / "demo_data"
    records = json.loads((demo / "llava.json").read_text(encoding="utf-8"))
    many = [{**record, "id": f"{record['id']}#{turn}"} for turn in range(10) for record in records][:10_000]
    (tmp_path / "llava.json").write_text(json.dumps(many), encoding="utf-8")
    check(tmp_path / "llava.json", demo / "images", tmp_path)


def test_the_same_seed_gives_the_same_faults(tmp_path: Path) -> None:
    source = write_llava(tmp_path / "in", 100)
    content = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        TOOL["inject"](source, source.parent / "images", tmp_path / name, share=0.02, seed=1)
        content.append((tmp_path / name / "records.jsonl").read_bytes())
        shutil.rmtree(tmp_path / name / "images")
    assert content[0] == content[1]


def test_the_same_faults_as_an_energon_dataset(tmp_path: Path) -> None:
    """Converted again, that dataset has the same good samples and the same reasons."""
    source = write_llava(tmp_path / "in", 100)
    images = source.parent / "images"
    out = tmp_path / "faulty"
    out.mkdir()
    truth = TOOL["inject"](source, images, out, share=0.01, seed=2)
    TOOL["write_energon"](source, images, out / "energon", truth, shard_samples=30)
    report = run(out / "energon", tmp_path / "out", workers=2)
    assert report.skipped == truth["skipped"]
    bad = [number for number, sample in enumerate(report.samples) if sample.reason is not None]
    assert bad == sorted(truth["faults"])
