"""Headers of tar archives: as Python's tarfile reads them where it does, and past damage where it does not."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.readers.tar_members import BLOCK_BYTES, Damage, Member, Note, looks_like_tar, scan_members
from tests.fuzzing import fuzz

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=150)
FORMATS = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
SPECIAL = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
    tarfile.DIRTYPE: "folder",
}


def archive(files: list[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def scan(data: bytes, start: int = 0) -> list[Member | Damage | Note]:
    return list(scan_members(io.BytesIO(data), start, len(data)))


def read(data: bytes) -> list[tuple[str, bytes]]:
    found = [member for member in scan(data) if isinstance(member, Member) and member.kind == "file"]
    return [(member.name, data[member.content : member.content + member.size]) for member in found]


@fuzz(60)
@given(files=st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=5), tar_format=FORMATS)
def test_members_are_those_of_tarfile(files: list[tuple[str, bytes]], tar_format: int) -> None:
    data = archive(files, tar_format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        wanted = [(m.name, tar.extractfile(m).read()) for m in tar.getmembers() if m.isfile()]  # type: ignore[union-attr]
    assert [(name.rstrip("/"), content) for name, content in read(data)] == [(n.rstrip("/"), c) for n, c in wanted]
    assert not any(isinstance(member, Damage) for member in scan(data))


def test_each_kind_is_told_and_has_no_content() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number, kind in enumerate(SPECIAL):
            info = tarfile.TarInfo(f"m{number}")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("last"))
    found = scan(out.getvalue())
    assert [m.kind for m in found if isinstance(m, Member)] == [*SPECIAL.values(), "file"]


@pytest.mark.parametrize("size", range(0, 4096, 61))
def test_a_cut_archive_gives_what_is_whole_and_says_so(size: int) -> None:
    files = [("a.txt", b"a" * 700), ("b.txt", b"b" * 300), ("c.txt", b"c" * 513)]
    whole = archive(files, tarfile.USTAR_FORMAT)
    data = whole[:size]
    ends = [512 + 700, 1536 + 512 + 300, 2560 + 512 + 513]  # of each content
    assert read(data) == [file for file, end in zip(files, ends, strict=True) if end <= size]
    boundaries = {0, *range(1212, 1537), *range(2348, 2561), *range(3585, 4097)}
    assert any(isinstance(m, Damage) for m in scan(data)) == (size not in boundaries)


@pytest.mark.parametrize("place", [0, 100, 124, 148, 156])
def test_behind_a_damaged_header_reading_goes_on(place: int) -> None:
    files = [("a.txt", b"a"), ("b.txt", b"b" * 600), ("c.txt", b"c")]
    data = bytearray(archive(files, tarfile.USTAR_FORMAT))
    data[1024 + place] ^= 0x15
    found = scan(bytes(data))
    assert read(bytes(data)) == [files[0], files[2]]
    assert [(m.start, m.fatal) for m in found if isinstance(m, Damage)] == [(1024, False)]


def test_a_size_beyond_the_end_costs_one_member() -> None:
    data = bytearray(archive([("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c")], tarfile.USTAR_FORMAT))
    header = tarfile.TarInfo("b.txt")
    header.size = 1 << 32
    data[1024:1536] = header.tobuf(tarfile.USTAR_FORMAT)[:512]
    assert read(bytes(data)) == [("a.txt", b"a"), ("c.txt", b"c")]
    assert any(isinstance(m, Damage) and "wrong size" in m.what for m in scan(bytes(data)))


def test_archives_one_behind_the_other_are_read_and_other_data_is_noted() -> None:
    one, two = archive([("a.txt", b"a")]), archive([("b.txt", b"b")])
    assert read(one + two) == [("a.txt", b"a"), ("b.txt", b"b")]
    assert ["another archive" in note.what for note in scan(one + two) if isinstance(note, Note)] == [True]
    assert ["other data" in note.what for note in scan(one + b"junk" * 999) if isinstance(note, Note)] == [True]
    assert read(one + b"junk" * 999) == [("a.txt", b"a")]


def test_sparse_files_and_huge_headers_are_not_read() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("sparse")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
        info.size = 512
        tar.addfile(info, io.BytesIO(bytes(512)))
    assert [m.kind for m in scan(out.getvalue()) if isinstance(m, Member)] == ["sparse file"]
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (damage,) = scan(long_name.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert isinstance(damage, Damage)
    assert "too large" in damage.what


@fuzz(150)
@given(data=st.data())
def test_any_bytes_are_members_damage_or_notes_within_the_file(data: st.DataObject) -> None:
    files = data.draw(st.lists(st.tuples(NAMES, st.binary(max_size=700)), max_size=4))
    content = bytearray(archive(files, data.draw(FORMATS)))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=12))
        content[place : place + len(piece)] = piece
    del content[data.draw(st.integers(0, len(content))) :]
    before = -1
    for found in scan(bytes(content)):
        if isinstance(found, Member):
            assert found.start > before
            assert found.size >= 0
            if found.kind == "file":
                assert found.content + found.size <= len(content)
            before = found.start
    looks_like_tar(bytes(content[:BLOCK_BYTES]))
