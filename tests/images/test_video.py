"""Frames of real videos: counted from the header, decoded to the very frame, and damage is a fault of its sample."""

from __future__ import annotations

import io
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmpack.collate import Collator
from mmpack.convert import ConvertConfig, convert
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.images import decode_image, frame_indices, image_extension, image_size, video, video_format, video_header
from mmpack.images.video import decode_frame
from mmpack.layout import Layout
from mmpack.sample import Conversation, Picture, PictureSlot, Role, Turn
from mmpack.templates import make_template
from mmpack.tiling import make_tiling
from tests.conftest import data_module, png, tile_spec

av = pytest.importorskip("av", reason="PyAV (extra video) is not here")

KINDS = {"mp4": "mpeg4", "mov": "mpeg4", "avi": "mpeg4", "matroska": "mpeg4", "webm": "libvpx"}
EXTENSIONS = {"matroska": "mkv"}


def film(
    num_frames: int = 30, size: tuple[int, int] = (64, 48), container: str = "mp4", rotation: int = 0, rate: int = 10
) -> bytes:
    """Frame i is grey of 8 i; its left half is 40 brighter than its right one."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as opened:
        stream = opened.add_stream(KINDS[container], rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 12
        if rotation:
            stream.set_display_rotation(rotation)
        for i in range(num_frames):
            pixels = np.full((size[1], size[0], 3), 8 * (i % 26), dtype=np.uint8)
            pixels[:, : size[0] // 2] += 40
            opened.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        opened.mux(stream.encode())
    return out.getvalue()


def grey(rgb_HWC: Any) -> float:
    """Of the right half."""
    return float(np.asarray(rgb_HWC)[:, rgb_HWC.shape[1] // 2 + 4 :].mean())


@pytest.mark.parametrize("container", KINDS)
def test_every_frame_is_found_in_every_container(container: str) -> None:
    data = film(container=container)
    assert video_format(data) == image_extension(data) == EXTENSIONS.get(container, container)
    header = video_header(data)
    assert (header.width_px, header.height_px, header.num_frames) == (64, 48, 30)
    assert header.seconds_per_frame == pytest.approx(0.1)
    for index in (0, 1, 11, 12, 13, 25):
        assert abs(grey(decode_frame(data, index, header)) - 8 * index) < 4, index
    assert abs(grey(decode_frame(data, 29, header)) - 8 * 3) < 4
    assert image_size(data) == (64, 48)
    assert grey(decode_image(data)) < 4


@pytest.mark.parametrize(("rotation", "shape"), [(90, (64, 48)), (180, (48, 64)), (270, (64, 48))])
@pytest.mark.parametrize("container", ["mp4", "mov"])
def test_frames_are_upright(container: str, rotation: int, shape: tuple[int, int]) -> None:
    data = film(3, container=container, rotation=rotation)
    with av.open(io.BytesIO(data)) as opened:
        said = next(opened.decode(video=0)).rotation % 360  # what ffmpeg reads from the same file
    header = video_header(data)
    assert header.quarter_turns * 90 % 360 == said
    assert (header.height_px, header.width_px) == shape
    rgb_HWC = decode_frame(data, 1, header).astype(int)
    left = np.rot90(rgb_HWC, -header.quarter_turns)[:, :24].mean()
    assert left - np.rot90(rgb_HWC, -header.quarter_turns)[:, 40:].mean() > 30
    assert image_size(data) == (shape[1], shape[0])


@pytest.mark.parametrize(
    ("rule", "indices"),
    [("first", [0]), ("middle", [15]), ("last", [29]), (1, [15]), (2, [0, 29]), (4, [0, 9, 19, 29])],
)
def test_frames_chosen(rule: int | str, indices: list[int]) -> None:
    assert frame_indices(rule, 30) == indices
    assert frame_indices(40, 30) == list(range(30))
    assert frame_indices(rule, 1) == [0]


@pytest.mark.parametrize("rule", [0, -1, True, 2.0, "midle", ""])
def test_a_choice_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises(ConfigError, match=r"video_frames=.*give a number of frames, or one of first, middle, last"):
        video.check_video_frames(rule)


# --- samples -------------------------------------------------------------------------------------------------------


def make_encoder(tokenizer: Any, video_frames: int | str | None) -> SampleEncoder:
    return SampleEncoder(
        tokenizer=tokenizer,
        template=make_template("v1"),
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=500),
        video_frames=video_frames,
    )


def asked(*pictures: Picture) -> Conversation:
    slots = tuple(PictureSlot(i) for i in range(len(pictures)))
    turns = (Turn(role=Role.USER, parts=(*slots, "what?")), Turn(role=Role.ASSISTANT, parts=("that",)))
    return Conversation(key="k", turns=turns, pictures=pictures, source="s")


def test_planned_from_the_header_and_decoded_with_its_pack(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = film()
    picture = Picture(name="p.png", data=png(random.Random(1), 30, 20))
    encoder = make_encoder(tokenizer, 3)
    with monkeypatch.context() as patched:
        patched.setattr(video, "decode_frame", None)  # planning must not ask for it
        sample = encoder.encode(asked(picture, Picture(name="a.mp4", data=data)))
    assert [planned.picture.name for planned in sample.pictures] == ["p.png", "a.mp4#0", "a.mp4#14", "a.mp4#29"]
    assert [(planned.width_px, planned.height_px) for planned in sample.pictures[1:]] == [(64, 48)] * 3
    assert sample.num_tokens == len(sample.token_ids_n) + 4 * 3  # tiles of 4 embeddings
    frames = [planned.picture for planned in sample.pictures[1:]]
    assert all(frame.video is data for frame in frames)  # type: ignore[attr-defined]  # nothing is held twice
    assert sum(frame.num_bytes for frame in frames) < len(data)
    assert pickle.loads(pickle.dumps(frames[1])).data == frames[1].data
    batch, lost = Collator(tiling=encoder.tiling, layout=Layout()).collate([sample], pack_index=0)
    assert not lost
    assert batch.check().images_per_sample.tolist() == [4]
    middle = batch.pixels[:, 0, 14, 22].tolist()  # right half, within the tile that is padded to a square
    assert [round(value / 8) for value in middle[1:]] == [0, 14, 3]


def test_without_a_choice_of_frames_the_sample_is_left_out(tokenizer: Any) -> None:
    with pytest.raises(
        SampleError, match=r"video 'a\.mp4': a video; say how many frames to take with video_frames"
    ) as e:
        make_encoder(tokenizer, None).encode(asked(Picture(name="a.mp4", data=film(3))))
    assert e.value.reason is Reason.VIDEO_FRAMES_UNSET


def test_damage_is_a_fault_of_the_sample(tokenizer: Any) -> None:
    encoder, data = make_encoder(tokenizer, 2), film(container="avi")
    for cut in (b"\x00\x00\x00\x20ftypisom" + bytes(50), film()[:200], data[:100], b"\x1aE\xdf\xa3" + bytes(99)):
        with pytest.raises(SampleError, match=r"video 'a\.mp4'") as caught:
            encoder.encode(asked(Picture(name="a.mp4", data=cut)))
        assert caught.value.reason in (Reason.IMAGE_TRUNCATED, Reason.NOT_AN_IMAGE)
    header = data.index(b"movi")
    hollow = data[: header + 4] + bytes(len(data) - header - 4)  # what the header promises is not there
    sample = encoder.encode(asked(Picture(name="a.avi", data=hollow)))
    batch, (lost,) = Collator(tiling=encoder.tiling, layout=Layout()).collate([sample], pack_index=0)
    assert lost.error.reason is Reason.IMAGE_TRUNCATED
    assert batch.check().num_tokens == sample.num_tokens  # its place is kept
    assert batch.num_loss_tokens == 0


def test_without_pyav_the_setting_is_refused_and_a_video_is_a_fault(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"video_frames=2 needs PyAV.*pip install 'mmpack\[video\]'"):
        make_encoder(tokenizer, 2)
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(SampleError, match=r"pip install 'mmpack\[video\]'"):
        image_size(film_bytes)


film_bytes = film(3)


def test_converted_and_trained_on(tmp_path: Path, tokenizer: Any) -> None:
    records = []
    for i in range(12):
        (tmp_path / f"{i}.mp4").write_bytes(film(10 + i))
        value = f"<video>\nwhat {i}?" if i % 2 else f"<image>\nwhat {i}?"
        turns = [{"from": "human", "value": value}, {"from": "gpt", "value": f"that {i}"}]
        records.append({"video": f"{i}.mp4", "conversations": turns})
    (tmp_path / "11.mp4").write_bytes(film()[:300])
    source = tmp_path / "videos.json"
    source.write_text(json.dumps(records))
    report = convert(ConvertConfig(src=source, dst=tmp_path / "out"))
    assert report.kept == 11
    assert dict(report.skipped) == {"image_truncated": 1}
    module = data_module(tmp_path / "out", tokenizer, video_frames=4, repeat=False, num_workers=1)
    batches = [batch.check() for batch in module.train_dataloader()]
    images = [n for batch in batches for n in batch.images_per_sample.tolist()]
    assert images == [4] * 11
    assert module.train_dataloader().drops.counts() == {}
