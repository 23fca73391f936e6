"""Plain tar headers: read alike by the short way and by tarfile, and anything else left to tarfile."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.energon import damage
from mmpack.energon.damage import read_sample
from mmpack.energon.plain_tar import plain_members


def archive(*members: tuple[str, bytes], format: int = tarfile.USTAR_FORMAT, **header: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in header.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    return out.getvalue()[:end]


def by_tarfile(data: bytes) -> Any:
    plain, damage.plain_members = damage.plain_members, lambda data: None
    try:
        return read_sample(data)
    except ValueError as error:
        return str(error)
    finally:
        damage.plain_members = plain


def as_said(data: bytes) -> Any:
    try:
        return read_sample(data)
    except ValueError as error:
        return str(error)


NAMES = st.sampled_from(["a.jpg", "a.json", "a.0.png", "d/a.jpg", "a", ".hidden", "b.json", "a.", "__x__.json", "d/"])


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=4))
def test_the_short_way_says_what_tarfile_says(format: int, members: list[tuple[str, bytes]]) -> None:
    data = archive(*members, format=format)
    assert as_said(data) == by_tarfile(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1700), st.binary(min_size=1, max_size=12), st.integers(0, 1))
def test_damage_is_never_read_as_something_else(place: int, new: bytes, cut: int) -> None:
    data = bytearray(archive(("a.jpg", b"x" * 600), ("a.json", b"{}")))
    data[place : place + len(new)] = new
    damaged = bytes(data[: len(data) - 100 * cut])
    assert as_said(damaged) == by_tarfile(damaged)


def test_a_plain_sample_takes_the_short_way() -> None:
    data = archive(("s.0.jpg", b"p" * 513), ("s.json", b"{}"))
    assert plain_members(data) == [("s.0.jpg", 512, 513), ("s.json", 2048, 2)]


@pytest.mark.parametrize(
    "data",
    [
        archive(("ä.jpg", b"x")),
        archive(("x" * 120 + ".jpg", b"x"), format=tarfile.GNU_FORMAT),
        archive(("f/" * 60 + "a.jpg", b"x")),
        archive(("a.jpg", b"x"), format=tarfile.PAX_FORMAT, pax_headers={"comment": "c"}),
        archive(("a.jpg", b""), type=tarfile.SYMTYPE, linkname="b"),
        archive(("a.jpg", b"x"))[:512],
        archive(("a.jpg", b"x")) + bytes(512),
        b"short",
    ],
)
def test_the_unusual_is_left_to_tarfile(data: bytes) -> None:
    assert plain_members(data) is None
