"""What must hold, asked of the database file itself, in SQL of the referee's own.

Triggers in the file keep a log of everything in the order in which it was written (the product does
not notice) and note at once what no single row may ever do. `Referee.glance` looks at what must
hold after every commit, `Referee.settle` at what must hold when all is over. The numbers in the
findings are those of the laws below.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from journeykit_server import backoff, outbox, runtime
from tests.sim.gates import Gates
from tests.sim.outside import NO_DEVICE, Outside
from tests.sim.workload import FOUND

LAWS = """
 1  nobody is lost: who entered is inside, has ended, or is stuck with a dead letter
 2  nobody is in two places at once (the key of the table, and 27)
 3  who waits and wakes by themselves has exactly one timer, of their revision; nobody else has
 4  the revision grows by one at every step, and the journal has each
 5  the last update of a pass never goes back, whatever a clock does
 6  the version of a pass never changes
 7  every effect belongs to a step in the journal
 8  every effect is taken by the outside once, or is withheld, or is a dead letter, also one that
    was put off
 9  a message id has one content
10  nothing goes out that the journal says was withheld
12  the statistics are a recount of the journal, so are entries and exposures
13  no timer is taken before it is due, and no step is taken in the future
14  no lease is taken over before it ends, and nobody settles what another one leases
15  whoever has ended has a reason, and only they
16  in a journey that stands still nothing happens and nothing of it goes out; a closed one takes
    nobody in
17  every event is stored once, and handled once by each journey, in the order of arrival
22  the effects of one person in one journey go out in their order, those that died excepted
23  a dead letter says what, where and why, and comes after a known number of attempts
26  in the end no lease is open, and the outbox and the inbox are empty
27  the stored events, walked by the pure engine, give what is stored
28  a look enrols each person once, the first one nobody; in the end it knows who is inside
29  nothing goes to somebody who had said no before it was claimed
30  nobody gets more a day than the account allows, nor anything in its quiet hours
"""

TABLES = """
CREATE TABLE sim_log (
    seq INTEGER PRIMARY KEY, what TEXT, tenant_id, user_id, journey_id, number, step);
CREATE TABLE sim_wrong (seq INTEGER PRIMARY KEY, law INTEGER, told TEXT);
"""
LOGGED = """
CREATE TRIGGER sim_event AFTER INSERT ON events BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id, number)
    VALUES ('event', NEW.tenant_id, NEW.user_id, NEW.number); END;
CREATE TRIGGER sim_step AFTER INSERT ON journal BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id, journey_id, number, step)
    VALUES ('step', NEW.tenant_id, NEW.user_id, NEW.journey_id, NEW.rev, NEW.step); END;
CREATE TRIGGER sim_died AFTER INSERT ON dead_letters BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id) VALUES ('died', NEW.tenant_id, NEW.letter_id);
    END;
CREATE TRIGGER sim_heard AFTER DELETE ON inbox BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id, journey_id, number)
    VALUES ('heard', OLD.tenant_id, OLD.user_id, OLD.journey_id, OLD.number); END;
CREATE TRIGGER sim_claimed AFTER UPDATE ON outbox
WHEN NEW.lease_token IS NOT NULL AND NEW.lease_token IS NOT OLD.lease_token BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id)
    VALUES ('claimed', NEW.tenant_id, NEW.lease_token);
    INSERT INTO sim_log (what, tenant_id, user_id)
    VALUES ('taken', NEW.tenant_id, NEW.message_id); END;
CREATE TRIGGER sim_settled AFTER DELETE ON outbox BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id)
    VALUES ('settled', OLD.tenant_id, OLD.lease_token); END;
CREATE TRIGGER sim_let_go AFTER UPDATE ON outbox
WHEN NEW.lease_token IS NULL AND OLD.lease_token IS NOT NULL BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id)
    VALUES ('settled', OLD.tenant_id, OLD.lease_token); END;
CREATE TRIGGER sim_door AFTER UPDATE ON journeys
WHEN NEW.status <> OLD.status OR NEW.pause_mode <> OLD.pause_mode BEGIN
    INSERT INTO sim_log (what, tenant_id, journey_id, number, step)
    VALUES ('door', NEW.tenant_id, NEW.journey_id,
        NEW.status IN ('published', 'paused') AND NEW.pause_mode <> 'freeze',
        NEW.status = 'published'); END;
CREATE TRIGGER sim_look AFTER UPDATE ON looks
WHEN NEW.slot_at IS NOT NULL AND NEW.slot_at IS NOT OLD.slot_at BEGIN
    INSERT INTO sim_log (what, tenant_id, journey_id, number, step)
    VALUES ('look', NEW.tenant_id, NEW.journey_id, NEW.slot_at, NEW.is_first); END;
CREATE TRIGGER sim_said AFTER INSERT ON subscription_changes BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id) VALUES ('said', NEW.tenant_id, NEW.user_id);
    END;
CREATE TRIGGER sim_deferred AFTER INSERT ON deferred_sends BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id)
    VALUES ('deferred', NEW.tenant_id, NEW.message_id); END;
CREATE TRIGGER sim_queued AFTER INSERT ON inbox BEGIN
    INSERT INTO sim_log (what, tenant_id, user_id, journey_id, number)
    VALUES ('queued', NEW.tenant_id, NEW.user_id, NEW.journey_id, NEW.number); END;
"""


def _forbidden(law: int, name: str, event: str, when: str, told: str) -> str:
    """A trigger that notes what no row may do."""
    return (
        f"CREATE TRIGGER sim_{name} AFTER {event} WHEN {when} BEGIN "
        f"INSERT INTO sim_wrong (law, told) VALUES ({law}, {told}); END;"
    )


DEATHS = 10  # of workers that held one thing and could not say that it is given up
_WHO = "NEW.user_id || ' in ' || NEW.journey_id"
_ITS_JOURNEY = (
    "(SELECT {} FROM journeys j WHERE j.tenant_id = NEW.tenant_id "
    "AND j.journey_id = NEW.journey_id)"
)
_MOVES = "status IN ('published', 'paused') AND pause_mode <> 'freeze'"
_CLAIMED = "NEW.lease_token IS NOT OLD.lease_token AND NEW.lease_token IS NOT NULL"
_TIMER_LEASE = round(runtime.LEASE.total("microseconds"))
_OUTBOX_LEASE = outbox.LEASE_SECONDS * 1_000_000
FORBIDDEN = [
    _forbidden(
        4,
        "rev",
        "UPDATE ON instances",
        "NEW.rev <= OLD.rev OR NEW.entry_count < OLD.entry_count",
        f"{_WHO} || ': rev ' || OLD.rev || ' became ' || NEW.rev",
    ),
    _forbidden(5, "back", "UPDATE ON instances", "NEW.updated_at < OLD.updated_at", _WHO),
    _forbidden(
        6,
        "version",
        "UPDATE ON instances",
        "NEW.version <> OLD.version AND NEW.entry_count = OLD.entry_count",
        _WHO,
    ),
    _forbidden(4, "gone", "DELETE ON instances", "1", "OLD.user_id"),
    _forbidden(4, "rewritten", "UPDATE ON journal", "1", _WHO),
    _forbidden(4, "torn", "DELETE ON journal", "1", "OLD.user_id"),
    _forbidden(
        9,
        "content",
        "UPDATE ON outbox",
        "NEW.payload <> OLD.payload OR NEW.message_id <> OLD.message_id",
        "OLD.message_id",
    ),
    _forbidden(
        13,
        "early",
        "UPDATE ON timers",
        f"{_CLAIMED} AND OLD.due > NEW.try_at - {_TIMER_LEASE}",
        f"{_WHO} || ' before it was due'",
    ),
    _forbidden(
        14,
        "taken",
        "UPDATE ON timers",
        f"{_CLAIMED} AND OLD.try_at > NEW.try_at - {_TIMER_LEASE}",
        _WHO,
    ),
    _forbidden(
        14,
        "grabbed",
        "UPDATE ON outbox",
        f"{_CLAIMED} AND OLD.try_at > NEW.try_at - {_OUTBOX_LEASE}",
        "NEW.message_id",
    ),
    _forbidden(
        23,
        "offered",
        "UPDATE ON outbox",
        f"NEW.attempts > {len(outbox.LADDER_SECONDS) + DEATHS}",
        "NEW.message_id || ' is offered for ever'",
    ),
    _forbidden(
        23,
        "tried",
        "UPDATE ON timers",
        f"NEW.attempts > {backoff.ATTEMPTS + DEATHS}",
        f"{_WHO} || ' is tried for ever'",
    ),
    _forbidden(
        16,
        "moved",
        "INSERT ON journal",
        f"""(NEW.trail LIKE '%"what":"visited"%' OR NEW.trail LIKE '%"what":"effect"%')
        AND NOT {_ITS_JOURNEY.format(_MOVES)}""",
        f"{_WHO} || ' moved while it stood still'",
    ),
    _forbidden(
        16,
        "entered",
        "INSERT ON journal",
        f"""NEW.trail LIKE '%"what":"entered"%'
        AND NOT {_ITS_JOURNEY.format("status = 'published'")}""",
        f"{_WHO} || ' entered although it is closed'",
    ),
    _forbidden(17, "forgot", "DELETE ON events", "1", "OLD.event_id"),
    _forbidden(17, "changed", "UPDATE ON events", "1", "OLD.event_id"),
]


def statements() -> Iterator[str]:
    """What makes a database of the product one that is watched."""
    for block in (TABLES, LOGGED):
        yield from _split(block)
    yield from FORBIDDEN


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


EMPTY_IS_RIGHT = {
    "3 a timer and its person do not agree": """
        SELECT i.user_id, i.journey_id, i.rev, t.rev FROM instances i
        LEFT JOIN timers t USING (tenant_id, user_id, journey_id)
        WHERE (i.status = 'waiting' AND i.wake_at IS NOT NULL AND i.paused_at IS NULL)
            <> (t.rev IS NOT NULL) OR t.rev <> i.rev OR t.due <> i.wake_at""",
    "3 a timer of nobody": """
        SELECT user_id, journey_id FROM timers WHERE (tenant_id, user_id, journey_id) NOT IN (
            SELECT tenant_id, user_id, journey_id FROM instances)""",
    "4 the journal lacks a step": """
        SELECT i.user_id, i.journey_id, i.rev, count(j.rev), max(j.rev) FROM instances i
        LEFT JOIN journal j ON j.tenant_id = i.tenant_id AND j.user_id = i.user_id
            AND j.journey_id = i.journey_id AND j.step = 0
        GROUP BY i.tenant_id, i.user_id, i.journey_id
        HAVING count(j.rev) <> i.rev OR max(j.rev) <> i.rev""",
    "7 an effect of no step": """
        SELECT o.message_id FROM outbox o LEFT JOIN journal j
        ON j.tenant_id = o.tenant_id AND j.user_id = o.user_id AND j.journey_id = o.journey_id
            AND j.rev = o.rev AND j.step = 0 AND j.version = o.version
        WHERE j.rev IS NULL""",
    "8 settled and not": """
        SELECT message_id FROM outbox JOIN messages USING (tenant_id, message_id)""",
    "8 put off and not": """
        SELECT message_id FROM deferred_sends JOIN outbox USING (tenant_id, message_id)
        UNION ALL SELECT message_id FROM deferred_sends JOIN messages USING (tenant_id, message_id)
        """,
    "30 more than a day allows": """
        SELECT user_id, day, count(*) FROM budget_uses GROUP BY tenant_id, user_id, day
        HAVING count(*) > (
            SELECT json_extract(document, '$.caps.default.per_day') FROM policies)""",
    "15 a reason and no end": """
        SELECT user_id, journey_id FROM instances
        WHERE (status IN ('active', 'waiting')) <> (exit_reason = '')
            OR (status = 'waiting') <> (json_extract(state, '$.wait') IS NOT NULL)""",
    "12 an entry is not what the pass is": """
        SELECT i.user_id, i.journey_id FROM instances i
        LEFT JOIN entries e USING (tenant_id, user_id, journey_id, entry_count)
        WHERE e.version IS NOT i.version OR e.entered_at IS NOT i.entered_at
            OR e.exit_reason IS NOT i.exit_reason
            OR (e.ended_at IS NULL) <> (i.status IN ('active', 'waiting'))""",
}
"""Questions whose answer has no row at any moment."""

EMPTY_IN_THE_END = {
    "26 the outbox is not empty": "SELECT message_id, attempts, last_error FROM outbox",
    "26 the inbox is not empty": "SELECT user_id, journey_id, number, last_error FROM inbox",
    "26 a timer is left": """
        SELECT user_id, journey_id, attempts, last_error FROM timers WHERE bucket < 2147483646""",
    "26 a message is put off for ever": "SELECT message_id, send_at, reason FROM deferred_sends",
    "26 a look never ended": "SELECT journey_id, stage, last_error FROM looks WHERE slot_at > 0",
    "1 somebody stands and nobody knows why": """
        SELECT user_id, journey_id FROM instances i JOIN journeys j USING (tenant_id, journey_id)
        WHERE i.status IN ('active', 'waiting') AND j.status <> 'archived'
        AND 'timer:' || journey_id || ':' || user_id NOT IN (
            SELECT letter_id FROM dead_letters d WHERE d.tenant_id = i.tenant_id)""",
    "23 a letter without words": """
        SELECT letter_id FROM dead_letters
        WHERE code = '' OR message = '' OR (node_id = '' AND kind <> 'event')""",
    "1 more entries than passes": """
        SELECT e.user_id, e.journey_id, count(*), i.entry_count FROM entries e
        JOIN instances i USING (tenant_id, user_id, journey_id)
        GROUP BY e.tenant_id, e.user_id, e.journey_id HAVING count(*) <> i.entry_count""",
}
"""Questions whose answer has no row when all is over."""


class Wrong(Exception):
    """A law does not hold: the findings, one a line."""

    def __init__(self, findings: Iterable[str]) -> None:
        super().__init__("\n".join(findings))


class Referee:
    """Looks at the file and the outside; raises `Wrong`."""

    def __init__(self, raw: sqlite3.Connection, outside: Outside, gates: Gates) -> None:
        self.raw = raw
        self.outside = outside
        self.gates = gates
        outside.is_written = self.is_written
        self.seen = 0
        self.holders: dict[str, str] = {}
        self.findings: list[str] = []

    def is_written(self, message_id: str) -> bool:
        """Whether an effect that is offered is known to the database at this moment."""
        (known,) = self.raw.execute(IS_WRITTEN, (message_id,) * 4).fetchone()
        return bool(known)

    def committed(self, process: str, now: int) -> None:
        """What a transaction of this process, by whose clock it is `now`, may have done."""
        for row in self.raw.execute(NEW_LOG, (self.seen,)).fetchall():
            self.seen = row["seq"]
            token = row["user_id"]
            if row["what"] == "claimed":
                self.holders[token] = process
            if row["what"] == "settled" and token and self.holders.get(token) != process:
                holder = self.holders.get(token)
                self.findings.append(f"14: {process} settled what {holder} leased")
            if row["what"] == "taken":
                self.gates.claimed(process, row, now)
            if row["what"] == "step":
                self._not_in_the_future(row, now)

    def _not_in_the_future(self, row: sqlite3.Row, now: int) -> None:
        key = (row["tenant_id"], row["user_id"], row["journey_id"])
        at, *others = self.raw.execute(MOMENTS, (*key, row["number"], row["step"])).fetchone()
        if at > max(now, *(moment or 0 for moment in others)):
            self.findings.append(f"13: {key}: rev {row['number']} is {(at - now) / 1e6} s early")

    def glance(self) -> None:
        """What must hold between any two transactions."""
        findings = [f"{law}: {told}" for law, told in self._rows("SELECT law, told FROM sim_wrong")]
        findings += self._empty(EMPTY_IS_RIGHT)
        findings += self.outside.wrong + self.findings
        if findings:
            raise Wrong(findings)

    def settle(self) -> None:
        """What must hold in the end."""
        self.glance()
        journal = _Journal(self._rows(JOURNAL))
        findings = self._empty(EMPTY_IN_THE_END)
        findings += journal.findings
        findings += self._statistics(journal)
        findings += self._effects(journal)
        findings += self._order(journal)
        findings += self._exposures(journal)
        findings += self._looks()
        if findings:
            raise Wrong(findings)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.raw.execute(query)]

    def _empty(self, questions: dict[str, str]) -> list[str]:
        return [f"{law}: {row}" for law, query in questions.items() for row in self._rows(query)]

    def _statistics(self, journal: _Journal) -> list[str]:
        stored = {row[:3]: row[3:] for row in self._rows(STATISTICS)}
        stored = {key: counted for key, counted in stored.items() if any(counted)}
        for *node, many in self._rows(WITHHELD):
            journal.counts.setdefault(tuple(node), [0, 0, 0])[COUNTED["suppressed"]] += many
        counted = {key: tuple(journal.counts[key]) for key in journal.counts}
        return [
            f"12: node {key}: stored {stored.get(key)}, journal {counted.get(key)}"
            for key in sorted(stored.keys() | counted.keys())
            if stored.get(key) != counted.get(key)
        ]

    def _effects(self, journal: _Journal) -> list[str]:
        """Each effect of the journal went exactly one way, and no other effect went any."""
        accepted = set(self.outside.accepted)
        rows = self._rows("SELECT message_id, state, reason, attempts FROM messages")
        settled = {name: state for name, state, _, _ in rows}
        reasons = {name: reason for name, state, reason, tried in rows if tried}
        dead = {
            letter_id.removeprefix("effect:")
            for (letter_id,) in self._rows("SELECT letter_id FROM dead_letters")
            if letter_id.startswith("effect:")
        }
        findings = [f"10: {name} was withheld and went out" for name in journal.withheld & accepted]
        known = set[str]()
        for name, effect in journal.effects.items():
            arrived = [medium for medium in effect.media if medium in accepted]
            known |= {*effect.media}
            ways = [settled.get(name) == "delivered", bool(reasons.get(name)), name in dead]
            if sum(ways) != 1:
                findings.append(f"8: {name} is {settled.get(name)}, dead: {name in dead}")
            if effect.kind != "enter_journey" and ways[0] and not arrived:
                findings.append(f"8: {name} is said to be delivered and never arrived")
            findings += self._without_reason(name, reasons.get(name))
            findings += self._altered(name, effect, arrived)
        findings += [f"8: {name} arrived and was never told" for name in accepted - known]
        settled_known = journal.effects.keys() | journal.withheld
        findings += [
            f"8: {n} is settled and was never told" for n in settled.keys() - settled_known
        ]
        findings += [
            f"8: {name} was withheld and is {settled.get(name)}"
            for name in journal.withheld
            if settled.get(name) != "suppressed"
        ]
        return sorted(findings)

    def _without_reason(self, name: str, reason: str | None) -> list[str]:
        """Whether what was withheld at the last moment could be, for what is said of it."""
        policy = self.gates.policy
        reasons: dict[str | None, bool] = {
            None: True,
            "": True,  # it was delivered
            "capped": bool(policy.get("caps")),
            "channel_off": bool(policy.get("channels_off")),
            NO_DEVICE: bool(self.outside.unreachable),
        }
        if reason in ASKED_FOR:
            query, position = ASKED_FOR[reason], name.partition(".")[0].removeprefix("j")
            user_id = self._rows(f"SELECT user_id FROM messages WHERE message_id = '{name}'")[0][0]
            given = {"user": user_id, "journey": int(position)}
            reasons[reason] = self.raw.execute(query, given).fetchone() is not None
        return [] if reasons.get(reason) else [f"8: {name} is withheld for no reason: {reason}"]

    def _altered(self, name: str, effect: _Effect, arrived: list[str]) -> list[str]:
        """A message says what the walk said, however long it has waited."""
        findings = []
        for medium in arrived:
            payload = self.outside.accepted[medium].item.payload
            told = effect.record
            if any(payload.get(part) != told.get(part) for part in SAME_EVERYWHERE):
                findings.append(f"9: {name} went out as {dict(payload)}, and was told as {told}")
        return findings

    def _order(self, journal: _Journal) -> list[str]:
        """Those that died, were put off or withheld in the meantime have no place in the order."""
        aside = {row[0].removeprefix("effect:") for row in self._rows(SET_ASIDE)}
        places: dict[str, int] = {}
        for name, effect in journal.effects.items():
            taken_at = [self.outside.accepted.get(medium) for medium in effect.media]
            found = [taken.place for taken in taken_at if taken is not None]
            if found and name not in aside:
                places[name] = min(found)
        findings = []
        for key, names in journal.in_order.items():
            taken = [name for name in names if name in places]
            if taken != sorted(taken, key=places.__getitem__):
                findings.append(f"22: {key}: {sorted(taken, key=places.__getitem__)}")
        return findings

    def _exposures(self, journal: _Journal) -> list[str]:
        stored = set(self._rows(EXPOSURES))
        return [f"12: exposure {row}" for row in sorted(stored ^ journal.exposures)]

    def _looks(self) -> list[str]:
        """Every enrolment belongs to one look, and what a look has recorded is true."""
        began: dict[tuple[int, int], bool] = {}
        for journey_id, slot, is_first in self._rows(LOOKS):
            is_new = journey_id not in {key[0] for key in began}
            compares = journey_id == FOUND
            began.setdefault((journey_id, slot), compares and bool(is_first or is_new))
        enrolled: Counter[tuple[int, int]] = Counter()
        seen: Counter[tuple[int, int, str]] = Counter()
        findings = []
        for event_id, user_id in self._rows(SCANNED):
            _, journey_id, slot, *_ = event_id.split("-", 3)
            look = (int(journey_id), int(slot) if slot.isdigit() else -1)
            enrolled[look] += 1
            seen[*look, user_id] += 1
            if look not in began:
                findings.append(f"28: {event_id} belongs to no look")
            elif began[look]:
                findings.append(f"28: {event_id} was enrolled by a first look")
        findings += [f"28: {look} enrolled somebody twice" for look, n in seen.items() if n > 1]
        for journey_id, slot, found in self._rows("SELECT journey_id, slot_at, found FROM scans"):
            if found > enrolled[journey_id, slot] and not began.get((journey_id, slot)):
                findings.append(f"28: look {journey_id} {slot} found more than it enrolled")
        return findings + [f"28: the audience is wrong: {row}" for row in self._rows(AUDIENCE)]


JOURNAL = """
    SELECT user_id, journey_id, rev, step, version, entry_count, trail FROM journal
    ORDER BY tenant_id, user_id, journey_id, rev, step"""
NEW_LOG = """
    SELECT * FROM sim_log WHERE seq > ? ORDER BY seq"""
MOMENTS = """
    SELECT j.at, (SELECT max(b.at) FROM journal b WHERE b.tenant_id = j.tenant_id
            AND b.user_id = j.user_id AND b.journey_id = j.journey_id
            AND (b.rev < j.rev OR (b.rev = j.rev AND b.step = 0 AND j.step <> 0))),
        (SELECT max(e.at) FROM events e WHERE e.event_id = j.cause AND j.cause <> '')
    FROM journal j WHERE j.tenant_id = ? AND j.user_id = ? AND j.journey_id = ? AND j.rev = ?
        AND j.step = ?"""
"""When a step was, when the last one before it was, and when the event arrived that caused it."""
IS_WRITTEN = """
    SELECT EXISTS (SELECT 1 FROM outbox WHERE message_id = ?)
        OR EXISTS (SELECT 1 FROM messages WHERE message_id = ?)
        OR EXISTS (SELECT 1 FROM deferred_sends WHERE message_id = ?)
        OR EXISTS (SELECT 1 FROM dead_letters WHERE letter_id = 'effect:' || ?)"""
SET_ASIDE = """
    SELECT user_id FROM sim_log WHERE what IN ('died', 'deferred')
    UNION ALL SELECT message_id FROM messages WHERE state = 'suppressed'"""
WITHHELD = """
    SELECT journey_id, version, node_id, count(*) FROM messages
    WHERE state = 'suppressed' AND attempts > 0 GROUP BY 1, 2, 3"""
STOPPED = """
    SELECT 1 FROM sim_log WHERE what = 'door' AND journey_id = :journey AND number = 0
    AND :user IS NOT NULL"""
ASKED_FOR: dict[str | None, str] = {
    "archived": STOPPED,
    "deleted": STOPPED,
    "unsubscribed": """
        SELECT 1 FROM subscription_changes WHERE user_id = :user AND state = 'unsubscribed'
        AND :journey > 0""",
}
"""Reasons that somebody must have given."""
SAME_EVERYWHERE = ("event", "budget", "priority", "journey_id")
LOOKS = """
    SELECT journey_id, number, step FROM sim_log WHERE what = 'look' ORDER BY seq"""
SCANNED = "SELECT event_id, user_id FROM events WHERE source = 'scan'"
AUDIENCE = f"""
    SELECT p.user_id, a.user_id FROM profiles p JOIN journeys j
        ON j.journey_id = {FOUND} AND j.status = 'published'
    JOIN looks l ON l.journey_id = j.journey_id
    LEFT JOIN audience a ON a.journey_id = j.journey_id AND a.user_id = p.user_id
    WHERE (a.user_id IS NOT NULL) <> (coalesce(json_extract(p.traits, '$.plan'), '') = 'pro')"""
"""Who is recorded and is not inside, or the other way round, once all is over."""
STATISTICS = """
    SELECT journey_id, version, node_id, sum(entered), sum(exited), sum(suppressed)
    FROM node_stats GROUP BY 1, 2, 3"""
EXPOSURES = """
    SELECT user_id, journey_id, entry_count, node_id, variant, is_holdout FROM exposures"""
COUNTED = {"visited": 0, "exited": 1, "suppressed": 2}


class _Effect(NamedTuple):
    """An effect as the journal tells it; `media` are all the names it may go out under."""

    kind: str
    record: dict[str, Any]
    media: tuple[str, ...]


class _Journal:
    """The journal as stored, taken apart: arrivals, ends and withholdings by node, the names of
    effects and in what order they should go."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self.counts: dict[tuple[int, int, str], list[int]] = {}
        self.effects: dict[str, _Effect] = {}
        self.withheld: set[str] = set()
        self.in_order: dict[tuple[str, int], list[str]] = {}
        self.exposures: set[tuple[Any, ...]] = set()
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.held_out: set[tuple[str, int, int]] = set()
        self.findings: list[str] = []
        for user_id, journey_id, _, _, version, entry_count, trail in rows:
            for line in trail.splitlines():
                self._take(user_id, journey_id, version, entry_count, json.loads(line))

    def _take(
        self, user_id: str, journey_id: int, version: int, entry: int, record: dict[str, Any]
    ) -> None:
        what, node_id = record["what"], record["node_id"]
        if what in COUNTED:
            counts = self.counts.setdefault((journey_id, version, node_id), [0, 0, 0])
            counts[COUNTED[what]] += 1
        if what == "effect" and (name := _name_of(record["effect"])):
            if name in self.effects:
                self.findings.append(f'9: two effects are called "{name}"')
            if (user_id, journey_id, entry) in self.held_out:
                self.findings.append(f"10: {name} is for somebody held out")
            told = record["effect"]
            media = (name, *(medium["message_id"] for medium in told.get("fallback", ())))
            self.effects[name] = _Effect(told["kind"], told, media)
            self.in_order.setdefault((user_id, journey_id), []).append(name)
        if what == "suppressed" and "message_id" in record:
            self.withheld.add(record["message_id"])
        if what == "assigned":
            key = (user_id, journey_id, entry, node_id)
            self.seen[key] += 1
            if self.seen[key] == 1:
                self.exposures.add((*key, record["variant"], int(record["holdout"])))
            if record["holdout"]:
                self.held_out.add((user_id, journey_id, entry))


def _name_of(effect: dict[str, Any]) -> str:
    """The id under which the outside knows an effect; what is done inside has none."""
    return str(effect.get("message_id") or effect.get("id") or "")
