"""The steps dialect: an outreach sequence becomes a graph and comes back word for word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.check import check
from journeykit_engine.graph import ForEvent, Graph, Task
from journeykit_engine.shape import BadGraph
from journeykit_engine.steps import KINDS, NotSayable, from_steps, is_steps, step_path, to_steps
from tests.engine.journeys import CART, everything, journey

Value = dict[str, Any]

OUTREACH: Value = {
    "steps": {
        "wait_2d": {"type": "wait", "params": {"duration": "2bd"}, "next": {"then": "check"}},
        "check": {
            "type": "branch",
            "label": "interested?",
            "params": {"definition": {"root": {"trait": "score", "op": "gt", "value": 50}}},
            "next": {"yes": "hello", "no": "end_booked"},
        },
        "hello": {"type": "email", "params": {"template_id": 3}, "next": {"then": "wait_reply"}},
        "wait_reply": {
            "type": "wait_for",
            "params": {"events": ["reply", "meeting_booked"], "timeout": "5bd"},
            "next": {"reply": "end_replied", "meeting_booked": "end_booked", "timeout": "call_1"},
        },
        "call_1": {
            "type": "task",
            "params": {"task": "call", "title": "Call them", "timeout": "3bd"},
            "next": {"call_connected": "end_replied", "then": "text", "timeout": "text"},
        },
        "text": {"type": "sms", "params": {"template_id": 4, "priority": 80}, "x": 5, "y": 7.5},
        "end_replied": {"type": "end"},
        "end_booked": {"type": "end"},
    },
    "entry": "wait_2d",
    "settings": {"jitter": "15m", "exit_on": ["opt_out"]},
    "max_duration_days": 30,
}


def steps(**made: Any) -> Value:
    return {"steps": made, "entry": next(iter(made))}


def faults(value: object) -> list[tuple[str, str, str, str]]:
    """Code, path, message and fix of everything that `from_steps` refuses."""
    with pytest.raises(BadGraph) as refused:
        from_steps(value)
    return [(fault.code, fault.path, fault.message, fault.fix) for fault in refused.value.problems]


def test_an_outreach_sequence_is_a_sound_graph() -> None:
    graph = from_steps(OUTREACH)

    assert check(graph).problems == ()
    assert [(node.id, node.kind) for node in graph.nodes] == [
        ("trigger", "trigger"),
        ("wait_2d", "wait"),
        ("check", "condition"),
        ("hello", "action"),
        ("wait_reply", "wait"),
        ("call_1", "action"),
        ("call_1:done", "wait"),
        ("text", "action"),
        ("end_replied", "exit"),
        ("end_booked", "exit"),
    ]
    assert graph.settings.jitter == "15m"


def test_an_event_wait_keeps_its_list_beside_the_wired_events() -> None:
    wait = from_steps(OUTREACH).by_id["wait_reply"].wait

    assert isinstance(wait, ForEvent)
    assert wait.on == {"reply": "end_replied", "meeting_booked": "end_booked"}
    assert (wait.events, wait.timeout, wait.on_timeout) == (
        ["reply", "meeting_booked"],
        "5bd",
        "call_1",
    )


def test_a_task_is_waited_for() -> None:
    graph = from_steps(OUTREACH)
    task, done = graph.by_id["call_1"], graph.by_id["call_1:done"].wait

    assert task.action == Task(kind="task", task="call", title="Call them")
    assert task.next == "call_1:done"
    assert isinstance(done, ForEvent)
    assert done.on == {"call_connected": "end_replied", "task_completed:call_1": "text"}
    assert (done.timeout, done.on_timeout) == ("3bd", "text")


def test_a_task_may_be_named_as_the_type_of_its_step() -> None:
    short = from_steps(steps(ring={"type": "call", "params": {"title": "Ring"}}))
    long = from_steps(steps(ring={"type": "task", "params": {"task": "call", "title": "Ring"}}))

    assert short == long
    assert short.by_id["ring:done"].wait.on == {"task_completed:ring": ""}  # type: ignore[union-attr]


def test_what_was_said_in_steps_is_said_in_them_again() -> None:
    assert to_steps(from_steps(OUTREACH)) == OUTREACH


def test_ids_that_are_taken_are_made_free() -> None:
    graph = from_steps(
        {
            "steps": {"trigger": {"type": "call"}, "trigger:done": {"type": "end"}},
            "entry": "trigger",
        }
    )

    assert [node.id for node in graph.nodes] == [
        "trigger_2",
        "trigger",
        "trigger:done_2",
        "trigger:done",
    ]
    assert from_steps(to_steps(graph)) == graph


def test_a_listed_event_that_is_not_wired_is_a_problem_of_the_graph() -> None:
    wait = {"type": "wait_for", "params": {"events": ["reply"]}, "next": {}}

    assert [problem.code for problem in check(from_steps(steps(w=wait))).problems] == ["BAD_EVENT"]


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ({"type": "wait_for", "params": {"events": ["reply"]}, "next": {"reply": "a"}}, ["CYCLE"]),
        (
            {
                "type": "wait_for",
                "params": {"events": ["reply"], "timeout": "5bd"},
                "next": {"reply": "a", "timeout": "a"},
            },
            [],
        ),
        ({"type": "wait", "params": {"duration": "1d"}, "next": {"then": "a"}}, []),
        ({"type": "task", "params": {"task": "call"}, "next": {"then": "a"}}, []),
        ({"type": "sms", "params": {"template_id": 1}, "next": {"then": "a"}}, ["CYCLE"]),
    ],
)
def test_a_loop_needs_a_timeout_a_wait_or_a_task(between: Value, found: list[str]) -> None:
    mail = {"type": "email", "params": {"template_id": 1}, "next": {"then": "b"}}

    problems = check(from_steps(steps(a=mail, b=between))).problems

    assert [problem.code for problem in problems] == found


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (5, ("WRONG_TYPE", "steps", '"steps" must be an object.', 'Write "steps": {…}.')),
        (
            {"steps": {}},
            (
                "NO_ENTRY",
                "entry",
                'The field "entry" is missing.',
                'Name the first step in "entry".',
            ),
        ),
        (
            steps(a={"type": "end"}) | {"setings": {}},
            (
                "UNKNOWN_FIELD",
                "setings",
                'The field "setings" is not known in the document.',
                'Did you mean "settings"?',
            ),
        ),
        (
            steps(a=[]),
            (
                "WRONG_TYPE",
                "steps.a",
                'Step "a": a step must be an object, not a list.',
                'Write {"type": "…"}.',
            ),
        ),
        (
            steps(a={}),
            (
                "MISSING_FIELD",
                "steps.a.type",
                'Step "a": The field "type" is missing.',
                "Write one of " + ", ".join(f'"{kind}"' for kind in KINDS) + ".",
            ),
        ),
        (
            steps(a={"type": "emial"}),
            (
                "UNKNOWN_KIND",
                "steps.a.type",
                'Step "a": "type" is "emial"; expected one of '
                + ", ".join(f'"{kind}"' for kind in KINDS)
                + ".",
                'Write "email".',
            ),
        ),
        (
            steps(a={"type": "wait", "params": {"duraton": "1d"}}),
            (
                "UNKNOWN_FIELD",
                "steps.a.params.duraton",
                'Step "a": The field "duraton" is not known in a step of the type "wait".',
                'Did you mean "duration"?',
            ),
        ),
        (
            steps(a={"type": "end", "next": {"then": "a"}}),
            (
                "UNKNOWN_FIELD",
                "steps.a.next.then",
                'Step "a": The field "then" is not known in a step of the type "end".',
                "Leave it out.",
            ),
        ),
        (
            steps(a={"type": "wait", "params": []}),
            (
                "WRONG_TYPE",
                "steps.a.params",
                'Step "a": "params" must be an object, not a list.',
                "Write {…}.",
            ),
        ),
        (
            steps(a={"type": "wait", "next": "b"}),
            (
                "WRONG_TYPE",
                "steps.a.next",
                'Step "a": "next" must be an object, not "b".',
                'Name the way, as {"then": "…"}.',
            ),
        ),
        (
            steps(a={"type": "wait", "next": {"then": 5}}),
            (
                "WRONG_TYPE",
                "steps.a.next.then",
                'Step "a": "then" must be the id of a step, not 5.',
                "Write it in quotes.",
            ),
        ),
        (
            steps(a={"type": "wait", "params": {"duration": "PT0S"}}),
            (
                "BAD_DURATION",
                "steps.a.params.duration",
                'Step "a": "PT0S" is not a duration.',
                "Write a whole number from 1 and one of m, h, d, w or bd, with nothing between"
                ' them, as "5bd".',
            ),
        ),
        (
            steps(a={"type": "email", "params": {"template_id": "3"}}),
            (
                "WRONG_TYPE",
                "steps.a.params.template_id",
                'Node "a": "template_id" must be a whole number, not the text "3".',
                "Write a whole number.",
            ),
        ),
    ],
)
def test_a_fault_of_shape_is_told_with_its_place_in_the_steps(
    value: object, fault: tuple[str, str, str, str]
) -> None:
    assert faults(value) == [fault]


def test_every_fault_is_told_at_once() -> None:
    value = {"steps": {"a": {"type": "wait", "params": {"duration": "0h"}}, "b": 5}}

    assert [path for _, path, _, _ in faults(value)] == [
        "entry",
        "steps.a.params.duration",
        "steps.b",
    ]


def test_a_graph_that_uses_more_than_steps_can_say_is_refused_with_all_of_it() -> None:
    with pytest.raises(NotSayable) as refused:
        to_steps(Graph.parse(everything()))

    assert [problem.code for problem in refused.value.problems] == ["NOT_SAYABLE"] * 12
    assert refused.value.problems[0].message == (
        "Steps are entered by a call and begin with a step; this graph does not."
    )
    assert [problem.message for problem in refused.value.problems[1:4]] == [
        'Steps have no word for node "half": its kind is "split".',
        'Steps have no word for node "w": its kind is "until_time".',
        'Steps have no word for node "best": its kind is "until_best_time".',
    ]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"kind": "action", "action": {"kind": "send", "channel": "push"}},
            "it sends by something else than one of email and sms",
        ),
        ({"kind": "action", "action": {"kind": "task"}}, "it is a task that nothing waits for"),
        (
            {"kind": "wait", "wait": {"kind": "for_event", "event": "reply"}},
            'it waits for an event without the form "on"',
        ),
        (
            {"kind": "wait", "wait": {"kind": "duration", "amount": 0, "unit": "day"}},
            "its duration is none",
        ),
        (
            {
                "kind": "wait",
                "wait": {
                    "kind": "for_event",
                    "on": {"reply": ""},
                    "filter": [{"property": "x", "op": "exists"}],
                },
            },
            "it has a filter",
        ),
    ],
)
def test_what_steps_have_no_word_for(node: Value, message: str) -> None:
    graph = Graph.parse(journey(node | {"id": "n"}, trigger={"kind": "api"}))

    with pytest.raises(NotSayable, match=f'^Steps have no word for node "n": {message}.$'):
        to_steps(graph)


def test_a_trigger_of_another_name_would_not_come_back() -> None:
    graph = Graph.parse(journey({"id": "end", "kind": "exit"}, trigger={"kind": "api"}))

    with pytest.raises(NotSayable, match="would not come back from its steps"):
        to_steps(graph)


def test_only_a_document_with_steps_is_written_in_them() -> None:
    assert is_steps(OUTREACH)
    assert not is_steps(CART)
    assert not is_steps("steps")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nodes[0].next", "entry"),
        ("entry_id", "entry"),
        ("settings.jitter", "settings.jitter"),
        ("nodes[1]", "steps.call"),
        ("nodes[1].action.title", "steps.call.params.title"),
        ("nodes[2].wait.on.task_completed:call", "steps.call.next.then"),
        ("nodes[2].wait.on.reply", "steps.call.next.reply"),
        ("nodes[3].wait.unit", "steps.pause.params.duration"),
        ("nodes[3].next", "steps.pause.next.then"),
        ("nodes[3].wait.on_timeout", "steps.pause.next.timeout"),
        ("nodes[3].condition.definition.root", "steps.pause.params.definition.root"),
        ("nodes[3].condition.on_false", "steps.pause.next.no"),
    ],
)
def test_every_place_in_the_graph_has_one_in_the_steps(path: str, said: str) -> None:
    assert step_path(path, ["trigger", "call", "call:done", "pause"]) == said


NAMES = ("a", "b", "trigger", "a:done", "trigger_2", "")
DURATIONS = st.sampled_from(["1m", "5bd", "2w"])
TARGETS = st.sampled_from(NAMES)
EVENTS = st.dictionaries(st.sampled_from(["reply", "then", "call_connected", "timeout"]), TARGETS)


@st.composite
def sequences(draw: st.DrawFn) -> Value:
    made = {}
    for name in draw(st.lists(st.sampled_from(NAMES[:-1]), unique=True, min_size=1)):
        kind = draw(st.sampled_from(sorted(KINDS)))
        step: Value = {"type": kind}
        ports = KINDS[kind].ports
        if kind in ("email", "sms"):
            step["params"] = draw(st.fixed_dictionaries({}, optional={"template_id": st.just(1)}))
        elif kind == "wait":
            step["params"] = draw(st.fixed_dictionaries({}, optional={"duration": DURATIONS}))
        elif ports is None:
            step["params"] = draw(st.fixed_dictionaries({}, optional={"timeout": DURATIONS}))
        if ports is None:
            step["next"] = draw(EVENTS)
        else:
            step["next"] = {port: draw(TARGETS) for port in ports if draw(st.booleans())}
        made[name] = step
    return {"steps": made, "entry": draw(st.sampled_from(NAMES[:-1]))}


@given(sequences())
def test_a_graph_made_of_steps_can_be_said_in_them(value: Value) -> None:
    graph = from_steps(value)

    assert from_steps(to_steps(graph)) == graph
