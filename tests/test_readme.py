"""The README's commands and code run as they are written, in a folder that holds what they name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
README = (REPO / "README.md").read_text(encoding="utf-8")
DEMO = REPO / "mmpack" / "demo_data"


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.S | re.M)
    return [text for name, text in found if name == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the demo data under the names that the README uses."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "data").mkdir()
    (folder / "data" / "llava.json").symlink_to(DEMO / "llava.json")
    (folder / "data" / "images").symlink_to(DEMO / "images")
    (folder / "configs").symlink_to(REPO / "configs")
    (folder / "mmpack").mkdir()
    (folder / "mmpack" / "demo_data").symlink_to(DEMO)
    asked = {"instruction": "What is a pack?", "context": "", "category": "qa"}
    asked["response"] = "Several samples in one row."
    (folder / "data" / "dolly.jsonl").write_text(f"{json.dumps(asked)}\n" * 3, encoding="utf-8")
    answer = {"message_id": "b", "role": "assistant", "text": "One row.", "lang": "en", "replies": []}
    tree = {"message_id": "a", "role": "prompter", "text": "What is a pack?", "lang": "en", "replies": [answer]}
    told = {"tree_state": "ready_for_export", "prompt": tree}
    trees = [json.dumps({"message_tree_id": str(i), **told}) for i in range(4)]
    (folder / "data" / "oasst_trees.jsonl").write_text("\n".join(trees), encoding="utf-8")
    run(folder, [sys.executable, str(REPO / "tools" / "make_text_data.py"), "build/sft", "--samples", "200"])
    return folder


def run(folder: Path, command: list[str]) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def test_the_commands_run(folder: Path) -> None:
    commands = [line.partition("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    commands = [command for command in commands if command.startswith("mmpack ")]
    assert len(commands) == 9
    for command in commands:
        words = command.split()
        if words[1] == "train":
            words += ["--set", "train.max_steps=3", "--set", "train.val_check_interval=3"]
        if words[1] == "generate":
            words += ["--max-new-tokens", "4"]
        run(folder, words)
    assert (folder / "pack.html").stat().st_size > 10_000
    assert (folder / "build" / "run" / "train.jsonl").exists()
    assert "Several samples in one row." in (folder / "data" / "dolly-output.jsonl").read_text(encoding="utf-8")
    oasst = folder / "data" / "oasst"
    assert "One row." in (oasst / "train.jsonl").read_text(encoding="utf-8")
    assert (oasst / "val.jsonl").exists()
    assert any((folder / "build" / "packed").iterdir())


def test_the_code_runs(folder: Path) -> None:
    (code,) = blocks("python")
    dataset = folder / "build" / "demo" / "energon"
    if not dataset.exists():
        source = ["data/llava.json", str(dataset), "--image-root", "data/images"]
        run(folder, ["mmpack", "convert", *source, "--split", "train=0.9,val=0.1"])
    said = run(folder, [sys.executable, "-W", "error::UserWarning", "-c", code])
    assert re.search(r"^\d+ samples in \d+ tokens$", said, flags=re.M)


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^make (\S+)", README, flags=re.M)
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_linked_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (REPO / link).exists(), link
