"""One guard at a time taken out of the product: if the simulation does not see it, it sees nothing.

Each sabotage is a context in which every process of the simulation runs without the guard. The
oracle walks with the engine as it was when this was imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import TimeDelta

from journeykit_engine import nodes, walk
from journeykit_engine.instance import Instance, Person
from journeykit_engine.program import Program
from journeykit_engine.signal import Event
from journeykit_engine.walk import Step
from journeykit_server import (
    claiming,
    deferring,
    governance,
    hearing,
    lifecycle,
    looks,
    outbox,
    recording,
    runtime,
    scanner,
    steering,
    store,
    subscriptions,
    waking,
)
from journeykit_server.bulk import Insert, Select, Update
from journeykit_server.delivery import Item
from journeykit_server.doors import OPEN, Door, JourneyKey
from journeykit_server.incoming import Incoming, entering, event_row
from journeykit_server.policy import Policy
from journeykit_server.rows import INSTANCE_KEY, INSTANCE_VALUES
from journeykit_server.tables import instances, journal
from journeykit_server.work import Work
from tests.sim.faults import Faults, Profile, swarm
from tests.sim.outside import Outside

Sabotage = Callable[[], AbstractContextManager[Any]]
_IS_WAKING: ContextVar[bool] = ContextVar("is_waking", default=False)
_IS_SAVING: ContextVar[bool] = ContextVar("is_saving", default=False)
FOR_EVER = TimeDelta(hours=24 * 365)
_save = Work.save


def _changed(statement: str, guard: str, instead: str) -> str:
    """The statement without its guard; one without that guard would sabotage nothing."""
    assert guard in statement, f"nothing to take out: {guard!r} is not in:\n{statement}"
    return statement.replace(guard, instead)


async def _commit_here(connection: AsyncConnection) -> None:
    """What was one transaction is two from here."""
    await connection.exec_driver_sql("COMMIT")
    await connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def no_claim_fence() -> Iterator[None]:
    """Whoever claimed a timer believes for ever that it is theirs."""
    claimed = Select([], "")
    claimed.sqlite = _changed(store.CLAIMED.sqlite, "AND t.lease_token = given.lease_token", "")
    with patch.object(store, "CLAIMED", claimed), patch.object(waking, "TRUST_SECONDS", 1e9):
        yield


@contextmanager
def _reading_apart() -> Iterator[None]:
    """Of a batch of timers, reading is one transaction and writing another. The revision alone
    keeps this harmless: hundreds of seeds find nothing."""
    wake = runtime.Runtime._wake

    async def waking_apart(self: runtime.Runtime, *arguments: Any) -> waking.Woken:
        _IS_WAKING.set(True)
        return await wake(self, *arguments)

    async def save(self: Work, connection: AsyncConnection) -> None:
        if _IS_WAKING.get():
            await _commit_here(connection)
        await _save(self, connection)

    with (
        patch.object(runtime.Runtime, "_wake", waking_apart),
        patch.object(Work, "save", save),
    ):
        yield


@contextmanager
def no_revision_check() -> Iterator[None]:
    """Nobody locks the people of a batch of timers, and the revision is not compared."""
    move = Update(instances, INSTANCE_VALUES, INSTANCE_KEY)
    columns = len(INSTANCE_VALUES) + len(INSTANCE_KEY)

    async def run(connection: AsyncConnection, rows: Sequence[Sequence[Any]]) -> int:
        await move.run(connection, [row[:columns] for row in rows])
        return len(rows)

    with patch.object(store, "MOVE_INSTANCES", SimpleNamespace(run=run)), _reading_apart():
        yield


@contextmanager
def event_apart() -> Iterator[None]:
    """An event is stored in one transaction and handled in the next."""

    async def save(self: Work, connection: AsyncConnection) -> None:
        await _commit_here(connection)
        await _save(self, connection)

    with patch.object(Work, "save", save):
        yield


@contextmanager
def outbox_apart() -> Iterator[None]:
    """The effects of a step are written in another transaction than the step."""

    async def save(self: Work, connection: AsyncConnection) -> None:
        effects, self.effects = self.effects, []
        await _save(self, connection)
        if effects:
            await _commit_here(connection)
            await outbox.INSERT_OUTBOX.run(connection, effects)

    with patch.object(Work, "save", save):
        yield


@contextmanager
def deliver_before_persist() -> Iterator[None]:
    """What is to be done outside is done before it is written down."""
    worlds: list[Outside] = []
    begin = Outside.__init__

    def remember(self: Outside, *arguments: Any) -> None:
        begin(self, *arguments)
        worlds[:] = [self]

    async def save(self: Work, connection: AsyncConnection) -> None:
        for row in self.effects:
            effect = dict(zip(outbox.OUTBOX_COLUMNS, row, strict=True))
            known = {name: effect[name] for name in Item._fields if name in effect}
            worlds[0].accept(Item(**{**known, "payload": {}}))
        await _save(self, connection)

    with patch.object(Outside, "__init__", remember), patch.object(Work, "save", save):
        yield


def no_lease() -> AbstractContextManager[Any]:
    """A timer is claimed although somebody else holds it."""
    greedy = _changed(store.CLAIM_SQLITE, "AND try_at <= ?", "AND ? > 0")
    return patch.object(store, "CLAIM_SQLITE", greedy)


def lease_for_ever() -> AbstractContextManager[Any]:
    """A claim never ends, so that what a dead worker held is nobody's."""
    return patch.object(runtime, "LEASE", FOR_EVER)


def tried_for_ever() -> AbstractContextManager[Any]:
    """A timer is never given up."""
    return patch.object(waking, "ATTEMPTS", 10**9)


def offered_for_ever() -> AbstractContextManager[Any]:
    """An effect is never given up."""
    ladder = outbox.LADDER_SECONDS + (1_800,) * 1_000
    return patch.object(outbox, "LADDER_SECONDS", ladder)


@contextmanager
def no_dedupe() -> Iterator[None]:
    """An event is new, whatever its id."""
    count = iter(range(10**9))

    def fresh(tenant_id: int, number: int, event: Any, now: Any) -> tuple[Any, ...]:
        return event_row(tenant_id, number, event._replace(id=f"{event.id}#{next(count)}"), now)

    with patch.object(recording, "event_row", fresh):
        yield


@contextmanager
def settle_without_token() -> Iterator[None]:
    """Whoever offered an effect marks it, though another has taken it over."""
    any_token = Select([], "")
    any_token.sqlite = _changed(outbox.STILL_MINE.sqlite, "AND o.lease_token = given.token", "")
    with patch.object(outbox, "STILL_MINE", any_token):
        yield


def no_order() -> AbstractContextManager[Any]:
    """Every effect that is due is offered, not only the first of its pass."""
    look = _changed(claiming.SQLITE_LOOK, "h.message_id = o.message_id AS is_head", "1 AS is_head")
    return patch.object(claiming, "SQLITE_LOOK", look)


def no_visit_number() -> AbstractContextManager[Any]:
    """The second message of a loop is called as the first."""
    return patch.object(nodes.Walker, "visit_mark", lambda self, node_id: "")


@contextmanager
def no_holdout_gate() -> Iterator[None]:
    """Who is held out gets what everybody gets."""
    run = nodes.MessageOp.run

    def treated(self: nodes.MessageOp, walker: nodes.Walker) -> Any:
        held, walker.is_holdout = walker.is_holdout, False
        try:
            return run(self, walker)
        finally:
            walker.is_holdout = held

    with patch.object(nodes.MessageOp, "run", treated):
        yield


@contextmanager
def no_deadline() -> Iterator[None]:
    """An event that comes after the time of a wait still answers it."""

    def hear(program: Program, person: Person, instance: Instance, event: Event) -> list[Step]:
        return walk.hear(program, person, instance._replace(wake_at=None), event)

    names = {name: getattr(walk, name) for name in ("triggers", "enter")}
    with patch.object(hearing, "walk", SimpleNamespace(hear=hear, **names)):
        yield


@contextmanager
def statistics_apart() -> Iterator[None]:
    """The counters are written after the step."""

    count, kept = store.COUNT, list[Any]()

    async def keep(connection: AsyncConnection, rows: Sequence[Any]) -> int:
        if not _IS_SAVING.get():
            return await count.run(connection, rows)
        kept[:] = rows
        return len(rows)

    async def save(self: Work, connection: AsyncConnection) -> None:
        saving = _IS_SAVING.set(True)
        await _save(self, connection)
        _IS_SAVING.reset(saving)
        rows = list(kept)
        await _commit_here(connection)
        await count.run(connection, rows)

    with (
        patch.object(store, "COUNT", SimpleNamespace(run=keep)),
        patch.object(Work, "save", save),
    ):
        yield


@contextmanager
def no_queue() -> Iterator[None]:
    """An event is heard although an earlier one waits to be heard."""
    begin = hearing.Hearing.__init__

    def careless(self: hearing.Hearing, *arguments: Any) -> None:
        begin(self, *arguments)
        self.busy = set()

    with patch.object(hearing.Hearing, "__init__", careless):
        yield


@contextmanager
def one_fails_all() -> Iterator[None]:
    """A person whose walk fails takes the whole batch with them."""

    def fail(self: waking.Waking, found: Any, fault: Exception) -> None:
        raise fault

    with patch.object(waking.Waking, "_fail", fail):
        yield


@contextmanager
def journal_forgives() -> Iterator[None]:
    """A step that somebody else has told is told again in silence, and its effects with it."""
    told = Insert(journal, store._TOLD, "DO NOTHING")
    with patch.object(store, "TELL", told), no_revision_check():
        yield


async def _all_open(
    connection: AsyncConnection, keys: Iterable[JourneyKey], *, locks: bool = True
) -> dict[JourneyKey, Door]:
    return dict.fromkeys(keys, OPEN)


def no_door() -> AbstractContextManager[Any]:
    """People enter a journey that is closed and walk on in one that stands still."""
    return patch.object(runtime, "doors", _all_open)


def no_door_for_messages() -> AbstractContextManager[Any]:
    """What is on its way goes out although its journey stands still."""
    return patch.object(governance, "doors", _all_open)


def no_going_on() -> AbstractContextManager[Any]:
    """What stood still stays where it was put when its journey goes on."""

    async def nothing(*arguments: Any) -> int:
        return 0

    return patch.object(lifecycle, "go_on", nothing)


@contextmanager
def holding_is_forgotten() -> Iterator[None]:
    """A person who is held keeps their timer and walks on."""

    def hold(person: Person, instance: Instance, at: Any) -> Step:
        step = walk.pause(person, instance, at)
        assert step.instance is not None
        return step._replace(instance=step.instance._replace(paused_at=None))

    names = {name: getattr(walk, name) for name in ("leave", "unpause")}
    with patch.object(steering, "walk", SimpleNamespace(pause=hold, **names)):
        yield


@contextmanager
def looks_have_no_name() -> Iterator[None]:
    """The event by which a look takes somebody in has an id of its own at every try."""
    count = iter(range(10**9))

    def named(journey_id: int, user_id: str, event_id: str, source: str) -> Incoming:
        return entering(journey_id, user_id, f"{event_id}-{next(count)}", source)

    with patch.object(scanner, "entering", named):
        yield


@contextmanager
def looks_are_one() -> Iterator[None]:
    """All looks of a journey have one name, so that somebody is found once and never again."""

    def named(journey_id: int, user_id: str, event_id: str, source: str) -> Incoming:
        return entering(journey_id, user_id, f"scan-{journey_id}-0-{user_id}", source)

    with patch.object(scanner, "entering", named):
        yield


@contextmanager
def first_look_enrols() -> Iterator[None]:
    """Who is in a segment at the first look is taken for somebody who has just come."""
    begun = looks.begun

    def eager(*arguments: Any) -> looks.Look:
        return begun(*arguments)._replace(is_first=False)

    with patch.object(looks, "begun", eager):
        yield


@contextmanager
def page_before_people() -> Iterator[None]:
    """A page is taken for done before its people are asked in."""
    enrol, keep = scanner.Scanner._enrol, scanner.Scanner._keep
    later: list[Any] = []

    async def put_off(self: scanner.Scanner, *arguments: Any) -> None:
        later.append(arguments)

    async def kept(self: scanner.Scanner, *arguments: Any, **options: Any) -> None:
        put, later[:] = list(later), []
        await keep(self, *arguments, **options)
        for each in put:
            await enrol(self, *each)

    with (
        patch.object(scanner.Scanner, "_enrol", put_off),
        patch.object(scanner.Scanner, "_keep", kept),
    ):
        yield


@contextmanager
def deferral_loses_values() -> Iterator[None]:
    """A message that is put off forgets what the event said."""
    row = deferring.deferred_row

    def forgetful(item: Item, outcome: Any) -> deferring.DeferredRow:
        payload = {name: value for name, value in item.payload.items() if name != "event"}
        return row(item._replace(payload=payload), outcome)

    with patch.object(deferring, "deferred_row", forgetful):
        yield


def deferral_is_the_end() -> AbstractContextManager[Any]:
    """A message that is put off does not come back."""

    async def nothing(*arguments: Any) -> int:
        return 0

    return patch.object(deferring, "BACK", SimpleNamespace(run=nothing))


def no_reservation() -> AbstractContextManager[Any]:
    """A message takes no place in the caps of its person."""

    async def nothing(*arguments: Any) -> int:
        return 0

    return patch.object(governance, "RESERVE", SimpleNamespace(run=nothing))


def no_cap() -> AbstractContextManager[Any]:
    """There is always a place left."""
    return patch.object(governance._Day, "is_full", lambda *arguments: False)


def no_consent() -> AbstractContextManager[Any]:
    """Nobody is asked whether they want to hear from us."""
    return patch.object(subscriptions, "allows", lambda *arguments: True)


def no_quiet_hours() -> AbstractContextManager[Any]:
    """It is never too late for a message."""
    return patch.object(Policy, "window", lambda self, zone: None)


def withheld_uncounted() -> AbstractContextManager[Any]:
    """What is withheld at the last moment is not counted."""
    return patch.object(outbox._Sorting, "counts", lambda self, shard: [])


SABOTAGES: Mapping[str, Sabotage] = {
    name: sabotage
    for name, sabotage in list(globals().items())
    if callable(sabotage)
    and getattr(sabotage, "__module__", "") == __name__
    and not name.startswith("_")
}
"""By name: every guard that can be taken out."""

OUTAGE = Profile((), 1.0, {"evaluator_error": 0.9})
CONTROL = Profile(
    (),
    1.0,
    {
        "journey_pause": 0.6,
        "journey_archive": 0.05,
        "journey_delete": 0.3,
        "person_pause": 0.5,
        "provider_error": 0.3,
    },
)
OUT_AND_STOPPED = Profile(
    (), 1.0, {"provider_down": 0.9, "journey_pause": 0.9, "journey_archive": 0.1}
)
DEATHS = Profile(("kill_before", "kill_after"), 15.0, {})
STOPS = Profile(("pause",), 15.0, {})
WEATHER: Mapping[str, Profile] = {
    "no_claim_fence": STOPS,
    "no_revision_check": STOPS,
    "journal_forgives": STOPS,
    "tried_for_ever": OUTAGE,
    "no_queue": OUTAGE,
    "one_fails_all": OUTAGE,
    "no_door": CONTROL,
    "no_door_for_messages": OUT_AND_STOPPED,
    "no_going_on": CONTROL,
    "holding_is_forgotten": CONTROL,
    "page_before_people": DEATHS,
    "looks_have_no_name": DEATHS,
    "offered_for_ever": Profile((), 1.0, {"provider_down": 0.9}),
    "settle_without_token": Profile(("pause", "slow_database"), 20.0, {"provider_slow": 0.3}),
}
"""The faults that some guards are there for, where a seed's own would seldom bring them."""


def weather(name: str, seed: int) -> Faults:
    """The faults under which a sabotage is looked for."""
    return Faults(WEATHER.get(name) or swarm(seed), seed)
