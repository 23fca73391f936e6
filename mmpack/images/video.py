"""Videos as sampled frames: how many there are and how large from the container's header, pixels of one when asked.

PyAV (extra ``video``) reads them. A frame travels as a `VideoFrame`: the video's own bytes, which all its frames share,
and a number. Only when its pack has been chosen it is decoded, from the key frame before it on.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, Reason, SampleError, nearest, whole_number
from mmpack.images.sniff import video_format
from mmpack.sample import Picture

RULES = ("first", "middle", "last")
_MP4 = ("mp4", "mov")
_TURNS = {(0, 1, -1, 0): 3, (-1, 0, 0, -1): 2, (0, -1, 1, 0): 1}  # display matrix: quarter turns to the left


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoHeader:
    """What the header of a video says. Width and height are upright."""

    width_px: int
    height_px: int
    num_frames: int
    seconds_per_frame: float
    quarter_turns: int = 0  # to the left, of what is stored, to be upright


def check_video_frames(rule: int | str | None) -> None:
    """Raises ConfigError unless `rule` chooses frames ("first", "middle", "last", a number) and they can be read."""
    if rule is None:
        return
    if (whole_number(rule) or 0) < 1 and rule not in RULES:
        hint = nearest(rule, RULES) if isinstance(rule, str) else "at least 1 frame"
        raise ConfigError(f"video_frames={rule!r}; give a number of frames, or one of {', '.join(RULES)}: {hint}")
    if find_spec("av") is None:
        raise ConfigError(f"video_frames={rule!r} needs PyAV, which is not installed: pip install 'mmpack[video]'")


def frame_indices(rule: int | str, num_frames: int) -> list[int]:
    """Which frames of a video are taken: at most as many as it has, N of them evenly spread from first to last.

    >>> frame_indices(3, 9), frame_indices(1, 9), frame_indices(4, 2), frame_indices("last", 9)
    ([0, 4, 8], [4], [0, 1], [8])
    """
    if isinstance(rule, str):
        return [{"first": 0, "middle": num_frames // 2, "last": num_frames - 1}[rule]]
    if rule == 1:
        return [num_frames // 2]
    count = min(rule, num_frames)
    return [i * (num_frames - 1) // (count - 1) for i in range(count)] if count > 1 else [0]


class VideoFrame(Picture):
    """One frame as a picture. Its `data`, an uncompressed picture, is made each time it is asked for."""

    __slots__ = ("header", "index", "video")
    video: bytes
    index: int
    header: VideoHeader

    def __init__(self, *, name: str, video: bytes, index: int, header: VideoHeader) -> None:
        set_field = object.__setattr__  # as a frozen dataclass does it
        set_field(self, "name", f"{name}#{index}")
        set_field(self, "video", video)
        set_field(self, "index", index)
        set_field(self, "header", header)

    @property
    def data(self) -> bytes:
        """The frame as a PPM. Raises SampleError if it cannot be decoded."""
        rgb_HWC = decode_frame(self.video, self.index, self.header)
        return b"P6 %d %d 255\n" % (rgb_HWC.shape[1], rgb_HWC.shape[0]) + rgb_HWC.tobytes()

    @property
    def num_bytes(self) -> int:
        """Its share of the video, about."""
        return -(-len(self.video) // self.header.num_frames)

    def __repr__(self) -> str:
        return f"VideoFrame({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        name = self.name.rpartition("#")[0]
        return _rebuild, (name, self.video, self.index, self.header)


def _rebuild(name: str, video: bytes, index: int, header: VideoHeader) -> VideoFrame:
    return VideoFrame(name=name, video=video, index=index, header=header)


def video_header(data: bytes) -> VideoHeader:
    """Size, number and distance of frames. Nothing is decoded.

    Raises:
        SampleError: no video, one whose header is damaged or does not say it all, or PyAV is missing.
    """
    name = video_format(data)
    if name is None:
        raise SampleError(Reason.NOT_AN_IMAGE, "no video of a known format")
    with _Opened(data) as (container, stream):
        width_px, height_px, rate = stream.codec_context.width, stream.codec_context.height, stream.average_rate
        num_frames = stream.frames
        if not num_frames and rate and container.duration:
            num_frames = max(1, round(container.duration / 1e6 * rate))
        if not (num_frames and rate and width_px and height_px):
            detail = f"the header of the video does not say it all: {width_px}x{height_px} px, {num_frames} frames"
            raise SampleError(Reason.IMAGE_TRUNCATED, detail)
        turns = _quarter_turns(data, width_px, height_px) if name in _MP4 else 0
    if turns % 2:
        width_px, height_px = height_px, width_px
    return VideoHeader(
        width_px=width_px,
        height_px=height_px,
        num_frames=num_frames,
        seconds_per_frame=float(1 / rate),
        quarter_turns=turns,
    )


def decode_frame(data: bytes, index: int, header: VideoHeader) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 of frame `index`, upright; of a video that ends before it, the last one there is.

    Raises:
        SampleError: IMAGE_TRUNCATED where no frame can be decoded, or it has another size than the header says.
    """
    with _Opened(data) as (container, stream):
        stream.codec_context.thread_count = 1  # one frame gains nothing from more, and workers are many
        start = float(stream.start_time or 0) * float(stream.time_base)
        wanted = start + (index - 0.5) * header.seconds_per_frame
        if index:
            container.seek(math.floor((wanted - start) / stream.time_base) + (stream.start_time or 0), stream=stream)
        found: Any = None
        for frame in container.decode(stream):
            found = frame
            if frame.time is None or frame.time >= wanted:
                break
        if found is None:
            raise SampleError(Reason.IMAGE_TRUNCATED, f"frame {index} of the video is cut or damaged")
        rgb_HWC: NDArray[np.uint8] = np.rot90(found.to_ndarray(format="rgb24"), header.quarter_turns)
    if rgb_HWC.shape[:2] != (header.height_px, header.width_px):
        detail = f"frame {index} is {rgb_HWC.shape[1]}x{rgb_HWC.shape[0]} px, the header says {header.width_px}x"
        raise SampleError(Reason.IMAGE_TRUNCATED, f"{detail}{header.height_px}")
    return np.ascontiguousarray(rgb_HWC)


class _Opened:
    """The container and its first stream of pictures, closed at the end; PyAV's errors as SampleErrors."""

    def __init__(self, data: bytes) -> None:
        try:
            import av
        except ImportError:
            raise SampleError(
                Reason.IMAGE_UNSUPPORTED, "a video, and PyAV is not installed: pip install 'mmpack[video]'"
            ) from None
        self._av = av
        try:
            self._container = av.open(io.BytesIO(data))
        except av.error.FFmpegError as error:
            raise _damaged(error) from None

    def __enter__(self) -> tuple[Any, Any]:
        if not self._container.streams.video:
            self._container.close()
            raise SampleError(Reason.NOT_AN_IMAGE, "a film without pictures")
        return self._container, self._container.streams.video[0]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._container.close()
        if isinstance(error, self._av.error.FFmpegError):
            raise _damaged(error) from None


def _damaged(error: Exception) -> SampleError:
    return SampleError(Reason.IMAGE_TRUNCATED, f"a cut or damaged video: {str(error)[:120]}")


def _quarter_turns(data: bytes, width_px: int, height_px: int) -> int:
    """How an MP4 or QuickTime film is to be turned: the matrix of the track of this size (ISO/IEC 14496-12, 8.3.2)."""
    for track in _boxes(data, b"moov", b"trak", b"tkhd"):
        at = track + (52 if data[track] == 1 else 40)
        if at + 44 > len(data):
            continue
        a, b, _, c, d, *_, width, height = struct.unpack_from(">11i", data, at)
        if {width >> 16, height >> 16} == {width_px, height_px}:
            return _TURNS.get(tuple(value >> 16 for value in (a, b, c, d)), 0)
    return 0


def _boxes(data: bytes, *path: bytes) -> Iterator[int]:
    """Where the content of every box at `path` begins."""
    yield from _inner_boxes(data, 0, len(data), path)


def _inner_boxes(data: bytes, at: int, end: int, path: tuple[bytes, ...]) -> Iterator[int]:
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        begin = at + 8
        if size == 1 and at + 16 <= end:
            size, begin = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
        after = end if size == 0 else at + size
        if after < begin or after > end:
            return
        if kind == path[0]:
            if len(path) == 1:
                yield begin
            else:
                yield from _inner_boxes(data, begin, after, path[1:])
        at = after
