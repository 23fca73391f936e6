"""Conversion beside a plain copy of the same files into one tar: `mmpack bench configs/bench/convert.yaml`.

The copy is one process of Python's tarfile, which probes nothing and writes no index. What conversion does beside it
(records checked, headers probed, splits drawn, index written) shall cost no more than the second process makes good.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmpack.bench.records import BenchRecord, versions
from mmpack.convert import ConvertConfig, convert
from mmpack.errors import ConfigError, nearest

BENCH = "convert"
TARGET = 0.7  # of the copy's files a second, with two processes
Advance = Callable[[int, int, str], None]  # (runs done, runs, what was done last)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionConfig:
    """What to measure.

    Args:
        data: folder made by ``tools/make_bench_mix.py``.
        repeat: every record comes so many times, so that starting processes does not count for much.
        workers: processes of the conversions that are measured.
        rounds: copy and conversions take turns; the fastest of each counts.

    Raises:
        ConfigError: a number below 1, or no data.
    """

    data: str = "build/bench/mix"
    repeat: int = 8
    workers: tuple[int, ...] = (1, 2)
    rounds: int = 2

    def __post_init__(self) -> None:
        for name, value in (("repeat", self.repeat), ("rounds", self.rounds), *(("workers", w) for w in self.workers)):
            if value < 1:
                raise ConfigError(f"{name}={value}; give at least 1")
        if not (Path(self.data) / "llava.json").is_file():
            raise ConfigError(
                f"data={self.data!r} holds no llava.json; make it: python tools/make_bench_mix.py {self.data}"
            )


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> ConversionConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    kinds = {field.name: type(field.default) for field in dataclasses.fields(ConversionConfig)}
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in kinds:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), kinds)}")
        if kinds[key] is tuple and isinstance(value, list) and all(type(item) is int for item in value):
            value = tuple(value)
        if type(value) is not kinds[key]:
            raise ConfigError(f"{where}: {key}={value!r}; give a {kinds[key].__name__.replace('tuple', 'list')}")
        values[key] = value
    return ConversionConfig(**values)  # type: ignore[arg-type]  # the config checks what it was given


def run(config: ConversionConfig, advance: Advance = lambda done, total, label: None) -> list[BenchRecord]:
    """A record for the copy, and one for each number of workers."""
    data = Path(config.data).absolute()
    found = json.loads((data / "llava.json").read_text(encoding="utf-8"))
    records = [{**record, "id": f"{record['id']}#{turn}"} for turn in range(config.repeat) for record in found]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=data) as folder:
        source = Path(folder) / "llava.json"
        source.write_text(json.dumps(records), encoding="utf-8")
        subjects: dict[str, Callable[[], None]] = {"tarfile": lambda: copy(records, data / "images", Path(folder))}
        for workers in config.workers:
            subjects[f"mmpack, {workers} workers"] = lambda workers=workers: convert_to(  # type: ignore[misc]
                source, data / "images", Path(folder) / "energon", workers
            )
        total = config.rounds * len(subjects)
        for number in range(config.rounds):
            for place, (name, work) in enumerate(subjects.items()):
                begun = time.perf_counter()
                work()
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - begun)
                advance(number * len(subjects) + place + 1, total, name)
    num_files = 2 * len(records)
    return [_record(name, seconds, num_files, best["tarfile"], config) for name, seconds in best.items()]


def copy(records: list[dict[str, str]], images: Path, folder: Path) -> None:
    """Every picture and record into one tar file, in one process."""
    with tarfile.open(folder / "copy.tar", "w") as tar:
        for number, record in enumerate(records):
            parts = (("0.jpg", (images / record["image"]).read_bytes()), ("json", json.dumps(record).encode()))
            for name, content in parts:
                member = tarfile.TarInfo(f"{number:08d}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def convert_to(source: Path, images: Path, out: Path, workers: int) -> None:
    """The conversion, into a folder that is not there yet."""
    shutil.rmtree(out, ignore_errors=True)
    convert(ConvertConfig(src=source, dst=out, image_root=images, workers=workers))


def _record(name: str, seconds: float, num_files: int, copy_s: float, config: ConversionConfig) -> BenchRecord:
    metrics = {"files_per_s": round(num_files / seconds), "seconds": seconds, "times_copy": copy_s / seconds}
    if name == "mmpack, 2 workers":
        metrics["target_times"] = TARGET
    return BenchRecord(
        bench=BENCH,
        case=f"{num_files} files",
        subject=name,
        metrics=metrics,
        config=json.loads(json.dumps(dataclasses.asdict(config))),
        versions=versions("pillow"),
    )
