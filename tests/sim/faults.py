"""What goes wrong in a seed: a few kinds out of many, as often as the seed says.

A seed that turns everything on would hide most of it (who is killed all the time never meets a
clock that jumps), so each has a random part of the kinds, at rates of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple, Protocol

from tests.sim.loop import OUTSIDE

ANY = ("connect", "begin", "read", "write", "commit", "rollback", "close")
AT_CALLS: dict[str, tuple[str, ...]] = {
    "kill_before": ANY,
    "kill_after": ANY,
    "kill_all": ANY,
    "graceful_stop": ANY,
    "cancel": ANY,
    "cancel_everything": ANY,
    "pause": ANY,
    "clock_jump": ANY,
    "slow_database": ANY,
    "lost_ack": ("commit",),
    "error_before_commit": ("commit",),
    "busy": ("begin",),
    "io_error": ("read", "write"),
    "disk_full": ("write", "commit"),
    "drop": ("begin", "read", "write", "commit"),
}
"""What can strike at a call of the database, and at which calls."""

OF_THE_WORLD = (
    "skew",  # a process whose clock is some minutes off
    "restart_other",  # a killed process comes back under another name
    "provider_error",  # the outside world refuses for now
    "provider_down",  # it refuses for days
    "provider_lost_ack",  # it accepts, and nobody hears of it
    "provider_twice",  # the network repeats an offer
    "provider_slow",  # the answer comes after the lease is over
    "provider_refusal",  # this one will never be accepted
    "event_duplicate",
    "event_reorder",
    "event_delay",
    "event_burst",
    "event_conflict",  # another event under an id that was used
    "publish",  # a new version in the middle of everything
    "eject",
    "evaluator_error",  # asking about somebody fails for a while
    "newer_format",  # a version that only a newer journeykit can walk, until all are upgraded
    "provider_unreachable",  # this channel will never reach this person
    "provider_retry_after",  # it says when to come again
    "journey_pause",  # in one of its three modes, for hours or days
    "journey_archive",  # for good
    "journey_delete",  # into the bin, and out of it days later
    "person_pause",  # one person is held where they are, for hours or days
    "signal",  # somebody tells one journey something about one person
)
"""What happens outside the calls, by the chance of each occasion."""

KINDS = (*AT_CALLS, *OF_THE_WORLD)
CONTROLS = ("journey_pause", "journey_archive", "journey_delete", "person_pause", "signal")
SELDOM, OFTEN = (0.02, 0.05, 0.2), (0.05, 0.1, 0.3)  # chances; what somebody does has few occasions
AFTER_THE_CALL = ("kill_after", "lost_ack")
INSTEAD_OF_THE_CALL = ("error_before_commit", "busy", "io_error", "drop")

LEASE_SECONDS = 30
PAUSES = (0.5 * LEASE_SECONDS, 10 * LEASE_SECONDS)
JUMPS = (1, 60, 3_600, 3 * 86_400)  # seconds, forth or back
WINDOWS = (5, 120)  # seconds that a full disk stays full, a slow database slow
MOST_STRIKES_EVERY = 30  # calls
STRIKE_EVERY = (60, 120, 250, 500)  # calls; a seed makes about a thousand


class Profile(NamedTuple):
    """A seed's faults: the kinds that strike at calls, the mean number of calls between two
    strikes, and the chance of each kind of the world at an occasion."""

    at_calls: tuple[str, ...]
    calls_between: float
    chances: dict[str, float]


def swarm(seed: int) -> Profile:
    """The profile of a seed; one in twenty has no fault at all, one in twenty very many."""
    drawn = random.Random(f"{seed}:profile")
    if seed % 20 == 0:
        return Profile((), 1.0, {})
    share = 1.0 if seed % 20 == 1 else drawn.choice((0.2, 0.4, 0.7))
    between = MOST_STRIKES_EVERY if seed % 20 == 1 else drawn.choice(STRIKE_EVERY)
    at_calls = tuple(kind for kind in AT_CALLS if drawn.random() < share)
    chances = {
        kind: drawn.choice(OFTEN if kind in CONTROLS else SELDOM)
        for kind in OF_THE_WORLD
        if drawn.random() < share
    }
    return Profile(at_calls, between, chances)


class Victim(Protocol):
    """What a fault can do to the processes."""

    def kill(self, process: str) -> None: ...
    def kill_all(self) -> None: ...
    def stop(self, process: str) -> None: ...
    def cancel(self, process: str, *, everything: bool) -> None: ...
    def pause(self, process: str, seconds: float) -> None: ...
    def jump(self, process: str, seconds: float) -> None: ...
    def slow_down(self, seconds: float) -> None: ...
    def now(self) -> float: ...


class Faults:
    """Strikes as the profile says, and counts what struck. `is_quiet` ends it."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.profile = profile
        self.random = random.Random(f"{seed}:faults")
        self.counts: Counter[str] = Counter()
        self.is_quiet = True
        self.world: Victim
        self._until = self._gap()
        self._next = ""
        self._after = ""
        self._full_until = 0.0

    def chance(self, kind: str) -> bool:
        """Whether this kind of the world happens on this occasion; it is counted if so."""
        likely = self.profile.chances.get(kind, 0.0)
        if self.is_quiet or not likely or self.random.random() >= likely:
            return False
        self.counts[kind] += 1
        return True

    def before(self, process: str, call: str) -> str:
        if self.is_quiet or process == OUTSIDE:
            return ""
        if self.world.now() < self._full_until and call in AT_CALLS["disk_full"]:
            return "disk_full"
        kind = self.strike(call)
        if not kind:
            return ""
        self.counts[kind] += 1
        if kind in AFTER_THE_CALL:
            self._after = kind
            return ""
        return self._struck(kind, process)

    def after(self, process: str, call: str) -> str:
        kind, self._after = self._after, ""
        return self._struck(kind, process) if kind else ""

    def strike(self, call: str) -> str:
        """The kind that strikes at this call, if one does."""
        if not self.profile.at_calls:
            return ""
        if not self._next:
            self._until -= 1
            if self._until > 0:
                return ""
            self._next = self.random.choice(self.profile.at_calls)
        if call not in AT_CALLS[self._next]:
            return ""
        kind, self._next, self._until = self._next, "", self._gap()
        return kind

    def _gap(self) -> float:
        return self.random.expovariate(1 / self.profile.calls_between)

    def _struck(self, kind: str, process: str) -> str:
        world, drawn = self.world, self.random
        match kind:
            case "kill_before" | "kill_after":
                world.kill(process)
                return "killed"
            case "kill_all":
                world.kill_all()
                return "killed"
            case "graceful_stop":
                world.stop(process)
            case "cancel" | "cancel_everything":
                world.cancel(process, everything=kind == "cancel_everything")
            case "pause":
                world.pause(process, drawn.uniform(*PAUSES))
            case "clock_jump":
                world.jump(process, drawn.choice((-1, 1)) * drawn.choice(JUMPS))
            case "slow_database":
                world.slow_down(drawn.uniform(*WINDOWS))
            case "disk_full":
                self._full_until = world.now() + drawn.uniform(*WINDOWS)
                return kind
            case _:
                return kind
        return ""


class NthCall(Faults):
    """Exactly one fault: the given kind at the given one of the calls it can strike at, counted
    from 1. `seen` says how many of those there were."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(Profile((kind,), 1.0, {}), number)
        self.kind, self.number = kind, number
        self.seen = 0

    def strike(self, call: str) -> str:
        if call not in AT_CALLS[self.kind]:
            return ""
        self.seen += 1
        return self.kind if self.seen == self.number else ""
