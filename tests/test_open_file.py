"""One open file: reads at places, shared with forked processes, closed when let go and without a warning."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from mmpack.open_file import OpenFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(bytes(range(100)))
    return tmp_path / "x"


def _open_files(path: Path) -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return links.count(str(path))


def test_reads_stand_at_their_places(path: Path) -> None:
    file = OpenFile(path)
    assert [file.read(90, 5), file.read(0, 2), file.read(98, 10), file.read(200, 1)] == [
        bytes(range(90, 95)), b"\0\1", bytes([98, 99]), b"",
    ]  # fmt: skip


def test_a_forked_process_reads_through_it(path: Path) -> None:
    file = OpenFile(path)
    receiving, sending = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sending.send(file.read(7, 3)))
    process.start()
    assert receiving.recv() == bytes([7, 8, 9])
    process.join()
    assert file.read(7, 3) == bytes([7, 8, 9])


def test_it_is_closed_with_the_cycle_it_stands_in_and_nobody_is_warned(path: Path) -> None:
    holder: dict[str, object] = {"file": OpenFile(path)}
    holder["holder"] = holder
    assert _open_files(path) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del holder
        gc.collect()
    assert _open_files(path) == 0


def test_a_missing_file_is_the_system_s_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OpenFile(tmp_path / "none")
