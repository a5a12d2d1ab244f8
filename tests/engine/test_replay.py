"""Whole histories through a journey: real orders, entry rules, waits, timers, all types of line."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from whenever import Instant, TimeDelta

from journeykit_engine import replay
from journeykit_engine.graph import RESERVED_EVENT, Graph
from journeykit_engine.instance import Person
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.replay import Known, Line, LineType, Replayed, Unsent
from journeykit_engine.trail import Message

Json = dict[str, Any]
Cases = Mapping[str, dict[str, Any]]
ROOT = Path(__file__).parents[2]
START = Instant("2026-06-01T10:00:00Z")  # a Monday
UNTIL_LONG_AFTER = START.add(hours=24 * 60)


def at(hours: float = 0) -> Instant:
    return START + TimeDelta(hours=hours)


def program(*nodes: Json, trigger: Json | None = None, zone: str = "UTC", **fields: Any) -> Program:
    """A trigger (the event "cart" unless said otherwise) that leads to the first of these nodes."""
    first = {
        "id": "t",
        "kind": "trigger",
        "next": nodes[0]["id"] if nodes else "",
        "trigger": trigger or {"kind": "event", "event": "cart"},
    }
    graph = {"journey_id": 12, "version": 3, "entry_id": "t", "nodes": [first, *nodes], **fields}
    return compile_graph(Graph.parse(graph), zone)


def wait(after: str = "", **config: Any) -> Json:
    return {"id": "w", "kind": "wait", "next": after, "wait": config}


def send(node_id: str = "s", after: str = "") -> Json:
    config = {"kind": "send", "channel": "push", "template_id": 3}
    return {"id": node_id, "kind": "action", "next": after, "action": config}


END: Json = {"id": "end", "kind": "exit"}
A_DAY = wait(after="s", kind="duration", amount=1, unit="day")
PAID = wait(kind="for_event", event="paid", timeout="1d", on_timeout="s")


def track(event: str, hours: float = 0, id: str = "", user_id: str = "u_1", **more: Any) -> Line:
    return Line("track", user_id, at(hours), event, more, id)


def call(kind: LineType, hours: float, user_id: str = "u_1") -> Line:
    return Line(kind, user_id, at(hours))


def told(found: Replayed, *words: str) -> list[tuple[str, ...]]:
    """The journal in short: time, word, node, and what the record says in one word."""
    lines = []
    for record in found.journal:
        if not words or record["what"] in words:
            saying = [record[key] for key in ("branch", "port", "reason") if record.get(key)]
            when = record["at"].removeprefix("2026-").removesuffix("Z")
            lines.append((when, record["what"], record["node_id"], *saying))
    return lines


# --- real orders


WIN_BACK = Graph.parse(
    {
        "journey_id": 1,
        "version": 1,
        "entry_id": "order",
        "entry_rule": "every_time",
        "nodes": [
            {
                "id": "order",
                "kind": "trigger",
                "next": "again",
                "trigger": {"kind": "event", "event": "purchase"},
            },
            {
                "id": "again",
                "kind": "wait",
                "next": "end",
                "wait": {
                    "kind": "for_event",
                    "event": "purchase",
                    "timeout": "30d",
                    "on_timeout": "win_back",
                },
            },
            send("win_back", "end"),
            END,
        ],
    }
)


def orders() -> list[tuple[str, date]]:
    """CDNOW, the whole cohort: who ordered on which day, by day, in the order of the file."""
    text = gzip.decompress((ROOT / "notebooks/data/cdnow_master.txt.gz").read_bytes()).decode()
    rows = [line.split() for line in text.splitlines()[1:]]
    found = [(row[0], date(int(row[1][:4]), int(row[1][4:6]), int(row[1][6:]))) for row in rows]
    return sorted(found, key=lambda order: order[1])


def test_the_order_history_of_a_shop() -> None:
    """30 days without another order bring one message, and plain arithmetic says the same."""
    history = orders()
    lines = [Line("track", who, Instant(f"{day}T00:00:00Z"), "purchase") for who, day in history]
    messages: Counter[str] = Counter()
    branches: Counter[str] = Counter()

    def keep(record: Json) -> None:
        if record["what"] == "effect":
            messages[record["at"]] += 1
        elif record["what"] == "woke":
            branches[record["branch"]] += 1

    summary = replay.run(
        compile_graph(WIN_BACK), lines, [], keep, until=Instant("1998-12-31T00:00:00Z")
    )

    due: Counter[str] = Counter()
    days = defaultdict(list)
    for who, day in history:
        days[who].append(day)
    for own in days.values():
        for day, following in zip(own, [*own[1:], date.max], strict=True):
            if following - day > timedelta(days=30):
                due[f"{day + timedelta(days=30)}T00:00:00Z"] += 1

    assert messages == due
    months = Counter[str]()
    for when, count in messages.items():
        months[when[:7]] += count
    assert (months["1997-06"], months["1997-12"]) == (1717, 1649)
    assert branches == {"purchase": 22_705, "timeout": 46_954}
    assert summary == {
        "people": 23_570,
        "events": 69_659,
        "entries": 69_659,
        "messages": 46_954,
        "nodes": {
            "order": {"entered": 69_659, "exited": 0, "suppressed": 0, "waiting": 0},
            "again": {"entered": 69_659, "exited": 0, "suppressed": 0, "waiting": 0},
            "win_back": {"entered": 46_954, "exited": 0, "suppressed": 0, "waiting": 0},
            "end": {"entered": 69_659, "exited": 69_659, "suppressed": 0, "waiting": 0},
        },
        "exits": {"completed": 69_659},
        "arms": {},
    }


# --- getting in


def test_one_event_ends_a_pass_and_starts_the_next() -> None:
    again = wait(kind="for_event", event="cart", timeout="1d", on_timeout="s")
    found = replay.replay(
        program(again, send(), entry_rule="every_time"), [track("cart"), track("cart", 1)]
    )
    assert told(found) == [
        ("06-01T10:00:00", "entered", "t"),
        ("06-01T10:00:00", "visited", "t"),
        ("06-01T10:00:00", "visited", "w"),
        ("06-01T10:00:00", "waiting", "w"),
        ("06-01T11:00:00", "woke", "w", "cart"),
        ("06-01T11:00:00", "exited", "w", "no_next_node"),
        ("06-01T11:00:00", "entered", "t"),
        ("06-01T11:00:00", "visited", "t"),
        ("06-01T11:00:00", "visited", "w"),
        ("06-01T11:00:00", "waiting", "w"),
    ]


def test_an_entry_that_is_refused_says_why() -> None:
    lines = [track("cart"), track("cart", 1), track("cart", 30)]
    found = replay.replay(program(A_DAY, send()), lines)
    assert told(found, "entered", "refused", "exited") == [
        ("06-01T10:00:00", "entered", "t"),
        ("06-01T11:00:00", "refused", "t", "already_inside"),
        ("06-02T10:00:00", "exited", "s", "no_next_node"),
        ("06-02T16:00:00", "refused", "t", "once"),
    ]
    assert [r["entry"] for r in found.journal if r["what"] == "refused"] == [1, 1]


def test_a_cooldown_of_exactly_n_hours_may_enter() -> None:
    journey = program(END, entry_rule="every_time", cooldown_hours=24)
    lines = [track("cart"), Line("track", "u_1", at(24).subtract(seconds=1), "cart")]
    found = replay.replay(journey, [*lines, track("cart", 24)])
    assert told(found, "entered", "refused") == [
        ("06-01T10:00:00", "entered", "t"),
        ("06-02T09:59:59", "refused", "t", "cooldown"),
        ("06-02T10:00:00", "entered", "t"),
    ]


def test_the_second_pass_does_everything_again(cases: Cases) -> None:
    case = cases["reentry-second-run-does-everything"]
    add = {"kind": "add_to_segment", "segment_id": 4}
    nodes = [
        send("a", "add"),
        {"id": "add", "kind": "action", "next": "b", "action": add},
        send("b", "end"),
        END,
    ]
    found = replay.replay(
        program(*nodes, entry_rule="every_time"), [track("cart"), track("cart", 1)]
    )
    effects = [r["effect"] for r in found.journal if r["what"] == "effect" and r["entry"] == 2]
    assert [effect["kind"] for effect in effects] == ["send", "add_to_segment", "send"]
    names = [effect["message_id"] for effect in effects if "message_id" in effect]
    assert names == case["expect"]["message_ids"]


def test_an_attribute_enters_when_it_was_really_written() -> None:
    trigger = {"kind": "attribute_changed", "trait": "plan", "value": "pro"}
    plans = ["free", "pro", "pro", "free", "pro"]
    lines = [
        Line("identify", "u_1", at(i), properties={"plan": plan}) for i, plan in enumerate(plans)
    ]
    journey = program(END, trigger=trigger, entry_rule="every_time")
    found = replay.replay(journey, lines, [Known("u_1", {"plan": "pro"})])
    assert told(found, "entered") == [
        ("06-01T11:00:00", "entered", "t"),
        ("06-01T14:00:00", "entered", "t"),
    ]
    assert found.summary["events"] == 5


def test_an_api_journey_is_entered_by_an_enter_line_alone() -> None:
    journey = program(END, trigger={"kind": "api"})
    forged = Line("track", "u_2", at(1), RESERVED_EVENT, {"journey_id": 12})
    found = replay.replay(journey, [call("enter", 0), forged])
    assert told(found) == [
        ("06-01T10:00:00", "entered", "t"),
        ("06-01T10:00:00", "visited", "t"),
        ("06-01T10:00:00", "visited", "end"),
        ("06-01T10:00:00", "exited", "end", "completed"),
        ("06-01T11:00:00", "refused", "t", "reserved_event"),
    ]


def test_an_enter_line_is_refused_where_the_trigger_is_another() -> None:
    found = replay.replay(program(END), [call("enter", 0)])
    assert told(found) == [("06-01T10:00:00", "refused", "t", "not_api_trigger")]


# --- waits


def test_a_wait_of_a_day_keeps_the_wall_clock_of_the_recipient() -> None:
    """New York changes its clock on 8 March 2026 at 02:00; Tehran does not."""
    noon = Instant("2026-03-07T17:00:00Z")
    people = [Known("u_1", timezone="America/New_York"), Known("u_2", {"timezone": "Asia/Tehran"})]
    lines = [Line("track", user_id, noon, "cart") for user_id in ("u_1", "u_2", "u_3")]
    found = replay.replay(program(A_DAY, send()), lines, people)
    until = {r["user_id"]: r["until"] for r in found.journal if r["what"] == "waiting"}
    assert until == {
        "u_1": "2026-03-08T16:00:00Z",
        "u_2": "2026-03-08T17:00:00Z",
        "u_3": "2026-03-08T17:00:00Z",
    }


@pytest.mark.parametrize(
    ("timezone", "until"),
    [
        ("America/New_York", "2026-06-01T13:00:00Z"),
        ("Asia/Tehran", "2026-06-02T05:30:00Z"),
        ("", "2026-06-02T09:00:00Z"),
        (None, "2026-06-02T09:00:00Z"),
        (7, "2026-06-02T09:00:00Z"),
    ],
)
def test_an_identify_moves_the_person_to_another_zone(timezone: object, until: str) -> None:
    at_nine = wait(after="s", kind="until_time", hour=9)
    lines = [Line("identify", "u_1", at(0), properties={"timezone": timezone}), track("cart")]
    people = [Known("u_1", {"timezone": "Europe/Berlin"})]
    found = replay.replay(program(at_nine, send()), lines, people)
    (parked,) = [r for r in found.journal if r["what"] == "waiting"]
    assert parked["until"] == until


def test_a_zone_that_does_not_exist_is_noted_and_the_accounts_is_used() -> None:
    found = replay.replay(
        program(A_DAY, send()), [track("cart")], [Known("u_1", timezone="Mars/Base")]
    )
    (noted,) = [r for r in found.journal if r["what"] == "noted"]
    assert (noted["note"], noted["detail"]) == ("bad_timezone", "Mars/Base")


def test_a_trait_that_the_walk_writes_stays_written() -> None:
    write = {"kind": "update_trait", "trait": "timezone", "value": "Asia/Tehran"}
    nodes = [
        {"id": "a", "kind": "action", "next": "w", "action": write},
        wait(after="ask", kind="until_time", hour=9),
        {"id": "w2", "kind": "wait", "next": "", "wait": {"kind": "until_time", "hour": 9}},
        {
            "id": "ask",
            "kind": "condition",
            "condition": {
                "definition": {"root": {"trait": "timezone", "op": "exists"}},
                "on_true": "w2",
            },
        },
    ]
    found = replay.replay(program(*nodes), [track("cart")], until=UNTIL_LONG_AFTER)
    until = [r["until"] for r in found.journal if r["what"] == "waiting"]
    assert until == ["2026-06-02T05:30:00Z", "2026-06-03T05:30:00Z"]


def branches_taken(*lines: Line) -> list[str]:
    """The branches by which u_1 left the wait for "paid" (time-out one day) in two days."""
    found = replay.replay(program(PAID, send()), [track("cart"), *lines], until=at(48))
    return [record["branch"] for record in found.journal if record["what"] == "woke"]


@pytest.mark.parametrize(
    ("case", "lines", "branch"),
    [
        (
            "ev-right-after-wait-starts",
            [Line("track", "u_1", at().add(milliseconds=1), "paid")],
            "paid",
        ),
        ("ev-same-instant-as-timeout", [track("paid", 24)], "paid"),
        (
            "ev-just-after-timeout-before-poll",
            [Line("track", "u_1", at(24).add(milliseconds=400), "paid")],
            "timeout",
        ),
        ("ev-after-timeout-handled", [track("paid", 30)], "timeout"),
        ("ev-both-paths-never", [track("paid", 12), track("paid", 13)], "paid"),
        ("ev-duplicate-late", [track("paid", 12, "m8"), track("paid", 36, "m8")], "paid"),
    ],
)
def test_an_event_wait_closes_once(case: str, lines: list[Line], branch: str, cases: Cases) -> None:
    assert branch == cases[case]["expect"].get("branch", branch)
    assert branches_taken(*lines) == [branch]


def test_an_event_before_the_wait_does_not_answer_it(cases: Cases) -> None:
    timeline_utc = cases["ev-before-wait"]["given"]["timeline_utc"]
    hour = wait(kind="for_event", event="paid", timeout="1h", on_timeout="s")
    lines = [
        Line("track", "u_1", Instant(timeline_utc[0][0]), "paid"),
        Line("track", "u_1", Instant(timeline_utc[1][0]), "cart"),
    ]
    end = Instant(cases["ev-before-wait"]["when"]["run_to_utc"])
    found = replay.replay(program(hour, send()), lines, until=end)
    (woke,) = [r for r in found.journal if r["what"] == "woke"]
    assert woke["branch"] == cases["ev-before-wait"]["expect"]["branch"]
    assert Instant(woke["at"]) == end


def test_the_event_that_entered_is_not_its_own_answer(cases: Cases) -> None:
    case = cases["ev-trigger-event-is-not-its-own-answer"]
    journey = program(PAID, send(), trigger={"kind": "event", "event": "paid"})
    lines = [track("paid", hours, "m1") for hours in range(case["when"]["delivered"])]
    found = replay.replay(journey, lines)
    assert found.summary["entries"] == case["expect"]["entries"]
    assert found.journal[-1]["what"] == case["expect"]["status"]
    assert found.summary["nodes"]["w"]["waiting"] == 1
    assert found.summary["events"] == 1


def test_an_event_wait_without_a_timeout_stays_open() -> None:
    journey = program(wait(kind="for_event", event="paid"))
    found = replay.replay(journey, [track("cart")], until=UNTIL_LONG_AFTER)
    assert found.summary["nodes"]["w"]["waiting"] == 1
    assert found.journal[-1]["until"] is None


def test_an_event_about_a_parked_person_can_end_the_pass_at_once() -> None:
    journey = program(A_DAY, send(), exit_criteria={"root": {"event": "paid", "since": "entry"}})
    found = replay.replay(journey, [track("paid"), track("cart", 1), track("paid", 2)])
    assert told(found, "woke", "exited") == [
        ("06-01T12:00:00", "woke", "w", "exit"),
        ("06-01T12:00:00", "exited", "w", "exit_criteria"),
    ]
    assert found.summary["nodes"]["w"] == {
        "entered": 1,
        "exited": 1,
        "suppressed": 0,
        "waiting": 0,
    }


def test_the_longest_stay_wakes_a_parked_person_by_itself() -> None:
    long = wait(after="s", kind="duration", amount=2, unit="week")
    found = replay.replay(
        program(long, send(), max_duration_days=3), [track("cart")], until=UNTIL_LONG_AFTER
    )
    assert told(found, "exited") == [("06-04T10:00:00", "exited", "w", "max_duration")]


def test_the_timeout_behind_a_held_send_counts_from_when_it_went(cases: Cases) -> None:
    case = cases["ev-clock-starts-at-the-send"]
    window = {"days": ["mon", "tue"], "from": "09:00", "to": "17:00"}
    hour = wait(kind="for_event", event="open", timeout="1h", on_timeout="end")
    journey = program(send("s", "w"), hour, END, settings={"send_window": window})
    entered = Instant(case["when"]["entered_utc"])
    found = replay.replay(journey, [Line("track", "u_1", entered, "cart")], until=UNTIL_LONG_AFTER)
    parked = [(r["node_id"], r["until"]) for r in found.journal if r["what"] == "waiting"]
    assert parked == [
        ("s", "2026-06-02T09:00:00Z"),
        ("w", case["expect"]["timeout_at_utc"]),
    ]


# --- lines of every type


def test_a_timeout_that_passed_during_a_pause_is_taken_on_resume_once(cases: Cases) -> None:
    case = cases["ev-paused-past-timeout"]
    lines = [track("cart"), call("pause", 1), track("paid", 2), call("resume", 48)]
    found = replay.replay(program(PAID, send()), lines, until=UNTIL_LONG_AFTER)
    assert told(found, "woke", "effect", "exited") == [
        ("06-03T10:00:00", "woke", "w", case["expect"]["branch"]),
        ("06-03T10:00:00", "effect", "s"),
        ("06-03T10:00:00", "exited", "s", "no_next_node"),
    ]


def test_a_pause_that_ends_in_time_costs_nothing() -> None:
    lines = [track("cart"), call("pause", 1), call("resume", 2)]
    paused = replay.replay(program(PAID, send()), lines, until=UNTIL_LONG_AFTER)
    undisturbed = replay.replay(program(PAID, send()), lines[:1], until=UNTIL_LONG_AFTER)
    assert told(paused, "paused", "resumed") == [
        ("06-01T11:00:00", "paused", "w"),
        ("06-01T12:00:00", "resumed", "w"),
    ]
    stops = ("paused", "resumed")
    assert [each for each in paused.journal if each["what"] not in stops] == undisturbed.journal
    assert paused.summary == undisturbed.summary


def test_a_paused_person_stays() -> None:
    found = replay.replay(
        program(PAID, send()), [track("cart"), call("pause", 1)], until=UNTIL_LONG_AFTER
    )
    assert [record["what"] for record in found.journal[-2:]] == ["waiting", "paused"]
    assert found.summary["nodes"]["w"]["waiting"] == 1


def test_a_person_is_ejected() -> None:
    lines = [call("eject", -1), track("cart"), call("eject", 1), call("eject", 2)]
    found = replay.replay(program(PAID, send()), lines, until=UNTIL_LONG_AFTER)
    assert told(found)[-2:] == [
        ("06-01T11:00:00", "woke", "w", "exit"),
        ("06-01T11:00:00", "exited", "w", "ejected"),
    ]
    assert found.summary["exits"] == {"ejected": 1}


def test_a_message_id_counts_once_whoever_brings_it() -> None:
    lines = [track("cart", 0, "m1"), track("cart", 1, "m1"), track("cart", 2), track("cart", 2)]
    found = replay.replay(program(END, entry_rule="every_time"), lines)
    assert found.summary["entries"] == 3
    assert found.summary["events"] == 3


# --- the frame


def test_lines_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError) as caught:
        replay.replay(program(END), [track("cart", 1), track("cart", 0)])
    assert str(caught.value) == (
        'Line 2 (user "u_1") is of 2026-06-01T10:00:00Z, the line before it of '
        "2026-06-01T11:00:00Z. Sort the lines by time."
    )


def test_the_order_is_asked_of_earlier_lines_too() -> None:
    both_before = [track("cart", 1), track("cart", 0)]
    with pytest.raises(ValueError, match="Sort the lines by time"):
        replay.replay(program(END), both_before, since=at(9))
    back_before = [track("cart", 10), track("cart", 0)]
    with pytest.raises(ValueError, match="Sort the lines by time"):
        replay.replay(program(END), back_before, since=at(9))


def test_looks_that_let_no_time_pass_are_refused() -> None:
    with pytest.raises(ValueError) as caught:
        replay.replay(program(END), [], scan_every=TimeDelta.ZERO)
    assert str(caught.value) == 'scan_every is "PT0S"; give a time longer than zero.'


def test_lines_of_one_instant_are_taken_in_the_order_of_the_file() -> None:
    journey = program(wait(kind="for_event", event="paid"))
    assert replay.replay(journey, [track("cart"), track("paid")]).journal[-1]["what"] == "exited"
    assert replay.replay(journey, [track("paid"), track("cart")]).journal[-1]["what"] == "waiting"


def test_until_is_the_last_instant_that_is_lived_through() -> None:
    lines = [track("cart"), track("cart", 24, user_id="u_2")]
    before = replay.replay(program(A_DAY, send()), lines, until=at(24).subtract(nanoseconds=1))
    assert (before.summary["messages"], before.summary["entries"]) == (0, 1)
    at_last = replay.replay(program(A_DAY, send()), lines, until=at(24))
    assert (at_last.summary["messages"], at_last.summary["entries"]) == (1, 2)


def test_without_until_the_last_line_is_the_end() -> None:
    lines = [track("cart"), track("else", 24)]
    assert replay.replay(program(A_DAY, send()), lines).summary["messages"] == 1
    assert replay.replay(program(A_DAY, send()), lines[:1]).summary["messages"] == 0


def test_lines_before_the_journey_was_published_are_known_and_enter_nobody() -> None:
    asked = {
        "id": "ask",
        "kind": "condition",
        "condition": {
            "definition": {"root": {"all": [{"event": "cart"}, {"trait": "plan", "op": "exists"}]}},
            "on_true": "s",
        },
    }
    lines = [
        track("cart", 0, "m1"),
        Line("identify", "u_1", at(1), properties={"plan": "pro"}),
        call("enter", 2),
        track("cart", 3, "m1"),
        track("cart", 4, "m2"),
    ]
    found = replay.replay(program(asked, send()), lines, since=at(3))
    assert told(found, "entered", "effect", "refused") == [
        ("06-01T14:00:00", "entered", "t"),
        ("06-01T14:00:00", "effect", "s"),
    ]
    assert found.summary["events"] == 3


def test_a_line_at_the_time_of_publishing_enters() -> None:
    assert replay.replay(program(END), [track("cart", 3)], since=at(3)).summary["entries"] == 1


def test_nothing_at_all() -> None:
    assert replay.replay(program(END), []).journal == []
    found = replay.replay(program(END), [], [Known("u_1")], until=at(1))
    assert found.summary == {
        "people": 1,
        "events": 0,
        "entries": 0,
        "messages": 0,
        "nodes": {
            node_id: {"entered": 0, "exited": 0, "suppressed": 0, "waiting": 0}
            for node_id in ("t", "end")
        },
        "exits": {},
        "arms": {},
    }


def test_progress_is_told_every_thousand_lines() -> None:
    lines = [track("else", i) for i in range(2500)]
    told_at: list[int] = []
    replay.run(program(END), lines, [], lambda record: None, progress=told_at.append)
    assert told_at == [1000, 2000]


def rank(message: Message, person: Person) -> Unsent | None:
    """A text that says the rank and the name."""
    missing = [] if "rank" in message.event else ["event.rank"]
    missing += [] if "name" in person.traits else ["name"]
    return Unsent("missing_personalisation", tuple(missing)) if missing else None


def test_a_text_that_misses_a_value_is_not_sent(cases: Cases) -> None:
    case = cases["ev-properties-of-the-waking-event"]
    overtaken = wait(after="s", kind="for_event", event="overtaken", timeout="1d")
    lines = [
        track("cart", 0, user_id="u_1", rank=9),
        track("cart", 0, user_id="u_2", rank=9),
        track("overtaken", 1, user_id="u_1", rank=4),
    ]
    people = [Known("u_1", {"name": "Sara"}), Known("u_2", {"name": "Omid"})]
    found = replay.replay(
        program(overtaken, send()), lines, people, until=UNTIL_LONG_AFTER, render=rank
    )
    (sent,) = [r for r in found.journal if r["what"] == "effect"]
    assert (sent["user_id"], sent["effect"]["event"]) == ("u_1", {"rank": 4})
    (kept,) = [r for r in found.journal if r["what"] == "suppressed"]
    assert kept == {
        "at": "2026-06-02T10:00:00Z",
        "user_id": "u_2",
        "entry": 1,
        "what": "suppressed",
        "node_id": "s",
        "reason": case["expect"]["suppressed"][1],
        "kind": "send",
        "message_id": "j12.v3.s.u_2.e1",
        "missing": case["expect"]["missing_keys"][1],
    }
    assert found.summary["messages"] == 1
    assert found.summary["nodes"]["s"]["suppressed"] == 1


def inside_again(body: Json) -> Json:
    return {
        "id": "ask",
        "kind": "condition",
        "condition": {"definition": {"root": {"journey": 12, **body}}, "on_true": "s"},
    }


def test_a_rule_about_the_journey_itself_sees_the_latest_pass() -> None:
    journey = program(
        wait(after="end", kind="duration", amount=1, unit="hour"),
        END,
        entry_rule="every_time",
        exit_criteria={"root": {"journey": 12, "status": "completed"}},
    )
    found = replay.replay(journey, [track("cart", hours) for hours in (0, 2, 3)], until=at(9))
    assert told(found, "exited") == [
        ("06-01T11:00:00", "exited", "end", "completed"),
        ("06-01T12:00:00", "exited", "t", "exit_criteria"),  # its latest pass has now "exited"
        ("06-01T14:00:00", "exited", "end", "completed"),
    ]


def test_a_refusal_in_the_same_event_forgets_nothing() -> None:
    """The second "cart" wakes the first wait, and then asks for an entry that is refused."""
    journey = program(
        wait(after="w2", kind="for_event", event="cart"),
        wait(after="ask", kind="duration", amount=1, unit="hour") | {"id": "w2"},
        inside_again({"node": "w2"}),
        send(),
        entry_rule="every_time",
    )
    found = replay.replay(journey, [track("cart"), track("cart", 1)], until=at(9))
    assert told(found, "refused", "branched", "effect") == [
        ("06-01T11:00:00", "refused", "t", "already_inside"),
        ("06-01T12:00:00", "branched", "ask", "on_true"),
        ("06-01T12:00:00", "effect", "s"),
    ]


SCRIPT = """
import json, sys
from whenever import Instant
from journeykit_engine import replay
from journeykit_engine.graph import Graph
from journeykit_engine.program import compile_graph
graph = {"journey_id": 12, "entry_id": "t", "entry_rule": "every_time", "nodes": [
    {"id": "t", "kind": "trigger", "next": "split", "trigger": {
        "kind": "segment_enter", "definition": {"root": {"event": "a", "within": "3h"}}}},
    {"id": "split", "kind": "split", "split": {"holdout_percent": 30, "branches": [
        {"variant": "A", "next": "w"}, {"variant": "B", "next": "s"}]}},
    {"id": "w", "kind": "wait", "next": "s", "wait": {
        "kind": "for_event", "on": {"a": "s", "b": "s"}, "timeout": "2h"}},
    {"id": "s", "kind": "action", "action": {"kind": "webhook", "url": "https://example.org",
        "headers": {"B": "1", "A": "2"}}}]}
lines = [
    replay.Line("track", f"u_{i * 7 % 23}", Instant.from_timestamp(i * 1800), "ab"[i % 5 == 0])
    for i in range(400)
]
found = replay.replay(compile_graph(Graph.parse(graph)), lines)
assert found.summary["entries"] > 20
sys.stdout.write(json.dumps(found.journal) + json.dumps(found.summary))
"""


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    def output(seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "engine")}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    assert output("1") == output("2") == output("77")


# --- what one person's lines may do to themselves, and to nobody else


def test_an_event_without_an_id_is_no_answer_to_its_own_entry() -> None:
    goal = {"id": "g", "kind": "goal", "next": "", "goal": {"event": "cart"}}
    found = replay.replay(program(goal), [track("cart", 0)], until=UNTIL_LONG_AFTER)

    assert [r["port"] for r in found.journal if r["what"] == "branched"] == ["next"]
    assert found.journal[0]["caused_by"] == "#1"


def test_a_message_id_is_remembered_for_its_own_person() -> None:
    lines = [Line("track", user, START, "cart", {}, "m1") for user in ("u_1", "u_2", "u_1")]
    found = replay.replay(program(send()), lines)

    assert [r["user_id"] for r in found.journal if r["what"] == "entered"] == ["u_1", "u_2"]
    assert found.summary["events"] == 2


def test_an_event_at_the_moment_of_a_resume_comes_before_the_timer_of_that_moment() -> None:
    paid = wait(kind="for_event", event="paid", timeout="1d")
    day = START.add(hours=24)
    lines = [
        track("cart", 0),
        Line("pause", "u_1", START.add(hours=1)),
        Line("resume", "u_1", day),
        Line("track", "u_1", day, "paid"),
    ]
    found = replay.replay(program(paid), lines, until=UNTIL_LONG_AFTER)
    alone = replay.replay(program(paid), lines[:3], until=UNTIL_LONG_AFTER)

    assert [r["branch"] for r in found.journal if r["what"] == "woke"] == ["paid"]
    assert [r["branch"] for r in alone.journal if r["what"] == "woke"] == ["timeout"]


def test_the_zone_of_a_telephone_counts_for_text_messages_alone() -> None:
    west = {"phone": "+12135550100"}
    zones = {"+12135550100": "America/Los_Angeles"}

    def by(channel: str) -> dict[str, Any]:
        config = {"kind": "send", "channel": channel, "template_id": 1}
        return {"id": "s", "kind": "action", "next": "", "action": config}

    def look(action: dict[str, Any], known: dict[str, Any]) -> list[str]:
        people = [Known("u_1", known)]
        line = Line("track", "u_1", Instant("2026-07-06T12:30:00Z"), "cart")
        found = replay.replay(
            program(action),
            [line],
            people,
            until=UNTIL_LONG_AFTER,
            phone_zone=lambda traits: zones.get(traits.get("phone", "")),
        )
        return [r["at"] for r in found.journal if r["what"] == "effect"]

    assert look(by("sms"), west) == ["2026-07-06T15:00:00Z"]
    assert look(by("sms"), {}) == ["2026-07-06T12:30:00Z"]
    assert look(by("email"), west) == ["2026-07-06T12:30:00Z"]


def test_what_the_walk_writes_can_end_the_pass_before_it_parks() -> None:
    paid = {
        "id": "p",
        "kind": "action",
        "next": "w",
        "action": {"kind": "update_trait", "trait": "plan", "value": "paid"},
    }
    rule = {"root": {"trait": "plan", "op": "eq", "value": "paid"}}
    found = replay.replay(
        program(paid, wait(kind="duration", amount=30, unit="day"), exit_criteria=rule),
        [track("cart", 0)],
        until=UNTIL_LONG_AFTER,
    )

    assert [(r["what"], r["node_id"]) for r in found.journal[-2:]] == [
        ("visited", "w"),
        ("exited", "w"),
    ]
    assert found.summary["exits"] == {"exit_criteria": 1}


def test_the_arms_of_a_later_split_are_those_of_the_hash_whoever_is_held_out() -> None:
    def split(own: str, percent: int, after: str) -> Json:
        arms = [{"variant": "A", "next": after}, {"variant": "B", "next": after}]
        config = {"branches": arms, "holdout_percent": percent}
        return {"id": own, "kind": "split", "next": "", "split": config}

    lines = [Line("track", f"u_{i}", START, "cart", {}, f"m{i}") for i in range(60)]
    found = replay.replay(program(split("one", 100, "two"), split("two", 0, "s"), send()), lines)
    later = [r for r in found.journal if r["what"] == "assigned" and r["node_id"] == "two"]

    assert found.summary["arms"]["one"] == {"A": 0, "B": 0, "holdout": 60}
    arms = found.summary["arms"]["two"]
    assert (arms["holdout"], arms["A"] + arms["B"]) == (0, 60)
    assert min(arms["A"], arms["B"]) > 15
    assert all(record["holdout"] and record["variant"] in "AB" for record in later)
    assert found.summary["messages"] == 0


def test_a_phone_that_an_identify_changes_moves_the_text_messages() -> None:
    config = {"kind": "send", "channel": "sms", "template_id": 1}
    text: Json = {"id": "s", "kind": "action", "next": "", "action": config}
    noon = Instant("2026-07-06T12:30:00Z")
    lines = [
        Line("identify", "u_1", noon - TimeDelta(hours=1), "", {"phone": "west"}),
        Line("track", "u_1", noon, "cart"),
    ]
    found = replay.replay(
        program(text),
        lines,
        until=UNTIL_LONG_AFTER,
        phone_zone=lambda traits: {"west": "America/Los_Angeles"}.get(traits.get("phone", "")),
    )

    assert [r["at"] for r in found.journal if r["what"] == "effect"] == ["2026-07-06T15:00:00Z"]


def test_a_zone_that_the_journey_writes_counts_from_there_on() -> None:
    moved: Json = {
        "id": "m",
        "kind": "action",
        "next": "u",
        "action": {"kind": "update_trait", "trait": "timezone", "value": "America/Los_Angeles"},
    }
    nine: Json = {"id": "u", "kind": "wait", "next": "", "wait": {"kind": "until_time", "hour": 9}}
    found = replay.replay(program(moved, nine), [track("cart", 0)])

    assert [r["until"] for r in found.journal if r["what"] == "waiting"] == ["2026-06-01T16:00:00Z"]


def test_events_without_ids_are_numbered_by_person_also_before_the_journey_is_published() -> None:
    lines = [Line("track", user, START.add(hours=h), "cart") for h, user in enumerate("abab")]
    found = replay.replay(program(send()), lines, since=START.add(hours=2))

    entered = [(r["user_id"], r["caused_by"]) for r in found.journal if r["what"] == "entered"]
    assert entered == [("a", "#2"), ("b", "#2")]
