"""Starts real ranks: `torchrun` with gloo on this machine, and what each rank printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def torchrun(script: str, num_ranks: int, *args: object, timeout_s: float = 240) -> list[dict[str, Any]]:
    """Runs `script` of this folder on `num_ranks` processes; the JSON object that each rank writes, by rank.

    A script gets the folder to write to as its first argument and leaves ``RANK.json`` there (see `write_result`).
    Raises AssertionError with the output if a rank fails, or if they are not done in time.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        command += [str(HERE / script), out, *map(str, args)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-12000:]
        return [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def write_result(folder: str, rank: int, result: dict[str, Any]) -> None:
    """What a rank leaves for `torchrun` to return."""
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
