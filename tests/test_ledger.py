"""The ledger of what was left out: merges, survives JSON, keeps its budget, and speaks seldom."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError, DataError, Reason, StateError
from mmpack.ledger import DropLedger, ErrorBudget

SOURCES, REASONS, KEYS = st.sampled_from("ab"), st.sampled_from(list(Reason)[:4]), st.sampled_from("xyz")
EVENTS = st.lists(st.tuples(SOURCES, REASONS, KEYS), max_size=60)


def counted(events, max_keys=5) -> DropLedger:
    ledger = DropLedger(max_keys)
    for source, reason, key in events:
        ledger.count(source, reason, key)
    return ledger


@given(EVENTS, EVENTS, st.integers(0, 6))
def test_ledgers_merge_to_the_ledger_of_everything(first, second, max_keys):
    merged = counted(first, max_keys)
    merged.merge(counted(second, max_keys))
    assert merged.to_dict() == counted(first + second, max_keys).to_dict()
    assert merged.total == len(first) + len(second)
    assert sum(merged.counts().values()) == merged.total
    for source in ("a", "b"):
        assert sum(merged.counts(source).values()) == sum(s == source for s, _, _ in first + second)


@given(EVENTS)
def test_ledger_survives_json(events):
    ledger = counted(events)
    again = DropLedger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again.to_dict() == ledger.to_dict()


def test_ledger_keeps_few_keys_and_its_own_copy():
    ledger = counted([("a", Reason.OVERSIZE, f"k{i}") for i in range(1000)], max_keys=3)
    assert ledger.to_dict() == {"a": {"oversize": {"count": 1000, "keys": ["k0", "k1", "k2"]}}}
    assert ledger.example_keys("a", Reason.OVERSIZE) == ["k0", "k1", "k2"]
    assert ledger.example_keys("b", Reason.OVERSIZE) == []
    ledger.to_dict()["a"]["oversize"]["keys"].append("foreign")
    assert ledger.example_keys("a", Reason.OVERSIZE) == ["k0", "k1", "k2"]
    assert ledger.counts("b") == {}


def test_ledger_of_unknown_reasons_is_refused():
    with pytest.raises(StateError, match="'a' name an unknown reason 'bored'"):
        DropLedger.from_dict({"a": {"bored": {"count": 1, "keys": []}}})


def test_ledger_logs_one_line_a_kind_and_then_ever_more_rarely(caplog):
    ledger = DropLedger()
    with caplog.at_level(logging.WARNING, logger="mmpack.ledger"):
        for i in range(2000):
            ledger.count("web", Reason.NOT_AN_IMAGE, f"shard/{i}", "starts with b'<htm'")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "dataset 'web' sample 'shard/0': not_an_image: starts with b'<htm' (1 so far)"
    assert [line.rpartition("(")[2] for line in lines] == [f"{n} so far)" for n in (1, 2, 3, 10, 100, 1000)]
    assert not any("\n" in line for line in lines)


# --- the budget ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([None, *list(Reason)[:2], Reason.OVERSIZE]), max_size=120),
    st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    st.integers(1, 30),
    st.integers(0, 120),
)
def test_budget_is_a_share_of_the_window(events, max_bad_share, window, saved_at):
    """Against a plain list of what was read last; saved and restored on the way."""
    budget = ErrorBudget(max_bad_share=max_bad_share, window=window)
    ledger = DropLedger(budget=budget)
    faults = []
    for number, reason in enumerate(events):
        spent = sum(faults[-window:]) > max_bad_share * window
        if spent:
            with pytest.raises(DataError, match=r"of the last \d+ samples of 'web' were lost"):
                ledger.read("web")
            return
        ledger.read("web")
        if number == saved_at:
            again = DropLedger.from_dict(ledger.to_dict(), budget=budget)
            again.recent.restore(json.loads(json.dumps(ledger.recent.state())))
            ledger = again
        if reason is not None:
            ledger.count("web", reason, "k")
        faults.append(reason is not None and reason is not Reason.OVERSIZE)
        assert len(ledger.recent.state()) <= window + 1


def test_budget_names_the_counts_by_reason():
    ledger = DropLedger(budget=ErrorBudget(max_bad_share=0.01, window=100))
    ledger.read("web")
    for reason in (Reason.NOT_AN_IMAGE, Reason.NOT_AN_IMAGE, Reason.UNREADABLE):
        ledger.count("a", reason, "k")
    with pytest.raises(DataError, match=r"\(2 not_an_image, 1 unreadable\), more than max_bad_share=0\.01"):
        ledger.read("web")
    free = DropLedger()
    for _ in range(50):
        free.read("web")
        free.count("a", Reason.UNREADABLE, "k")
    assert free.recent.state() == []


@pytest.mark.parametrize("options", [{"max_bad_share": 1.0}, {"max_bad_share": -0.1}, {"window": 0}])
def test_budget_that_cannot_be(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        ErrorBudget(**options)


def test_a_record_is_one_line_with_the_shard_and_no_more(caplog):
    ledger = DropLedger()
    with caplog.at_level(logging.WARNING, logger="mmpack.ledger"):
        ledger.count("web", Reason.IMAGE_TRUNCATED, "k7", "0.jpg: cut\nor damaged " + "x" * 5000, shard="s-1.tar")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("dataset 'web' shard 's-1.tar' sample 'k7': image_truncated: 0.jpg: cut or damaged xxx")
    assert "\n" not in line
    assert len(line) < 420
