"""How commands talk: progress and tables for people, one JSON object for machines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Advance = Callable[[int, int, str], None]  # done, in all, a short note


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns for people, on standard output."""
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def say(text: str, *, as_json: bool = False) -> None:
    """A line for people. Beside JSON it goes to standard error."""
    print(text, file=sys.stderr if as_json else sys.stdout, flush=True)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A bar on a terminal; elsewhere a plain line now and then. Both on standard error."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None, note="")
            yield lambda done, total, note: bar.update(task, completed=done, total=total, note=note)
        return
    shown = -1

    def line(done: int, total: int, note: str) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth != shown:
            shown = tenth
            print(f"{what}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)

    yield line
