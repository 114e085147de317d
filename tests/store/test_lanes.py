"""Threads that come and go with their work, and forks that wait for them."""

import os
import threading
from concurrent.futures import Future

import pytest

from trawl.store import lanes
from trawl.store.lanes import Job, Lane, no_fork, watch_forks


class Desk:
    """A seat that tells when it is left."""

    def __init__(self, on_close=lambda: None):
        self.close = on_close


def do(_, jobs):
    for job in jobs:
        job.done.set_result(job.run(None))


def job(run=lambda _: "done", cost=0):
    return Job(run, Future(), cost)


def test_a_job_that_arrives_while_the_last_thread_leaves_is_done(monkeypatch):
    monkeypatch.setattr(lanes, "IDLE_SECONDS", 0.0)
    late = job()
    queued = []

    def leave():
        if not queued:
            queued.append(lane.add(late))

    lane = Lane("test", lambda: Desk(leave), do, room=1)
    lane.add(job())
    assert late.done.result(5) == "done"
    assert queued == [True]


def test_room_is_bounded_and_comes_back_and_dropped_jobs_are_cancelled():
    entered, held = threading.Event(), threading.Event()

    def hold(_):
        entered.set()
        held.wait(5)

    lane = Lane("test", Desk, do, room=10)
    running = job(hold, cost=10)
    assert lane.add(running)
    assert entered.wait(5)
    first, second = job(cost=10), job(cost=1)
    assert lane.add(first)
    assert not lane.add(second)
    lane.clear()
    assert first.done.cancelled()
    assert lane.add(second)
    held.set()
    assert second.done.result(5) == "done"


def test_a_closed_lane_finishes_what_it_has_and_takes_nothing():
    lane = Lane("test", Desk, do, batch=2, room=10)
    jobs = [job() for _ in range(7)]
    assert all(lane.add(j) for j in jobs)
    lane.close()
    assert not lane.add(job())
    assert lane.join(5)
    assert all(j.done.done() for j in jobs)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_waits_until_threads_are_out_of_sqlite():
    watch_forks()
    inside, out = threading.Event(), threading.Event()

    def be_inside():
        with no_fork():
            inside.set()
            threading.Event().wait(0.1)
            out.set()

    thread = threading.Thread(target=be_inside)
    thread.start()
    assert inside.wait(5)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if out.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    thread.join()
    with no_fork():
        pass


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_wait_for_ever(monkeypatch):
    watch_forks()
    monkeypatch.setattr(lanes, "_FORK_SECONDS", 0.05)
    inside, leave = threading.Event(), threading.Event()

    def be_inside():
        with no_fork():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=be_inside)
    thread.start()
    assert inside.wait(5)
    pid = os.fork()
    if pid == 0:
        with no_fork():
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    leave.set()
    thread.join()
