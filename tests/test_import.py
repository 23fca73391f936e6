"""Importing mmpack is cheap, and its names are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mmpack

HEAVY = ("torch", "transformers", "numpy", "megatron", "pydantic", "typer", "rich", "PIL", "matplotlib", "yaml")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split("\n")[-2].split())


def test_the_root_imports_nothing_heavy() -> None:
    assert not loaded_after("import mmpack; mmpack.__version__; dir(mmpack)") & set(HEAVY)


def test_numbers_need_no_torch() -> None:
    code = "import mmpack; assert mmpack.pack_lengths([2, 1], 3) == [[0, 1]]; list(mmpack.stream_packs([2, 1], 3))"
    assert "torch" not in loaded_after(code)
    assert "torch" not in loaded_after("import mmpack; mmpack.image_size; mmpack.decode_image; mmpack.SampleError")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['mmpack', '--help']\nfrom mmpack.cli import main\ntry: main()\nexcept SystemExit: pass"
    )
    assert not loaded_after(code) & {"torch", "transformers", "megatron", "matplotlib", "pydantic"}


@pytest.mark.parametrize("name", mmpack.__all__)
def test_every_name_exists(name: str) -> None:
    assert getattr(mmpack, name) is not None
    assert name in dir(mmpack)


def test_the_promised_names_are_there() -> None:
    promised = {"pack_lengths", "stream_packs", "image_size", "decode_image", "load", "PackedBatch", "PackLoader"}
    promised |= {"EnergonMultiModalDataModule", "ConfigError", "SampleError", "StateError"}
    assert promised <= set(mmpack.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mmpack.nothing  # noqa: B018


def test_nemo_names_are_the_same_objects() -> None:
    from mmpack import datamodules, vlm
    from mmpack.energon import cook

    for name in vlm.__all__:
        assert getattr(vlm, name) is getattr(cook if name.startswith("register_") else datamodules, name)


def test_the_module_is_the_command() -> None:
    helped = subprocess.run([sys.executable, "-m", "mmpack", "--help"], capture_output=True, text=True, timeout=120)
    assert helped.returncode == 0
    assert "convert" in helped.stdout
    refused = subprocess.run(
        [sys.executable, "-m", "mmpack", "check", "no/such"], capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith("mmpack: ")
