"""A graph made ready: who enters, what is heard, and what a walk needs to be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from journeykit_engine import walk
from journeykit_engine.graph import Graph
from journeykit_engine.program import Unready, compile_graph
from journeykit_engine.shape import Problem
from journeykit_engine.signal import Event
from tests.engine.journeys import Value, journey
from tests.engine.walking import (
    ADULT,
    END,
    START,
    Story,
    ask,
    days,
    made,
    node,
    send,
    wait_for,
    wait_for_any,
)

Cases = Mapping[str, dict[str, Any]]
ASKED = Event("journey_enter_requested", START, "m1", {"journey_id": 12})
EVERYBODY: Value = {"root": {}}
LOOKED_FOR: list[Value] = [
    {"kind": "segment_enter", "definition": {"root": {"segment": 5}}},
    {"kind": "segment_exit", "definition": {"root": {"segment": 5}}},
    {"kind": "segment_periodic", "definition": ADULT, "hours": [9]},
    {"kind": "date", "trait": "birthday"},
    {"kind": "api"},
]


# --- who is entered by what


@pytest.mark.parametrize("trigger", LOOKED_FOR, ids=lambda trigger: str(trigger["kind"]))
def test_what_is_not_an_event_enters_by_the_reserved_one_with_its_journeys_number(
    trigger: Value,
) -> None:
    stored_anyway = trigger["kind"] == "segment_periodic"
    program = made(END, trigger=trigger, stored_anyway=stored_anyway)

    assert Story(program).reacts(ASKED).now.entered_by == "m1"
    for asked in (13, "12", None, True, [12]):
        other = ASKED._replace(properties={"journey_id": asked})
        assert Story(program).reacts(other).steps == ()
    assert Story(program).reacts(ASKED._replace(properties={})).steps == ()
    assert Story(program).hears("signed_up", START).steps == ()


def test_a_journey_that_listens_for_events_is_never_entered_by_the_reserved_one() -> None:
    by_name = {"kind": "event", "event": "journey_enter_requested"}

    assert Story(made(END)).reacts(ASKED).steps == ()
    assert Story(made(END, trigger=by_name, stored_anyway=True)).reacts(ASKED).steps == ()


def changes(trait: str, value: Any = None) -> Value:
    wanted = {} if value is None else {"value": value}
    return {"kind": "attribute_changed", "trait": trait, **wanted}


def test_a_written_trait_enters_and_neither_another_nor_the_reserved_event_does(
    cases: Cases,
) -> None:
    given, expect = cases["attr-other-trait"]["given"], cases["attr-other-trait"]["expect"]
    program = made(END, trigger=given["trigger"])

    assert (
        bool(Story(program, **given["stored"]).learns(START, **given["identify"]).steps)
        is (expect["enters"])
    )
    assert Story(program).reacts(ASKED).steps == ()
    assert Story(program).learns(START, plan="pro").now.status == "completed"
    assert Story(program).learns(START, plan="free").steps == ()
    assert Story(made(END, trigger=changes("plan"))).learns(START, plan="free").steps != ()


def test_writing_the_stored_value_enters_nobody(cases: Cases) -> None:
    case = cases["attr-same-value-again"]
    story = Story(made(END, trigger=case["given"]["trigger"]), **case["given"]["stored"])

    assert (
        bool(story.learns(START, **case["given"]["identify"]).steps) is (case["expect"]["proposed"])
    )


def test_the_exact_value_is_meant_with_its_type(cases: Cases) -> None:
    case = cases["cmp-text-ten-number-ten"]
    program = made(END, trigger=case["given"]["trigger"])

    assert (
        bool(Story(program).learns(START, **case["given"]["identify"]).steps)
        is (case["expect"]["enters"])
    )
    assert Story(program).learns(START, level=10).steps != ()


def test_an_identify_is_no_event_of_that_name() -> None:
    assert Story(made(END)).reacts(Event("signed_up", START, "m1", {}, {"plan": "x"})).steps == ()


# --- what is heard


def test_a_program_hears_what_can_enter_wake_or_end_somebody() -> None:
    leaving = {"root": {"all": [{"event": "paid"}, {"trait": "plan", "op": "exists"}]}}
    nodes = (wait_for_any(on={"reply:email": "v", "won": "v"}), wait_for("open", own="v"))
    program = made(*nodes, exit_criteria=leaving, settings={"exit_on": ["lost"]})

    heard = {"reply:email", "won", "open", "paid", "lost", "signed_up"}
    assert program.hears_events == heard | {"opt_out", "journey_enter_requested"}
    assert program.hears(Event("inbound_email", START))
    assert program.hears(Event("", START, changed={"plan": "x"}))
    assert not program.hears(Event("closed", START))


def test_reports_are_heard_only_where_one_is_waited_for() -> None:
    assert not made(wait_for("paid")).hears(Event("inbound_email", START))
    assert made(wait_for("connection_accepted")).hears(Event("task_completed", START))
    assert made(days(1), settings={"exit_on": ["reply"]}).hears(Event("call_connected", START))


def test_the_connected_outcomes_of_a_task_are_heard_by_its_node() -> None:
    call = {"kind": "task", "task": "call", "connected_outcomes": ["spoke"]}
    nodes = (node("ring", "action", call, "w"), wait_for("call_connected", "end"), END)
    story = Story(made(*nodes)).starts()

    assert story.hears("task_completed", START, node_id="ring", outcome="connected").steps == ()
    assert story.hears("task_completed", START, node_id="ring", outcome="spoke").told[0] == (
        "woke w call_connected"
    )


# --- what is needed


def test_a_program_says_what_must_be_loaded() -> None:
    which = {
        "cases": [{"definition": {"root": {"segment": 5}}, "next": "g"}],
        "default": "best",
    }
    nodes = (
        ask(ADULT, "which", "end"),
        node("which", "switch", which),
        node("best", "wait", {"kind": "until_best_time", "fallback_hour": 9}, "end"),
        node("g", "goal", {"event": "paid"}, "end"),
        END,
    )
    leaving = {
        "root": {"any": [{"event": "lost"}, {"journey": 8}, {"trait": "plan", "op": "exists"}]}
    }

    needs = made(*nodes, exit_criteria=leaving).needs

    assert needs.traits == {"age", "plan"}
    assert {"paid", "lost", "message_opened", "message_clicked"} <= needs.events
    assert needs.segments == {5}
    assert needs.journeys == {8}
    assert made(END).needs == (frozenset(),) * 4


# --- settings


def test_the_zone_is_the_settings_then_the_accounts_and_a_broken_one_gives_way() -> None:
    tehran = made(END, settings={"timezone": "Asia/Tehran"}, zone="Asia/Tokyo")
    broken = made(END, settings={"timezone": "Mars/X"}, zone="Asia/Tokyo", stored_anyway=True)

    assert (tehran.zone, broken.zone) == ("Asia/Tehran", "Asia/Tokyo")
    assert made(END, zone="Mars/X", stored_anyway=True).zone == "UTC"


# --- drafts


def test_a_graph_with_problems_does_not_compile() -> None:
    nowhen = node("w", "wait", {"kind": "duration", "amount": 0, "unit": "day"})
    undecided = node("c", "condition", {"on_true": "", "on_false": ""})
    hourless = node("u", "wait", {"kind": "until_time"})
    for document, words in (
        (
            journey(nowhen),
            'The node "w" cannot be run. The amount is 0; write a whole number from 1 to 3650 for '
            'the unit "day".',
        ),
        (journey(END, entry_id="nowhere"), 'There is no node "nowhere" to enter by.'),
        (journey(undecided), 'The node "c" cannot be run: "on_true" has no definition.'),
        (journey(hourless), 'The node "u" cannot be run: "hour" is missing.'),
    ):
        with pytest.raises(Unready) as caught:
            compile_graph(Graph.parse(document))
        assert str(caught.value) == words


def test_a_broken_node_stops_the_walk_and_says_why() -> None:
    unfinished = {"id": "x", "kind": "goal", "next": ""}
    problem = Problem("NO_EVENT", "x", "nodes[2]", "The goal has no event.", "Name one.")
    graph = Graph.parse(journey(send("s", "x"), unfinished))
    program = compile_graph(graph, broken={"x": problem})

    step = walk.enter(program, Story(program).person, None, Event("signed_up", START))

    assert step.instance is None
    assert step.failure == ("x", "NO_EVENT", "The goal has no event. Name one.")
