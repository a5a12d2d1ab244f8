"""Whoever does not answer is left alone for a while; then one request goes to see."""

from __future__ import annotations

from whenever import TimeDelta

from journeykit_server.circuit import ENDPOINTS, Circuits
from journeykit_server.clock import VirtualClock
from tests.databases import START


def circuits(clock: VirtualClock) -> Circuits:
    return Circuits(clock, failures=3, pause_seconds=30)


def passes(clock: VirtualClock, seconds: float) -> None:
    clock.set(clock.now() + TimeDelta(seconds=seconds))


def test_an_endpoint_rests_after_so_many_failures_in_a_row() -> None:
    circuit = circuits(clock := VirtualClock(START))

    circuit.failed("a")
    circuit.failed("a")
    assert circuit.rest("a") == 0

    circuit.failed("a")
    assert circuit.rest("a") == 30
    passes(clock, 12)
    assert circuit.rest("a") == 18
    assert circuit.rest("b") == 0  # nobody else rests


def test_an_answer_between_begins_the_count_anew() -> None:
    circuit = circuits(VirtualClock(START))

    for _ in range(4):
        circuit.failed("a")
        circuit.failed("a")
        circuit.worked("a")

    assert circuit.rest("a") == 0


def test_after_the_pause_one_goes_through_and_decides() -> None:
    circuit = circuits(clock := VirtualClock(START))
    for _ in range(3):
        circuit.failed("a")

    passes(clock, 30)
    assert [circuit.rest("a"), circuit.rest("a")] == [0, 30]  # one, and the next waits for it
    circuit.failed("a")
    assert circuit.rest("a") == 30

    passes(clock, 30)
    assert circuit.rest("a") == 0
    circuit.worked("a")
    assert [circuit.rest("a"), circuit.rest("a")] == [0, 0]


def test_one_that_never_tells_what_became_of_it_costs_one_pause() -> None:
    circuit = circuits(clock := VirtualClock(START))
    for _ in range(3):
        circuit.failed("a")
    passes(clock, 30)
    assert circuit.rest("a") == 0  # and it dies

    passes(clock, 30)

    assert circuit.rest("a") == 0


def test_an_endpoint_that_asks_for_a_rest_has_it_at_once_and_then_all_go() -> None:
    circuit = circuits(clock := VirtualClock(START))

    circuit.rests("a", 120)

    assert circuit.rest("a") == 120
    passes(clock, 120)
    assert [circuit.rest("a"), circuit.rest("a")] == [0, 0]


def test_a_shorter_rest_does_not_end_a_longer_one() -> None:
    circuit = circuits(VirtualClock(START))

    circuit.rests("a", 120)
    circuit.rests("a", 10)

    assert circuit.rest("a") == 120


def test_nobody_rests_longer_than_a_day() -> None:
    circuit = circuits(VirtualClock(START))

    circuit.rests("a", 1e12)

    assert circuit.rest("a") == 86_400


def test_what_is_remembered_has_an_end() -> None:
    circuit = circuits(VirtualClock(START))

    for number in range(ENDPOINTS + 1):
        circuit.rests(number, 60)

    assert [circuit.rest(0), circuit.rest(1), circuit.rest(ENDPOINTS)] == [0, 60, 60]
