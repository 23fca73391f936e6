"""NeMo's functions: histogram, plan, fill, file; the same bytes for the same seed; its faults as clear errors."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmpack.errors import ConfigError, DataError
from mmpack.offline import NemoPackedRows, prepare_packed_sequence_data
from mmpack.offline.nemo import create_hist, create_packing_strategy, fill_packing_strategy
from tests.offline.texts import bpe_tokenizer, char_tokenizer

ITEMS = [
    {"input_ids": ids, "answer_start_idx": start}
    for ids, start in [([1, 2, 3, 9], 2), ([4, 5, 9], 1), ([6, 7, 8, 9], 3), ([10, 11, 12, 13, 14, 9], 4)]
]


@pytest.mark.parametrize(
    ("algorithm", "packs", "most"),
    [("first_fit", [[2, 3, 3], [5]], 3), ("first_fit_decreasing", [[5, 3], [3, 2]], 2)],
)
def test_histogram_and_plan(algorithm: str, packs: list[list[int]], most: int) -> None:
    sequences, histogram = create_hist(ITEMS, 8)
    assert histogram == [0, 0, 1, 2, 0, 1, 0, 0, 0]
    assert [len(items) for items in sequences.values()] == histogram
    assignments, metadata = create_packing_strategy(histogram, 8, algorithm)
    assert assignments == packs
    assert metadata == {
        "dataset_max_seqlen": 5,
        "max_samples_per_bin": most,
        "packing_factor": 2.0,
        "packing_efficiency": 81.25,
        "pack_size": 8,
        "min_packed_seqlen": 5,
    }
    rows = fill_packing_strategy(assignments, sequences, 8, 0)
    by_ids = {tuple(item["input_ids"]): item["answer_start_idx"] for item in ITEMS}
    for row in rows:
        for start, end in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True):
            answer_start = by_ids.pop(tuple(row["input_ids"][start:end]))
            wanted = [int(i + 1 >= answer_start) for i in range(end - start - 1)] + [0]
            assert row["loss_mask"][start:end] == wanted
    assert not by_ids


def test_fill_with_masks() -> None:
    items = [{"input_ids": [1, 2, 3, 9], "loss_mask": [0, 0, 1, 1]}, {"input_ids": [4, 5, 9], "loss_mask": [0, 1, 1]}]
    sequences, histogram = create_hist(items, 8)
    assignments, metadata = create_packing_strategy(histogram, 8, "first_fit_decreasing")
    assert fill_packing_strategy(assignments, sequences, 8, 0) == [
        {"input_ids": [1, 2, 3, 9, 4, 5, 9], "loss_mask": [0, 1, 1, 0, 1, 1, 0], "seq_start_id": [0, 4]}
    ]
    assert (metadata["packing_efficiency"], metadata["min_packed_seqlen"]) == (62.5, 5)


def test_what_nemo_crashes_on() -> None:
    with pytest.raises(ConfigError, match="has 12 tokens"):
        create_hist([{"input_ids": list(range(12))}], 8)
    with pytest.raises(ConfigError, match="at least 2"):
        create_hist([{"input_ids": [1]}], 8)
    with pytest.raises(ConfigError, match="7 positions does not fit a pack of 4"):
        create_packing_strategy([0, 1, 0, 0, 0, 0, 0, 1], 4, "first_fit")
    with pytest.raises(ConfigError, match="empty"):
        create_packing_strategy([0] * 9, 8, "first_fit")
    with pytest.raises(ConfigError, match="did you mean 'first_fit"):
        create_packing_strategy([0, 1], 8, "first_fitt")
    with pytest.raises(ConfigError, match="none is left"):
        fill_packing_strategy([[7]], {1: [{"input_ids": [1, 2]}]}, 8, 0)


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """200 records whose lengths repeat often."""
    path = tmp_path / "rows.jsonl"
    words = ["ab", "cde", "f", "ghij"]
    lines = [{"input": words[i % 4] * (1 + i % 7), "output": words[i % 3] * (1 + i % 3)} for i in range(200)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prepare(rows_file: Path, name: str, **options: Any) -> tuple[bytes, dict[str, Any]]:
    out = rows_file.parent / f"{name}.npy"
    values: dict[str, Any] = {"packed_sequence_size": 64, "max_seq_length": 40} | options
    tokenizer = values.pop("tokenizer", char_tokenizer())
    metadata = prepare_packed_sequence_data(rows_file, out, None, tokenizer=tokenizer, **values)
    return out.read_bytes(), metadata


def test_the_seed_decides_and_nothing_else(rows_file: Path) -> None:
    np.random.seed(1)  # noqa: NPY002
    one, metadata = prepare(rows_file, "one", seed=5)
    np.random.seed(2)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    two, _ = prepare(rows_file, "two", seed=5, workers=2)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert one == two
    assert prepare(rows_file, "three", seed=6)[0] != one
    assert metadata["packing_factor"] == round(200 / len(NemoPackedRows(rows_file.parent / "one.npy")), 2)


def test_file_holds_every_sequence_once(rows_file: Path) -> None:
    prepare(rows_file, "one")
    rows = NemoPackedRows(rows_file.parent / "one.npy")
    found = []
    for row in rows:
        assert len(row.input_ids) - len(row.seq_start_ids) <= 64
        for start, end in zip(row.seq_bounds, row.seq_bounds[1:], strict=False):
            ids = row.input_ids[start:end].tolist()
            learned = [ids[i + 1] for i in range(len(ids) - 1) if row.loss_mask[start + i]]
            found.append(tuple(char_tokenizer().decode(part).replace(" ", "") for part in (ids, learned)))
    records = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert sorted(found) == sorted((r["input"] + r["output"] + "</s>", r["output"] + "</s>") for r in records)


def test_metadata_file_grows(rows_file: Path) -> None:
    meta = rows_file.parent / "meta.json"
    for name in ("train", "val"):
        prepare_packed_sequence_data(rows_file, rows_file.parent / f"{name}.npy", meta, 64, char_tokenizer(), 40)
    entries = json.loads(meta.read_text())
    assert len(entries) == 2
    assert entries[0] == entries[1]
    assert set(entries[0]) == {
        *("dataset_max_seqlen", "max_samples_per_bin", "packing_factor"),
        *("packing_efficiency", "pack_size", "min_packed_seqlen"),
    }
    meta.write_text("{}")
    with pytest.raises(ConfigError, match="not the list"):
        prepare_packed_sequence_data(rows_file, rows_file.parent / "x.npy", meta, 64, char_tokenizer(), 40)
    assert not (rows_file.parent / "x.npy").exists()


def test_sequences_padded_to_a_multiple(rows_file: Path) -> None:
    prepare(rows_file, "one", pad_seq_to_mult=8)
    for row in NemoPackedRows(rows_file.parent / "one.npy"):
        for start, end in zip(row.seq_bounds, row.seq_bounds[1:], strict=False):
            assert (end - start - 1) % 8 == 0
            ids = row.input_ids[start:end]
            real = int(np.argmax(ids == char_tokenizer().eos_token_id)) + 1
            assert row.loss_mask[start + real - 2] == 1
            assert not row.loss_mask[start + real - 1 : end].any()


def test_chats_and_bad_settings(tmp_path: Path, rows_file: Path) -> None:
    path = tmp_path / "chat.jsonl"
    turns = [{"from": "User", "value": "hi"}, {"from": "Assistant", "value": "yo"}]
    path.write_text(json.dumps({"system": "sys", "mask": "User", "conversations": turns}) + "\n")
    prepare(path, "chat", dataset_kwargs={"chat": True}, tokenizer=bpe_tokenizer())
    row = NemoPackedRows(tmp_path / "chat.npy")[0]
    learned = row.input_ids[1:][row.loss_mask[:-1] != 0]
    assert bpe_tokenizer().decode(learned) == "yo\n<extra_id_1>"
    with pytest.raises(ConfigError, match="did you mean 'prompt_template'"):
        prepare(rows_file, "x", dataset_kwargs={"prompt_tmplate": "x"})
    with pytest.raises(ConfigError, match="longer than packed_sequence_size"):
        prepare(rows_file, "x", packed_sequence_size=32)
    with pytest.raises(ConfigError, match="no multiple"):
        prepare(rows_file, "x", pad_seq_to_mult=16)
    with pytest.raises(ConfigError, match="none of 200 records"):
        prepare(rows_file, "x", dataset_kwargs={"prompt_template": "{a} {b}"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packed_sequence_size": "64"}, "packed_sequence_size='64'"),
        ({"packed_sequence_size": None}, "packed_sequence_size=None"),
        ({"max_seq_length": "4"}, "max_seq_length='4'; give a whole number"),
        ({"max_seq_length": 1.5}, "max_seq_length=1.5"),
        ({"pad_seq_to_mult": "8"}, "pad_seq_to_mult='8'"),
        ({"pad_seq_to_mult": -2}, "pad_seq_to_mult=-2"),
        ({"workers": 0}, "workers=0"),
        ({"workers": "2"}, "workers='2'"),
        ({"dataset_kwargs": 5}, "dataset_kwargs=5; give a mapping"),
        ({"seed": -1}, "seed=-1"),
        ({"packing_algorithm": None}, "unknown packing algorithm None|packing_algorithm=None"),
    ],
)
def test_wrong_kinds_of_settings_are_named(rows_file: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(rows_file, "x", **options)
    assert not (rows_file.parent / "x.npy").exists()


def test_wrong_places_are_named(rows_file: Path) -> None:
    out = rows_file.parent / "x.npy"
    for paths, message in (
        ((None, out, None), "input_path=None"),
        ((rows_file, 5, None), "output_path=5"),
        ((rows_file, out, ""), "output_metadata_path=''"),
        ((rows_file, out, rows_file.parent), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare_packed_sequence_data(*paths, 64, char_tokenizer(), 40)  # type: ignore[arg-type]
    os.mkfifo(out)
    with pytest.raises(ConfigError, match="is no plain file"):
        prepare_packed_sequence_data(rows_file, out, None, 64, char_tokenizer(), 40)
    assert out.is_fifo()


def test_a_negative_index_teaches_nothing(rows_file: Path) -> None:
    prepare(rows_file, "one")
    rows = NemoPackedRows(rows_file.parent / "one.npy")
    assert rows[-1].input_ids.tolist() == rows[len(rows) - 1].input_ids.tolist()
    assert not rows[-1].loss_mask.any()
    assert rows[len(rows) - 1].loss_mask.any()


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(ConfigError, match="cannot be read"):
        NemoPackedRows(path)
    np.save(path, np.arange(3))
    with pytest.raises(ConfigError, match="not a list of dicts"):
        NemoPackedRows(path)
    array = np.empty(1, dtype=object)
    array[0] = Evil()
    np.save(path, array, allow_pickle=True)
    with pytest.raises(ConfigError, match=r"builtins\.print"):
        NemoPackedRows(path)
    assert capsys.readouterr().out == ""
    assert pickle.loads(pickle.dumps(array[0])) is None  # the same file would have run it
    array[0] = {"input_ids": [1, 2], "loss_mask": [1], "seq_start_id": [0]}
    np.save(path, array, allow_pickle=True)
    with pytest.raises(DataError, match="1 masks"):
        NemoPackedRows(path)[0]
    array[0] = {"input_ids": np.arange(3), "loss_mask": [True, np.int64(1), 1.0], "seq_start_id": [0]}
    np.save(path, array, allow_pickle=True)
    assert NemoPackedRows(path)[0].loss_mask.tolist() == [1, 1, 0]
