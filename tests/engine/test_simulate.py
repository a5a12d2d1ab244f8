"""One person through a graph with the waits passed over: every decision told, nothing sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from whenever import Instant

from journeykit_engine import simulate as simulating
from journeykit_engine import walk
from journeykit_engine.check import check
from journeykit_engine.facts import Facts, Predicate
from journeykit_engine.graph import RESERVED_EVENT, EventTrigger, Graph
from journeykit_engine.instance import Happened, Person
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import compile_graph, evaluate
from journeykit_engine.signal import Event
from journeykit_engine.simulate import Simulation, simulate
from journeykit_engine.trail import Exited, Message, Visited
from tests.engine.journeys import CART, chain, goes, journey, split, wait
from tests.graphs import drafts, valid_graphs

Json = dict[str, Any]
NOW = Instant("2026-06-01T10:00:00Z")  # a Monday
SARA = Person("u_9137")
END: Json = {"id": "end", "kind": "exit"}


def simulated(document: Json, person: Person = SARA, **more: Any) -> Simulation:
    return simulate(Graph.parse(document), person, NOW, **more)


def told(found: Simulation) -> list[tuple[str, str, str]]:
    return [(step.node_id, step.kind, step.detail) for step in found.steps]


def send(node_id: str = "a", after: str = "", **more: Any) -> Json:
    config = {"kind": "send", "channel": "push", "template_id": 3, **more}
    return {"id": node_id, "kind": "action", "next": after, "action": config}


def condition(definition: Json, yes: str = "", no: str = "") -> Json:
    config = {"definition": {"root": definition}, "on_true": yes, "on_false": no}
    return {"id": "c", "kind": "condition", "condition": config}


ADULT: Json = {"trait": "age", "op": "gte", "value": 18}


def test_the_reminder_of_an_hour_as_the_route_answers_it() -> None:
    assert simulated(CART).to_dict() == {
        "steps": [
            {
                "node_id": "trigger",
                "label": "added to cart",
                "kind": "visited",
                "detail": "trigger",
            },
            {
                "node_id": "wait",
                "label": "one hour",
                "kind": "wait",
                "detail": "until 2026-06-01T11:00:00Z",
            },
            {"node_id": "send", "label": "reminder", "kind": "visited", "detail": "action"},
            {
                "node_id": "send",
                "label": "reminder",
                "kind": "effect",
                "detail": "send",
                "effect": {
                    "kind": "send",
                    "message_id": "j1.v0.send.u_9137.e1",
                    "channel": "push",
                    "template_id": 3,
                    "category": "marketing",
                    "priority": 50,
                    "budget": "default",
                    "node_id": "send",
                },
            },
            {"node_id": "end", "label": "", "kind": "visited", "detail": "exit"},
            {"node_id": "end", "label": "", "kind": "end", "detail": "completed"},
        ],
        "reached": True,
        "outcome": 'The person completes the journey at "end".',
        "sends": 1,
        "simulated_waits": 1,
        "problems": [],
        "user_id": "u_9137",
    }


# --- the exit rule


def test_an_exit_rule_that_already_holds_stops_the_person_at_the_door() -> None:
    document = {**CART, "exit_criteria": {"root": ADULT}}
    found = simulated(document, Person("u_1", {"age": 30}))
    assert told(found) == [("trigger", "visited", "trigger"), ("trigger", "end", "exit_criteria")]
    assert not found.reached
    assert found.outcome == "The exit rule holds already: the person leaves at the door."


def test_an_exit_rule_is_asked_again_after_each_wait() -> None:
    document = {**CART, "exit_criteria": {"root": {"local": "hour", "op": "eq", "value": 11}}}
    found = simulated(document)
    assert told(found)[-1] == ("wait", "end", "exit_criteria")
    assert found.outcome == 'The exit rule holds: the person leaves at "wait".'
    assert found.sends == 0


def test_the_longest_stay_ends_a_wait() -> None:
    week = wait(kind="duration", amount=2, unit="week") | {"next": "a"}
    found = simulated(journey(week, send(), max_duration_days=3))
    assert told(found)[-1] == ("w", "end", "max_duration")
    assert found.outcome == 'The longest stay is over: the person leaves at "w".'


# --- decisions


@pytest.mark.parametrize(("age", "port"), [(30, "on_true"), (3, "on_false"), (None, "on_false")])
def test_a_condition_sees_the_real_person(age: int | None, port: str) -> None:
    person = Person("u_1", {} if age is None else {"age": age})
    found = simulated(journey(condition(ADULT, yes="a"), send()), person)
    assert ("c", "branch", port) in told(found)
    assert found.sends == (port == "on_true")


def test_a_wait_lets_a_window_run_out() -> None:
    recent = condition({"event": "purchase", "within": "2h"}, yes="a")
    bought = Person("u_1", events={"purchase": [Happened(NOW)]})
    later = wait(kind="duration", amount=2, unit="hour") | {"next": "c"}
    assert simulated(journey(recent, send()), bought).sends == 1
    assert simulated(journey(later, recent, send()), bought).sends == 0


def broken_evaluator(definition: Mapping[str, Any]) -> Predicate:
    """Fails for whoever asks about the age, at the time of asking."""
    if "age" not in str(definition):
        return evaluate(definition)

    def ask(facts: Facts) -> bool:
        raise TimeoutError("the segment service did not answer")

    return ask


def test_a_rule_that_fails_is_a_branch_not_taken() -> None:
    found = simulated(
        journey(condition(ADULT, yes="a"), send()),
        Person("u_1", {"age": 30}),
        evaluator=broken_evaluator,
    )
    assert told(found)[2] == (
        "c",
        "branch",
        "on_false; branch not taken, the rule failed with TimeoutError: "
        "the segment service did not answer",
    )
    assert found.reached


def test_the_failure_is_told_at_its_own_node() -> None:
    easy = condition({}, yes="hard") | {"id": "easy"}
    hard = condition(ADULT, no="last") | {"id": "hard"}
    last = condition({}) | {"id": "last"}
    found = simulated(journey(easy, hard, last), evaluator=broken_evaluator)
    failed = [step.node_id for step in found.steps if "branch not taken" in step.detail]
    assert failed == ["hard"]


def test_an_exit_rule_that_fails_does_not_hold_and_is_told() -> None:
    found = simulated({**CART, "exit_criteria": {"root": ADULT}}, evaluator=broken_evaluator)
    assert found.reached
    assert found.steps[0].suggestion == (
        "The exit rule failed with TimeoutError: the segment service did not answer; "
        "it did not hold."
    )


def test_an_evaluator_that_takes_no_definition_is_a_branch_not_taken_too() -> None:
    def refusing(definition: Mapping[str, Any]) -> Predicate:
        raise ValueError("unknown operator")

    found = simulated(journey(condition(ADULT, yes="a"), send()), evaluator=refusing)
    assert "branch not taken, the rule failed with ValueError: unknown operator" in (
        found.steps[2].detail
    )


def test_without_an_evaluator_no_condition_holds() -> None:
    found = simulated(journey(condition({}, yes="a"), send()), evaluator=None)
    assert ("c", "branch", "on_false") in told(found)


def test_a_held_out_person_walks_and_receives_nothing() -> None:
    branches = [{"variant": "A", "next": "a"}]
    held = simulated(journey(split(branches=branches, holdout_percent=100), send()))
    assert told(held)[2:] == [
        ("s", "branch", "held out"),
        ("a", "visited", "action"),
        ("a", "effect", "send withheld: holdout"),
        ("a", "end", "no_next_node"),
    ]
    assert (held.sends, held.reached) == (0, True)
    treated = simulated(journey(split(branches=branches), send()))
    assert told(treated)[2] == ("s", "branch", 'arm "A"')
    assert treated.sends == 1


def test_who_cannot_be_drawn_is_held_out_and_the_walk_goes_on() -> None:
    branches = [{"variant": "A", "next": "a"}]
    found = simulated(journey(split(branches=branches), send()), Person("\ud800"))
    assert told(found)[2:4] == [
        ("s", "error", "The user id cannot be hashed: surrogates not allowed."),
        ("s", "branch", "held out"),
    ]
    assert (found.sends, found.reached) == (0, True)
    assert found.steps[2].suggestion == ""


def test_every_channel_of_a_message_to_all_is_a_send() -> None:
    media = [{"channel": name, "template_id": 1} for name in ("push", "email")]
    to_all = {"kind": "send", "channels": media, "channel_mode": "all"}
    found = simulated(journey({"id": "a", "kind": "action", "action": to_all}))
    assert found.sends == 2
    assert (
        simulated(
            journey({"id": "a", "kind": "action", "action": {**to_all, "channel_mode": ""}})
        ).sends
        == 1
    )


# --- waits


ASKED = wait(kind="for_event", on={"won": "a", "reply": "end"}, timeout="5bd", on_timeout="late")
OFFER = journey(ASKED, send("a"), send("late"), END)


@pytest.mark.parametrize(
    ("answers", "path", "ended"),
    [
        ({}, ("t", "w", "a"), '"won" came'),
        ({"w": "won"}, ("t", "w", "a"), '"won" came'),
        ({"w": "reply"}, ("t", "w", "end"), '"reply" came'),
        ({"w": "timeout"}, ("t", "w", "late"), "its time came"),
    ],
)
def test_an_event_wait_takes_the_event_path_unless_told_otherwise(
    answers: dict[str, str], path: tuple[str, ...], ended: str
) -> None:
    found = simulated(OFFER, answers=answers)
    assert found.path == path
    assert found.steps[1].detail == f"for won, reply, until 2026-06-08T10:00:00Z; {ended}"
    assert found.simulated_waits == 1


def test_an_event_that_the_trigger_would_refuse_is_told_at_the_door() -> None:
    picky = journey(
        send(),
        trigger={
            "kind": "event",
            "event": "cart",
            "filter": [{"property": "value", "op": "gt", "value": 20}],
        },
    )
    words = "The trigger's filter does not hold for this event; in earnest it enters nobody."

    assert simulated(picky, event={"value": 3}).steps[0].suggestion == words
    assert simulated(picky, event={"value": 30}).steps[0].suggestion == ""
    assert simulated(picky).steps[0].suggestion == ""


def test_an_answer_that_no_wait_knows_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        simulated(OFFER, answers={"w": "wno"})
    assert str(caught.value) == (
        '"wno" is no answer to the wait "w"; give "won", "reply" or "timeout".'
    )
    with pytest.raises(ValueError) as caught:
        simulated(OFFER, answers={"a": "won"})
    assert str(caught.value) == (
        '"a" is no event wait of this journey; answers are by the id of one.'
    )


def test_a_wait_without_a_timeout_never_ends_by_time() -> None:
    forever = journey(wait(kind="for_event", event="paid") | {"next": "a"}, send())
    found = simulated(forever, answers={"w": "timeout"})
    assert told(found)[-1] == ("w", "end", 'The person waits at "w" without end.')
    assert (found.reached, found.simulated_waits) == (False, 0)
    assert simulated(forever).sends == 1


def test_a_send_outside_its_window_is_a_wait_told_once() -> None:
    window = {"days": ["wed"], "from": "09:00", "to": "17:00"}
    found = simulated(journey(send(), settings={"send_window": window}))
    assert told(found) == [
        ("t", "visited", "trigger"),
        ("a", "wait", "for its send window, until 2026-06-03T09:00:00Z"),
        ("a", "effect", "send"),
        ("a", "end", "no_next_node"),
    ]


def test_a_zone_that_does_not_exist_is_said_at_its_wait() -> None:
    found = simulated(CART, Person("u_1", timezone="Mars/Base"))
    assert found.path == ("trigger", "wait", "send", "end")
    suggestions = [step.suggestion for step in found.steps if step.suggestion]
    assert suggestions == ["bad_timezone: Mars/Base"]


def test_the_best_hour_of_the_person() -> None:
    best = journey(wait(kind="until_best_time", fallback_hour=8))
    evenings = [Happened(NOW.subtract(hours=24 * day).add(hours=9)) for day in range(1, 6)]
    used = Person("u_1", events={"message_opened": evenings})
    assert simulated(best, used).steps[1].detail == "until 2026-06-01T19:00:00Z"
    assert simulated(best).steps[1].detail == "until 2026-06-02T08:00:00Z"


def test_the_event_that_enters_lends_its_properties() -> None:
    found = simulated(journey(send()), event={"rank": 4})
    (effect,) = [step.effect for step in found.steps if step.effect]
    assert effect["event"] == {"rank": 4}


# --- limits


def test_a_loop_with_a_wait_stops_at_a_hundred_nodes() -> None:
    day = wait(kind="duration", amount=1, unit="day") | {"next": "a"}
    found = simulated(journey(day, goes("w")))
    assert len(found.path) == MAX_STEPS
    assert told(found)[-1] == (
        "a",
        "error",
        'The simulation stops before "a": it visits at most 100 nodes.',
    )
    assert found.steps[-1].suggestion == "Put an end into the loop, or shorten the path."
    assert not found.reached
    assert found.problems == ()


def test_a_hundred_nodes_pass_and_one_more_does_not() -> None:
    def walked(length: int) -> Simulation:
        """A trigger, a wait half-way, and as many nodes as make `length` in all."""
        nodes = chain(length - 2)
        half = wait(kind="duration", amount=1, unit="day") | {"next": nodes[50]["id"]}
        nodes[49]["next"] = "w"
        return simulated(journey(*nodes[:50], half, *nodes[50:]))

    assert walked(100).reached
    assert len(walked(100).path) == 100
    assert not walked(101).reached
    assert len(walked(101).path) == 100


def test_a_path_without_a_wait_is_stopped_by_the_walk_itself() -> None:
    assert simulated(journey(*chain(99))).reached
    found = simulated(journey(*chain(100)))
    assert told(found) == [
        (
            "n99",
            "error",
            "The walk passed 100 nodes without a wait and stopped before "
            '"n99". Put a wait into the path.',
        )
    ]
    assert [problem.code for problem in found.problems] == ["PATH_TOO_LONG"]
    assert not found.reached


def test_a_deep_chain_does_not_recurse() -> None:
    assert not simulated(journey(*chain(5000))).reached


# --- drafts


def test_a_draft_is_walked_as_far_as_it_is_sound() -> None:
    half_done = wait(kind="duration", amount=1, unit="fortnight") | {"next": "end"}
    found = simulated(journey(send(after="w"), half_done, END))
    (problem,) = found.problems
    assert problem.code == "BAD_DURATION"
    assert told(found)[:-1] == [
        ("t", "visited", "trigger"),
        ("a", "visited", "action"),
        ("a", "effect", "send"),
        ("w", "visited", "wait"),
    ]
    last = found.steps[-1]
    assert (last.node_id, last.kind, last.suggestion) == ("w", "error", problem.fix)
    assert problem.message in last.detail
    assert (found.reached, found.sends) == (False, 1)
    assert found.to_dict()["problems"] == [problem._asdict()]


def test_a_rule_that_is_no_rule_stops_only_who_comes_to_it() -> None:
    nonsense = condition({"trait": "age", "op": "older"}) | {"id": "bad"}
    document = journey(condition(ADULT, yes="bad", no="a"), nonsense, send())
    assert simulated(document, Person("u_1", {"age": 3})).reached
    grown = simulated(document, Person("u_1", {"age": 30}))
    assert (grown.steps[-1].node_id, grown.steps[-1].kind) == ("bad", "error")


def test_an_exit_rule_that_is_no_rule_does_not_hold() -> None:
    found = simulated({**CART, "exit_criteria": {"root": {"trait": "age", "op": "older"}}})
    assert found.reached
    assert [problem.code for problem in found.problems] == ["BAD_SEGMENT"]


def test_an_edge_to_nowhere_ends_the_path() -> None:
    found = simulated(journey(send(after="nowhere")))
    assert [problem.code for problem in found.problems] == ["DANGLING_EDGE"]
    assert (found.sends, found.outcome) == (1, 'The path ends at "a".')


def test_a_node_with_two_problems_is_not_walked_for_the_milder_one() -> None:
    twice = wait(kind="duration", amount=0, unit="day") | {"next": "nowhere"}
    found = simulated(journey(twice))
    assert found.steps[-1].kind == "error"
    assert not found.reached


def test_a_journey_without_a_way_in_cannot_be_walked() -> None:
    found = simulated({"nodes": [END]})
    (only,) = found.steps
    assert only.kind == "error"
    assert found.outcome.startswith("The journey cannot be walked: ")
    assert "NO_ENTRY" in [problem.code for problem in found.problems]


def test_problems_elsewhere_are_told_though_the_walk_is_clean() -> None:
    found = simulated(journey(END, wait(kind="duration")))
    assert found.reached
    assert "BAD_DURATION" in [problem.code for problem in found.problems]


@given(drafts())
@settings(max_examples=50)
def test_any_draft_is_told(graph: Graph) -> None:
    found = simulate(graph, SARA, NOW)
    assert found.problems == check(graph).problems
    assert {step.kind for step in found.steps} <= {
        "visited",
        "branch",
        "effect",
        "wait",
        "end",
        "error",
    }
    assert found.steps[-1].kind in ("end", "error")
    assert (found.steps[-1].kind == "error") <= (not found.reached)
    assert len(found.path) <= MAX_STEPS


@given(valid_graphs())
@settings(max_examples=50)
def test_a_simulation_is_the_walk_with_its_waits_passed_over(graph: Graph) -> None:
    """Step by step by the doors of the walk: the same nodes, messages, waits and end."""
    program = compile_graph(graph)
    trigger = graph.trigger
    name = trigger.event if isinstance(trigger, EventTrigger) else RESERVED_EVENT
    step = walk.enter(program, SARA, None, Event(name, NOW, simulating.CAUSE))
    visits, sends, waits = list(step.visits), list(step.effects), 0
    ended = [entry for entry in step.trail if isinstance(entry, Exited)]
    while step.instance is not None and step.instance.wait is not None and not step.failure:
        wait, instance = step.instance.wait, step.instance
        if len(visits) > MAX_STEPS or (not wait.events and instance.wake_at is None):
            break
        if wait.events:
            event = Event(wait.events[0], step.at, simulating.CAUSE)
            step = walk.answer(program, step.person, instance, event, wait.events[0])
        else:
            assert instance.wake_at is not None
            step = walk.resume(program, step.person, instance, instance.wake_at)
        waits += 1
        visits += [entry.node_id for entry in step.trail if isinstance(entry, Visited)]
        sends += step.effects
        ended = [entry for entry in step.trail if isinstance(entry, Exited)]

    found = simulate(graph, SARA, NOW)
    if len(visits) > MAX_STEPS:
        assert found.steps[-1].kind == "error"
        visits = visits[:MAX_STEPS]
    else:
        assert found.simulated_waits == waits
        assert found.sends == sum(isinstance(effect, Message) for effect in sends)
        assert [(end.node_id, end.reason) for end in ended] == [
            (found.steps[-1].node_id, found.steps[-1].detail)
        ]
    told_visits = [
        step.node_id
        for before, step in zip((None, *found.steps), found.steps, strict=False)
        if step.kind == "visited" or (step.kind == "wait" and not is_again(before, step.node_id))
    ]
    assert told_visits == visits


def is_again(before: simulating.SimulatedStep | None, node_id: str) -> bool:
    """A second wait at a node where the person was held already is no second visit."""
    return before is not None and (before.node_id, before.kind) == (node_id, "wait")


def test_the_events_of_a_simulation_are_in_the_history_of_the_person() -> None:
    bought = wait(kind="for_event", event="buy", timeout="7d") | {"next": "g"}
    goal = {"id": "g", "kind": "goal", "next": "a", "goal": {"event": "buy"}}
    found = simulated(journey(bought, goal, send()))

    assert ("g", "branch", "on_reached") in told(found)
    assert found.sends == 0


def test_an_answer_that_ends_the_pass_ends_it() -> None:
    reply = wait(kind="for_event", event="reply", timeout="7d") | {"next": "a"}
    found = simulated(journey(reply, send(), settings={"exit_on": ["reply"]}))

    assert told(found)[-1] == ("w", "end", "exit_criteria")
    assert found.sends == 0


def test_who_is_held_out_already_walks_an_arm_and_is_told_so() -> None:
    def split(own: str, percent: int, after: str) -> Json:
        arms = [{"variant": "A", "next": after}, {"variant": "B", "next": after}]
        config = {"branches": arms, "holdout_percent": percent}
        return {"id": own, "kind": "split", "split": config}

    found = simulated(journey(split("one", 100, "two"), split("two", 0, "a"), send()))

    assert found.taken[0] == ("one", "on_holdout")
    assert found.taken[1] in (("two", "A"), ("two", "B"))
    assert ("two", "branch", f'arm "{found.taken[1][1]}", already held out') in told(found)
    assert found.sends == 0
