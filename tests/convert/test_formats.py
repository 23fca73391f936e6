"""Every kind of source through `convert`: found out by content, read alike however it is stored."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.sources import parser_for
from tests.convert.helpers import jpeg, run, samples, tar_of, turns

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow (extra hf) is not here")
needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="datasets (extra hf) is not here"
)
COLOURS = ("red", "green", "blue", "white", "black")


def records(count: int = 5) -> list[dict[str, Any]]:
    return [
        {"id": f"r{i}", "image": f"{i}.jpg", "conversations": turns(f"<image>\n{i}?", f"é{i}")} for i in range(count)
    ]


def write_pictures(folder: Path, count: int = 5) -> list[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [jpeg(COLOURS[i % 5], (20 + i, 20)) for i in range(count)]
    for i, picture in enumerate(pictures):
        (folder / f"{i}.jpg").write_bytes(picture)
    return pictures


def said(record: dict[str, Any]) -> list[str]:
    return [turn["value"] for turn in record["conversations"]]


def content(dataset: Path) -> list[tuple[list[str], list[bytes]]]:
    return [(said(record), pictures) for record, pictures in samples(dataset).values()]


def write_json(path: Path, entries: list[dict[str, Any]]) -> Path:
    if ".jsonl" in path.name:
        data = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries).encode()
    else:
        data = json.dumps(entries, ensure_ascii=False, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz", "no_ending"])
def test_json_however_it_is_written(name: str, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path)
    run(write_json(tmp_path / name, records()), tmp_path / "out", workers=2, max_samples_per_shard=2)
    assert content(tmp_path / "out") == [(said(r), [p]) for r, p in zip(records(), pictures, strict=True)]


def test_gzip_that_is_cut_gives_what_stands_before_the_cut(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    many = [{**record, "image": "0.jpg", "noise": str(hash(record["id"]))} for record in records(400)]
    path = write_json(tmp_path / "a.jsonl.gz", many)
    path.write_bytes(path.read_bytes()[:-400])
    report = run(path, tmp_path / "out")
    assert 0 < report.kept < 400
    assert report.skipped["unreadable"] == 1
    assert report.skipped.get("broken_json", 0) <= 1
    cut = write_json(tmp_path / "b.json.gz", many)
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.raises(ConfigError, match=r"b\.json\.gz: line .*was the file cut"):
        run(cut, tmp_path / "out2")


def test_gzip_of_several_members_with_padding(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    lines = [json.dumps(record).encode() + b"\n" for record in records()]
    packed = b"".join(gzip.compress(line) for line in lines)
    (tmp_path / "a.jsonl.gz").write_bytes(packed + bytes(512))
    assert run(tmp_path / "a.jsonl.gz", tmp_path / "out").kept == 5
    (tmp_path / "b.jsonl.gz").write_bytes(lines[0] + lines[1])  # not compressed at all: the content decides
    assert run(tmp_path / "b.jsonl.gz", tmp_path / "out2").kept == 2
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ConfigError, match=r"c\.jsonl\.gz unpacks to nothing"):
        run(tmp_path / "c.jsonl.gz", tmp_path / "out3")


def test_several_json_files_by_folder_or_pattern(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in")
    write_json(tmp_path / "in" / "part-1.jsonl", records()[:2])
    write_json(tmp_path / "in" / "part-2.json", records()[2:])
    (tmp_path / "in" / "part-3.jsonl").write_bytes(b"")
    report = run(tmp_path / "in", tmp_path / "out", workers=2)
    assert (report.kept, report.notes) == (5, ("part-3.jsonl is empty",))
    assert run(tmp_path / "in" / "part-[12].js*", tmp_path / "out2").kept == 5
    with pytest.raises(ConfigError, match="does not exist"):
        run(tmp_path / "in" / "other-*.json", tmp_path / "out3")


@pytest.mark.parametrize(
    ("fields", "kept_text"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"prompt": "a", "response": "b"}, "prompt"),
        ({"question": "a", "answer": "b", "image": "0.jpg"}, "question"),
        ({"caption": "b", "image": "0.jpg"}, "caption"),
    ],
)
def test_the_format_is_known_by_the_fields_and_kept_with_the_dataset(
    fields: dict[str, Any], kept_text: str, tmp_path: Path
) -> None:
    import yaml

    write_pictures(tmp_path, 1)
    run(write_json(tmp_path / "a.jsonl", [fields, fields]), tmp_path / "one")
    info = yaml.safe_load((tmp_path / "one" / ".nv-meta" / "dataset.yaml").read_text())
    assert info["subflavors"]["format"] in ("openai", "prompt_response", "vqa", "captioning")
    run(write_json(tmp_path / "b.jsonl", [fields, {"text": "c"}]), tmp_path / "two")
    info = yaml.safe_load((tmp_path / "two" / ".nv-meta" / "dataset.yaml").read_text())
    assert "subflavors" not in info
    assert kept_text in samples(tmp_path / "two")["00000000"][0]


def table(pictures: list[bytes], form: str) -> dict[str, list[Any]]:
    """The columns of `records` with pictures in one of the forms they have in tables."""
    column: list[Any] = {
        "struct": [{"bytes": picture, "path": f"{i}.jpg"} for i, picture in enumerate(pictures)],
        "one path": [{"bytes": picture, "path": "same.jpg"} for picture in pictures],
        "bytes": pictures,
        "path": [f"{i}.jpg" for i in range(len(pictures))],
        "path in a struct": [{"bytes": None, "path": f"{i}.jpg"} for i in range(len(pictures))],
        "list of structs": [[{"bytes": picture, "path": None}] for picture in pictures],
        "list of bytes": [[picture] for picture in pictures],
        "list of paths": [[f"{i}.jpg"] for i in range(len(pictures))],
        "other name": pictures,
    }[form]
    name = "images" if form.startswith("list") else "jpg" if form == "other name" else "image"
    known = records(len(pictures))
    return {"id": [r["id"] for r in known], name: column, "conversations": [r["conversations"] for r in known]}


FORMS = ["struct", "one path", "bytes", "path", "path in a struct", "list of structs", "list of bytes", "list of paths"]


@needs_pyarrow
@pytest.mark.parametrize("form", [*FORMS, "other name"])
@pytest.mark.parametrize("as_text", [False, True])
def test_parquet_in_every_form(form: str, as_text: bool, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    pictures = write_pictures(tmp_path)
    columns = table(pictures, form)
    if as_text:
        columns["conversations"] = [json.dumps(value) for value in columns["conversations"]]
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", row_group_size=2, use_dictionary=True)
    run(tmp_path / "a.parquet", tmp_path / "out", workers=2, max_samples_per_shard=2)
    assert content(tmp_path / "out") == [(said(r), [p]) for r, p in zip(records(), pictures, strict=True)]


@needs_pyarrow
def test_parquet_with_large_row_groups_is_read_a_few_times_at_most(tmp_path: Path, monkeypatch: Any) -> None:
    import pyarrow
    from pyarrow import parquet as pyarrow_parquet

    from mmpack.readers import parquet

    pictures = write_pictures(tmp_path / "pictures", 60)
    path = tmp_path / "a.parquet"
    pyarrow_parquet.write_table(pyarrow.table(table(pictures, "struct")), path)
    run(path, tmp_path / "whole", split={"train": 0.8, "val": 0.2}, max_samples_per_shard=7)
    monkeypatch.setattr(parquet, "_LARGE_GROUP_BYTES", 1000)
    monkeypatch.setattr(parquet, "_SMALL_GROUP_BYTES", 8000)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 4000)
    run(path, tmp_path / "cut", split={"train": 0.8, "val": 0.2}, max_samples_per_shard=7, workers=2)
    for shard in (tmp_path / "whole").glob("*.tar*"):
        assert (tmp_path / "cut" / shard.name).read_bytes() == shard.read_bytes()


@needs_pyarrow
def test_rows_that_are_faulty_are_skipped_and_said(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    good = {"image": {"bytes": jpeg(), "path": None}, "conversations": turns(), "when": 7}
    rows = [
        good,
        {**good, "image": None},
        {**good, "image": {"bytes": b"", "path": None}},
        {**good, "conversations": None},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    report = run(tmp_path / "a.parquet", tmp_path / "out")
    assert report.skipped == {"missing_field": 1, "not_an_image": 1, "placeholder_count": 1}
    assert [s.detail.split(":")[0] for s in report.samples if s.detail] == ["row 2", "row 3", "row 4"]
    broken = pyarrow.array([b"good", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    columns = {"prompt": pyarrow.array(["a", "b"]), "response": broken}
    parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
    assert run(tmp_path / "b.parquet", tmp_path / "out2").skipped == {"bad_text": 1}


@needs_pyarrow
def test_parquet_files_of_several_splits_are_not_mixed(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "in" / "data").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        columns = {"prompt": ["a", "b"], "response": [name, "d"]}
        parquet.write_table(pyarrow.table(columns), tmp_path / "in" / "data" / f"{name}.parquet")
    with pytest.raises(ConfigError, match=r"the splits test, train; convert each by itself.*data/test\*\.parquet"):
        run(tmp_path / "in", tmp_path / "out")
    report = run(tmp_path / "in" / "data" / "train-*.parquet", tmp_path / "out")
    assert (report.kept, report.source) == (4, "2 parquet files")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "in/data/train-00000-of-00002.parquet").read_bytes()[:-10])
    with pytest.raises(ConfigError, match=r"cut\.parquet cannot be read as a parquet file"):
        run(tmp_path / "cut.parquet", tmp_path / "out2")
    (tmp_path / "no.parquet").write_bytes(b"[1]")
    with pytest.raises(ConfigError, match=r"no\.parquet is not a parquet file"):
        run(tmp_path / "no.parquet", tmp_path / "out2")


@pytest.mark.parametrize("module", ["pyarrow.parquet", "datasets"])
def test_a_missing_library_is_named_with_its_extra(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "datasets":
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "state.json").write_text("{}")
        source = tmp_path / "in"
    else:
        source = tmp_path / "a.parquet"
        source.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(ConfigError, match=r"pip install 'mmpack\[hf\]'"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_datasets
@pytest.mark.parametrize("form", ["struct", "path", "list of structs"])
def test_data_sets_saved_by_hugging_face(form: str, tmp_path: Path) -> None:
    import datasets

    pictures = write_pictures(tmp_path / "pictures")
    data = datasets.Dataset.from_dict(table(pictures, form))
    if form == "struct":
        data = data.cast_column("image", datasets.Image())
    data.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    root = tmp_path / "pictures"
    report = run(tmp_path / "saved", tmp_path / "out", image_root=root, workers=2, max_samples_per_shard=2)
    assert report.source == "a saved data set"
    assert content(tmp_path / "out") == [(said(r), [p]) for r, p in zip(records(), pictures, strict=True)]


@needs_datasets
def test_a_saved_data_set_of_several_splits_must_be_named(tmp_path: Path) -> None:
    import datasets

    one = datasets.Dataset.from_dict({"prompt": ["a"], "response": ["b"]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="holds the splits train, test; give one of them"):
        run(tmp_path / "saved", tmp_path / "out")
    assert run(tmp_path / "saved" / "train", tmp_path / "out").kept == 1


def test_a_folder_of_pictures_with_texts_beside_them(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "in" / "deep")
    (tmp_path / "in" / "deep" / "0.txt").write_bytes("\ufeffZero é.\r\n".encode())
    (tmp_path / "in" / "deep" / "1.caption").write_text("One.")
    (tmp_path / "in" / "deep" / "2.json").write_text(json.dumps({"conversations": turns()}))
    (tmp_path / "in" / "deep" / "3.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "in" / ".hidden.jpg").write_bytes(jpeg())
    report = run(tmp_path / "in", tmp_path / "out", workers=2)
    assert (report.kept, report.skipped) == (3, {"bad_text": 1, "missing_field": 1})
    found = list(samples(tmp_path / "out").values())
    assert [p for _, (p,) in found] == pictures[:3]
    assert [record.get("text") for record, _ in found] == ["Zero é.", "One.", None]
    assert [sample.id for sample in report.samples] == [f"deep/{i}.jpg" for i in range(5)]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.json", "labels.csv"])
@pytest.mark.parametrize("field", ["file_name", "image", "path"])
def test_captions_in_a_table_beside_the_pictures(name: str, field: str, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "in", 3)
    texts = ["One, and\ntwo", 'A "quoted"; thing', "Drei: é"]
    rows = [{field: f"{i}.jpg", "text": text, "empty": ""} for i, text in enumerate(texts)]
    path = tmp_path / "in" / name
    if name.endswith("sv"):
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if name.endswith("tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        write_json(path, rows)
    source = path if name == "labels.csv" else tmp_path / "in"
    run(source, tmp_path / "out")
    found = list(samples(tmp_path / "out").values())
    assert [record["text"] for record, _ in found] == texts
    assert [p for _, (p,) in found] == pictures


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", r"a\.csv: the first line does not name each column once|a\.csv holds no rows"),
        (b"image,text\n", "holds no rows"),
        (b"image,image\n1,2\n", "does not name each column once"),
        ("image,text\na,\u00e9".encode("latin-1"), "not UTF-8"),
    ],
)
def test_tables_that_cannot_be_read(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(ConfigError, match=words) as caught:
        run(tmp_path / "a.csv", tmp_path / "out")
    assert "a.csv" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_rows_of_other_lengths_and_turns_as_text(tmp_path: Path) -> None:
    cell = json.dumps(turns("a?", "b")).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'id,conversations\n1,"{cell}"\n2,"{cell}",3\n3\n')
    report = run(tmp_path / "a.csv", tmp_path / "out")
    assert (report.kept, report.skipped) == (1, {"missing_field": 1, "wrong_type": 1})


def test_folders_that_hold_nothing_to_convert(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match=r"holds no tar, parquet or JSON files .* but no files"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "notes.md").write_text("x")
    with pytest.raises(ConfigError, match=r"but notes\.md"):
        run(tmp_path / "in", tmp_path / "out")


def test_a_dataset_of_our_own_can_be_converted_again(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path)
    run(write_json(tmp_path / "a.json", records()), tmp_path / "one")
    run(tmp_path / "one", tmp_path / "two")
    assert content(tmp_path / "two") == [(said(r), [p]) for r, p in zip(records(), pictures, strict=True)]


def test_pictures_in_an_archive_named_by_their_path(tmp_path: Path) -> None:
    record = {"image": "coco/train/k.jpg", "conversations": turns()}
    (tmp_path / "a.tar").write_bytes(tar_of(("k.jpg", jpeg()), ("k.json", record)))
    assert run(tmp_path / "a.tar", tmp_path / "out").kept == 1


def test_a_kind_of_source_in_place_of_a_format(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    source = write_json(tmp_path / "a.jsonl", records())
    assert run(source, tmp_path / "out", format="jsonl").kept == 5
    with pytest.raises(ConfigError, match=r"format='parquet' means parquet, but .*a\.jsonl is json"):
        run(source, tmp_path / "out2", format="parquet")
    with pytest.raises(ConfigError, match="unknown record format 'parket'"):
        run(source, tmp_path / "out2", format="parket")


def test_pictures_matched_by_likeness_are_read_again_as_they_were(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path, 3)
    record = {
        "texts": ["One.", "Two."],
        "images": ["0.jpg", "1.jpg", "2.jpg"],
        "similarity_matrix": [[0.1, 0.9], [0.8, 0.3], [0.2, 0.4]],
    }
    run(write_json(tmp_path / "a.jsonl", [record]), tmp_path / "out")
    ((stored, parts),) = samples(tmp_path / "out").values()
    assert parts == [pictures[1], pictures[0], pictures[2]]
    again = parser_for("auto")(stored)
    assert (again.turns[0].text, again.image_names) == ("<image>One.<image><image> Two.", tuple(stored["image"]))
