"""What a checkpoint of the loader holds, what a resume compares, and how the ranks' states become one.

A state is made of plain dicts, lists, strings, numbers and bytes:

``version``      of this format
``settings``     everything that shapes the stream of packs; a resume refuses any difference, naming it
``versions``     of mmpack and of the reader; a difference is a warning
``num_streams``  L, fixed at the first start
``epoch``        which pass over the data
``next_pack``    packs handed out in this epoch by all ranks together; the next one has this number
``streams``      stream number (as text) -> its state behind its last pack, or None if it gave none yet
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmpack.errors import StateError

STATE_VERSION = 1


def envelope(
    *,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    num_streams: int,
    epoch: int,
    next_pack: int,
    streams: Mapping[int, dict[str, Any] | None],
) -> dict[str, Any]:
    """The state of one rank."""
    return {
        "version": STATE_VERSION,
        "settings": dict(settings),
        "versions": dict(versions),
        "num_streams": num_streams,
        "epoch": epoch,
        "next_pack": next_pack,
        "streams": {str(stream): state for stream, state in sorted(streams.items())},
    }


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line per setting that differs.

    >>> differences({"seed": 1, "path": "a"}, {"seed": 2, "path": "a"})
    ['seed: saved 1, now 2']
    """
    missing = "(not set)"
    names = sorted({*saved, *current})
    pairs = [(name, saved.get(name, missing), current.get(name, missing)) for name in names]
    return [f"{name}: saved {a!r}, now {b!r}" for name, a, b in pairs if a != b]


def check(
    state: Mapping[str, Any], *, settings: Mapping[str, Any], versions: Mapping[str, str], num_streams: int
) -> None:
    """Raises StateError, naming each difference, if `state` cannot be gone on from with `settings`."""
    keys = ("version", "settings", "versions", "num_streams", "epoch", "next_pack", "streams")
    if not isinstance(state, Mapping) or any(key not in state for key in keys):
        raise StateError("this is not a state of mmpack's loader: it lacks some of " + ", ".join(keys))
    version = state["version"]
    if version != STATE_VERSION:
        raise StateError(f"the state has format version {version!r}, this mmpack reads {STATE_VERSION}")
    saved, current = (
        {**state["settings"], "num_streams": state["num_streams"]},
        {**settings, "num_streams": num_streams},
    )
    if different := differences(saved, current):
        raise StateError(
            "the state was made with other settings: " + "; ".join(different) + ". Resume with the saved settings, "
            "or start anew without the state"
        )
    if other := differences(state["versions"], versions):
        warnings.warn("resuming a state made with other versions: " + "; ".join(other), stacklevel=3)


def merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for the whole job from the states of all its ranks, all taken at the same step.

    Raises:
        StateError: there is none, ranks stand at different steps, or streams are missing or given twice.
    """
    if not states:
        raise StateError("no states to merge")
    merged = dict(states[0])
    streams: dict[str, Any] = {}
    for rank, state in enumerate(states):
        for name in ("version", "settings", "num_streams", "epoch", "next_pack"):
            if state[name] != merged[name]:
                raise StateError(
                    f"rank {rank} has {name}={state[name]!r}, rank 0 has {merged[name]!r}; save at the same step"
                )
        if twice := sorted(set(streams) & set(state["streams"])):
            raise StateError(f"streams {', '.join(twice)} are in the states of two ranks")
        streams.update(state["streams"])
    require_streams(streams, range(merged["num_streams"]))
    merged["streams"] = dict(sorted(streams.items(), key=lambda item: int(item[0])))
    return merged


def require_streams(streams: Mapping[str, Any], needed: Iterable[int]) -> None:
    """Raises StateError if a stream that this rank will read is not in the state."""
    if missing := [stream for stream in needed if str(stream) not in streams]:
        raise StateError(
            f"the state holds no position for streams {missing}; merge the states of all ranks "
            "(mmpack.state.merge) before loading them with another number of ranks"
        )
