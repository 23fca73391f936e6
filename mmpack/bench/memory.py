"""Peak memory of a stretch of work: a GPU's allocations, or this process's resident memory."""

from __future__ import annotations

import gc
from pathlib import Path
from types import TracebackType

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5): sets the peak of the resident memory to what it is now


class MemoryPeak:
    """A context; afterwards `bytes` is how far memory rose above what it was before, 0 where that cannot be seen."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self._device = device
        self._before = 0

    def __enter__(self) -> MemoryPeak:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
            return self
        try:
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _resident("VmRSS")
        except OSError:
            self._before = -1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
        elif self._before >= 0:
            self.bytes = max(0, _resident("VmHWM") - self._before)


def _resident(name: str) -> int:
    """Bytes of a line of the process's status."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0
