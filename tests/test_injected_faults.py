"""1 % of each of twenty faults in an Energon dataset: `check` counts them exactly, and training loses nothing else."""

from __future__ import annotations

import hashlib
import itertools
import json
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer

import mmpack
from mmpack.tiling import TileSpec
from mmpack.vlm import EnergonMultiModalDataModule, MultiModalTaskEncoder

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "inject_faults.py"))
DEMO = Path(mmpack.__file__).parent / "demo_data"


@pytest.fixture(scope="module", params=[1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Real samples, repeated for the large set, as datasets ``clean`` and ``faulty``; the truth about the latter."""
    folder = tmp_path_factory.mktemp(f"faults_{request.param}")
    records = json.loads((DEMO / "llava.json").read_text(encoding="utf-8"))
    many = [{**record, "id": f"{record['id']}#{turn}"} for turn in range(10) for record in records][: request.param]
    (folder / "llava.json").write_text(json.dumps(many), encoding="utf-8")
    (folder / "copy").mkdir()
    truth = TOOL["inject"](folder / "llava.json", DEMO / "images", folder / "copy", share=0.01, seed=5)
    assert len(Counter(fault["fault"] for fault in truth["faults"].values())) == len(TOOL["FAULTS"]) == 20
    TOOL["write_energon"](folder / "llava.json", DEMO / "images", folder / "faulty", truth)
    TOOL["write_energon"](folder / "llava.json", DEMO / "images", folder / "clean", {"faults": {}})
    return folder, truth


def loader(dataset: Path, num_workers: int) -> Any:
    encoder = MultiModalTaskEncoder(
        tokenizer=AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        image_processor=TileSpec(tile_size_px=56, embeddings_per_tile=16),
        packed_sequence_size=16_384,
        num_image_embeddings_per_tile=16,
    )
    module = EnergonMultiModalDataModule(
        dataset,
        seq_length=16_384,
        num_workers=num_workers,
        packing_buffer_size=50,
        repeat=False,
        num_streams=2,
        task_encoder=encoder,
    )
    return module.train_dataloader()


def samples_of(packs: Any) -> Iterator[tuple[str, str]]:
    """Key and content of every sample: tokens, labels, weights and pixels of its segment."""
    for batch in packs:
        batch.check()
        picture = tile = 0
        segments = itertools.pairwise(batch.cu_seqlens_padded.tolist())
        filled = [segment for segment, used in zip(segments, batch.cu_seqlens.diff().tolist(), strict=True) if used]
        for number, (key, (start, end)) in enumerate(zip(batch.sample_keys, filled, strict=True)):
            content = hashlib.sha256()
            for row in (batch.tokens, batch.labels, batch.loss_weight):
                content.update(row[0, start:end].contiguous().numpy().tobytes())
            pictures = int(batch.images_per_sample[number])
            tiles = int(batch.tiles_per_image[picture : picture + pictures].sum())
            content.update(batch.pixels[tile : tile + tiles].contiguous().numpy().tobytes())
            picture, tile = picture + pictures, tile + tiles
            yield key, content.hexdigest()


def test_check_counts_every_fault_and_nothing_else(faulty: tuple[Path, dict[str, Any]]) -> None:
    folder, truth = faulty
    command = [Path(sys.executable).with_name("mmpack"), "check", folder / "faulty", "--deep", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["passed"]) == (1, False)
    assert {reason: found["count"] for reason, found in report["faults"].items()} == truth["skipped"]
    assert (report["good"], report["bad"]) == (truth["good"], len(truth["faults"]))


def test_training_takes_every_good_sample_once_and_as_it_is(faulty: tuple[Path, dict[str, Any]]) -> None:
    folder, truth = faulty
    packs = loader(folder / "faulty", 2)
    parent = psutil.Process()
    before, grown = parent.memory_info().rss, [0]

    def watched() -> Iterator[Any]:
        for batch in packs:
            grown.extend(worker.memory_info().rss - before for worker in parent.children())
            yield batch

    taken = list(samples_of(watched()))
    good = {key: content for key, content in samples_of(loader(folder / "clean", 0)) if int(key) not in truth["faults"]}
    assert len(taken) == len(dict(taken)) == truth["good"]
    assert dict(taken) == good
    counts: Counter[str] = Counter()
    for reasons in packs.drops.to_dict().values():
        counts.update({reason: entry["count"] for reason, entry in reasons.items()})
    assert counts == truth["skipped"]
    assert max(grown) < 500 << 20  # the picture that says it has 60,000 x 60,000 pixels would take 10 GB
