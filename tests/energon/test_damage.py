"""Damaged shards cost their damaged samples: the others come in the same order, once, and a resume goes on exactly."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.energon.damage import Shard, inspect_shard, read_sample
from tests.conftest import convert_llava, data_module, digest

Damage = Callable[[Path], None]
OPTIONS = {"repeat": False, "num_streams": 2, "packing_buffer_size": 12}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples in shards of 12."""
    folder = tmp_path_factory.mktemp("damage")
    return convert_llava(folder, 60, split={"train": 1.0}, max_samples_per_shard=12)


def offsets_of(shard: Path) -> list[int]:
    data = shard.with_suffix(".tar.idx").read_bytes()
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def keys_of(shard: Path) -> list[str]:
    """Keys of a shard's samples, by an independent reader."""
    with tarfile.open(shard) as tar:
        return list(dict.fromkeys(name.partition(".")[0] for name in tar.getnames()))


def cut(place: Callable[[list[int]], int]) -> Damage:
    def damage(shard: Path) -> None:
        shard.write_bytes(shard.read_bytes()[: place(offsets_of(shard))])

    return damage


def zero(shard: Path) -> None:
    """The headers of sample 5 and the last block before them."""
    data, start = bytearray(shard.read_bytes()), offsets_of(shard)[5]
    data[start : start + 512] = bytes(512)
    shard.write_bytes(data)


def remove(shard: Path) -> None:
    shard.unlink()


def without_index(shard: Path) -> None:
    shard.with_suffix(".tar.idx").unlink()


def rewritten(shard: Path) -> None:
    """Written anew by another tool: other offsets, the same samples."""
    with tarfile.open(shard) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a fraction needs a header of its own
            tar.addfile(info, io.BytesIO(data))


def no_tar(shard: Path) -> None:
    shard.write_bytes(b"<html>not found</html>" * 1000)


# what is done to a shard of eight or so -> which of its samples are lost
DAMAGES: dict[str, tuple[Damage, slice]] = {
    "cut in a header": (cut(lambda at: at[4] + 100), slice(4, None)),
    "cut in a picture": (cut(lambda at: at[6] + 700), slice(6, None)),
    "cut between samples": (cut(lambda at: at[-2]), slice(-1, None)),
    "cut behind the last": (cut(lambda at: at[-1]), slice(0)),
    "zeroed": (zero, slice(5, 6)),
    "missing": (remove, slice(None)),
    "no tar": (no_tar, slice(None)),
    "no index": (without_index, slice(0)),
    "rewritten": (rewritten, slice(0)),
}


def damaged(good: Path, folder: Path, name: str) -> tuple[Path, set[str]]:
    """A copy with one damaged shard, and the keys that should be lost."""
    bad = folder / "energon"
    shutil.copytree(good, bad)
    shard = sorted(bad.glob("train-*.tar"))[2]
    damage, lost = DAMAGES[name]
    keys = keys_of(shard)
    damage(shard)
    return bad, set(keys[lost])


@pytest.mark.parametrize("name", DAMAGES)
def test_only_the_damaged_samples_are_lost(
    good: Path, tokenizer: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, lost = damaged(good, tmp_path, name)
    everything = [key for shard in good.glob("*.tar") for key in keys_of(shard)]
    with caplog.at_level(logging.WARNING):
        loader = data_module(bad, tokenizer, **OPTIONS).train_dataloader()
        got = [key for batch in loader for key in batch.check().sample_keys]
    assert sorted(got) == sorted(set(everything) - lost)
    counted = loader.drops.to_dict()
    assert set(counted) <= {"energon"}
    unreadable = counted.get("energon", {}).get("unreadable", {"count": 0, "keys": []})
    assert unreadable["count"] == len(lost)
    assert {key.rpartition("/")[2] for key in unreadable["keys"]} <= lost
    named = [r.getMessage() for r in caplog.records if r.name.endswith("shard_samples")]
    assert len(named) == (name != "cut behind the last"), named


@pytest.mark.parametrize("name", ["cut in a picture", "zeroed", "missing"])
def test_the_others_come_in_the_order_they_have_without_damage(good: Path, tmp_path: Path, name: str) -> None:
    from mmpack.energon.reader import Source, SourceConfig

    def keys(path: Path) -> list[str]:
        config = SourceConfig(path=path, repeat=False, shuffle_buffer_size=None, max_samples_per_sequence=5)
        return [sample.__key__ for sample, _ in Source(config, stream=0, num_streams=1, on_fault=lambda e, n: None)]

    bad, lost = damaged(good, tmp_path, name)
    assert keys(bad) == [key for key in keys(good) if key not in lost]


@pytest.mark.parametrize("name", ["cut in a picture", "zeroed", "missing", "rewritten"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_at_every_step(good: Path, tokenizer: Any, tmp_path: Path, name: str, num_workers: int) -> None:
    bad, _ = damaged(good, tmp_path, name)
    module = data_module(bad, tokenizer, **OPTIONS)
    loader = module.train_dataloader()
    digests, states = [], [module.state_dict()]
    for batch in loader:
        digests.append(digest(batch))
        states.append(module.state_dict())
    total = loader.drops.to_dict()
    steps = range(len(states)) if num_workers == 0 else (1, len(states) // 2)
    for step in steps:
        resumed = data_module(bad, tokenizer, num_workers=num_workers, **OPTIONS)
        resumed.load_state_dict(states[step])
        again = resumed.train_dataloader()
        rest = [digest(batch) for batch in again]
        if step == len(states) - 1:
            continue  # behind the last pack comes the next epoch
        assert rest == digests[step:], step
        assert again.drops.to_dict() == total


def test_a_stream_without_any_readable_sample_ends_with_an_error(good: Path, tokenizer: Any, tmp_path: Path) -> None:
    from mmpack.errors import DataError

    bad = tmp_path / "energon"
    shutil.copytree(good, bad)
    for shard in bad.glob("train-*.tar"):
        shard.unlink()
    module = data_module(bad, tokenizer, repeat=True, num_streams=2)
    with pytest.raises(DataError, match="no sample can be read"):
        next(iter(module.train_dataloader()))
    assert list(data_module(bad, tokenizer, repeat=False, num_streams=2).train_dataloader()) == []


def test_the_budget_stops_a_stream_and_names_the_reasons(good: Path, tokenizer: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    from mmpack.errors import DataError
    from mmpack.ledger import ErrorBudget

    bad, lost = damaged(good, tmp_path, "missing")
    factory = data_module(bad, tokenizer, **OPTIONS).factory("train", training=True)
    config = replace(factory.stream, error_budget=ErrorBudget(max_bad_share=0.1, window=20))
    streams = [replace(factory, stream=config)(stream) for stream in range(2)]
    with pytest.raises(DataError, match=r"3 of the last \d+ samples .* were lost \(3 unreadable\)"):
        list(itertools.chain(*streams))
    for num_workers in (0, 1):
        given = {"max_bad_share": 0.1, "bad_share_window": 20, "num_workers": num_workers}
        with pytest.raises(DataError, match=r"max_bad_share=0\.1 allows"):
            list(data_module(bad, tokenizer, **OPTIONS, **given).train_dataloader())
    allowed = replace(factory.stream, error_budget=ErrorBudget(max_bad_share=0.9, window=20))
    packs = [batch for stream in range(2) for batch in replace(factory, stream=allowed)(stream)]
    assert sum(len(batch.sample_keys) for batch in packs) == 60 - len(lost)


# --- one shard -------------------------------------------------------------------------------------------------------


def tar_of(*members: tuple[str, bytes], **header: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in header.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


def stretch(*members: tuple[str, bytes], **header: Any) -> bytes:
    """The bytes of the members alone, without the end of the archive."""
    data = tar_of(*members, **header)
    return data[: len(data.rstrip(b"\0")) + (-len(data.rstrip(b"\0")) % 512)]


def test_a_sample_is_read_from_its_stretch_alone() -> None:
    long = "folder/" * 30 + "name"
    for base in ("a", "a/b", "./a", "train.v1/0001", "../../etc/a", "/a", long, "ä"):
        data = stretch((f"{base}.0.jpg", b"pic"), (f"{base}.json", b"{}x"))
        assert read_sample(data) == (base, {"0.jpg": b"pic", "json": b"{}x"}, (f"{base}.0.jpg", f"{base}.json"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (stretch(("a.jpg", b"1"), ("b.jpg", b"2")), "members of 'a' and of 'b'"),
        (stretch(("a.jpg", b"1"), ("a.json", b"2"), ("a.jpg", b"3")), "'a.jpg' stands twice"),
        (stretch(("a.jpg", b"1" * 600))[:-512], "goes beyond the sample"),
        (bytes(1024), "header"),
        (b"x" * 1024, "header"),
        (b"", "no member"),
        (stretch(("a.jpg", b"1"), type=tarfile.SYMTYPE, linkname="/etc/passwd"), "no member"),
        (stretch(("a.jpg", b"1"), type=tarfile.LNKTYPE, linkname="b"), "no member"),
        (stretch(("a.jpg", b"1"), type=tarfile.GNUTYPE_SPARSE), "sparse|header|Error"),
    ],
)
def test_what_is_not_one_whole_sample(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_sample(data)


def test_a_header_that_promises_much_allocates_nothing() -> None:
    import tracemalloc

    info = tarfile.TarInfo("a.jpg")
    info.size = 8 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    tracemalloc.start()
    with pytest.raises(ValueError, match="beyond the sample"):
        read_sample(header + b"x" * 2048)
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        info.type = kind
        with pytest.raises(ValueError, match=r"\w"):
            read_sample(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 2048)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_samples_above_the_limit_are_not_read(good: Path) -> None:
    from mmpack.energon.reader import Source, SourceConfig

    limit = 3000
    sizes = {}
    for shard in good.glob("train-*.tar"):
        at = offsets_of(shard)
        sizes |= {key: at[i + 1] - at[i] for i, key in enumerate(keys_of(shard))}
    faults: list[str] = []
    config = SourceConfig(path=good, repeat=False, max_sample_bytes=limit)
    source = Source(config, stream=0, num_streams=1, on_fault=lambda error, name: faults.append(str(error)))
    got = {sample.__key__ for sample, _ in source}
    assert got == {key for key, size in sizes.items() if size <= limit}
    assert 0 < len(got) < len(sizes)
    assert len(faults) == len(sizes) - len(got)
    assert all(f"max_sample_bytes={limit}" in fault for fault in faults)


def test_a_stale_index_never_gives_bytes_from_the_middle_of_a_sample(tmp_path: Path) -> None:
    """Other samples under the old index: read by their own headers, and what the set has too many is lost."""
    old = tar_of(*((f"{i}.{part}", b"x" * 100 * i) for i in range(6) for part in ("jpg", "json")))
    new = tar_of(*((f"n{i}.{part}", b"y" * 700) for i in range(4) for part in ("jpg", "json")))
    path = tmp_path / "shard.tar"
    path.write_bytes(new)
    with tarfile.open(fileobj=io.BytesIO(old)) as tar:
        members = tar.getmembers()
        starts = [m.offset for m in members if m.name.endswith("jpg")]
        end = members[-1].offset_data + (members[-1].size + 511) // 512 * 512
    path.with_suffix(".tar.idx").write_bytes(struct.pack(f"<{len(starts) + 1}Q", *starts, end))
    state = inspect_shard(Shard(name="shard.tar", path=path, num_samples=6))
    assert state.problem is not None
    assert "changed after it was indexed" in state.problem
    assert state.offsets is not None
    data = path.read_bytes()
    found = [read_sample(data[a:b])[0] for a, b in itertools.pairwise(state.offsets)]
    assert found == ["n0", "n1", "n2", "n3"]


def test_energons_metadata_is_what_it_was(good: Path, tokenizer: Any, tmp_path: Path) -> None:
    """Reading writes nothing."""
    bad, _ = damaged(good, tmp_path, "zeroed")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    list(data_module(bad, tokenizer, **OPTIONS).train_dataloader())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert json.loads((bad / ".nv-meta" / ".info.json").read_text())["shard_counts"]


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
WHOLE = [
    stretch(("a.0.jpg", b"pic" * 300), ("a.1.jpg", b""), ("a.json", b"{}")),
    stretch(("folder/" * 30 + "a.jpg", b"x"), ("folder/" * 30 + "a.json", b"{}")),
    stretch(("ä.jpg", b"x" * 512), mtime=1.5, pax_headers={"comment": "c"}),
]


@settings(max_examples=20_000 if LONG else 200, deadline=None, database=None)
@given(st.data())
def test_damaged_tars_give_samples_or_value_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of headers changed at random: `read_sample` stays within what it was given, `inspect_shard` never fails."""
    damaged = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        new = data.draw(st.sampled_from([b"\0", b"7", b"\xff", b"x", b"L", b"S", b"77777777777", bytes(512)]))
        damaged[place : place + len(new)] = new
    if data.draw(st.booleans()):  # a header whose checksum is right again
        fields = bytes(damaged[:148]) + b" " * 8 + bytes(damaged[156:512])
        damaged[148:156] = b"%06o\0 " % sum(fields)
    content = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) if data.draw(st.booleans()) else bytes(damaged)
    try:
        base, parts, names = read_sample(content)
    except ValueError:
        pass
    else:
        assert base
        assert len(parts) == len(names)
        assert sum(map(len, parts.values())) <= len(content)
    path = tmp_path_factory.getbasetemp() / "fuzzed.tar"
    path.write_bytes(content)
    path.with_suffix(".tar.idx").write_bytes(struct.pack("<3Q", 0, 1024, len(content)))
    for num_samples in (1, 2, 5):
        state = inspect_shard(Shard(name=path.name, path=path, num_samples=num_samples))
        assert state.offsets is None or list(state.offsets) == sorted(state.offsets)


def test_a_size_beyond_any_file_is_a_damaged_sample() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("a.txt", "a.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"{}"))
    data = bytearray(buffer.getvalue()[:2048])
    data[124:136] = b"\x80" + b"\x7f" * 11  # a number of base 256
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(ValueError, match=r"a\.txt|OverflowError"):
        read_sample(bytes(data))
    data[124:136] = b"\xff" + b"\x00" * 11  # a negative one
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(ValueError, match="OverflowError"):
        read_sample(bytes(data))
