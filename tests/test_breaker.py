"""The breaker opens after repeated failures, tries again with one call, and is not misled by news that comes late."""

import itertools
import random

import pytest

from trawl.breaker import Breaker, Ticket

ENDINGS = ("succeeded", "failed", "abandoned")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures=3, open_seconds=30.0, clock=clock)


def ticket(breaker: Breaker) -> Ticket:
    admitted = breaker.admit()
    assert admitted is not None
    return admitted


def fail(breaker: Breaker, times: int = 3) -> None:
    for _ in range(times):
        ticket(breaker).failed()


# Opening


def test_it_begins_closed_and_lets_everybody_through(breaker: Breaker) -> None:
    assert (breaker.state, breaker.retry_in, breaker.admits) == ("closed", 0.0, True)
    assert len({ticket(breaker) for _ in range(50)}) == 50


def test_it_opens_at_the_failure_that_makes_the_number_full(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert (breaker.state, breaker.retry_in, breaker.admits, breaker.admit()) == ("open", 30.0, False, None)
    clock.now += 29.9
    assert breaker.admit() is None
    assert breaker.retry_in == pytest.approx(0.1)


def test_a_success_between_failures_starts_the_count_again(breaker: Breaker) -> None:
    for _ in range(10):
        fail(breaker, 2)
        ticket(breaker).succeeded()
    assert breaker.state == "closed"


def test_an_abandoned_call_counts_neither_way(breaker: Breaker) -> None:
    for _ in range(10):
        ticket(breaker).abandoned()
    fail(breaker, 2)
    ticket(breaker).abandoned()
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_calls_that_run_at_once_fail_as_many_as_they_are(breaker: Breaker) -> None:
    for running in [ticket(breaker) for _ in range(3)]:
        running.failed()
    assert breaker.state == "open"


# Half open


@pytest.fixture
def half_open(breaker: Breaker, clock: Clock) -> Breaker:
    fail(breaker)
    clock.now += 30.0
    assert breaker.state == "half_open"
    return breaker


def test_half_open_lets_exactly_one_through_until_it_reports(half_open: Breaker, clock: Clock) -> None:
    assert half_open.admits
    probe = ticket(half_open)
    for _ in range(5):
        clock.now += 100.0
        assert (half_open.admit(), half_open.admits, half_open.state) == (None, False, "half_open")
    probe.succeeded()
    assert (half_open.state, half_open.retry_in) == ("closed", 0.0)
    assert half_open.admit()
    assert half_open.admit()


def test_a_failed_probe_opens_it_for_the_whole_time_again(half_open: Breaker, clock: Clock) -> None:
    probe = ticket(half_open)
    clock.now += 12.0
    probe.failed()
    assert (half_open.state, half_open.retry_in) == ("open", 30.0)
    clock.now += 30.0
    assert half_open.admit()
    assert half_open.admit() is None


def test_an_abandoned_probe_leaves_its_place_to_the_next(half_open: Breaker) -> None:
    ticket(half_open).abandoned()
    assert half_open.state == "half_open"
    second = ticket(half_open)
    assert half_open.admit() is None
    second.succeeded()
    assert half_open.state == "closed"


def test_after_it_closed_it_takes_the_full_number_of_failures_again(half_open: Breaker) -> None:
    ticket(half_open).succeeded()
    fail(half_open, 2)
    assert half_open.state == "closed"
    fail(half_open, 1)
    assert half_open.state == "open"


# Late and repeated reports


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_call_let_through_before_it_opened_changes_nothing_afterwards(
    breaker: Breaker, clock: Clock, ending: str
) -> None:
    while_open, while_half_open, while_probed, after_closing = (ticket(breaker) for _ in range(4))
    fail(breaker)

    clock.now += 10.0
    getattr(while_open, ending)()
    assert (breaker.state, breaker.retry_in) == ("open", 20.0)

    clock.now += 20.0
    getattr(while_half_open, ending)()
    assert (breaker.state, breaker.admits) == ("half_open", True)

    probe = ticket(breaker)
    getattr(while_probed, ending)()
    assert (breaker.state, breaker.admits) == ("half_open", False)

    probe.succeeded()
    fail(breaker, 2)
    getattr(after_closing, ending)()
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDINGS, repeat=2)))
def test_a_ticket_reports_once(breaker: Breaker, first: str, second: str) -> None:
    fail(breaker, 1)
    reported = ticket(breaker)
    getattr(reported, first)()
    for _ in range(5):
        getattr(reported, second)()
    assert breaker.state == "closed"
    fail(breaker, {"succeeded": 2, "failed": 0, "abandoned": 1}[first])
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"


def test_a_probe_that_reports_twice_does_not_free_the_place_of_the_next(half_open: Breaker) -> None:
    probe = ticket(half_open)
    probe.abandoned()
    assert half_open.admit()
    probe.abandoned()
    probe.succeeded()
    assert (half_open.state, half_open.admit()) == ("half_open", None)


def test_whatever_happens_half_open_has_one_call_at_most_and_open_has_none(breaker: Breaker, clock: Clock) -> None:
    chance = random.Random(7)
    out: list[Ticket] = []
    for _ in range(20_000):
        clock.now += chance.choice((0.0, 1.0, 31.0))
        before = breaker.state
        if chance.random() < 0.5:
            admitted = breaker.admit()
            assert (admitted is None) or before != "open"
            assert (admitted is not None) or before != "closed"
            if admitted:
                out.append(admitted)
                assert before == "closed" or breaker.admit() is None
        elif out:
            reporting = out.pop(chance.randrange(len(out)))
            getattr(reporting, chance.choice(("succeeded", "failed", "failed", "abandoned")))()
            assert not (before == "open" and breaker.state == "closed")
