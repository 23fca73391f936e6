"""Media metadata of a picture is what Pillow, which energon asks, says of it, also where Pillow is not asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from mmpack.energon import writer


def jpeg(mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (31, 17)).save(out, "JPEG", **options)
    return out.getvalue()


def two_pictures() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 10)).save(out, "MPO", save_all=True, append_images=[Image.new("RGB", (20, 10))])
    return out.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


PICTURES = {
    "rgb": jpeg(),
    "grey": jpeg("L"),
    "cmyk": jpeg("CMYK"),
    "progressive": jpeg(progressive=True),
    "turned": turned(),
    "two pictures": two_pictures(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_what_pillow_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PICTURES[name]
    said = writer._media_json(data)
    monkeypatch.setattr(writer, "_jpeg_media", lambda data: None)
    assert said == writer._media_json(data)
    assert said is not None
    with Image.open(io.BytesIO(data)) as picture:
        assert json.loads(said)["format"] == picture.format


def test_pillow_is_left_out_for_plain_jpegs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, data in PICTURES.items() if writer._jpeg_media(data) is None] == ["two pictures"]
    assert writer._jpeg_media(b"\xff\xd8\xff\xe0 and no more") is None


def test_a_shard_is_what_tarfile_writes(tmp_path: Path) -> None:
    import tarfile

    parts = [("0.jpg", PICTURES["rgb"]), ("1.jpg", b""), ("json", b"{}" * 300)]
    with writer.ShardWriter(tmp_path / "ours.tar") as shard:
        for key in ("00000000", "folder/00000001"):
            shard.put(key, [(name, data, None) for name, data in parts])
    with tarfile.open(tmp_path / "theirs.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for key in ("00000000", "folder/00000001"):
            for name, data in parts:
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    assert (tmp_path / "ours.tar").read_bytes() == (tmp_path / "theirs.tar").read_bytes()
