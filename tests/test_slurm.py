"""The Slurm script is one that bash reads, and calls `mmpack train` as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "configs" / "slurm.sh"


def test_it_starts_one_torchrun_a_node_with_the_settings_given(tmp_path: Path) -> None:
    """Slurm's commands are played by two that do what they are asked and one that prints what would run."""
    for name, body in {
        "scontrol": "printf 'node7\\nnode8\\n'",
        "srun": 'exec "$@"',
        "torchrun": 'printf "%s\\n" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_ID": "41"}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(SCRIPT), "my.yaml", "--set", "train.max_steps=5"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    words = done.stdout.split()
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=node7:29500"} <= set(words)
    own = words[words.index("--no-python") + 1 :]
    assert own[:3] == ["mmpack", "train", "my.yaml"]
    assert own[3:] == ["--set", "train.resume_if_exists=true", "--set", "train.max_steps=5"]


def test_the_default_configuration_is_there() -> None:
    assert "configs/sft_packing.yaml" in SCRIPT.read_text(encoding="utf-8")
    assert (SCRIPT.parent / "sft_packing.yaml").is_file()
