"""One phase of one subject of the bench of resuming, in a process of its own: run and save, or come back and go on."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from mmpack.bench.loaders_config import TILE_TOKENS
from mmpack.bench.loaders_subjects import encoder, our_loader


class Ours:
    """Our loader, whose state is that of the pack taken last."""

    def __init__(self, options: dict[str, Any], **settings: Any) -> None:
        self.loader = our_loader(options, **settings)

    def packs(self) -> Iterator[str]:
        while True:
            for batch in self.loader:
                yield digest(batch.tokens, batch.labels, batch.pixels)

    def save(self) -> Any:
        return self.loader.state_dict()

    def restore(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class FastForward(Ours):
    """What a loader without a state does: the packs before are made again and thrown away."""

    def save(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        packs = self.packs()
        for _ in range(self.skipped):
            next(packs)
        self.packs = lambda: packs  # type: ignore[method-assign]

    skipped = 0


class Energon:
    """Energon's savable loader with a task encoder that packs."""

    def __init__(self, options: dict[str, Any]) -> None:
        from mmpack.energon.peer import energon_loader

        self.loader = energon_loader(
            Path(options["data"]) / "crude",
            encoder(options),
            capacity=options["capacity"],
            buffer_size=options["window"],
            picture_tokens=TILE_TOKENS,
            num_workers=options["num_workers"],
        )

    def packs(self) -> Iterator[str]:
        for pack in self.loader:
            yield digest(pack.tokens, pack.labels, pack.tiles)

    def save(self) -> Any:
        return self.loader.save_state_rank()

    def restore(self, state: Any) -> None:
        self.loader.restore_state_rank(state)


SUBJECTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "mmpack": lambda options: Ours(options, num_streams=options["num_workers"]),
    "mmpack_plan": lambda options: Ours(options, order="global_plan"),
    "energon": Energon,
    "fast_forward": lambda options: FastForward(options, num_streams=options["num_workers"]),
}


def digest(*tensors: torch.Tensor) -> str:
    """A hash of what training would see."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def straight(name: str, options: dict[str, Any], folder: Path) -> dict[str, float]:
    """Runs to where the state is saved, saves, and notes the packs that follow."""
    subject = SUBJECTS[name](options)
    packs = subject.packs()
    for _ in range(options["packs_before"]):
        next(packs)
    begun = time.perf_counter()
    state = subject.save()
    saved_s = time.perf_counter() - begun
    content = pickle.dumps(state)
    (folder / "state").write_bytes(content)
    (folder / "packs").write_text("\n".join(next(packs) for _ in range(options["packs_behind"])), encoding="ascii")
    return {"save_ms": 1000 * saved_s, "state_kb": len(content) / 1024 if state is not None else 0.0}


def resumed(name: str, options: dict[str, Any], folder: Path) -> dict[str, float]:
    """Comes back from the state, and compares."""
    begun = time.perf_counter()
    subject = SUBJECTS[name](options)
    if isinstance(subject, FastForward):
        subject.skipped = options["packs_before"]
    subject.restore(pickle.loads((folder / "state").read_bytes()))
    packs = subject.packs()
    got = [next(packs)]
    first_s = time.perf_counter() - begun
    wanted = (folder / "packs").read_text(encoding="ascii").split()
    got += [next(packs) for _ in wanted[1:]]
    same = sum(one == other for one, other in zip(got, wanted, strict=True))
    return {"first_pack_s": first_s, "same_packs": same / len(wanted)}


PHASES = {"straight": straight, "resumed": resumed}


def main(name: str, phase: str, text: str, folder: str) -> None:
    """Prints the metrics of one phase."""
    torch.set_num_threads(1)
    print(json.dumps(PHASES[phase](name, json.loads(text), Path(folder))), flush=True)
    os._exit(0)  # workers of some peers outlive their trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
