"""Records of every format, opened by energon with nothing but its own function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.convert.helpers import jpeg, run, turns

SAID = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image"}]}, SAID[1]]
P = object()  # a picture


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"image": "a.jpg", "conversations": turns("x<image>y", "b")}, ["human: x", P, "y\n", "gpt: b\n"]),
        ({"messages": SAID}, ["user: a?\n", "assistant: b\n"]),
        ({"image": "a.jpg", "messages": PARTS}, ["user: see ", P, "\n", "assistant: b\n"]),
        ({"image": "a.jpg", "question": "a?", "answer": "b"}, [P, "a?\n", "b\n"]),
        (
            {"image": "a.jpg", "question": "a <image>?", "choices": ["b", "c"], "answer": 1},
            ["a ", P, "?\n", "bc\n", "1\n"],
        ),
        ({"image": "a.jpg", "caption": "<image> is a word"}, [P, " is a word\n"]),
        ({"image": ["a.jpg", "a.jpg"], "caption": "b"}, [P, P, "b\n"]),
        ({"prompt": "a <image>", "response": "b"}, ["a <image>\n", "b\n"]),
        ({"text": "all"}, ["all\n"]),
        ({"sequence": ["a", {"image": "a.jpg"}, "b"]}, ["a", P, "b"]),
        ({"texts": ["a", None, "b"], "images": [None, "a.jpg", None]}, ["a", P, "b"]),
    ],
)
def test_texts_and_pictures_in_reading_order(record: dict[str, Any], expected: list[Any], tmp_path: Path) -> None:
    import torch
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset

    (tmp_path / "a.jpg").write_bytes(jpeg())
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    run(tmp_path / "a.jsonl", tmp_path / "out")
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    (sample,) = get_loader(get_train_dataset(tmp_path / "out", worker_config=worker, batch_size=None, **options))
    assert [P if isinstance(item, torch.Tensor) else item for item in sample.sequence] == expected
