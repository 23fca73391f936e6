"""The checkpoint's envelope: every difference is named, ranks' states merge only when they fit, files are whole."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack import state
from mmpack.errors import StateError

SETTINGS = {"data.seed": 0, "stream.capacity": 512}
VERSIONS = {"mmpack": "1"}


def stream_state(stream: int, **changes: Any) -> dict[str, Any]:
    """As `PackStream.state` gives it, before anything was read."""
    counts = dict.fromkeys(("epoch", "round", "num_read", "num_read_in_epoch", "emitted", "left"), 0)
    held: dict[str, Any] = {name: [] for name in ("window", "alone", "waiting", "plans", "recent_losses")}
    aligned = {"block": 0, "emitting": False, "costs": []}
    flags = {"exhausted": False, "emitting": False}
    return {"stream": stream, **counts, **flags, **held, "source": {}, "aligned": aligned, "drops": {}, **changes}


def rank_state(rank: int, *, next_pack: int = 8, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    return state.envelope(
        settings=settings or SETTINGS,
        versions=VERSIONS,
        num_streams=4,
        epoch=0,
        next_pack=next_pack,
        streams={rank: stream_state(rank), rank + 2: None},
    )


def test_a_fitting_state_passes() -> None:
    state.check(rank_state(0), settings=SETTINGS, versions=VERSIONS, num_streams=4)


def test_each_changed_setting_is_named_with_its_class() -> None:
    text = r"data\.seed: saved 0, now 7 \(data\); stream\.capacity: saved 512, now 1024 \(order\)"
    with pytest.raises(StateError, match=text):
        state.check(rank_state(0), settings={"data.seed": 7, "stream.capacity": 1024}, versions=VERSIONS, num_streams=4)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data.index", "(data)"),
        ("stream.packing_buffer_size", "(order)"),
        ("tokenizer", "(shape)"),
        ("tokenizer.bos", "(shape)"),
        ("template", "(shape)"),
        ("tiling", "(shape)"),
        ("layout.fixed_total", "(shape)"),
        ("limit.seq_length", "(shape)"),
        ("of a later version", "(unknown)"),
    ],
)
def test_what_changes_packs_is_refused(name: str, told: str) -> None:
    for saved, now in (({name: 1}, {name: 2}), ({name: 1}, {}), ({}, {name: 2})):
        with pytest.raises(StateError, match=f"{name}: saved") as caught:
            state.check(rank_state(0, settings={**SETTINGS, **saved}), settings={**SETTINGS, **now}, versions=VERSIONS)
        assert told in str(caught.value)


@pytest.mark.parametrize("name", ["prefetch", "num_workers", "stream.error_budget", "data.max_sample_bytes"])
def test_what_changes_no_pack_is_a_warning(name: str) -> None:
    saved = rank_state(0, settings={**SETTINGS, name: 1})
    with pytest.warns(UserWarning, match=f"changes no pack: {name}: saved 1, now 2"):
        state.check(saved, settings={**SETTINGS, name: 2}, versions=VERSIONS, num_streams=4)


def test_another_format_is_refused() -> None:
    with pytest.raises(StateError, match="format version 99"):
        state.check({**rank_state(0), "version": 99}, settings=SETTINGS, versions=VERSIONS, num_streams=4)
    with pytest.raises(StateError, match="format version 1, this mmpack reads 2"):
        state.check({"version": 1}, settings=SETTINGS, versions=VERSIONS, num_streams=4)
    with pytest.raises(StateError, match="not a state of mmpack's loader"):
        state.check({}, settings=SETTINGS, versions=VERSIONS, num_streams=4)


def test_another_version_of_mmpack_is_only_a_warning() -> None:
    with pytest.warns(UserWarning, match="mmpack: saved '1', now '2'"):
        state.check(rank_state(0), settings=SETTINGS, versions={"mmpack": "2"}, num_streams=4)


def test_states_of_all_ranks_merge() -> None:
    merged = state.merge([rank_state(0), rank_state(1)])
    assert list(merged["streams"]) == ["0", "1", "2", "3"]
    assert merged["next_pack"] == 8


def test_ranks_at_different_steps_do_not_merge() -> None:
    with pytest.raises(StateError, match="rank 1 has next_pack=10, rank 0 has 8"):
        state.merge([rank_state(0), rank_state(1, next_pack=10)])


def test_a_missing_rank_is_named_by_its_streams() -> None:
    with pytest.raises(StateError, match=r"streams \[1, 3\]"):
        state.merge([rank_state(0)])


def test_the_same_rank_twice_is_refused() -> None:
    with pytest.raises(StateError, match="streams 0, 2 are in the states of two ranks"):
        state.merge([rank_state(0), rank_state(0)])


def test_what_is_large_is_compressed_and_read_again() -> None:
    large = {"stream": 0, "window": [["a/rather/long/name", i, [None, True, b"x"], 1.5] for i in range(2000)]}
    plain = {**rank_state(0), "streams": {"0": large, "1": {"small": 1}, "2": None}}
    sealed = state.sealed(plain)
    assert isinstance(sealed["streams"]["0"], bytes)
    assert len(sealed["streams"]["0"]) < len(pickle.dumps(large)) / 5
    assert {name: state.opened(held) for name, held in sealed["streams"].items()} == plain["streams"]
    assert state.sealed(sealed) == sealed


def test_what_is_compressed_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    for content in ({"a": Evil()}, {"a": Path("x")}):
        with pytest.raises(StateError, match=r"a stream's state names (posix|pathlib)"):
            state.opened(zlib.compress(pickle.dumps(content)))
    assert not (tmp_path / "made").exists()
    for damaged in (b"nothing", zlib.compress(b"\x80\x04nothing")):
        with pytest.raises(StateError, match="damaged"):
            state.opened(damaged)


def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.pt"
    sealed = state.sealed({**rank_state(0), "streams": {"0": {"window": [[i, f"{i:09d}"] for i in range(3000)]}}})
    for content in (rank_state(0), rank_state(1), sealed):
        state.save_state(path, content)
        assert state.load_state(path) == content
    assert [file.name for file in path.parent.iterdir()] == ["state.pt"]
    with pytest.raises(StateError, match="there is no state"):
        state.load_state(tmp_path / "none")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StateError, match="cannot be read as a state"):
        state.load_state(path)
    torch.save([1], path)
    with pytest.raises(StateError, match="holds a list"):
        state.load_state(path)


def test_a_save_that_fails_leaves_the_previous_state(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    state.save_state(path, rank_state(0))
    with pytest.raises(Exception, match=r"pickle|local object"):
        state.save_state(path, {"a": lambda: None})
    assert state.load_state(path) == rank_state(0)
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


def killed_while_saving(path: Path, num_kills: int) -> None:
    """Kills a process that saves all the time, at ever other moments; the state is whole every time."""
    code = (
        "import sys, torch\n"
        "from mmpack.state import save_state\n"
        "i = 0\n"
        "while True:\n"
        "    save_state(sys.argv[1], {'first': i, 'filling': torch.full((300_000,), i), 'last': i})\n"
        "    i += 1\n"
        "    print(i, flush=True)\n"
    )
    saver = None
    for number in range(num_kills):
        saver = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert saver.stdout is not None
        saver.stdout.readline()
        time.sleep(0.0007 * (number * 37 % 23))
        saver.send_signal(signal.SIGKILL)
        saved = int((saver.stdout.read().split() or ["1"])[-1])
        saver.wait()
        held = state.load_state(path)
        assert held["first"] == held["last"] == int(held["filling"][0]) == int(held["filling"][-1])
        assert held["first"] >= saved - 1


def test_a_kill_during_a_save_leaves_a_whole_state(tmp_path: Path) -> None:
    killed_while_saving(tmp_path / "state.pt", 2)


@pytest.mark.slow
def test_forty_kills_during_a_save(tmp_path: Path) -> None:
    killed_while_saving(tmp_path / "state.pt", 40)


def test_what_killed_saves_left_is_removed_later(tmp_path: Path) -> None:
    old, new = tmp_path / ".state.pt.abc.partial", tmp_path / ".state.pt.def.partial"
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    state.save_state(tmp_path / "state.pt", {"a": 1})
    assert sorted(file.name for file in tmp_path.iterdir()) == [new.name, "state.pt"]  # somebody may be writing that


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": []}, r"damaged: mode=\[\], it must be a str"),
        ({"settings": None}, "damaged: settings=None"),
        ({"versions": "x"}, "damaged: versions='x'"),
        ({"epoch": "x"}, "damaged: epoch='x', it must be a whole number of at least 0"),
        ({"next_pack": -1}, "damaged: next_pack=-1"),
        ({"next_pack": True}, "damaged: next_pack=True"),
        ({"shift": None}, "damaged: shift=None"),
        ({"num_streams": 0}, "damaged: num_streams=0"),
        ({"streams": []}, r"damaged: streams=\[\]"),
        ({"streams": {"0": 7}}, "damaged: it holds a int for stream '0'"),
    ],
)
def test_a_state_that_cannot_have_been_saved_is_refused(changes: dict[str, Any], words: str) -> None:
    saved = state.envelope(settings={}, versions={}, num_streams=1, epoch=0, next_pack=3, streams={0: None})
    state.check(saved, settings={}, versions={})
    with pytest.raises(StateError, match=words):
        state.check(saved | changes, settings={}, versions={})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stream", "0"), ("epoch", "x"), ("round", -1), ("exhausted", 0), ("num_read", None),
        ("num_read_in_epoch", 1.5),
        ("emitted", True), ("left", []), ("source", []), ("window", 7),
        ("window", [["place", "many", "key", "set", []]]),
        ("window", [[1, 2]]), ("alone", {}), ("emitting", "no"), ("waiting", [None]), ("aligned", {"block": 0}),
        ("aligned", {"block": "x", "emitting": False, "costs": []}), ("plans", [[1]]), ("plans", "ab"), ("drops", [1]),
    ],
)  # fmt: skip
def test_a_stream_state_edited_by_hand_is_refused_by_key(key: str, value: Any) -> None:
    whole = stream_state(0)
    for held, words in (
        ({**whole, key: value}, rf"streams\.0\.{key}="),
        ({name: other for name, other in whole.items() if name != key}, f"streams.0 lacks '{key}'"),
    ):
        saved = state.envelope(settings={}, versions={}, num_streams=1, epoch=0, next_pack=3, streams={0: held})
        with pytest.raises(StateError, match=words):
            state.check(saved, settings={}, versions={})


@pytest.mark.parametrize("content", [b"junk", b"\x80\x04", pickle.dumps(7), pickle.dumps([1])])
def test_damaged_bytes_of_a_stream_are_told(content: bytes) -> None:
    for held in (content, zlib.compress(content)):
        with pytest.raises(StateError, match="the state of a stream is damaged"):
            state.opened(held)
