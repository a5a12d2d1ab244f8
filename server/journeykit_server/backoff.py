"""What is done with something that failed: when it is tried again, and when it is given up."""

from __future__ import annotations

from whenever import TimeDelta

from journeykit_server.clock import Chance
from journeykit_server.letters import fit_to_keep
from journeykit_server.published import CannotWalk

ATTEMPTS = 20  # of a timer or an event, about three hours; then it is a dead letter
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 900.0
TOO_NEW_PAUSE = TimeDelta(seconds=30)  # until a version that needs a newer worker is tried again


def backoff(attempts: int, chance: Chance) -> TimeDelta:
    """How long to leave something alone that failed so often; nobody comes back together."""
    longest = min(FIRST_SECONDS * 2 ** max(attempts - 1, 0), LONGEST_SECONDS)
    return TimeDelta(seconds=longest * chance.fraction())


def code_of(fault: Exception) -> tuple[str, bool]:
    """The code of a fault, and whether trying again is in vain."""
    if isinstance(fault, CannotWalk):
        return fault.why.code, not fault.why.for_now
    return "WALK_FAILED", False


def words_of(fault: Exception) -> str:
    """What a fault says, with the name of its kind where it is not one of ours."""
    # The first line: a database goes on with the statement, and with the row that it refused.
    line = str(fault).partition("\n")[0]
    told = line if isinstance(fault, CannotWalk) else f"{type(fault).__name__}: {line}"
    return fit_to_keep(told)
