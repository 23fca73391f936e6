"""A sample that was re-encoded behind a checkpoint is named, not packed into a place that it no longer fits."""

from __future__ import annotations

import itertools
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import StateError
from mmpack.state import opened
from tests.conftest import data_module


def overwrite_answer(dataset: Path, key: str) -> None:
    """The sample's answer becomes as many other bytes, which are more tokens; the shard's index still fits."""
    for shard in sorted(dataset.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            members = {member.name: (member.offset_data, member.size) for member in tar.getmembers()}
        if f"{key}.json" not in members:
            continue
        offset, size = members[f"{key}.json"]
        content = bytearray(shard.read_bytes())
        record = json.loads(content[offset : offset + size])
        answer = record["conversations"][1]["value"]
        changed = content[offset : offset + size].replace(answer.encode(), (b"#@^~" * len(answer))[: len(answer)], 1)
        assert len(changed) == size
        content[offset : offset + size] = changed
        shard.write_bytes(content)
        return
    raise AssertionError(f"{key} is in no shard")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_key_and_both_lengths_are_named(
    energon_dataset: Path, tokenizer: Any, tmp_path: Path, num_workers: int
) -> None:
    dataset = tmp_path / "energon"
    shutil.copytree(energon_dataset, dataset)
    module = data_module(dataset, tokenizer, num_streams=1)
    list(itertools.islice(module.train_dataloader(), 3))
    state = module.state_dict()
    stream = opened(state["streams"]["0"])
    assert stream is not None
    _, num_tokens, key, _, _ = stream["window"][-1]
    overwrite_answer(dataset, key)
    again = data_module(dataset, tokenizer, num_streams=1, num_workers=num_workers)
    again.load_state_dict(state)
    with pytest.raises(StateError, match=rf"sample '{key}' of 'energon' had {num_tokens} tokens .* and has \d+ now"):
        next(iter(again.train_dataloader()))
