"""Real pictures with bytes changed, cut, moved and doubled: a picture or a SampleError, in little time and memory.

Short in the suite; HYPOTHESIS_PROFILE=long makes many more examples.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, features

from mmpack.errors import SampleError
from mmpack.images import decode_image, image_size
from tests.images.pictures import SMALL_CASES, case, quadrants, saved, with_orientation

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
FUZZ = settings(
    max_examples=20_000 if LONG else 150, deadline=10_000, suppress_health_check=[HealthCheck.too_slow], database=None
)
MAX_PIXELS = 100_000


def made() -> dict[str, bytes]:
    """A file of every format and of many pixel types."""
    rgb = quadrants(40, 24)
    files = {
        f"{kind} {mode}": saved(rgb.convert(mode), kind)
        for kind, modes in {
            "JPEG": ("L", "RGB", "CMYK"),
            "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
            "WEBP": ("RGB", "RGBA"),
            "GIF": ("P",),
            "BMP": ("1", "L", "P", "RGB", "RGBA"),
            "PPM": ("1", "L", "RGB"),
            "QOI": ("RGB", "RGBA"),
        }.items()
        for mode in modes
    }
    files["JPEG progressive"] = saved(rgb, "JPEG", progressive=True)
    files["JPEG turned"] = saved(rgb, "JPEG", exif=with_orientation(6))
    files["GIF of frames"] = saved(rgb, "GIF", save_all=True, append_images=[rgb.rotate(90), rgb.rotate(180)])
    files["PNG of frames"] = saved(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)])
    files["MPO"] = saved(rgb, "MPO", save_all=True, append_images=[rgb.rotate(180)])
    files["PNG 16"] = saved(Image.fromarray(np.full((9, 7), 777, dtype=np.uint16)), "PNG")
    if features.check("jpg_2000"):
        files["JPEG2000"] = saved(rgb, "JPEG2000")
    if features.check("avif"):
        files["AVIF"] = saved(rgb, "AVIF")
    return files


FILES = list(made().values()) + [case(name) for name in SMALL_CASES if not name.endswith(".tif")]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(0, 4))):
        if len(data) < 8:
            break
        # headers matter more than pixels
        place = draw(st.one_of(st.integers(0, min(len(data), 80) - 1), st.integers(0, len(data) - 1)))
        kind = draw(st.sampled_from(["byte", "number", "zeros", "cut", "drop", "twice"]))
        if kind == "byte":
            data[place] = draw(st.integers(0, 255))
        elif kind == "number":
            number = struct.pack(
                draw(st.sampled_from("<>")) + "I", draw(st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1]))
            )
            data[place : place + 4] = number
        elif kind == "zeros":
            data[place : place + 16] = bytes(16)
        elif kind == "cut":
            del data[place:]
        elif kind == "drop":
            del data[place : place + draw(st.integers(1, 64))]
        else:
            data[place:place] = data[place : place + 64]
    return bytes(data)


@FUZZ
@given(mutated(), st.booleans())
@example(b"", False)
def test_only_sample_errors_come_out(data: bytes, lenient: bool) -> None:
    size: tuple[int, int] | None
    try:
        size = image_size(data, max_pixels=MAX_PIXELS, max_aspect=50)
    except SampleError:
        size = None
    try:
        rgb_HWC = decode_image(data, max_pixels=MAX_PIXELS, max_aspect=50, lenient=lenient)
    except SampleError:
        return
    assert size is not None, "refused by its header and decoded all the same"
    assert rgb_HWC.shape == (size[1], size[0], 3)
    assert rgb_HWC.dtype == np.uint8
    assert size[0] * size[1] <= MAX_PIXELS


def test_damage_allocates_no_more_than_the_limit() -> None:
    """In a process of its own that may have 256 MB more than it starts with; a bomb would end it."""
    code = """
        import io, random, resource, struct, sys
        from mmpack.errors import SampleError
        from mmpack.images import decode_image, image_size
        from tests.images.test_fuzz import FILES, MAX_PIXELS
        for data in FILES:  # every decoder is loaded and has run
            try: decode_image(data, max_pixels=MAX_PIXELS)
            except SampleError: pass
        now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), now + (256 << 20)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rng = random.Random(0)
        for turn in range(int(sys.argv[1])):
            data = bytearray(rng.choice(FILES))
            for _ in range(rng.randint(1, 3)):
                place = rng.randrange(max(1, min(len(data), 100) - 4))
                number = rng.choice([2**31 - 1, 2**24, 30000, 9999999])
                data[place:place + 4] = struct.pack(rng.choice("<>") + "I", number)
            for function in (image_size, decode_image):
                try: function(bytes(data), max_pixels=MAX_PIXELS)
                except SampleError: pass
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), "60000" if LONG else "1500"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=3000 if LONG else 120,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) < 64, "MB"


def test_pictures_are_read_from_memory_and_nothing_is_written(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    for data in FILES:
        try:
            decode_image(data)
        except SampleError:
            continue
    assert list(tmp_path.iterdir()) == []
    assert io.BytesIO(FILES[0]).getvalue() == FILES[0]
