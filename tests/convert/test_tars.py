"""Existing tar archives: which members make a sample, and that none of them can do harm."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError, MmpackError
from mmpack.readers import find_source, settle
from mmpack.sources import parser_for
from tests.convert.helpers import jpeg, run, samples, tar_of, turns
from tests.fuzzing import fuzz

ASK = {"conversations": turns()}
TEXT = {"conversations": turns("Say it.", "It.")}


def convert(folder: Path, *named: tuple[str, Any], **options: Any) -> Any:
    (folder / "in.tar").write_bytes(tar_of(*named))
    return run(folder / "in.tar", folder / "out", **options)


def test_a_record_without_an_id_gets_its_key_and_one_with_an_id_keeps_it(tmp_path: Path) -> None:
    convert(tmp_path, ("x/7.jpg", jpeg()), ("x/7.json", ASK), ("8.jpg", jpeg()), ("8.json", {"id": 3, **ASK}))
    assert [record["id"] for record, _ in samples(tmp_path / "out").values()] == ["x/7", 3]


def test_captions_stand_in_a_text_part_alone_or_beside_other_json(tmp_path: Path) -> None:
    red, blue = jpeg("red"), jpeg("blue")
    members = [("a.jpg", red), ("a.txt", b"A red one.\n"), ("b.png", blue), ("b.txt", b"\xef\xbb\xbfBlue."),
               ("b.json", {"width": 24, "url": "http://x/y.png"}), ("c.caption", b"no picture")]  # fmt: skip
    report = convert(tmp_path, *members)
    found = list(samples(tmp_path / "out").values())
    assert [(record["text"], pictures) for record, pictures in found] == [
        ("A red one.\n", [red]),
        ("Blue.", [blue]),
        ("no picture", []),
    ]
    assert report.kept == 3


def test_pictures_that_no_record_names_are_all_of_the_samples(tmp_path: Path) -> None:
    pictures = {name: jpeg(name) for name in ("red", "green", "blue")}
    record = {"conversations": turns("<image> <image> <image>")}
    members = [("k.10.jpg", pictures["blue"]), ("k.2.jpg", pictures["green"]), ("k.1.JPG", pictures["red"])]
    convert(tmp_path, *members, ("k.json", record))
    assert samples(tmp_path / "out")["00000000"][1] == [pictures["red"], pictures["green"], pictures["blue"]]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["0.jpg", "1.jpg"], None),
        (["1.jpg", "2.png", "3.jpg"], None),
        (["0.jpg", "2.jpg"], "placeholder_count"),
        (["left.jpg", "right.jpg"], "placeholder_count"),
        (["jpg", "png"], "placeholder_count"),
    ],
)
@pytest.mark.parametrize("named", ["not at all", "as members", "as parts"])
def test_one_mark_means_a_whole_series_and_nothing_else(
    tmp_path: Path, parts: list[str], reason: str | None, named: str
) -> None:
    names = {"as members": [f"k.{part}" for part in parts], "as parts": parts}
    record = {**ASK, "image": names.get(named)}
    members = [(f"k.{part}", jpeg()) for part in parts]
    report = convert(tmp_path, *members, ("k.json", record), ("z.json", TEXT))
    if named == "as parts":
        reason = "placeholder_count"
    assert report.skipped == ({} if reason is None else {reason: 1})
    if reason is None:
        assert samples(tmp_path / "out")["00000000"][0]["conversations"][0]["value"].count("<image>") == len(parts)


def test_interleaved_samples_are_incomplete_each(tmp_path: Path) -> None:
    members = [("a.jpg", jpeg()), ("b.jpg", jpeg()), ("a.json", ASK), ("b.json", ASK), ("c.json", TEXT)]
    report = convert(tmp_path, *members)
    assert report.kept == 1
    assert report.skipped == {"image_missing": 2, "missing_field": 2}


def test_dotted_names_make_samples_of_their_own_when_every_part_has_dots(tmp_path: Path) -> None:
    one, two = jpeg("red"), jpeg("blue")
    members = [("v1.a.jpg", one), ("v1.b.jpg", two), ("v1.a.json", ASK), ("v1.b.json", ASK)]
    report = convert(tmp_path, *members)
    assert [pictures for _, pictures in samples(tmp_path / "out").values()] == [[one], [two]]
    assert [record["id"] for record, _ in samples(tmp_path / "out").values()] == ["v1.a", "v1.b"]
    assert len(report.notes) == 1
    assert "2 samples have dots" in report.notes[0]


def test_members_of_no_sample_are_counted_in_a_note(tmp_path: Path) -> None:
    report = convert(tmp_path, ("README", b"x"), (".DS_Store", b"x"), ("__meta__/b.json", TEXT), ("a.json", TEXT))
    assert (report.kept, report.skipped) == (1, {})
    assert "3 members belong to no sample" in report.notes[0]


def test_names_of_every_kind_write_nothing_elsewhere(tmp_path: Path) -> None:
    out = io.BytesIO()
    names = [
        "/abs/1",
        "../../2",
        "a/../../3",
        "\u00fc/" + "x" * 300,
        "con\\4",
        "5\n6",
        "-rf",
        "'; rm",
        "7 8",
        "\u202e9",
    ]
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number, name in enumerate(names):
            record = {"id": number, **ASK}
            for part, data in (("jpg", jpeg()), ("json", json.dumps(record).encode())):
                info = tarfile.TarInfo(f"{name}.{part}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        for number, kind in enumerate([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]):
            info = tarfile.TarInfo(f"link{number}.jpg")
            info.type, info.linkname = kind, "../../../etc/passwd"
            tar.addfile(info)
            info = tarfile.TarInfo(f"link{number}.json")
            info.size = len(data := json.dumps(ASK).encode())
            tar.addfile(info, io.BytesIO(data))
    work = tmp_path / "work"
    work.mkdir()
    (work / "in.tar").write_bytes(out.getvalue())
    report = run(work / "in.tar", work / "out")
    assert (report.kept, report.skipped) == (len(names), {"image_missing": 4})
    assert sorted(path.name for path in tmp_path.rglob("*") if path.parent in (tmp_path, work)) == [
        "in.tar",
        "out",
        "work",
    ]
    assert all(path.name[:8].isdigit() for path in map(Path, members_of(work / "out")))


def members_of(dataset: Path) -> list[str]:
    names = []
    for shard in dataset.glob("*.tar"):
        with tarfile.open(shard) as tar:
            names += tar.getnames()
    return names


def test_compressed_archives_and_folders_of_archives(tmp_path: Path) -> None:
    data = tar_of(("a.jpg", jpeg()), ("a.json", ASK))
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "1.tar.gz").write_bytes(gzip.compress(data))
    (folder / "2.tgz").write_bytes(gzip.compress(data)[:-30])
    (folder / "deep" / "3.tar").write_bytes(data)
    (folder / "4.tar").write_bytes(gzip.compress(data))
    (folder / "5.tar").write_bytes(b"no archive")
    (folder / "6.tar").write_bytes(tar_of())
    report = run(folder, tmp_path / "out", workers=2)
    assert report.kept >= 2
    reasons = [str(s.detail).split(": ")[0] for s in report.samples if s.reason == "unreadable"]
    assert set(reasons) == {"2.tgz", "4.tar", "5.tar"}
    assert report.notes == ("6.tar holds no samples",)
    assert run(folder / "1.tar.gz", tmp_path / "one").kept == 1
    assert [path.name for path in (tmp_path / "one").iterdir() if path.name.startswith(".s")] == []


def test_parts_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmpack.readers import tar_reader, tar_samples

    for module in (tar_reader, tar_samples):
        monkeypatch.setattr(module, "MAX_PART_BYTES", 5000)
    monkeypatch.setattr(tar_samples, "MAX_RECORD_BYTES", 400)
    members = [("a.jpg", jpeg() + bytes(9000)), ("a.json", ASK), ("b.jpg", jpeg()), ("b.json", ASK)]
    report = convert(tmp_path, *members, ("c.json", {**TEXT, "more": "x" * 500}))
    assert (report.kept, report.skipped) == (1, {"image_too_large": 1, "unreadable": 1})


@fuzz(60)
@given(data=st.data())
def test_any_archive_gives_samples_faults_or_one_clear_error(data: st.DataObject, tmp_path: Path) -> None:
    """What is found first is found again by its place, whatever the bytes are."""
    stems = st.sampled_from(["a", "b", "c/a", "d.e", "..", "/f"])
    parts = st.sampled_from(["jpg", "json", "0.jpg", "1.jpg", "JPG", "x.json", "txt", "png", ""])
    contents = st.sampled_from(
        [jpeg(), b"", json.dumps(ASK).encode(), json.dumps(TEXT).encode(), b"[", b"null", b"\xff"]
    )
    files = data.draw(st.lists(st.tuples(stems, parts, contents), max_size=8))
    content = bytearray(tar_of(*((f"{stem}.{part}", content) for stem, part, content in files)))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        content[place : place + len(piece)] = piece
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    path = tmp_path / "any.tar"
    path.write_bytes(content)
    try:
        reader = find_source(path).open(tmp_path / "spool")
        found = list(reader.scan())
    except ConfigError:
        return
    whole = [sample for sample in found if sample.record.error is None]
    places = [sample.place for sample in whole]
    for sample, again in zip(whole, reader.fetch(places), strict=True):
        assert again.record == sample.record
        try:
            _, parsed = settle(again, parser_for("auto"))
            for name in parsed.image_names:
                assert again.read_picture(name) is not None
        except MmpackError:
            continue
