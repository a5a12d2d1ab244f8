"""A circuit breaker: whoever does not answer is left alone for a while, instead of being asked by
everybody who has something for them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from journeykit_server.clock import Clock

FAILURES = 5  # in a row, until an endpoint is left alone
PAUSE_SECONDS = 30.0  # until one request is let through, to see
LONGEST_REST_SECONDS = 86_400.0  # whatever an endpoint asks for: the longest pause between attempts
ENDPOINTS = 10_000  # remembered by one process; the one heard of longest ago is forgotten


@dataclass(slots=True)
class _Line:
    failures: int = 0
    open_until: float = float("-inf")  # monotonic


class Circuits:
    """One circuit an endpoint, by any name. Nothing is kept of an endpoint that answers.

    After `failures` failures in a row an endpoint rests for `pause_seconds`. Then one request goes
    through and decides: it works, and all go again, or the next pause begins. A request that never
    tells what became of it costs a pause, no more. An endpoint that asks for a rest has it at once,
    and all go again after it: it is well, it only has too much to do.
    """

    def __init__(
        self, clock: Clock, *, failures: int = FAILURES, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self.clock = clock
        self.failures = failures
        self.pause_seconds = pause_seconds
        self._lines: OrderedDict[object, _Line] = OrderedDict()

    def rest(self, name: object) -> float:
        """How many seconds to leave an endpoint alone; 0 lets this one request through."""
        line = self._lines.get(name)
        if line is None:
            return 0.0
        now = self.clock.monotonic()
        if now < line.open_until:
            return line.open_until - now
        if line.failures >= self.failures:
            line.open_until = now + self.pause_seconds
        return 0.0

    def worked(self, name: object) -> None:
        """It answered, be it with a refusal of what was asked."""
        self._lines.pop(name, None)

    def failed(self, name: object) -> None:
        """It did not answer, or with a fault of its own."""
        line = self._line(name)
        line.failures += 1
        if line.failures >= self.failures:
            self._open(line, self.pause_seconds)

    def rests(self, name: object, seconds: float) -> None:
        """It asked to be left alone for so long."""
        self._open(self._line(name), min(seconds, LONGEST_REST_SECONDS))

    def _line(self, name: object) -> _Line:
        line = self._lines.setdefault(name, _Line())
        self._lines.move_to_end(name)
        while len(self._lines) > ENDPOINTS:
            self._lines.popitem(last=False)
        return line

    def _open(self, line: _Line, seconds: float) -> None:
        line.open_until = max(line.open_until, self.clock.monotonic() + seconds)
