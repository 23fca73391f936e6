"""Whether the saved state of a stream can be one: what was edited by hand or damaged is named by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmpack.errors import StateError


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_held(value: Any) -> bool:
    """[place in the source, num_tokens, sample key, source, costs]"""
    if not isinstance(value, list | tuple) or len(value) != 5:
        return False
    return _is_count(value[1]) and isinstance(value[2], str) and isinstance(value[3], str)


def _are_held(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_held, value))


def _is_aligned(value: Any) -> bool:
    """Of `mmpack.window.AlignedWindow.state`."""
    if not isinstance(value, Mapping) or not isinstance(costs := value.get("costs"), list | tuple):
        return False
    return (
        _is_count(value.get("block"))
        and isinstance(value.get("emitting"), bool)
        and all(isinstance(cost, int | float) for cost in costs)
    )


_COUNT = (_is_count, "a whole number of at least 0")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_HELD = (_are_held, "a list of [place, num_tokens, key, source, costs]")
_NAMES = (lambda value: isinstance(value, Mapping), "a mapping of names to values")
# What `mmpack.stream.packs.PackStream.state` writes
_SAVED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "stream": _COUNT,
    "epoch": _COUNT,
    "round": _COUNT,
    "exhausted": _FLAG,
    "num_read": _COUNT,
    "num_read_in_epoch": _COUNT,
    "emitted": _COUNT,
    "left": _COUNT,
    "source": _NAMES,
    "window": _HELD,
    "alone": _HELD,
    "emitting": _FLAG,
    "waiting": _HELD,
    "aligned": (_is_aligned, "a mapping with block, emitting and costs"),
    "plans": (lambda value: isinstance(value, list | tuple) and all(map(_are_held, value)), "a list of such lists"),
    "drops": _NAMES,
}


def check_saved(stream: str, state: Mapping[str, Any]) -> None:
    """Compares the saved state of one stream with what is written into it.

    Args:
        stream: its name, for the error.
        state: as `PackStream.state` gives it.

    Raises:
        StateError: names the first key that is missing or has another kind of value.
    """
    for key, (fits, words) in _SAVED.items():
        if key not in state:
            raise StateError(f"the state is damaged: streams.{stream} lacks {key!r}")
        if not fits(state[key]):
            raise StateError(
                f"the state is damaged: streams.{stream}.{key}={str(state[key])[:80]}, it must be {words}; "
                "take the state as it was saved"
            )
