"""Where packs are made: in this process, or in worker processes that each read some of the streams in turn."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, cast

import torch

from mmpack.batch import B, B_co
from mmpack.errors import ConfigError, MmpackError, StateError, WorkerError
from mmpack.loader.contract import Stream, StreamFactory
from mmpack.loader.slots import LENT, Header, SlotMemory, SlotReader, SlotWriter
from mmpack.loader.work import Stopwatch, Work
from mmpack.processes import SharedHeap, end_with_parent, quiet_fork

StreamPlan = Sequence[tuple[int, dict[str, Any] | None]]  # streams in the order of their turns, with their states


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """Stream `stream` has no more packs in this epoch; `state` is how it ended."""

    stream: int
    state: dict[str, Any]


class Feed(Protocol[B_co]):
    """Hands out the next pack of a stream. Streams must be asked in the order of their turns."""

    def get(self, stream: int) -> B_co | EndOfStream: ...
    @property
    def num_ready(self) -> int: ...  # packs that are made and not taken
    def close(self) -> None: ...


def _open(factory: StreamFactory[B], stream: int, state: dict[str, Any] | None, epoch: int) -> Stream[B]:
    opened = factory(stream)
    try:
        if state is not None:
            opened.restore(state)
        opened.begin(epoch)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if state is None:
            raise
        raise StateError(
            f"the state of stream {stream} is damaged ({type(error).__name__}: {error}); resume from another one"
        ) from error
    return opened


class InProcessFeed(Generic[B]):
    """Makes packs in the calling process when they are asked for. Streams are opened at their first turn."""

    def __init__(self, factory: StreamFactory[B], plan: StreamPlan, epoch: int, *, work: Work) -> None:
        self._factory, self._epoch, self._work = factory, epoch, work
        self._states = dict(plan)
        self._open: dict[int, tuple[Stream[B], Iterator[B]]] = {}

    def get(self, stream: int) -> B | EndOfStream:
        if stream not in self._open:
            opened = _open(self._factory, stream, self._states[stream], self._epoch)
            self._open[stream] = (opened, opened.packs())
        reader, packs = self._open[stream]
        watch = Stopwatch()
        batch = next(packs, None)
        if batch is None:
            return EndOfStream(stream, reader.state())
        self._work.add(*watch.read())
        return batch

    @property
    def num_ready(self) -> int:
        return 0

    def close(self) -> None:
        self._open.clear()


class WorkerFeed(Generic[B]):
    """Makes packs in `num_workers` forked processes, each `prefetch` packs ahead."""

    def __init__(
        self,
        factory: StreamFactory[B],
        plan: StreamPlan,
        epoch: int,
        *,
        num_workers: int,
        prefetch: int,
        work: Work,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ConfigError("num_workers > 0 needs processes that can be forked (Linux or macOS); use num_workers=0")
        self._workers: list[_Worker[B]] = []
        self._worker_of: dict[int, _Worker[B]] = {}
        shares = [plan[i::num_workers] for i in range(num_workers)]
        self._heap = SharedHeap()
        try:
            with quiet_fork():
                for number, share in enumerate(shares):
                    worker: _Worker[B] = _Worker(number, factory, share, epoch, prefetch, work)
                    self._workers.append(worker)
                    self._worker_of.update(dict.fromkeys((stream for stream, _ in share), worker))
        except BaseException:
            self.close()
            raise

    def get(self, stream: int) -> B | EndOfStream:
        for worker in self._workers:
            worker.give_back()
        item = self._worker_of[stream].receive()
        given = item.stream if isinstance(item, EndOfStream) else item.stream_state["stream"]
        assert given == stream, f"asked for stream {stream}, worker gave {given}"
        return item

    @property
    def num_ready(self) -> int:
        return sum(worker.num_ready for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._heap.release()


class _Worker(Generic[B]):
    """The trainer's end of one worker process, which runs from the start."""

    def __init__(
        self, number: int, factory: StreamFactory[B], share: StreamPlan, epoch: int, prefetch: int, work: Work
    ) -> None:
        self._work = work
        memory = SlotMemory(prefetch + LENT, factory.max_batch_bytes)
        self._num_made, self._num_taken = memory.num_made, 0
        self._slots = SlotReader(memory)
        # Made just before the fork: no worker inherits the far end of another's pipe, which would hide its death.
        context = multiprocessing.get_context("fork")
        self._conn, far_conn = context.Pipe(duplex=True)
        self.process = context.Process(
            target=_work,
            args=(far_conn, memory, factory, share, epoch, os.getpid()),
            name=f"mmpack-worker-{number}",
            daemon=True,
        )
        self.process.start()
        far_conn.close()

    def receive(self) -> B | EndOfStream:
        """The next thing that the worker made. Raises what the worker raised, or WorkerError if it is gone."""
        while not self._conn.poll(0.2):
            if not self.process.is_alive() and not self._conn.poll(0):
                raise WorkerError(self._how_it_died())
        try:
            message = _receive(self._conn)
        except (EOFError, OSError):  # also where it died in the middle of a message
            self.process.join(5)
            raise WorkerError(self._how_it_died()) from None
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, EndOfStream):
            return message
        assert isinstance(message, Header)
        self._num_taken += 1
        self._work.add(message.cpu_s, message.wall_s)
        return cast(B, self._slots.read(message))

    @property
    def num_ready(self) -> int:
        """Packs that it has made and nobody has taken."""
        return int(self._num_made[0]) - self._num_taken

    def give_back(self) -> None:
        """Tells the worker which slots are free again."""
        for slot in self._slots.take_returned():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                _send(self._conn, slot)

    def _how_it_died(self) -> str:
        code = self.process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        hint = " (often the kernel's answer to a lack of memory)" if code == -signal.SIGKILL else ""
        return (
            f"{self.process.name} (pid {self.process.pid}) died: {how}{hint}; the packs taken so far are safe: "
            "go on from state_dict()"
        )

    def stop(self) -> None:
        self._conn.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(
    conn: Connection, memory: SlotMemory, factory: StreamFactory[B], share: StreamPlan, epoch: int, parent: int
) -> None:
    """A worker process: gives every stream of its share its turn until all have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)
    torch.set_num_threads(1)
    free = list(range(memory.num_slots))
    slots = SlotWriter(memory)
    try:
        streams = {stream: _open(factory, stream, state, epoch) for stream, state in share}
        packs = {stream: opened.packs(slots.allocate) for stream, opened in streams.items()}
        while packs:
            for stream in list(packs):
                while conn.poll(0) or not free:
                    free.append(_hear(conn))
                slots.begin(free[-1])
                batch = next(packs[stream], None)
                if batch is None:
                    del packs[stream]
                    _tell(conn, EndOfStream(stream, streams[stream].state()))
                    continue
                header = slots.finish(batch)
                if header.slot is not None:
                    free.remove(header.slot)
                memory.num_made[0] += 1
                _tell(conn, header)
        while True:  # stay until the trainer closes: it may still be reading the last slots
            _hear(conn)
    except Exception as error:
        if not isinstance(error, MmpackError):
            text = "".join(traceback.format_exception(error))
            error = WorkerError(f"{multiprocessing.current_process().name} failed:\n{text}")
        _tell(conn, error)


def _tell(conn: Connection, message: Any) -> None:
    """Sends to the trainer; ends this process if that is gone."""
    try:
        _send(conn, message)
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(0) from None


def _hear(conn: Connection) -> Any:
    """Receives from the trainer; ends this process if that is gone."""
    try:
        return _receive(conn)
    except (EOFError, ConnectionResetError):
        raise SystemExit(0) from None


def _send(conn: Connection, message: Any) -> None:
    # Not `conn.send`: torch makes that lend tensors through a thread of the sender, which may be gone by then.
    conn.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def _receive(conn: Connection) -> Any:
    return pickle.loads(conn.recv_bytes())
