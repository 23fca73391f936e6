"""Converts a file with two workers and prints by how many bytes this process and they grew, and how many were kept."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil
from megatron.energon.flavors.webdataset import prepare  # noqa: F401  (what is imported is not counted)

import mmpack.images
import mmpack.sources.llava  # noqa: F401
from mmpack.convert import ConvertConfig, convert

ME = psutil.Process()


def tree_bytes() -> int:
    """Memory of this process and its children, pages that several share counted once."""
    total = 0
    for process in (ME, *ME.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def main(source: Path, target: Path) -> None:
    peak = before = tree_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, tree_bytes())
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = convert(ConvertConfig(src=source, dst=target, workers=2, split={"train": 0.9, "val": 0.1}))
    done.set()
    watcher.join()
    print(peak - before, report.kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
