"""The window holds compressed bytes: buffered pictures cost about their file size, not their pixels."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

REPO = Path(__file__).parents[2]

CHILD = """
import json, sys
from pathlib import Path
import psutil
from transformers import AutoTokenizer
from tests.conftest import data_module

dataset, tokenizer = Path(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[2])
options = dict(repeat=False, num_streams=1, shuffle_buffer_size=None, seq_length=16384, packed_sequence_size=16384)
unique = lambda: psutil.Process().memory_full_info().uss
grown = []
for buffer in (1, 400):
    stream = data_module(dataset, tokenizer, packing_buffer_size=buffer, **options).train_dataloader().factory(0)
    packs = iter(stream)
    before = unique()
    stream._fill_window()
    grown.append((len(stream._window), unique() - before))
print(json.dumps(grown))
"""


def photo(seed: int) -> bytes:
    """640 x 480 with the detail of a photograph: about 100 KB as JPEG."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).resize((640, 480))
    noise = rng.integers(-20, 21, (480, 640, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=80)
    return out.getvalue()


def test_400_buffered_pictures_grow_memory_by_at_most_60_mb(tmp_path: Path, tokenizer: Any) -> None:
    from mmpack.convert import ConvertConfig, convert

    images = tmp_path / "images"
    images.mkdir()
    rng = random.Random(0)
    records = []
    for i in range(420):
        data = photo(i % 20)
        (images / f"{i}.jpg").write_bytes(data)
        turns = [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": f"answer {rng.random()}"}]
        records.append({"id": i, "image": f"{i}.jpg", "conversations": turns})
    (tmp_path / "llava.json").write_text(json.dumps(records), encoding="utf-8")
    convert(ConvertConfig(src=tmp_path / "llava.json", dst=tmp_path / "ds", image_root=images, split={"train": 1.0}))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path / "ds"), str(tmp_path / "tokenizer")]
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (_, _), (held, grown) = json.loads(done.stdout.splitlines()[-1])
    assert held == 400
    assert grown <= 60e6, f"{grown / 1e6:.0f} MB for {held} pictures of {len(photo(0)) / 1e3:.0f} KB"
