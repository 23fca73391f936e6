"""The ledger of what was left out: by dataset and reason, with first keys, and a budget that faults must keep."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from mmpack.errors import ConfigError, DataError, Reason, StateError

_log = logging.getLogger(__name__)
_MOST_DETAIL = 300  # characters of a cause in the log


class LedgerEntry(TypedDict):
    """What `DropLedger.to_dict` holds of one (source, reason)."""

    count: int
    keys: list[str]


CHOSEN = frozenset({Reason.OVERSIZE, Reason.TRUNCATED, Reason.FEWER_TILES})  # by a policy; no fault of the data


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBudget:
    """How many of the last samples may be lost to faults before a run should stop.

    What a policy leaves out or cuts (`CHOSEN`) is no fault.

    Args:
        max_bad_share: of the window, at least 0 and below 1.
        window: samples that are looked back on. Nothing stops before `max_bad_share` x `window` faults.

    Raises:
        ConfigError: a share or a window that cannot be.
    """

    max_bad_share: float = 0.05
    window: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad_share < 1:
            raise ConfigError(f"max_bad_share={self.max_bad_share}; it must be at least 0 and below 1, such as 0.05")
        if self.window < 1:
            raise ConfigError(f"window={self.window}; it must be at least 1 sample")

    @classmethod
    def of(cls, max_bad_share: float | None, bad_share_window: int) -> ErrorBudget | None:
        """The budget of two settings, or none without a share."""
        if bad_share_window < 1:
            raise ConfigError(f"bad_share_window={bad_share_window}; it must be at least 1 sample")
        return None if max_bad_share is None else cls(max_bad_share=max_bad_share, window=bad_share_window)


class RecentLosses:
    """The faults among the samples read last, against a budget.

    >>> recent = RecentLosses(ErrorBudget(max_bad_share=0.5, window=2))
    >>> for reason in (Reason.UNREADABLE, Reason.NO_ANSWER):
    ...     recent.read()
    ...     recent.lost(reason)
    >>> recent.check("web")
    Traceback (most recent call last):
    ...
    mmpack.errors.DataError: 2 of the last 2 samples of 'web' were lost (1 no_answer, 1 unreadable), more than \
max_bad_share=0.5 allows; `mmpack check` lists them, and with --quarantine leaves them out
    """

    def __init__(self, budget: ErrorBudget | None = None) -> None:
        self.budget = budget
        self._num_read = 0
        self._faults: deque[tuple[int, Reason]] = deque()  # (samples read by then, reason), the last of the window

    def read(self) -> None:
        """One more sample was read, or tried to be."""
        self._num_read += 1
        while self.budget and self._faults and self._faults[0][0] <= self._num_read - self.budget.window:
            self._faults.popleft()

    def lost(self, reason: Reason) -> None:
        """A sample was lost."""
        if self.budget is not None and reason not in CHOSEN:
            self._faults.append((self._num_read, reason))

    def check(self, name: str) -> None:
        """Raises DataError, with the counts by reason, if the budget of the data `name` is spent."""
        budget = self.budget
        if budget is None or len(self._faults) <= budget.max_bad_share * budget.window:
            return
        by_reason = Counter(reason.value for _, reason in self._faults)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()))
        raise DataError(
            f"{len(self._faults)} of the last {min(self._num_read, budget.window)} samples of {name!r} were lost "
            f"({counts}), more than max_bad_share={budget.max_bad_share} allows; `mmpack check` lists them, and with "
            "--quarantine leaves them out"
        )

    def state(self) -> list[list[int | str]]:
        """As plain values; empty without a budget."""
        if self.budget is None:
            return []
        return [[self._num_read, ""], *([read, reason.value] for read, reason in self._faults)]

    def restore(self, state: Sequence[Sequence[int | str]]) -> None:
        """Goes on from `state`."""
        self._faults.clear()
        for number, (read, reason) in enumerate(state):
            if number == 0:
                self._num_read = int(read)
            else:
                self._faults.append((int(read), Reason(str(reason))))


LedgerDict = dict[str, dict[str, LedgerEntry]]  # source -> reason -> entry


class DropLedger:
    """Counts every sample that was left out or changed, per (source, reason), with a few example keys of each.

    Its size depends on the number of sources and reasons, not on the number of samples.

    Args:
        max_keys: example keys kept for each (source, reason): the first ones counted.
        budget: of faults; None for no limit.
    """

    def __init__(self, max_keys: int = 5, budget: ErrorBudget | None = None) -> None:
        self.max_keys = max_keys
        self.recent = RecentLosses(budget)
        self._entries: dict[tuple[str, Reason], LedgerEntry] = {}

    def read(self, name: str) -> None:
        """One more sample of the data `name` was read, or tried to be. Raises DataError if the budget is spent."""
        self.recent.check(name)
        self.recent.read()

    def count(self, source: str, reason: Reason, key: str, detail: str = "", *, shard: str = "") -> None:
        """Counts one sample, and writes one line about it to the log if it is among the first of its kind.

        Args:
            source: the dataset it came from.
            reason: why.
            key: the sample's key in that dataset.
            detail: the part and the cause in one line, without any of the sample's content; goes to the log only.
            shard: the file it is in; goes to the log only.
        """
        entry = self._entries.setdefault((source, reason), {"count": 0, "keys": []})
        entry["count"] += 1
        self.recent.lost(reason)
        if len(entry["keys"]) < self.max_keys:
            entry["keys"].append(key)
        if _worth_a_line(entry["count"]):
            where = f"{source!r} shard {shard!r}" if shard else repr(source)
            cause = f": {' '.join(detail.split())[:_MOST_DETAIL]}" if detail else ""
            _log.warning("dataset %s sample %r: %s%s (%d so far)", where, key, reason.value, cause, entry["count"])

    @property
    def total(self) -> int:
        """Samples counted, over all sources and reasons."""
        return sum(entry["count"] for entry in self._entries.values())

    def counts(self, source: str | None = None) -> dict[Reason, int]:
        """Samples by reason, of one source or of all; reasons that never happened are absent."""
        by_reason: dict[Reason, int] = {}
        for (of, reason), entry in sorted(self._entries.items()):
            if source is None or of == source:
                by_reason[reason] = by_reason.get(reason, 0) + entry["count"]
        return by_reason

    def example_keys(self, source: str, reason: Reason) -> list[str]:
        """The first keys counted under (source, reason), at most `max_keys`."""
        entry = self._entries.get((source, reason))
        return list(entry["keys"]) if entry else []

    def merge(self, other: DropLedger) -> None:
        """Adds what another ledger counted. Merge disjoint counts only: nothing here can see doubles."""
        for place, theirs in other._entries.items():
            mine = self._entries.setdefault(place, {"count": 0, "keys": []})
            mine["count"] += theirs["count"]
            mine["keys"] += theirs["keys"][: self.max_keys - len(mine["keys"])]

    def to_dict(self) -> LedgerDict:
        """The counts as plain dicts, lists, strings and ints, independent of the ledger from then on."""
        plain: LedgerDict = {}
        for (source, reason), entry in sorted(self._entries.items()):
            plain.setdefault(source, {})[reason.value] = {"count": entry["count"], "keys": list(entry["keys"])}
        return plain

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Mapping[str, LedgerEntry]],
        max_keys: int = 5,
        budget: ErrorBudget | None = None,
    ) -> DropLedger:
        """The ledger that `to_dict` described. Raises StateError for a reason this version does not know."""
        ledger = cls(max_keys, budget)
        for source, by_reason in plain.items():
            for name, entry in by_reason.items():
                try:
                    reason = Reason(name)
                except ValueError:
                    raise StateError(
                        f"the saved counters of {source!r} name an unknown reason {name!r}; "
                        "resume with the version of mmpack that wrote them, or a later one"
                    ) from None
                ledger._entries[source, reason] = {"count": entry["count"], "keys": list(entry["keys"])}
        return ledger


def _worth_a_line(count: int) -> bool:
    # The first three, then 10, 100, 1000 ...: a broken dataset must not fill the disk with its log.
    return count <= 3 or (count >= 10 and str(count).strip("0") == "1")
