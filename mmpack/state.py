"""What a checkpoint of the loader holds, what a resume compares, and how the ranks' states become one.

A state is made of plain dicts, lists, strings, numbers and bytes:

``version``      of this format
``mode``         "streams": logical streams of packs; "plan": planned epochs (`mmpack.epoch`)
``settings``     everything that shapes the packs; differences are refused or told, by `CLASSES`
``versions``     of mmpack and of the reader; a difference is a warning
``num_streams``  L, fixed at the first start; of a plan the number of ranks, which may change
``epoch``        which pass over the data
``next_pack``    packs handed out in this epoch by all ranks together; the next one has this number
``shift``        packs that every rank's place in a step lies behind its number; see `mmpack.loader.PackLoader`
``streams``      stream number (as text) -> its state behind its last pack, or None if it gave none yet; of a plan what
                 each rank has counted. A large one is compressed.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from mmpack.errors import StateError
from mmpack.stream.saved import check_saved

STATE_VERSION = 2
Mode = Literal["streams", "plan"]
StreamState = dict[str, Any] | bytes | None

_COMPRESSED_FROM = 24 << 10  # bytes of a stream's state
_ABANDONED_S = 600  # a save takes less
_KEYS = ("version", "mode", "settings", "versions", "num_streams", "epoch", "next_pack", "shift", "streams")
_NUMBERS = {"num_streams": 1, "epoch": 0, "next_pack": 0, "shift": 0}  # and the least of each
_MODES = {"streams": "logical streams", "plan": "the global plan mode"}

# Beginning of a setting's name -> (its class, whether a difference is refused). The longest that fits counts; what
# fits none is refused: better a restart too many than an order that nobody asked for.
CLASSES: Mapping[str, tuple[str, bool]] = {
    "data.": ("data", True),  # other samples
    "limit.": ("shape", True),  # other lengths
    "tokenizer": ("shape", True),
    "template": ("shape", True),
    "tiling": ("shape", True),
    "video_frames": ("shape", True),
    "layout.": ("shape", True),
    "rows.": ("shape", True),
    "loss_weight": ("shape", True),
    "pad_token_id": ("shape", True),
    "stream.": ("order", True),  # the same samples in other packs
    "plan.": ("order", True),
    "num_streams": ("order", True),
    "stream.error_budget": ("tolerance", False),  # what is borne, not what comes
    "data.max_sample_bytes": ("tolerance", False),
    "prefetch": ("speed", False),  # how fast, not what
    "num_workers": ("speed", False),
}


def class_of(setting: str) -> tuple[str, bool]:
    """The class of a setting, and whether a difference in it is refused.

    >>> class_of("stream.capacity"), class_of("stream.error_budget"), class_of("something.new")
    (('order', True), ('tolerance', False), ('unknown', True))
    """
    fitting = [name for name in CLASSES if setting.startswith(name)]
    return CLASSES[max(fitting, key=len)] if fitting else ("unknown", True)


def envelope(
    *,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    num_streams: int,
    epoch: int,
    next_pack: int,
    streams: Mapping[int, dict[str, Any] | None],
    shift: int = 0,
    mode: Mode = "streams",
) -> dict[str, Any]:
    """The state of one rank."""
    return {
        "version": STATE_VERSION,
        "mode": mode,
        "settings": dict(settings),
        "versions": dict(versions),
        "num_streams": num_streams,
        "epoch": epoch,
        "next_pack": next_pack,
        "shift": shift,
        "streams": {str(stream): state for stream, state in sorted(streams.items())},
    }


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it is handed out: what is large in it compressed, a tenth of a millisecond a stream."""
    return {**state, "streams": {stream: _compressed(held) for stream, held in state["streams"].items()}}


def _compressed(state: StreamState) -> StreamState:
    if not isinstance(state, dict):
        return state
    plain = pickle.dumps(state, protocol=4)
    return state if len(plain) < _COMPRESSED_FROM else zlib.compress(plain, 1)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise StateError(f"a stream's state names {module}.{name}; a state of mmpack holds plain values only")


def opened(state: StreamState) -> dict[str, Any] | None:
    """The state of one stream, whether it is compressed or not.

    Raises:
        StateError: it is damaged, or holds anything but plain values.
    """
    if not isinstance(state, bytes):
        return state
    try:
        plain = _PlainUnpickler(io.BytesIO(zlib.decompress(state))).load()
    except StateError:
        raise
    except Exception as error:  # whatever damaged bytes make of it
        raise StateError(f"the state of a stream is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(plain, dict):
        raise StateError(f"the state of a stream is damaged: it is a {type(plain).__name__}")
    return plain


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
    state: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    num_streams: int | None = None,
    mode: Mode = "streams",
) -> None:
    """Compares a state with the run that would go on from it.

    Args:
        state: as saved.
        settings, versions: of the run.
        num_streams: of the run; None if that may differ.
        mode: of the run.

    Raises:
        StateError: it cannot be gone on from; each difference is named, with its class.

    Warns of differences that change no pack.
    """
    if isinstance(state, Mapping) and state.get("version", STATE_VERSION) != STATE_VERSION:
        raise StateError(f"the state has format version {state['version']!r}, this mmpack reads {STATE_VERSION}")
    if not isinstance(state, Mapping) or any(key not in state for key in _KEYS):
        raise StateError("this is not a state of mmpack's loader: it lacks some of " + ", ".join(_KEYS))
    _require_shape(state)
    if state["mode"] != mode:
        saved_mode, now = _MODES.get(state["mode"], state["mode"]), _MODES[mode]
        raise StateError(f"the state was made by {saved_mode}, this run uses {now}; go on with {saved_mode}")
    saved, current = dict(state["settings"]), dict(settings)
    if num_streams is not None:
        saved["num_streams"], current["num_streams"] = state["num_streams"], num_streams
    refused = {name: value for name, value in saved.items() if class_of(name)[1]}
    if lines := differences(refused, {name: value for name, value in current.items() if class_of(name)[1]}):
        named = [f"{line} ({class_of(line.partition(':')[0])[0]})" for line in lines]
        raise StateError(
            "the state was made with other settings: " + "; ".join(named) + ". Resume with the saved settings, "
            "or start anew without the state"
        )
    told = differences(
        {**{n: v for n, v in saved.items() if not class_of(n)[1]}, **state["versions"]},
        {**{n: v for n, v in current.items() if not class_of(n)[1]}, **versions},
    )
    if told:
        warnings.warn("the state was made with others, which changes no pack: " + "; ".join(told), stacklevel=3)


def _require_shape(state: Mapping[str, Any]) -> None:
    """Raises StateError if what a state holds cannot be what was saved: a damaged or a foreign one."""
    for name, least in _NUMBERS.items():
        value = state[name]
        if type(value) is not int or value < least:
            raise StateError(f"the state is damaged: {name}={value!r}, it must be a whole number of at least {least}")
    for name, kind in (("mode", str), ("settings", Mapping), ("versions", Mapping), ("streams", Mapping)):
        if not isinstance(state[name], kind):
            raise StateError(f"the state is damaged: {name}={state[name]!r}, it must be a {kind.__name__.lower()}")
    for stream, held in state["streams"].items():
        if not isinstance(stream, str) or not isinstance(held, dict | bytes | None):
            raise StateError(f"the state is damaged: it holds a {type(held).__name__} for stream {stream!r}")
        if isinstance(held, dict) and state["mode"] == "streams":
            check_saved(stream, held)


def merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for the whole job from the states of all its ranks, all taken at the same step.

    Loaders whose state has no streams (fine-tuning steps, a global plan) have the same one on every rank.

    Raises:
        StateError: there is none, ranks stand at different steps, or streams are missing or given twice.
    """
    if not states:
        raise StateError("no states to merge")
    merged = dict(states[0])
    if "streams" not in merged:
        for rank, state in enumerate(states):
            if state != states[0]:
                raise StateError(f"rank {rank} has {state!r}, rank 0 has {merged!r}; save at the same step")
        return merged
    streams: dict[str, Any] = {}
    for rank, state in enumerate(states):
        for name in ("version", "mode", "settings", "num_streams", "epoch", "next_pack", "shift"):
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
    if missing := sorted(stream for stream in needed if str(stream) not in streams):
        raise StateError(
            f"the state holds no position for streams {missing}; merge the states of all ranks "
            "(mmpack.state.merge) before loading them with another number of ranks"
        )


class _Savable(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class DistributedState:
    """A loader or data module as torch.distributed.checkpoint wants it: an object that it saves and loads itself.

    ``dcp.save({"model": ..., "data": DistributedState(loader)})`` on all ranks, and the same with ``dcp.load``, there
    on any number of ranks that the loader itself allows. It is one entry with the merged state of all ranks, since that
    library loads only what has the same keys already.

    Args:
        loader: a data-parallel rank's own.
        group: the data-parallel ranks' process group; None for all processes.
    """

    def __init__(self, loader: _Savable, group: Any = None) -> None:
        self._loader, self._group = loader, group

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks together."""
        import torch.distributed as dist

        states: list[Any] = [self._loader.state_dict()]
        if dist.is_initialized() and dist.get_world_size(self._group) > 1:
            gathered: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(gathered, states[0], group=self._group)
            states = gathered
        return {"mmpack": zlib.compress(pickle.dumps(merge(states), protocol=4), 1)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError if it does not fit."""
        whole = opened(state["mmpack"])
        assert whole is not None
        self._loader.load_state_dict(whole)


def save_state(path: Path | str, state: Mapping[str, Any]) -> None:
    """Writes a state (or any dict of tensors and plain values), whole or not at all.

    It is written beside `path`, forced to the disk, and renamed: whatever is killed when, `path` holds the old state or
    the new one.
    """
    import torch

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
    _remove_partials(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def _remove_partials(path: Path) -> None:
    """Removes what saves that were killed have left behind, but not what another process may be writing."""
    for left in path.parent.glob(f".{path.name}.*.partial"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                left.unlink()


def load_state(path: Path | str) -> dict[str, Any]:
    """Reads what `save_state` wrote, without running any code that is in it.

    Raises:
        StateError: there is none, or it is damaged.
    """
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise StateError(f"there is no state {str(path)!r}") from None
    except Exception as error:  # whatever a damaged file makes torch raise
        raise StateError(f"{str(path)!r} cannot be read as a state: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{str(path)!r} holds a {type(state).__name__}, not a state")
    return state
