"""YAML with lines, overrides, package paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmpack.config.document import package_path, parse_document, parse_scalar, read_document
from mmpack.errors import ConfigError

TEXT = """\
# a comment
data:
  path: here
  tile: {size: 3}
windows: [1, 2]
base: &base
  a: 1
more:
  <<: *base
  b: 2
"""


def test_every_value_knows_its_line() -> None:
    document = parse_document(TEXT, name="f.yaml")
    assert document.values["more"] == {"a": 1, "b": 2}
    assert document.where(("data", "path")) == "f.yaml:3"
    assert document.where(("data", "tile", "size")) == "f.yaml:4"
    assert document.where(("windows", 1)) == "f.yaml:5"
    assert document.where(("more", "a")) == "f.yaml:8"  # merged in: the line of what it was merged into
    assert document.where(("data", "missing")) == "f.yaml:2"
    assert document.where(("missing",)) == "f.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("-7", -7),
        ("1_000", 1000),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        # text, where YAML 1.1 has surprises
        ("no", "no"),
        ("on", "on"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-12-01", "2026-12-01"),
        ("1.2.3", "1.2.3"),
        ("e3", "e3"),
        ("'8'", "8"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_settings_replace_and_add_and_are_named() -> None:
    document = parse_document(TEXT, name="f.yaml").with_settings(
        ["data.path=x=y", "data.new.deep=[1, 2]", "data.path=z"]
    )
    assert document.values["data"] == {"path": "z", "tile": {"size": 3}, "new": {"deep": [1, 2]}}
    assert document.where(("data", "path")) == "--set data.path=z"
    assert document.where(("data", "new", "deep", 1)) == "--set data.new.deep=[1, 2]"
    assert parse_document(TEXT, name="f.yaml").values["data"]["path"] == "here"


def test_settings_do_not_change_the_document_that_they_start_from() -> None:
    document = parse_document(TEXT, name="f.yaml")
    document.with_settings(["data.tile.size=9"])
    assert document.values["data"]["tile"] == {"size": 3}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.path", "section.key=value"),
        ("=3", "section.key=value"),
        ("data..path=3", "section.key=value"),
        ("data.path.x=3", "data.path is 'here' and has no keys"),
        ("data.path=[1", "is not a YAML value"),
    ],
)
def test_a_setting_that_cannot_be_applied_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        parse_document(TEXT, name="f.yaml").with_settings([setting])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", r"f.yaml:4: b.c is set twice, first in line 3"),
        ("a: {1: 2}", r"f.yaml:1: key a.1 is not text"),
        ("- a\n", "holds list"),
        ("", "holds NoneType"),
        ("a: [1\n", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_document(text, name="f.yaml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path / "binary.yaml")


def test_package_paths_lead_into_the_package() -> None:
    document = parse_document("a: {b: ['package:demo_data/llava.json', x]}", name="f.yaml").with_package_paths()
    assert document.values == {"a": {"b": [str(package_path("demo_data/llava.json")), "x"]}}
    with pytest.raises(ConfigError, match=r"f.yaml:1: a\[0\]='package:demo_data/lava.json'.*did you mean 'llava.json'"):
        parse_document("a: ['package:demo_data/lava.json']", name="f.yaml").with_package_paths()


@pytest.mark.parametrize(
    "text", ["a: &x {b: *x}", "a: " + "[" * 3000, "a: !!int foo", "a: !!float x", "a: !!bool x", "a: !!timestamp x"]
)
def test_odd_yaml_is_one_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"odd\.yaml: not valid YAML"):
        parse_document(text, name="odd.yaml")
