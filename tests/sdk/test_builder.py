"""Journeys by one call after another: what they become, and what is told where they go wrong."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given

import journeykit as jk
from journeykit_engine.graph import Graph, Node
from journeykit_engine.steps import NotSayable
from tests import graphs


def begun() -> jk.Journey:
    return jk.journey("Abandoned cart").on_event("added", where=jk.prop("value") > 20)


def edges(journey: jk.Journey) -> dict[str, str]:
    """Every wired way out, as "node.port" → the node it leads to."""
    return {f"{node.id}.{port.name}": port.target for node, port in journey.graph.edges()}


def node(journey: jk.Journey, node_id: str) -> Node:
    return journey.graph.by_id[node_id]


def test_the_first_journey_of_the_documentation_is_valid() -> None:
    cart = (
        jk.journey("Abandoned cart")
        .on_event("product_added_to_cart", where=jk.prop("value") > 20)
        .exit_when(jk.did("purchase", within="1d"))
        .wait("1h", label="one hour")
        .split("test", holdout=10, A=lambda j: j.send(push=3), B=lambda j: j.send(email=7))
        .goal("purchase", within="7d")
        .exit()
    )

    assert cart.validate().valid and not cart.validate().warnings
    assert edges(cart) == {
        "trigger.next": "wait_1h",
        "wait_1h.next": "test",
        "test.A": "send_push_3",
        "test.B": "send_email_7",
        "send_push_3.next": "goal_purchase",
        "send_email_7.next": "goal_purchase",
        "goal_purchase.next": "exit",
    }
    assert node(cart, "wait_1h").label == "one hour"


def test_a_journey_is_never_changed() -> None:
    start = begun().wait("1h")
    one, other = start.send(push=3), start.send(email=7)

    assert [n.id for n in start.graph.nodes] == ["trigger", "wait_1h"]
    assert edges(one)["wait_1h.next"] == "send_push_3"
    assert edges(other)["wait_1h.next"] == "send_email_7"


def test_journeys_are_equal_when_name_and_graph_are() -> None:
    assert begun().wait("1h") == begun().wait("1h")
    assert hash(begun().wait("1h")) == hash(begun().wait("1h"))
    assert begun().wait("1h") != begun().wait("2h")
    assert jk.journey("A").on_call() != jk.journey("B").on_call()


@pytest.mark.parametrize(
    ("add", "node_id"),
    [
        (lambda j: j.wait("5bd"), "wait_5bd"),
        (lambda j: j.wait_until(9, 30, days=["mon"]), "wait_until_9_30"),
        (lambda j: j.wait_best_time(fallback_hour=10), "wait_best_time"),
        (lambda j: j.wait_for("خرید نهایی"), "wait_for_خرید_نهایی"),
        (lambda j: j.wait_for({"reply": None, "meeting": None}), "wait_for_reply_or_meeting"),
        (lambda j: j.send(email=7, sms=8, mode="all"), "send_email_7_sms_8"),
        (lambda j: j.send(channel="in-app", template=4), "send_in_app_4"),
        (lambda j: j.set_trait("plan", "premium"), "set_plan"),
        (lambda j: j.add_to_segment(4), "add_to_segment_4"),
        (lambda j: j.webhook("https://example.org"), "webhook"),
        (lambda j: j.enter_journey(9), "enter_journey_9"),
        (lambda j: j.task("call", title="Ask", connected_outcomes=["talked"]), "task_call"),
        (lambda j: j.when(~((jk.trait("plan") == "pro") & jk.in_segment(4))), "if_plan"),
        (lambda j: j.when(jk.in_segment(4)), "if_in_segment_4"),
        (lambda j: j.when(jk.everybody()), "if"),
        (lambda j: j.choose(("pro", jk.everybody(), None)), "choose"),
        (lambda j: j.split("price test", A=None), "price test"),
        (lambda j: j.goal("purchase"), "goal_purchase"),
        (lambda j: j.exit(), "exit"),
    ],
)
def test_a_node_is_named_after_what_it_does(
    add: Callable[[jk.Journey], jk.Journey], node_id: str
) -> None:
    assert [node.id for node in add(begun()).graph.nodes] == ["trigger", node_id]


def test_names_are_numbered_and_stay_when_another_node_comes_between() -> None:
    plain = begun().wait("1h").send(push=3).wait("1h").exit()
    longer = begun().wait("1h").set_trait("seen", True).send(push=3).wait("1h").exit()

    assert [n.id for n in plain.graph.nodes][1:] == ["wait_1h", "send_push_3", "wait_1h_2", "exit"]
    assert {n.id for n in plain.graph.nodes} < {n.id for n in longer.graph.nodes}


def test_an_open_branch_flows_on_into_the_next_step() -> None:
    journey = begun().when(
        jk.trait("plan") == "premium", yes=lambda j: j.send(push=3), no=lambda j: j.exit()
    )

    assert edges(journey.wait("1h")) == {
        "trigger.next": "if_plan",
        "if_plan.on_true": "send_push_3",
        "if_plan.on_false": "exit",
        "send_push_3.next": "wait_1h",
    }
    assert node(journey, "send_push_3").next == ""


def test_a_branch_that_is_not_given_or_has_no_steps_goes_straight_on() -> None:
    rule = jk.trait("plan") == "premium"
    one = begun().when(rule, yes=lambda j: j.send(push=3)).exit()
    same = begun().when(rule, yes=lambda j: j.send(push=3), no=...).exit()

    assert edges(one)["if_plan.on_false"] == "exit"
    assert one == same == begun().when(rule, yes=jk.path().send(push=3), no=lambda j: j).exit()


def test_none_leaves_a_branch_unwired() -> None:
    journey = begun().when(jk.trait("plan").exists(), yes=None).exit()

    assert edges(journey) == {"trigger.next": "if_plan", "if_plan.on_false": "exit"}


def test_a_loop_goes_back_by_id() -> None:
    journey = (
        begun()
        .wait("1d", id="again")
        .when(jk.did("purchase"), yes=lambda j: j.exit(), no=jk.go_to("again"))
    )

    assert edges(journey)["if_purchase.on_false"] == "again"
    assert journey.validate().valid


def test_a_wait_for_several_events_has_a_branch_for_each() -> None:
    journey = begun().wait_for(
        {"reply": lambda j: j.exit(id="replied"), "meeting": ...},
        timeout="5bd",
        on_timeout=lambda j: j.task("call").stop(),
        id="answer",
    )

    assert edges(journey.exit()) == {
        "trigger.next": "answer",
        "answer.reply": "replied",
        "answer.meeting": "exit",
        "answer.on_timeout": "task_call",
    }


def test_a_timeout_without_a_branch_goes_on_to_the_next_step() -> None:
    single = begun().wait_for("purchase", timeout="30d").exit()
    several = begun().wait_for({"reply": None}, timeout="5bd").send(push=3)

    assert edges(single) == {
        "trigger.next": "wait_for_purchase",
        "wait_for_purchase.next": "exit",
    }
    assert edges(several)["wait_for_reply.on_timeout"] == "send_push_3"


def test_a_switch_asks_in_order() -> None:
    journey = begun().choose(
        ("premium", jk.trait("plan") == "premium", lambda j: j.send(push=1)),
        ("rest", jk.everybody(), jk.go_to("end")),
        otherwise=lambda j: j.exit(id="end"),
    )

    assert [port.name for port in node(journey, "choose").ports()] == ["premium", "rest", "default"]
    assert edges(journey)["choose.rest"] == "end"


def test_a_split_has_weights_a_salt_and_any_names() -> None:
    journey = begun().split(
        "test",
        {"گروه یک": None, "class": lambda j: j.exit()},
        weights={"class": 2},
        holdout=12.5,
        on_holdout=jk.go_to("exit"),
        salt="",
    )
    split = node(journey, "test").split

    assert split is not None
    assert [(arm.variant, arm.weight) for arm in split.branches] == [("گروه یک", 1), ("class", 2)]
    assert (split.holdout_percent, split.salt, split.on_holdout) == (12.5, "", "exit")


def test_a_named_path_is_used_twice_and_numbered_anew() -> None:
    remind = jk.path().wait("1h").when(jk.did("purchase"), yes=jk.go_to("wait_1h")).send(push=3)
    journey = begun().split("test", A=remind, B=lambda j: j.wait("2h").then(remind)).exit()

    assert edges(journey) == {
        "trigger.next": "test",
        "test.A": "wait_1h",
        "wait_1h.next": "if_purchase",
        "if_purchase.on_true": "wait_1h",
        "if_purchase.on_false": "send_push_3",
        "send_push_3.next": "exit",
        "test.B": "wait_2h",
        "wait_2h.next": "wait_1h_2",
        "wait_1h_2.next": "if_purchase_2",
        "if_purchase_2.on_true": "wait_1h_2",
        "if_purchase_2.on_false": "send_push_3_2",
        "send_push_3_2.next": "exit",
    }


def test_parts_stand_beside_the_path() -> None:
    journey = begun().part(lambda j: j.send(push=3)).wait("1h").go_to("send_push_3")

    assert edges(journey) == {"trigger.next": "wait_1h", "wait_1h.next": "send_push_3"}
    assert [n.id for n in journey.graph.nodes] == ["trigger", "send_push_3", "wait_1h"]


def test_every_trigger_and_setting_reaches_the_document() -> None:
    rule = jk.trait("plan") == "premium"
    journey = (
        jk.journey("سبد", journey_id=12, version=3, timezone="Asia/Tehran")
        .every_day_at([11, 18], rule, id="door")
        .reenter("every_time", window="day")
        .exit_when(jk.did("purchase"))
        .exit_on("reply", "meeting_booked")
        .at_most(days=30)
        .send_window(["mon"], "22:00", "06:00", tz="sender")
        .jitter("15m")
        .workweek("sat", "sun")
    )
    value = journey.to_value()["graph"]

    assert value.pop("nodes")[0]["trigger"]["hours"] == [11, 18]
    assert value == {
        "journey_id": 12,
        "version": 3,
        "entry_id": "door",
        "entry_rule": "every_time",
        "reentry_window": "day",
        "exit_criteria": jk.did("purchase").definition,
        "max_duration_days": 30,
        "settings": {
            "timezone": "Asia/Tehran",
            "send_window": {"days": ["mon"], "from": "22:00", "to": "06:00", "tz": "sender"},
            "jitter": "15m",
            "exit_on": ["reply", "meeting_booked"],
            "workweek": ["sat", "sun"],
        },
    }


def test_nodes_are_placed_and_ordered() -> None:
    journey = begun().exit().in_order(["exit", "trigger"]).place({"exit": (10, None)})

    assert [n.id for n in journey.graph.nodes] == ["exit", "trigger"]
    assert (node(journey, "exit").x, node(journey, "exit").y) == (10, None)


def test_a_bare_journey_writes_the_bare_graph() -> None:
    assert jk.journey().on_call(id="t").to_json() == (
        '{"entry_id": "t", "nodes": [{"id": "t", "kind": "trigger", "trigger": {"kind": "api"}}]}'
    )
    assert jk.Journey.from_json(begun().to_json(indent=2)) == begun()


@given(graphs.valid_graphs(max_nodes=5))
def test_json_gives_the_journey_back(graph: Graph) -> None:
    journey = jk.Journey.from_graph(graph, "name")

    assert jk.Journey.from_json(journey.to_json()) == journey
    assert journey.graph == graph


def test_a_report_is_a_table() -> None:
    report = begun().choose(("<b>", jk.everybody(), None), otherwise=None).validate()

    assert not report.valid
    assert repr(report).splitlines()[0] == "not valid: 1 problem, no warnings"
    assert 'problem NO_DEFAULT node "choose": ' in repr(report)
    assert "<b>" not in report._repr_html_()
    assert '<td dir="auto">NO_DEFAULT</td>' in report._repr_html_()
    assert report.to_dict()["problems"][0]["node_id"] == "choose"


Mistake = tuple[Callable[[], Any], str, str]

MISTAKES: list[Mistake] = [
    (
        lambda: begun().wait("1 hour"),
        "BAD_DURATION",
        '.wait: "1 hour" is not a duration. Write a whole number from 1 and one of m, h, d, w or '
        'bd, with nothing between them, as "5bd".',
    ),
    (
        lambda: begun().goal("purchase", within="12h"),
        "BAD_DURATION",
        'The "within" of .goal: "12h" is not a number of whole days. Write days or weeks, for '
        'example "7d".',
    ),
    (
        lambda: begun().on_call(),
        "SECOND_TRIGGER",
        'The journey already begins with the node "trigger". Keep one trigger; for a second way '
        "in, write a second journey.",
    ),
    (
        lambda: jk.journey("x").wait("1h"),
        "NO_ENTRY",
        'The node "wait_1h" stands before any trigger. Say first who enters, for example '
        ".on_event(…) or .on_call().",
    ),
    (
        lambda: begun().exit().send(push=3),
        "CLOSED",
        'The node "send_push_3" cannot be reached: every path before it has ended or goes '
        "elsewhere. Take away the .exit(), .go_to() or .stop() before it, or add it with .part(…).",
    ),
    (
        lambda: begun().wait("1h", id="w").send(push=3, id="w"),
        "DUPLICATE_ID",
        'There is already a node "w". Give this one another id, or lead to the first with '
        '.go_to("w").',
    ),
    (
        lambda: begun().wait("1h", id="w").then(jk.path().exit(id="w")),
        "DUPLICATE_ID",
        'There is already a node "w". Give this one another id, or lead to the first with '
        '.go_to("w").',
    ),
    (
        lambda: begun().wait("1h", label=7),  # type: ignore[arg-type]
        "WRONG_TYPE",
        'The label of the node "wait_1h" must be text, not 7. Write it between quotes.',
    ),
    (
        lambda: begun().exit(id=""),
        "WRONG_TYPE",
        'The id of a node must be text, not "". Write it between quotes, or leave it out.',
    ),
    (
        lambda: begun().exit(id="x" * 201),
        "BAD_ID",
        f'The node id "{"x" * 60}…" has 201 characters. Write at most 200.',
    ),
    (
        lambda: begun().send(),
        "NO_CHANNEL",
        "The step .send names no channel. Write for example .send(push=3).",
    ),
    (
        lambda: begun().send(push="3"),  # type: ignore[arg-type]
        "WRONG_TYPE",
        'The template of .send(push=…) must be a whole number, not "3". Write it without quotes.',
    ),
    (
        lambda: begun().send(push=3, priority=101),
        "BAD_PRIORITY",
        'The send node "send_push_3" has the priority 101; expected 0 to 100. Write a number from '
        "0 to 100.",
    ),
    (
        lambda: begun().wait_until(24),
        "BAD_HOUR",
        'The wait node "wait_until_24" has the hour 24; expected 0 to 23. Write a number from 0 '
        "to 23.",
    ),
    (
        lambda: begun().split("test", {"A": None}, A=None),
        "DUPLICATE_VARIANT",
        'The split "test" has two arms "A". Give each arm a name of its own.',
    ),
    (
        lambda: begun().split("test"),
        "NO_BRANCHES",
        'The split "test" has no arms. Write for example A=lambda j: j.send(push=3).',
    ),
    (
        lambda: begun().split("test", A=None, weights={"B": 2}),
        "UNKNOWN_VARIANT",
        'The split "test" has a weight for "B", which is no arm. Its arms are "A".',
    ),
    (
        lambda: begun().split("test", A=None, holdout=101),
        "BAD_HOLDOUT",
        'The split node "test" has the holdout percentage 101; expected 0 to 100. Write a number '
        "from 0 to 100.",
    ),
    (
        lambda: begun().split("test", A=lambda j: begun()),  # type: ignore[arg-type, return-value]
        "WRONG_TYPE",
        'The branch "A" of the node "test" must give a path, not Journey. Write for example '
        "lambda j: j.send(push=3), or None to leave it unwired.",
    ),
    (
        lambda: begun().when("premium"),  # type: ignore[arg-type]
        "WRONG_TYPE",
        'The rule of .when takes a rule, not "premium". Write for example '
        '(trait("plan") == "premium").',
    ),
    (
        lambda: begun().when(jk.trait("plan")),  # type: ignore[arg-type]
        "WRONG_TYPE",
        'The rule of .when takes a rule, not trait("plan"). Write for example '
        '(trait("plan") == "premium").',
    ),
    (
        lambda: begun().choose(("premium", None)),  # type: ignore[arg-type]
        "WRONG_TYPE",
        "A case of .choose must be a label, a rule and a branch, not a list. Write "
        '("premium", jk.trait("plan") == "premium", lambda j: j.send(push=3)).',
    ),
    (
        lambda: begun().webhook("ftp://example.org"),
        "BAD_URL",
        'The webhook node "webhook" has the address "ftp://example.org", which is no http or '
        'https address. Write an address that begins with "https://".',
    ),
    (
        lambda: begun().set_trait("plan", float("nan")),
        "BAD_NUMBER",
        'The node "set_plan": The number nan at action.value is no JSON number. Send a finite '
        "number.",
    ),
    (
        lambda: begun().task("fax"),  # type: ignore[arg-type]
        "UNKNOWN_WORD",
        'Node "task_fax": "task" is "fax"; expected one of "call", "linkedin_message", '
        '"linkedin_connect" or "custom". Write one of "call", "linkedin_message", '
        '"linkedin_connect" or "custom".',
    ),
    (
        lambda: begun().exit_when(jk.everybody()),
        "BAD_SEGMENT",
        "The rule of .exit_when is everybody(), which as an exit rule means nobody. Leave "
        ".exit_when away, or name who leaves.",
    ),
    (
        lambda: begun().jitter("soon"),
        "BAD_DURATION",
        'The jitter: "soon" is not a duration. Write a whole number from 1 and one of m, h, d, w '
        'or bd, with nothing between them, as "5bd".',
    ),
    (
        lambda: begun().timezone("Asia/Tehrn"),
        "BAD_TIMEZONE",
        'The time zone "Asia/Tehrn" is unknown. Did you mean "Asia/Tehran"?',
    ),
    (
        lambda: begun().send_window(["monday"]),
        "BAD_WINDOW",
        'The send window: the day "monday" is unknown. Write one of mon, tue, wed, thu, fri, sat, '
        "sun.",
    ),
    (
        lambda: begun().reenter(cooldown_hours=5, window="day"),
        "TWO_GAPS",
        'The graph has both "cooldown_hours" and "reentry_window": two answers to one question. '
        'Keep one: "reentry_window" for once a day, "cooldown_hours" for a length of time.',
    ),
    (
        lambda: begun().place({"exit": (1, 2)}),
        "NO_NODE",
        'There is no node "exit" to place. Place nodes after their steps are added.',
    ),
    (
        lambda: begun().in_order(["trigger", "trigger"]),
        "BAD_ORDER",
        'The node "trigger" is missing, unknown or named twice in .in_order. Name every node '
        "exactly once.",
    ),
    (
        lambda: jk.journey(7),  # type: ignore[arg-type]
        "WRONG_TYPE",
        "The name of a journey must be text, not 7. Write it between quotes.",
    ),
]


@pytest.mark.parametrize(("make", "code", "words"), MISTAKES)
def test_a_mistake_is_told_where_it_is_made(make: Callable[[], Any], code: str, words: str) -> None:
    with pytest.raises(jk.JourneyError) as caught:
        make()

    assert (caught.value.code, str(caught.value)) == (code, words)


def test_a_mistake_in_a_branch_is_told_at_its_own_line() -> None:
    with pytest.raises(jk.JourneyError) as caught:
        begun().wait("1h", id="w").split("test", A=lambda j: j.send(push=3).exit(id="w"))

    assert [entry.name for entry in caught.traceback][-3:] == ["exit", "_step", "given_id"]
    assert "<lambda>" in [entry.name for entry in caught.traceback]


def test_no_module_hides_a_name_of_the_package() -> None:
    """Importing `journeykit.x` would put the module in the place of a function `x`."""
    assert [name for name in jk.__all__ if find_spec(f"journeykit.{name}") is not None] == []


def test_a_journey_of_steps_is_written_back_as_steps() -> None:
    steps = {
        "steps": {
            "wait_2d": {"type": "wait", "params": {"duration": "2bd"}, "next": {"then": "done"}},
            "done": {"type": "end"},
        },
        "entry": "wait_2d",
    }

    assert jk.Journey.from_json(steps).to_steps() == steps
    with pytest.raises(NotSayable):
        jk.journey().on_event("joined").exit().to_steps()
