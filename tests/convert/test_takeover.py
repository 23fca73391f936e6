"""What a run that is broken off leaves for the next one, and when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmpack.convert import ConvertConfig
from mmpack.convert.folder import lasting_folder, partial_folder, remove_hidden, take_place
from mmpack.convert.takeover import fingerprint
from mmpack.errors import ConfigError, WorkerError


def leave(dst: Path, name: str, error: type[BaseException]) -> Path:
    """A run of that fingerprint which ends with that error, and had written one file."""
    run = lasting_folder(dst, name)
    folder = run.__enter__()
    (folder / "shard").write_text(name)
    cause = error("broken off")
    assert not run.__exit__(error, cause, None)
    return folder


@pytest.mark.parametrize("error", [WorkerError, KeyboardInterrupt, SystemExit, OSError])
def test_what_breaks_a_run_off_leaves_its_folder_to_the_same_run(tmp_path: Path, error: type[BaseException]) -> None:
    dst = tmp_path / "out"
    left = leave(dst, "a", error)
    with lasting_folder(dst, "a") as folder:
        assert folder == left
        assert (folder / "shard").read_text() == "a"
        remove_hidden(folder, keep=(".kept",))
        take_place(folder, dst)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in dst.iterdir()] == ["shard"]


def test_a_request_that_cannot_work_leaves_nothing(tmp_path: Path) -> None:
    leave(tmp_path / "out", "a", ConfigError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [partial_folder, lambda dst: lasting_folder(dst, "b")])
def test_another_run_to_the_same_place_clears_it(tmp_path: Path, make: Any) -> None:
    left = leave(tmp_path / "out", "a", WorkerError)
    other = leave(tmp_path / "out2", "a", WorkerError)
    with make(tmp_path / "out"):
        assert not left.exists()
        assert (other / "shard").exists()


HOLD = """
import sys, time
from pathlib import Path
from mmpack.convert.folder import lasting_folder
with lasting_folder(Path(sys.argv[1]), "a"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_neither_shared_nor_cleared(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(dst)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another process is writing"), lasting_folder(dst, "a"):
            pass
        with partial_folder(dst):
            assert (tmp_path / ".out.unfinished-a").exists()
    finally:
        holder.kill()
        holder.communicate()
    with lasting_folder(dst, "a"):
        pass


def test_the_fingerprint_is_of_settings_and_files_that_matter(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text("[]")
    base: dict[str, Any] = {"src": source, "dst": tmp_path / "out"}

    def of(image_root: Path = tmp_path, **changes: Any) -> str:
        return fingerprint(ConvertConfig(**(base | changes)), [source], image_root)

    first = of()
    assert {of(), of(workers=3), of(overwrite=True), of(dst=tmp_path / "other"), of(max_bad_share=0.5)} == {first}
    others = [of(seed=1), of(on_error="raise"), of(split={"b": 0.5, "a": 0.5}), of(split={"a": 0.5, "b": 0.5})]
    others += [of(max_samples_per_shard=9), of(format="llava"), of(tmp_path / "x")]
    os.utime(source, (1, 1))
    others.append(of())
    source.write_text("[ ]")
    others.append(of())
    (tmp_path / "in.txt").write_text("beside")
    others.append(fingerprint(ConvertConfig(**base), [tmp_path], tmp_path))
    (tmp_path / ".out.unfinished-a").mkdir()
    (tmp_path / ".out.unfinished-a" / "shard").touch()  # a destination within the source
    assert fingerprint(ConvertConfig(**base), [tmp_path], tmp_path) == others[-1]
    assert len({first, *others}) == 1 + len(others)
