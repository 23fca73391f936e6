"""Dolly's records and OpenAssistant's trees, made ready."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.offline.chat import chat_text, trained_texts
from mmpack.offline.dolly import prepare_dolly
from mmpack.offline.oasst import prepare_oasst


def write(path: Path, records: list[Any]) -> Path:
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def dolly(i: int, context: str = "ctx") -> dict[str, str]:
    return {
        "instruction": f"ask {i}",
        "context": context and f"{context} {i}",
        "response": f"say {i}",
        "category": "qa",
    }


def test_dolly(tmp_path: Path) -> None:
    source = write(tmp_path / "dolly-15k.jsonl", [dolly(i) for i in range(200)] + [dolly(200, "")])
    prepared = prepare_dolly(source, seed=4)
    out = tmp_path / "dolly-15k-output.jsonl"
    assert prepared.paths == {"all": out}
    first = lines(out)
    assert len(first) == 201
    assert first[200] == {"input": "ask 200", "output": "say 200", "category": "qa"}
    orders = [line["input"] == f"ctx {i}\n\nask {i}" for i, line in enumerate(first[:200])]
    assert all(line["input"] in (f"ctx {i}\n\nask {i}", f"ask {i}\n\nctx {i}") for i, line in enumerate(first[:200]))
    assert 60 < sum(orders) < 140
    before = out.read_bytes()
    prepare_dolly(source, seed=4)
    assert out.read_bytes() == before
    prepare_dolly(source, seed=5)
    assert out.read_bytes() != before


def test_dolly_with_bad_lines(tmp_path: Path) -> None:
    source = write(
        tmp_path / "d.jsonl.gz", [dolly(0), {"instruction": "a"}, {**dolly(1), "response": " "}, [1], dolly(2)]
    )
    prepared = prepare_dolly(source)
    assert (tmp_path / "d-output.jsonl").is_file()
    assert prepared.kept == {"all": 2}
    assert prepared.skipped == {"missing_field": 1, "no_answer": 1, "not_a_record": 1}
    assert prepared.examples["no_answer"] == ["line 3"]


def test_a_failed_preparation_leaves_what_was_there(tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl", [{"instruction": "a"}])
    (tmp_path / "d-output.jsonl").write_text("before")
    with pytest.raises(ConfigError, match="1 missing_field"):
        prepare_dolly(source)
    assert (tmp_path / "d-output.jsonl").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


def message(role: str, text: str, *replies: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "text": text, "lang": "en", "replies": list(replies), **more}


def labels(quality: float) -> dict[str, Any]:
    return {"quality": {"value": quality, "count": 3}, "toxicity": {"value": 0.0}, "spam": {"value": 0.2}}


TREE = {
    "message_tree_id": "t",
    "prompt": message(
        "prompter",
        "q1",
        message(
            "assistant",
            "a1",
            message("prompter", "q2", message("assistant", "a2"), message("assistant", "a3", labels=labels(0.6))),
            message("prompter", "unanswered"),
            labels=labels(1.0),
        ),
        message("assistant", "b1", message("prompter", "unanswered too")),
        message("assistant", "gone", message("prompter", "q", message("assistant", "a")), deleted=True),
    ),
}


def ways(records: list[Any]) -> list[list[str]]:
    return [[turn["value"] for turn in record["conversations"]] for record in records]


def test_oasst_tree(tmp_path: Path) -> None:
    source = write(tmp_path / "trees.jsonl.gz", [TREE])
    prepare_oasst(source, tmp_path / "out", val_share=0.0, system="sys")
    records = lines(tmp_path / "out" / "train.jsonl")
    assert ways(records) == [["q1", "a1", "q2", "a2"], ["q1", "a1", "q2", "a3"], ["q1", "b1"]]
    assert [record["type"] for record in records] == ["VALUE_TO_TEXT", "VALUE_TO_TEXT", None]
    assert records[1]["conversations"][3]["label"] == "quality:2,toxicity:0"
    assert records[0]["mask"] == "User"
    assert chat_text(records[1]).startswith(
        "<extra_id_0>System\nsys\n<extra_id_1>User\nq1\n<extra_id_1>Assistant\n<extra_id_2>quality:4,toxicity:0\na1\n"
    )
    assert trained_texts(records[1]) == ["a1\n<extra_id_1>", "a3\n<extra_id_1>"]
    assert lines(tmp_path / "out" / "val.jsonl") == []
    prepare_oasst(source, tmp_path / "out", val_share=0.0, labels=False)
    assert {record["type"] for record in lines(tmp_path / "out" / "train.jsonl")} == {None}


def test_oasst_splits_whole_trees(tmp_path: Path) -> None:
    trees = [{**TREE, "message_tree_id": f"t{i}", "prompt": {**TREE["prompt"], "text": f"q{i}"}} for i in range(300)]
    source = write(tmp_path / "trees.jsonl", trees)
    prepared = prepare_oasst(source, tmp_path / "out", val_share=0.2, seed=1)
    train, val = (lines(tmp_path / "out" / f"{split}.jsonl") for split in ("train", "val"))
    assert prepared.kept == {"train": len(train), "val": len(val)}
    assert len(train) + len(val) == 900
    assert 90 < len(val) < 270
    assert not {way[0] for way in ways(train)} & {way[0] for way in ways(val)}
    before = (tmp_path / "out" / "val.jsonl").read_bytes()
    prepare_oasst(source, tmp_path / "out", val_share=0.2, seed=1)
    assert (tmp_path / "out" / "val.jsonl").read_bytes() == before
    prepare_oasst(source, tmp_path / "out", val_share=0.2, seed=2)
    assert (tmp_path / "out" / "val.jsonl").read_bytes() != before


def test_oasst_with_bad_trees(tmp_path: Path) -> None:
    bad = [
        {"message_tree_id": "x"},
        {"prompt": message("prompter", "q")},
        {"prompt": message("robot", "q")},
        {"prompt": message("prompter", "q", message("assistant", "a"), lang="de")},
    ]
    source = write(tmp_path / "trees.jsonl", [TREE, *bad])
    prepared = prepare_oasst(source, tmp_path / "out", val_share=0.0, language="en")
    assert prepared.kept == {"train": 3, "val": 0}
    assert prepared.skipped == {"missing_field": 1, "no_answer": 1, "unknown_role": 1, "other_language": 1}
    with pytest.raises(ConfigError, match="no conversation for training"):
        prepare_oasst(source, tmp_path / "out", language="fr")
    with pytest.raises(ConfigError, match="val_share=1"):
        prepare_oasst(source, tmp_path / "out", val_share=1)
