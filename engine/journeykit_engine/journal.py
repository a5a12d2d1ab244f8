"""The journal: a trail as records that a program or a person can read, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard, assert_never

from whenever import Instant

from journeykit_engine import timing
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Wait
from journeykit_engine.program import arm_names
from journeykit_engine.trail import (
    AddToSegment,
    Assigned,
    Branched,
    CallWebhook,
    Effect,
    Entered,
    Entry,
    Exited,
    Failed,
    GiveTask,
    Message,
    Noted,
    Paused,
    Refused,
    Resumed,
    StartJourney,
    Suppressed,
    Visited,
    Woke,
    WriteTrait,
)

Record = dict[str, Any]
OfTheGraph = Visited | Branched | Assigned | Exited | Woke
Write = Callable[[Instant, str, int, tuple[Entry, ...]], None]


class Lines(NamedTuple):
    """A sink of JSON lines instead of records: `dump` writes a record, or a value of one, as JSON
    without the end of a line, `put` takes the whole lines of a step."""

    dump: Callable[[Any], bytes]
    put: Callable[[bytes], object]


Sink = Callable[[Record], object] | Lines


class Sums:
    """What a journal adds up to. `nodes` counts, for each node, arrivals (`entered`), passes that
    ended there (`exited`), sends withheld there (`suppressed`) and people parked there now."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.people: set[str] = set()
        self.events = 0
        self.skipped_dates: int | None = None
        self.entries = 0
        self.messages = 0
        self.entered: Counter[str] = Counter()
        self.exited: Counter[str] = Counter()
        self.suppressed: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.arms: Counter[tuple[str, str]] = Counter()
        self.again: list[_Again] = []

    def count(self, entry: OfTheGraph, times: int) -> None:
        """Add what an entry of this kind stands for, as often as it came."""
        match entry:
            case Visited():
                self.entered[entry.node_id] += times
            case Exited():
                self.exited[entry.node_id] += times
                self.exits[entry.reason] += times
            case Assigned():
                # Held out by an earlier split, a person is in the arm that the hash gave.
                self.arms[entry.node_id, entry.variant or "holdout"] += times
            case Woke():
                self.waiting[entry.node_id] -= times
            case Branched():
                pass
            case _:
                assert_never(entry)

    def summary(self) -> dict[str, Any]:
        """The sums as plain values; every node, and every arm of every split, is there."""
        self._add_up()
        nodes = {
            node_id: {
                "entered": self.entered[node_id],
                "exited": self.exited[node_id],
                "suppressed": self.suppressed[node_id],
                "waiting": self.waiting[node_id],
            }
            for node_id in dict.fromkeys(node.id for node in self.graph.nodes)
        }
        summary = {
            "people": len(self.people),
            "events": self.events,
            "entries": self.entries,
            "messages": self.messages,
            "nodes": nodes,
            "exits": dict(sorted(self.exits.items())),
            "arms": self._arms(),
        }
        if self.skipped_dates is not None:
            summary["skipped_dates"] = self.skipped_dates
        return summary

    def _add_up(self) -> None:
        for again in self.again:
            if again.times:
                self.count(again.entry, again.times)
                again.times = 0

    def _arms(self) -> dict[str, dict[str, int]]:
        arms: dict[str, dict[str, int]] = {}
        for node in self.graph.nodes:
            if node.split is not None:
                names = dict.fromkeys([*arm_names(node.split), "holdout"])
                arms[node.id] = {name: self.arms[node.id, name] for name in names}
        return arms


def writer(sink: Sink, sums: Sums) -> Write:
    """A function that turns one step's trail into records for `sink` and counts them."""
    if isinstance(sink, Lines):
        return _line_writer(sink, sums)
    write_instant = timing.write_instant

    def write(at: Instant, user_id: str, entry_count: int, trail: tuple[Entry, ...]) -> None:
        when = write_instant(at)
        for entry in trail:
            what, tell = TELLERS[type(entry)]
            record: Record = {
                "at": when,
                "user_id": user_id,
                "entry": entry_count,
                "what": what,
                "node_id": entry.node_id,
            }
            tell(record, entry, sums)
            sink(record)

    return write


def _line_writer(sink: Lines, sums: Sums) -> Write:
    """The same records as lines."""
    dump, put = sink
    text_of, tails_of = _texts(), _tails(dump, sums)

    def write(at: Instant, user_id: str, entry_count: int, trail: tuple[Entry, ...]) -> None:
        head = dump({"at": text_of(at), "user_id": user_id, "entry": entry_count})[:-1] + b","
        put(head.join(tails_of(trail)))

    return write


def tails(dump: Callable[[Any], bytes], sums: Sums) -> Callable[[tuple[Entry, ...]], bytes]:
    """A function that turns a trail into lines that say `what` and `node_id` first and leave out
    what is the same for the whole step, `at`, `user_id` and `entry`; it counts them into `sums`."""
    tails_of = _tails(dump, sums)
    return lambda trail: b"{".join(tails_of(trail))


def _tails(dump: Callable[[Any], bytes], sums: Sums) -> Callable[[tuple[Entry, ...]], list[bytes]]:
    """What follows the head of each line, with an empty one before them: joining puts a head before
    every tail. An entry that depends on the graph alone is one and the same object in every trail:
    it is dumped once, counted where it comes again, and added up later."""
    known: dict[int, _Again] = {}
    tail_of_own = _own_tails(dump, sums)

    def tail_of(entry: Entry) -> bytes:
        if isinstance(entry, (Entered, Wait)):
            return tail_of_own(entry)
        what, tell = TELLERS[type(entry)]
        record: Record = {"what": what, "node_id": entry.node_id}
        tell(record, entry, sums)
        tail = dump(record)[1:] + b"\n"
        if _is_of_the_graph(entry) and len(known) < MAX_KNOWN_ENTRIES:
            known[id(entry)] = _Again(entry, tail)
            sums.again.append(known[id(entry)])
        return tail

    def tails_of(trail: tuple[Entry, ...]) -> list[bytes]:
        tails = [b""]
        for entry in trail:
            again = known.get(id(entry))
            if again is None:
                tails.append(tail_of(entry))
            else:
                again.times += 1
                tails.append(again.tail)
        return tails

    return tails_of


def _own_tails(dump: Callable[[Any], bytes], sums: Sums) -> Callable[[Entered | Wait], bytes]:
    """The tails of what every pass has of its own: how it began, and its waits. What is the node's
    is dumped once, which leaves a third of the work of their tellers; they say the same."""
    began: dict[str, bytes] = {}
    waits: dict[str, bytes] = {}
    text_of = _texts()

    def start(what: str, node_id: str, field: bytes) -> bytes:
        return dump({"what": what, "node_id": node_id})[1:-1] + b"," + field

    def tail_of(entry: Entered | Wait) -> bytes:
        node_id = entry.node_id
        if isinstance(entry, Entered):
            sums.entries += 1
            if node_id not in began:
                began[node_id] = start("entered", node_id, b'"caused_by":')
            return b"%b%b}\n" % (began[node_id], dump(entry.caused_by or None))
        sums.waiting[node_id] += 1
        if node_id not in waits:
            waits[node_id] = start("waiting", node_id, b'"until":')
        until = None if entry.until is None else text_of(entry.until)
        return b'%b%b,"events":%b}\n' % (waits[node_id], dump(until), dump(entry.events))

    return tail_of


def _texts() -> Callable[[Instant], str]:
    """`write_instant` that keeps the last answer: much happens at one moment, and waits until
    one."""
    last, text = Instant.MIN, ""

    def text_of(at: Instant) -> str:
        nonlocal last, text
        if at is not last and at != last:
            last, text = at, timing.write_instant(at)
        return text

    return text_of


def _is_of_the_graph(entry: Entry) -> TypeGuard[OfTheGraph]:
    """Whether the entry belongs to a node and is in every trail the same object; what is made for
    one person (a wait that an event or an exit closed, an exit by a rule) is not."""
    if isinstance(entry, Woke):
        return entry.branch == "timeout" and not entry.woken_by
    if isinstance(entry, Exited):
        return entry.reason in ("completed", "no_next_node")
    return isinstance(entry, (Visited, Branched, Assigned))


MAX_KNOWN_ENTRIES = 100_000  # lines kept, 20 MB at most; a graph of 5,000 nodes has a fifth of them


class _Again:
    """An entry that comes again and again: its line, and how often it came after the first time.
    It holds the entry, so that no other object can get its id."""

    __slots__ = ("entry", "tail", "times")

    def __init__(self, entry: OfTheGraph, tail: bytes) -> None:
        self.entry = entry
        self.tail = tail
        self.times = 0


def _tell_visited(record: Record, entry: Visited, sums: Sums) -> None:
    sums.count(entry, 1)


def _tell_wait(record: Record, entry: Wait, sums: Sums) -> None:
    sums.waiting[entry.node_id] += 1
    record["until"] = None if entry.until is None else timing.write_instant(entry.until)
    record["events"] = list(entry.events)


def _tell_woke(record: Record, entry: Woke, sums: Sums) -> None:
    sums.count(entry, 1)
    record["branch"] = entry.branch
    record["woken_by"] = entry.woken_by or None


def _tell_exited(record: Record, entry: Exited, sums: Sums) -> None:
    sums.count(entry, 1)
    record["reason"] = entry.reason


def _tell_entered(record: Record, entry: Entered, sums: Sums) -> None:
    sums.entries += 1
    record["caused_by"] = entry.caused_by or None


def _tell_message(record: Record, entry: Message, sums: Sums) -> None:
    sums.messages += 1
    record["message_id"] = entry.message_id
    record["effect"] = message_record(entry)


def _tell_effect(record: Record, entry: Effect, sums: Sums) -> None:
    record["effect"] = effect_record(entry)


def _tell_branched(record: Record, entry: Branched, sums: Sums) -> None:
    record["port"] = entry.port


def _tell_assigned(record: Record, entry: Assigned, sums: Sums) -> None:
    sums.count(entry, 1)
    record["variant"] = entry.variant
    record["holdout"] = entry.holdout


def _tell_suppressed(record: Record, entry: Suppressed, sums: Sums) -> None:
    sums.suppressed[entry.node_id] += 1
    record["reason"] = entry.reason
    record["kind"] = entry.kind
    if entry.message_id:
        record["message_id"] = entry.message_id
    if entry.missing:
        record["missing"] = list(entry.missing)


def _tell_refused(record: Record, entry: Refused, sums: Sums) -> None:
    record["reason"] = entry.reason


def _tell_failed(record: Record, entry: Failed, sums: Sums) -> None:
    record["code"] = entry.code
    record["message"] = entry.message


def _tell_noted(record: Record, entry: Noted, sums: Sums) -> None:
    record["note"] = entry.note
    record["detail"] = entry.detail


def _tell_place(record: Record, entry: Paused | Resumed, sums: Sums) -> None:
    """The word and the node say it all."""


TELLERS: Mapping[type[Entry], tuple[str, Callable[[Record, Any, Sums], None]]] = {
    Visited: ("visited", _tell_visited),
    Wait: ("waiting", _tell_wait),
    Woke: ("woke", _tell_woke),
    Exited: ("exited", _tell_exited),
    Entered: ("entered", _tell_entered),
    Message: ("effect", _tell_message),
    Branched: ("branched", _tell_branched),
    Assigned: ("assigned", _tell_assigned),
    Suppressed: ("suppressed", _tell_suppressed),
    Refused: ("refused", _tell_refused),
    Failed: ("error", _tell_failed),
    Paused: ("paused", _tell_place),
    Resumed: ("resumed", _tell_place),
    Noted: ("noted", _tell_noted),
    WriteTrait: ("effect", _tell_effect),
    AddToSegment: ("effect", _tell_effect),
    CallWebhook: ("effect", _tell_effect),
    StartJourney: ("effect", _tell_effect),
    GiveTask: ("effect", _tell_effect),
}
"""The word for each kind of entry, and what it adds to its record and to the sums. A table, since
half a million entries pass here in one replay and a `match` would ask a dozen times for each."""


def message_record(message: Message) -> Record:
    """What `effect_record` says of a message, by far the most frequent effect."""
    message_id, event, _, channel, template_id, category, priority, budget, fallback = message
    record: Record = {"kind": "send", "message_id": message_id}
    if event:
        record["event"] = dict(event)
    record["channel"] = channel
    record["template_id"] = template_id
    record["category"] = category
    record["priority"] = priority
    record["budget"] = budget
    if fallback:
        record["fallback"] = [medium._asdict() for medium in fallback]
    return record


def effect_record(effect: Effect) -> Record:
    """An effect as plain values: its kind, then its fields; empty parts are left out."""
    if isinstance(effect, Message):
        return message_record(effect)
    record: Record = {"kind": effect.kind}
    for name, value in zip(effect._fields, effect, strict=True):
        if name == "node_id":
            continue
        if isinstance(value, tuple):
            value = list(value)
        elif name in ("event", "headers"):
            value = dict(value)
        if name in ("value", "body") or value not in ({}, [], ""):
            record[name] = value
    return record
