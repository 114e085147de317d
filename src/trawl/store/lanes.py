"""The threads of the store: jobs queue in a lane, which has threads while there is something to do.

A lane knows nothing of SQLite but that each of its threads has a seat (its connection) which no other thread touches.

Forking: the child has none of these threads, so a lane is of no use there, and its connections must be neither used nor
closed. `no_fork` keeps a fork from happening while a thread is inside SQLite, whose own mutexes the child would inherit
as they were: locked.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

IDLE_SECONDS = 30.0
"""How long a thread waits for another job before it closes its connection and ends."""
_FORK_SECONDS = 1.0
"""How long a fork waits for the threads to come out of SQLite."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do on a connection. `cost` is the memory in bytes that it holds while it waits."""

    run: Callable[[sqlite3.Connection], Any]
    done: Future[Any]
    cost: int = 0


class Seat(Protocol):
    """What one thread works with."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Seat)


class Lane(Generic[S]):
    """A queue of jobs and the daemon threads that serve it.

    Args:
        name: of the threads.
        seat: makes what a thread works with; it opens nothing yet.
        serve: does jobs and settles their futures; never raises.
        threads: how many at most.
        batch: how many jobs `serve` gets at once at most.
        room: bytes that waiting jobs may hold.
    """

    def __init__(
        self,
        name: str,
        seat: Callable[[], S],
        serve: Callable[[S, list[Job]], None],
        *,
        threads: int = 1,
        batch: int = 1,
        room: int,
    ) -> None:
        self._name, self._seat, self._serve = name, seat, serve
        self._most_threads, self._batch, self._room = threads, batch, room
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._cost = 0
        self._threads: dict[threading.Thread, S] = {}
        self._idle = 0
        self._closed = False

    def add(self, job: Job) -> bool:
        """Queue `job`; False when the lane is closed, full, or can have no thread."""
        with self._changed:
            if self._closed or self._cost + job.cost > self._room:
                return False
            self._jobs.append(job)
            self._cost += job.cost
            if len(self._jobs) > self._idle and len(self._threads) < self._most_threads and not self._start():
                self._jobs.pop()
                self._cost -= job.cost
                return False
            self._changed.notify()
            return True

    def close(self) -> None:
        """Take no more jobs; the threads end when the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait for the threads of a closed lane; False when they did not end in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def clear(self) -> None:
        """Drop the jobs that nobody has begun."""
        with self._changed:
            dropped = list(self._jobs)
            self._jobs.clear()
            self._cost = 0
        for job in dropped:
            job.done.cancel()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads[thread] = self._seat()
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            del self._threads[thread]
            return bool(self._threads)
        return True

    def _work(self) -> None:
        thread = threading.current_thread()
        while jobs := self._next(thread):
            self._serve(self._threads[thread], jobs)

    def _next(self, thread: threading.Thread) -> list[Job]:
        """The next jobs; none when the thread has to end, which then has closed its seat."""
        with self._changed:
            if jobs := self._await_jobs():
                return jobs
        # Closed before the thread counts as gone: whoever joins the lane finds the files let go of.
        with no_fork():
            self._threads[thread].close()
        with self._changed:
            if jobs := self._pop():  # queued since: it still counted as a thread that will see them
                return jobs
            del self._threads[thread]
            self._changed.notify_all()
            return []

    def _await_jobs(self) -> list[Job]:
        self._idle += 1
        try:
            self._changed.wait_for(lambda: self._jobs or self._closed, IDLE_SECONDS)
        finally:
            self._idle -= 1
        return self._pop()

    def _pop(self) -> list[Job]:
        jobs = [self._jobs.popleft() for _ in range(min(self._batch, len(self._jobs)))]
        self._cost -= sum(job.cost for job in jobs)
        return jobs


class _ForkGate:
    """Many threads may be inside; a fork waits until all are out, and lets none in meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forks = 0

    def enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._inside += 1

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, _FORK_SECONDS)

    def after_fork(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


_gate = _ForkGate()
_gate_is_watched = False


def watch_forks() -> None:
    """Have forks of this process respect `no_fork`; once is enough."""
    global _gate_is_watched
    if not _gate_is_watched:
        _gate_is_watched = True
        os.register_at_fork(
            before=lambda: _gate.before_fork(),
            after_in_parent=lambda: _gate.after_fork(),
            after_in_child=_open_new_gate,
        )


def _open_new_gate() -> None:
    global _gate
    _gate = _ForkGate()


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """While inside, a fork waits, for a second at most."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()
