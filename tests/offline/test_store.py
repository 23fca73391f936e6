"""The packed store: every sequence once, by index, whole or not at all, found again by its key."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmpack.errors import ConfigError, DataError, SampleError
from mmpack.offline import PackConfig, PackedStore, pack_dataset
from mmpack.offline.records import PromptResponse
from mmpack.packing import ALGORITHMS
from tests.conftest import words
from tests.offline.texts import bpe_tokenizer, char_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """900 prompt-response records of skewed lengths: more than three blocks."""
    import random

    rng = random.Random(3)
    path = tmp_path_factory.mktemp("store") / "rows.jsonl"
    with path.open("w") as file:
        for i in range(900):
            record = {"input": words(rng, rng.choice([2, 3, 4, 8, 20])), "output": f"{i} " + words(rng, 1 + i % 9)}
            file.write(json.dumps(record) + "\n")
    return path


def config(source: Path, out: Path, **options: Any) -> PackConfig:
    return PackConfig(input_path=source, output_path=out, **({"packed_sequence_size": 256} | options))


def digest(folder: Path) -> dict[str, bytes]:
    """Every file but the one that tells how long it took."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "meta.json"}


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_sequence_once_and_whole(source: Path, tmp_path: Path, algorithm: str) -> None:
    report = pack_dataset(config(source, tmp_path / "s", algorithm=algorithm), bpe_tokenizer())
    store = PackedStore.open(tmp_path / "s")
    assert (len(store), store.num_sequences, report.num_records) == (report.num_packs, 900, 900)
    records = [json.loads(line) for line in source.read_text().splitlines()]
    seen = []
    num_tokens = num_targets = 0
    for row in store:
        assert row.num_tokens <= 256
        num_tokens += row.num_tokens
        num_targets += int(row.loss_mask.sum())
        for number, (start, end) in zip(row.record_ids, itertools.pairwise(row.seq_bounds), strict=True):
            ids, mask = row.input_ids[start:end], row.loss_mask[start:end]
            record = records[number]
            assert bpe_tokenizer().decode(ids) == f"{record['input']} {record['output']}</s>"
            assert bpe_tokenizer().decode(ids[1:][mask[:-1] != 0]) == record["output"] + "</s>"
            assert mask[-1] == 0
            seen.append(int(number))
    assert sorted(seen) == list(range(900))
    assert (num_tokens, num_targets) == (report.num_tokens, report.num_targets)
    assert report.fill_percent == pytest.approx(100 * num_tokens / (256 * len(store)))
    if algorithm == "exact_fill":
        assert len(store) == -(-num_tokens // 256)


def test_workers_and_shards_change_nothing_that_is_read(source: Path, tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer()
    done: list[tuple[int, int]] = []
    pack_dataset(config(source, tmp_path / "one"), tokenizer, lambda *at: done.append(at))
    pack_dataset(config(source, tmp_path / "two", workers=2), tokenizer)
    pack_dataset(config(source, tmp_path / "small", max_tokens_per_shard=2000), tokenizer)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert done == [(256, 900), (512, 900), (768, 900), (900, 900)]
    one, small = PackedStore.open(tmp_path / "one"), PackedStore.open(tmp_path / "small")
    assert len(list((tmp_path / "small").glob("tokens-*.npy"))) > 8
    for i in [*range(len(one)), -1, -len(one)]:
        a, b = one[i], small[i]
        for name in ("input_ids", "loss_mask", "seq_start_ids", "record_ids"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
    again = pickle.loads(pickle.dumps(small))
    assert again[5].input_ids.tolist() == one[5].input_ids.tolist()
    assert [row.num_tokens for row in one[2:5]] == [one[i].num_tokens for i in (2, 3, 4)]
    for index in (len(one), -len(one) - 1):
        with pytest.raises(IndexError):
            one[index]


def test_the_same_request_is_done_already(source: Path, tmp_path: Path) -> None:
    first = pack_dataset(config(source, tmp_path / "s"), bpe_tokenizer())
    stamp = (tmp_path / "s" / "meta.json").stat().st_mtime_ns
    again = pack_dataset(config(source, tmp_path / "s", workers=2), bpe_tokenizer())
    assert again.cached
    assert (again.key, again.num_packs, again.sequences_per_pack) == (
        first.key,
        first.num_packs,
        first.sequences_per_pack,
    )
    assert (tmp_path / "s" / "meta.json").stat().st_mtime_ns == stamp


def test_every_setting_the_data_and_the_tokenizer_are_in_the_key(source: Path, tmp_path: Path) -> None:
    pack_dataset(config(source, tmp_path / "s"), bpe_tokenizer())
    changes: list[dict[str, Any]] = [
        {"packed_sequence_size": 512},
        {"seq_length": 200},
        {"oversize": "truncate"},
        {"algorithm": "first_fit"},
        {"seed": 1},
        {"sequence_multiple": 2},
        {"form": PromptResponse(add_bos=True)},
        {"form": PromptResponse(answer_only_loss=False)},
        {"form": PromptResponse(prompt_template="Q: {input} A: {output}")},
        {"max_tokens_per_shard": 1000},
    ]
    keys = set()
    for number, change in enumerate(changes):
        with pytest.raises(ConfigError, match="other data or settings"):
            pack_dataset(config(source, tmp_path / "s", **change), bpe_tokenizer())
        keys.add(pack_dataset(config(source, tmp_path / f"{number}", **change), bpe_tokenizer()).key)
    assert len(keys) == len(changes)
    with pytest.raises(ConfigError, match="other data or settings"):
        pack_dataset(config(source, tmp_path / "s"), bpe_tokenizer(extra=False))
    other = tmp_path / "other.jsonl"
    other.write_text(source.read_text().replace("dog", "cat"))
    with pytest.raises(ConfigError, match="overwrite"):
        pack_dataset(config(other, tmp_path / "s"), bpe_tokenizer())
    pack_dataset(config(other, tmp_path / "s", overwrite=True), bpe_tokenizer())
    assert b"cat" in bpe_tokenizer().decode(PackedStore.open(tmp_path / "s")[0].input_ids).encode()


def test_a_failure_leaves_nothing(source: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(source.read_text() + '{"input": "x"}\n')
    for workers in (1, 2):
        with pytest.raises(SampleError, match="line 901"):
            pack_dataset(config(bad, tmp_path / "s", on_error="raise", workers=workers), bpe_tokenizer())
        with pytest.raises(ConfigError, match=r"line \d+: a sequence needs \d+ tokens, allowed 30"):
            pack_dataset(config(bad, tmp_path / "s", seq_length=30, oversize="raise", workers=workers), bpe_tokenizer())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]
    report = pack_dataset(config(bad, tmp_path / "s"), bpe_tokenizer())
    assert (report.skipped, report.examples) == ({"missing_field": 1}, {"missing_field": ["line 901"]})


def test_long_sequences_are_counted(source: Path, tmp_path: Path) -> None:
    dropped = pack_dataset(config(source, tmp_path / "d", seq_length=40), bpe_tokenizer())
    cut = pack_dataset(config(source, tmp_path / "t", seq_length=40, oversize="truncate"), bpe_tokenizer())
    assert dropped.skipped["oversize"] + dropped.num_sequences == 900
    assert cut.truncated + cut.skipped.get("no_answer", 0) == dropped.skipped["oversize"]
    assert cut.longest_sequence == 40
    for row in PackedStore.open(tmp_path / "t"):
        for start, end in itertools.pairwise(row.seq_bounds):
            assert row.loss_mask[start:end].any()


def test_places_that_are_no_store(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ConfigError, match="no packed store"):
        pack_dataset(config(source, tmp_path), bpe_tokenizer())
    with pytest.raises(ConfigError, match="no packed store"):
        PackedStore.open(tmp_path)
    pack_dataset(config(source, tmp_path / "s"), bpe_tokenizer())
    (tmp_path / "s" / "pack_offsets.npy").write_bytes(b"")
    with pytest.raises(DataError, match="damaged"):
        PackedStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packed_sequence_size": 0}, "packed_sequence_size=0"),
        ({"seq_length": 300}, "longer than a pack"),
        ({"algorithm": "exact"}, "packing algorithm"),
        ({"record_format": "opanai"}, "did you mean 'openai'"),
        ({"template": "chatmll"}, "did you mean 'chatml'"),
        ({"workers": 0}, "workers=0"),
        ({"oversize": "cut"}, "oversize='cut'"),
        ({"on_error": "stop"}, "on_error='stop'"),
        ({"sequence_multiple": 512}, "multiple of 512"),
    ],
)
def test_bad_settings(source: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(source, tmp_path / "s", **options)


def test_a_slow_tokenizer_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no `tokenizers` backend"):
        pack_dataset(config(source, tmp_path / "s"), object())
    assert char_tokenizer().is_fast
