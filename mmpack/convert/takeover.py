"""What must be the same for a run to take over the shards of one that was broken off."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmpack import __version__
from mmpack.convert.config import ConvertConfig
from mmpack.convert.folder import lasting_folder, partial_folder, remove_hidden

DONE = ".done"  # folder of what is remembered of finished shards
_OTHERWISE_EQUAL = ("dst", "workers", "engine", "address", "overwrite", "max_bad_share", "staging")


@contextmanager
def work_folder(config: ConvertConfig, sources: Iterable[Path], image_root: Path) -> Iterator[tuple[Path, Path]]:
    """The folder in which the dataset grows, and one in it for what this run alone needs.

    Where tasks run on a cluster, shards that an earlier run finished are still there.
    """
    if config.engine == "local":
        with partial_folder(config.dst) as folder:
            yield folder, _spool(folder)
        return
    with lasting_folder(config.dst, fingerprint(config, sources, image_root)) as folder:
        remove_hidden(folder, keep=(DONE, ".lock"))
        # A name of its own: a task of a driver that died must not find what this run puts there.
        yield folder, _spool(folder)


def _spool(folder: Path) -> Path:
    spool = folder / f".spool-{uuid.uuid4().hex}"
    spool.mkdir()
    return spool


def fingerprint(config: ConvertConfig, sources: Iterable[Path], image_root: Path) -> str:
    """A hash of the settings that decide what the shards hold, and of names, sizes and times of the source's files.

    Pictures of an image folder are not looked at: there may be millions. Those in a source that is a folder are.
    """
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in _OTHERWISE_EQUAL}
    settings |= {"src": os.path.abspath(config.src), "image_root": os.path.abspath(image_root)}
    settings["split"] = list(config.split.items())
    total = hashlib.blake2b(repr((__version__, sorted(settings.items()))).encode(), digest_size=8)
    for path in sources:
        for file in _files(path):
            facts = file.stat()
            total.update(repr((os.path.abspath(file), facts.st_size, facts.st_mtime_ns)).encode())
    return total.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # as readers do
        visible = sorted(name for name in names if not name.startswith("."))
        yield from (Path(folder, name) for name in visible if Path(folder, name).is_file())
