"""LLaVA files by number: the same samples as from reading the whole file, from folders and tars, broken records too."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.indexed import LlavaFile, open_pictures
from mmpack.indexed.pictures import TarPictures
from tests.conftest import png, write_llava

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("llava"), 30)


def write_lines(path: Path, records: list[Any]) -> Path:
    lines = path.with_suffix(".jsonl")
    lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return lines


def write_tar(folder: Path, dst: Path, mode: str = "w") -> Path:
    with tarfile.open(dst, mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, arcname=".")
    return dst


def test_every_record_and_picture_of_either_file_from_either_place(source: Path, tmp_path: Path) -> None:
    records = json.loads(source.read_text())
    folder = source.parent / "images"
    tar = write_tar(folder, tmp_path / "images.tar")
    for path in (source, write_lines(tmp_path / "records", records)):
        for place in (folder, tar):
            file = LlavaFile(path, pictures=open_pictures(place))
            assert len(file) == len(records)
            for index in random.Random(0).sample(range(len(records)), len(records)):
                sample, record = file.sample(index), records[index]
                names = record.get("image", [])
                names = [names] if isinstance(names, str) else names
                assert [p.data for p in sample.pictures] == [(folder / name).read_bytes() for name in names]
                assert [turn.text for turn in sample.turns] == [turn["value"] for turn in record["conversations"]]
                assert sample.key == file.key(index) == f"{index:08d}"


def record(image: Any = None, text: str = "<image>\nWhat?") -> dict[str, Any]:
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "This."}]
    return {"id": 1, "conversations": turns} | ({} if image is None else {"image": image})


def faults(file: LlavaFile) -> list[Reason | None]:
    return [fault(file, index) for index in range(len(file))]


def fault(file: LlavaFile, index: int) -> Reason | None:
    try:
        file.sample(index)
    except SampleError as error:
        return error.reason if error.key == file.key(index) else None
    return None


def test_a_broken_record_is_one_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    good = json.dumps(record(text="Hi")).encode()
    path.write_bytes(b"\n".join([good, b'{"id": ', b"", b'{"id": "\xe9"}', b"7", good, b'{"id": 3}']))
    broken, not_one, missing = Reason.BROKEN_JSON, Reason.NOT_A_RECORD, Reason.MISSING_FIELD
    file = LlavaFile(path, pictures=open_pictures(tmp_path))
    assert faults(file) == [None, broken, broken, not_one, None, missing]
    (tmp_path / "list.json").write_bytes(b'[{"id": tru}, ' + good + b"]")
    assert faults(LlavaFile(tmp_path / "list.json", pictures=open_pictures(tmp_path))) == [broken, None]


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_missing_picture_is_a_bad_sample_or_stops(tmp_path: Path, kind: str) -> None:
    images = tmp_path / "images"
    (images / "sub").mkdir(parents=True)
    (images / "a.png").write_bytes(png(random.Random(0), 8, 8))
    (images / "sub" / "b.png").write_bytes(png(random.Random(1), 8, 8))
    names = ["a.png", "c.png", "./sub/../sub/b.png", "../images/a.png", "/etc/hostname", "sub", "https://a.org/a.png"]
    path = write_lines(tmp_path / "records", [record(name) for name in names])
    pictures = open_pictures(images if kind == "folder" else write_tar(images, tmp_path / "images.tar"))
    missing = Reason.IMAGE_MISSING
    assert faults(LlavaFile(path, pictures=pictures)) == [None, missing, None, missing, missing, missing, missing]
    file = LlavaFile(path, pictures=pictures, missing_image="raise")
    with pytest.raises(ConfigError, match=r"record 00000001: 'c.png'.*missing_image='skip'"):
        file.sample(1)
    assert file.sample(2).pictures[0].data == (images / "sub" / "b.png").read_bytes()


def test_a_file_url_is_a_path_below_the_folder(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a b.png").write_bytes(png(random.Random(0), 8, 8))
    (tmp_path / "c.png").write_bytes(png(random.Random(1), 8, 8))
    names = [(images / "a b.png").as_uri(), str(images / "a b.png"), (tmp_path / "c.png").as_uri()]
    path = write_lines(tmp_path / "records", [record(name) for name in names])
    file = LlavaFile(path, pictures=open_pictures(images))
    assert faults(file) == [None, None, Reason.IMAGE_MISSING]
    assert file.sample(0).pictures[0].data == (images / "a b.png").read_bytes()


def test_long_names_and_the_last_of_two_in_a_tar(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    long_name = "/".join(["deep" * 10] * 4) + "/ä.png"
    for name, content in ((long_name, b"long"), ("a.png", b"old")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    tar = write_tar(folder, tmp_path / "x.tar")
    (folder / "a.png").write_bytes(b"newer")
    with tarfile.open(tar, "a") as more:
        more.add(folder / "a.png", arcname="a.png")
    pictures = TarPictures(tar)
    assert (pictures.read(long_name), pictures.read("a.png")) == (b"long", b"newer")


def test_pictures_that_are_nowhere(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    packed = write_tar(tmp_path / "x", tmp_path / "x.tar.gz", "w:gz")
    with pytest.raises(ConfigError, match=r"image_folder=.*not a tar file that can be read in place.*uncompressed"):
        open_pictures(packed)
    with pytest.raises(ConfigError, match=r"image_folder=.*does not exist"):
        open_pictures(tmp_path / "y")


def test_formats(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(png(random.Random(0), 8, 8))
    path = write_lines(
        tmp_path / "r", [record(text='<img src="/data/x/a.jpg">\nWhat?'), {"prompt": "1", "response": "2"}]
    )
    pictures = open_pictures(tmp_path)
    assert LlavaFile(path, pictures=pictures, record_format="img_tags").sample(0).turns[0].text == "<image>\nWhat?"
    assert LlavaFile(path, pictures=pictures).sample(0).pictures == ()  # text is text
    assert LlavaFile(path, pictures=pictures, record_format="auto").sample(1).turns[1].text == "2"
    with pytest.raises(ConfigError, match="record_format='lava' is unknown; did you mean 'llava'"):
        LlavaFile(path, pictures=pictures, record_format="lava")
    with pytest.raises(ConfigError, match="missing_image='skp'; did you mean 'skip'"):
        LlavaFile(path, pictures=pictures, missing_image="skp")


def test_a_changed_file_is_described_otherwise(source: Path, tmp_path: Path) -> None:
    pictures = open_pictures(source.parent / "images")
    records = json.loads(source.read_text())
    first = write_lines(tmp_path / "a", records)
    second = write_lines(tmp_path / "b", [*records[:-1], records[0]])
    same = write_lines(tmp_path / "c", records)
    described = [LlavaFile(path, pictures=pictures).describe() for path in (first, second, same)]
    assert described[0] == described[2] != described[1]


MEASURE = """
import sys
from pathlib import Path
import psutil
from mmpack.indexed import LlavaFile, open_pictures
unique = lambda: psutil.Process().memory_full_info().uss
path, before = Path(sys.argv[1]), unique()
file = LlavaFile(path, pictures=open_pictures(path.parent))
assert file._record(len(file) - 1)["id"] == len(file) - 1
print(len(file), unique() - before)
"""


@pytest.mark.parametrize("kind", ["json", "jsonl"])
@pytest.mark.parametrize("num_records", [200_000, pytest.param(5_000_000, marks=pytest.mark.slow)])
def test_memory_grows_by_a_few_bytes_a_record(tmp_path: Path, kind: str, num_records: int) -> None:
    path = tmp_path / f"records.{kind}"
    turns = json.dumps(record("train/000000000001.jpg")["conversations"])
    with path.open("w") as file:
        for i in range(num_records):
            before = ("," if i else "[") if kind == "json" else ""
            file.write(f'{before}{{"id": {i}, "image": "train/{i:012d}.jpg", "conversations": {turns}}}\n')
        file.write("]" if kind == "json" else "")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], cwd=REPO, capture_output=True, text=True, timeout=300, check=True
    )
    got, grown = map(int, done.stdout.split())
    path.unlink()
    assert got == num_records
    assert grown < 100e6 * num_records / 5e6 + 16e6 * (num_records < 1e6)  # a few buffers weigh on a small index
