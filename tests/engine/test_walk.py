"""A person walks: in at the door, past the nodes, parked, woken, out for one of seven reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from whenever import Instant

from journeykit_engine import walk
from journeykit_engine.facts import Predicate
from journeykit_engine.instance import Wait
from journeykit_engine.signal import Event
from journeykit_engine.template import Missing, Rendered, parse_template, render
from journeykit_engine.timing import read_instant
from journeykit_engine.trail import Exited, Message, Refused, Woke
from tests.engine.journeys import chain
from tests.engine.walking import (
    ADULT,
    END,
    PAID,
    START,
    Story,
    again,
    ask,
    days,
    later,
    made,
    send,
    wait_for,
    wait_for_any,
    write,
)

Cases = Mapping[str, dict[str, Any]]
PAYING: dict[str, Any] = {"root": {"trait": "plan", "op": "eq", "value": "paid"}}
SIGNALS: dict[str, tuple[str, dict[str, Any]]] = {
    "inbound_email": ("inbound_email", {}),
    "task_completed(outcome=connected)": ("task_completed", {"outcome": "connected"}),
    "reply": ("reply", {}),
}
DAY, HOUR = later(days=1) - START, later(hours=1) - START
PLAN_CHANGED = {"kind": "attribute_changed", "trait": "plan"}


# --- the whole way


def test_one_person_from_the_door_to_the_exit() -> None:
    story = Story(made(send("hello", "w"), days(1, "bye"), send("bye", "end"), END)).starts()

    assert story.told == [
        "entered t",
        "visited t",
        "visited hello",
        "effect hello send",
        "visited w",
        "waiting w",
    ]
    assert story.now.wait == Wait("w", "timer", START, later(hours=24))
    assert (story.now.status, story.now.current_node) == ("waiting", "w")
    assert story.now.wake_at == later(hours=24)

    ended = story.wakes().now

    assert story.told == [
        "woke w timeout",
        "visited bye",
        "effect bye send",
        "visited end",
        "exited end completed",
    ]
    assert (ended.status, ended.exit_reason) == ("completed", "completed")
    assert (ended.current_node, ended.wait, ended.wake_at) == ("end", None, None)
    assert (ended.entered_at, ended.updated_at) == (START, later(hours=24))


def test_the_instance_names_its_tenant_journey_version_and_cause() -> None:
    now = Story(made(wait_for("paid"))).starts(id="m9").now

    assert (now.tenant_id, now.journey_id, now.version, now.user_id) == (7, 12, 3, "u_1")
    assert (now.entry_count, now.entered_by) == (1, "m9")


def test_a_step_sorts_its_trail() -> None:
    (step,) = Story(made(send("hello", "w"), wait_for("paid"))).starts().steps

    assert step.visits == ("t", "hello", "w")
    assert [effect.kind for effect in step.effects] == ["send"]
    assert step.exposures == ()
    assert step.waits_for == step.trail[-1] == Wait("w", "event", START, None, ("paid",))
    assert step.failure is None


def test_an_event_that_nobody_listens_for_changes_nothing() -> None:
    story = Story(made(wait_for("paid"))).starts()
    before = story.instance

    assert story.hears("opened", later(hours=1)).steps == ()
    assert story.instance is before


def test_the_trigger_asks_every_comparison_of_its_filter() -> None:
    tests = [{"property": "amount", "op": "gt", "value": 50}]
    trigger = {"kind": "event", "event": "signed_up", "filter": tests}
    program = made(END, trigger=trigger)

    assert Story(program).starts(amount=50).steps == ()
    assert Story(program).starts(amount=51).now.status == "completed"


def test_an_empty_next_ends_the_journey(cases: Cases) -> None:
    expect = cases["exit-empty-next"]["expect"]

    story = Story(made(send("send"))).starts()

    assert len(story.sent) == expect["sends"]
    assert (story.now.status, story.now.exit_reason) == (expect["status"], expect["exit_reason"])
    assert story.now.current_node == "send"
    assert Story(made(stored_anyway=True)).starts().told[-1] == "exited t no_next_node"
    assert Story(made(ask(ADULT, "end", ""), END)).starts().told[-1] == "exited if no_next_node"


# --- one hundred steps


@pytest.mark.parametrize("case_id", ["graph-step-limit-boundary"])
def test_one_hundred_nodes_pass_and_one_hundred_and_one_do_not(case_id: str, cases: Cases) -> None:
    lengths, expected = cases[case_id]["given"]["chains"], cases[case_id]["expect"]["ok"]

    for length, ok in zip(lengths, expected, strict=True):
        program = made(*chain(length - 1), stored_anyway=not ok)
        (step,) = Story(program).starts().steps
        assert (step.failure is None) is ok
        assert len(step.visits) == (length if ok else 0)


def test_a_step_too_long_leaves_everything_as_it_was(cases: Cases) -> None:
    nodes = cases["graph-step-limit"]["given"]["chain_without_waits"]
    story = Story(made(*chain(nodes - 1), stored_anyway=True)).starts()

    (step,) = story.steps
    assert step.instance is None
    assert step.person.traits == {}
    assert step.effects == ()
    assert step.failure == (
        "n99",
        "STEP_LIMIT",
        'The walk passed 100 nodes without a wait and stopped before "n99". '
        "Put a wait into the path.",
    )


def test_a_step_too_long_after_a_wait_leaves_the_person_parked() -> None:
    story = Story(made(days(1, "n0"), *chain(101), stored_anyway=True)).starts()
    parked = story.now

    story.wakes()

    assert story.instance is parked
    assert story.told == ["error n100 STEP_LIMIT"]
    assert story.person.traits == {}


def test_a_failed_timer_is_not_followed_by_an_entry() -> None:
    story = Story(again(days(1, "n0"), *chain(101), stored_anyway=True)).starts()

    assert story.starts(later(days=2), "m2").told == ["error n100 STEP_LIMIT"]


def test_one_hundred_nodes_fit_between_two_waits() -> None:
    story = Story(made(days(1, "n0"), *chain(100))).starts().wakes()

    assert (len(story.steps[0].visits), story.now.status) == (100, "completed")


# --- the exit rule, the longest stay, then the nodes


def test_the_exit_rule_is_asked_at_the_door(cases: Cases) -> None:
    case = cases["exit-at-the-door"]
    program = made(send("send", "end"), END, exit_criteria=PAYING)

    story = Story(program, **case["given"]["traits"]).starts()

    assert len(story.sent) == case["expect"]["sends"]
    assert story.now.exit_reason == case["expect"]["exit_reason"]
    assert story.told == ["entered t", "visited t", "exited t exit_criteria"]
    assert (story.now.status, story.now.entry_count) == ("exited", 1)


def test_the_exit_rule_beats_the_longest_stay(cases: Cases) -> None:
    case = cases["exit-criteria-beats-duration"]
    entered = read_instant(case["given"]["entered_at"])
    longest = case["given"]["max_duration_days"]
    program = made(days(19), exit_criteria=PAYING, max_duration_days=longest)
    story = Story(program).starts(entered)
    story.person = story.person._replace(traits={"plan": "paid"})

    story.wakes(read_instant(case["when"]["advance_at_utc"]))

    assert story.now.exit_reason == case["expect"]["exit_reason"]
    assert story.told == ["woke w exit", "exited w exit_criteria"]


def test_the_longest_stay_frees_a_parked_person_by_itself(cases: Cases) -> None:
    case = cases["exit-duration-frees-parked-person"]
    longest = case["given"]["max_duration_days"]
    program = made(wait_for("paid", "end"), END, max_duration_days=longest)
    story = Story(program).starts(read_instant(case["given"]["entered_at"]))

    assert story.now.wake_at == read_instant(case["expect"]["timer_existed_for_utc"])
    assert story.now.wait and story.now.wait.until is None

    story.wakes(read_instant(case["when"]["no_event_until_utc"]))

    assert story.now.status == case["expect"]["status"]
    assert story.now.exit_reason == case["expect"]["exit_reason"]
    assert story.told == ["woke w exit", "exited w max_duration"]


def test_the_longest_stay_counts_from_the_entry_and_over_all_waits() -> None:
    program = made(days(5, "v"), days(5, "end", own="v"), END, max_duration_days=7)
    story = Story(program).starts().wakes()

    assert story.now.wake_at == later(days=7)
    assert story.wakes().told == ["woke v exit", "exited v max_duration"]


def test_a_wait_that_ends_with_the_longest_stay_ends_the_pass() -> None:
    story = Story(made(days(7, "end"), END, max_duration_days=7)).starts().wakes()

    assert story.now.exit_reason == "max_duration"


def test_a_person_parked_for_long_leaves_when_the_event_arrives() -> None:
    story = Story(made(days(30, "late"), send("late"), exit_criteria=PAID)).starts()

    story.hears("paid", later(days=3), "m2")

    assert story.told == ["woke w exit m2", "exited w exit_criteria"]
    assert (story.now.updated_at, story.now.wake_at) == (later(days=3), None)


def test_a_person_parked_for_long_leaves_when_the_trait_is_written() -> None:
    story = Story(made(days(30), exit_criteria=PAYING), plan="free").starts()

    story.learns(later(days=3), plan="paid")

    assert story.told == ["woke w exit", "exited w exit_criteria"]


def test_the_exit_rule_is_not_asked_by_what_it_does_not_mention() -> None:
    story = Story(made(wait_for("opened", timeout="30d"), exit_criteria=PAYING)).starts()
    story.person = story.person._replace(traits={"plan": "paid"})

    assert story.learns(later(days=1), city="Tehran").steps == ()
    assert story.hears("closed", later(days=1)).steps == ()
    assert story.hears("opened", later(days=1)).told[-1] == "exited w exit_criteria"


def test_an_event_the_exit_rule_mentions_need_not_make_it_true() -> None:
    twice = {"root": {"event": "paid", "op": "gte", "count": 2, "since": "entry"}}
    story = Story(made(days(30), exit_criteria=twice)).starts()

    assert story.hears("paid", later(days=1)).steps == ()
    assert story.hears("paid", later(days=2)).now.exit_reason == "exit_criteria"


@pytest.mark.parametrize("empty", [None, {}, {"root": {}}])
def test_an_empty_exit_rule_means_none(empty: Any) -> None:
    assert Story(made(send("s"), exit_criteria=empty)).starts().now.exit_reason == "no_next_node"


def test_an_exit_closes_the_timer_and_a_claimed_one_does_nothing(cases: Cases) -> None:
    case = cases["exit-removes-timers"]
    wake_at = read_instant(case["given"]["wake_at"])
    program = made(days(1, "late"), send("late"), settings={"exit_on": ["left"]})
    story = Story(program).starts(wake_at - DAY)
    assert story.now.wake_at == wake_at

    story.hears("left", read_instant(case["when"]["exit_at_utc"]))
    assert story.now.wake_at is None
    story.wakes(read_instant(case["when"]["claimed_timer_runs_at_utc"]))

    assert story.told == []
    assert len(story.sent) == case["expect"]["sends"]


def test_a_send_is_made_once_however_often_the_clock_is_polled(cases: Cases) -> None:
    polls = cases["exit-on-unsubscribe-not-retried"]["when"]["polls"]
    email = send("email", "w", channel="email", template_id=1)
    sms = send("sms", "end", channel="sms", template_id=2)
    story = Story(made(email, days(1, "sms"), sms, END)).starts()

    for minute in range(polls):
        assert story.wakes(later(minutes=minute)).told == []
    story.wakes(later(days=1))
    for minute in range(polls):
        assert story.wakes(later(days=2, minutes=minute)).told == []

    assert [message.channel for message in story.sent] == ["email", "sms"]


def test_a_person_can_be_taken_out_by_hand_or_with_the_journey() -> None:
    program = made(wait_for("paid"))
    parked = Story(program).starts()

    by_hand = walk.leave(program, parked.person, parked.now, later(days=1))
    deleted = walk.leave(program, parked.person, parked.now, later(days=1), "journey_deleted")

    assert by_hand.trail == (Woke("w", "exit", ""), Exited("w", "ejected"))
    assert by_hand.instance and by_hand.instance.status == "exited"
    assert deleted.trail[-1] == Exited("w", "journey_deleted")
    assert walk.leave(program, parked.person, by_hand.instance, later(days=2)).trail == ()


# --- waiting for events


@pytest.mark.parametrize(
    "case_id", ["ev-reply-beats-exact-channel", "ev-call-beats-reply", "ev-exit-on-beats-wake"]
)
def test_a_signal_takes_its_branch(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    waits, when, expect = case["given"]["wait_for"], case["when"], case["expect"]
    on = dict.fromkeys(waits["events"], "end")
    node = wait_for_any(on=on, timeout=waits["timeout"])
    exit_on = case["given"].get("exit_on", [])
    story = Story(made(node, END, settings={"exit_on": exit_on})).starts()
    name, properties = SIGNALS[when["signal"]]

    story.hears(name, later(hours=1), when.get("id", "s0"), **properties)

    woke = story.steps[0].trail[0]
    assert isinstance(woke, Woke)
    assert woke.branch == expect.get("branch", expect.get("run_branch"))
    assert woke.woken_by == expect.get("woken_by", "s0")
    assert story.now.status == expect.get("enrollment", "completed")


@pytest.mark.parametrize("case_id", ["ev-before-wait"])
def test_nothing_is_buffered_for_a_wait_that_has_not_begun(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    (paid_at, _), (entered_at, _) = case["given"]["timeline_utc"]
    node = wait_for("paid", "yes", timeout="1h", on_timeout="no")
    story = Story(made(node, send("yes"), send("no")))
    story.hears("paid", read_instant(paid_at), "m0")
    story.starts(read_instant(entered_at))

    assert story.now.wake_at == read_instant(case["when"]["run_to_utc"])
    assert story.wakes().told[:2] == [f"woke w {case['expect']['branch']}", "visited no"]


def test_the_entering_event_is_not_the_answer_inside(cases: Cases) -> None:
    case = cases["ev-trigger-event-is-not-its-own-answer"]
    name, message_id = case["when"]["event"]["name"], case["when"]["event"]["message_id"]
    node = wait_for(name, timeout="1d")
    story = Story(again(node, trigger={"kind": "event", "event": name}))

    for _ in range(case["when"]["delivered"]):
        story.hears(name, START, message_id)

    assert story.now.status == case["expect"]["status"]
    assert story.now.entry_count == case["expect"]["entries"]
    assert story.told == ["refused t already_inside"]
    assert story.hears(name, later(hours=1), "m2").told[0] == "woke w paid m2"


def test_the_next_event_after_the_wait_began_wakes_it(cases: Cases) -> None:
    case = cases["ev-right-after-wait-starts"]
    (event,) = case["given"]["events"]
    story = Story(made(wait_for(event))).starts(read_instant(case["given"]["wait_entered_utc"]))

    story.hears(event, read_instant(case["when"]["event_at_utc"]), "m2")

    assert story.told[0] == f"woke w {case['expect']['branch']} m2"


@pytest.mark.parametrize(
    "case_id", ["ev-same-instant-as-timeout", "ev-just-after-timeout-before-poll"]
)
def test_at_the_time_out_itself_the_event_wins_and_after_it_never(
    case_id: str, cases: Cases
) -> None:
    case = cases[case_id]
    until = read_instant(case["given"]["until_utc"])
    (event,) = case["given"]["events"]
    node = wait_for(event, "yes", timeout="1h", on_timeout="no")
    story = Story(made(node, send("yes"), send("no"))).starts(until - HOUR)
    assert story.now.wake_at == until

    story.hears(event, read_instant(case["when"]["event_at_utc"]), "m2")

    branch = case["expect"]["branch"]
    assert story.told[0].split()[2] == branch
    assert [message.node_id for message in story.sent] == ["no" if branch == "timeout" else "yes"]
    assert story.wakes(until).told == []  # the timer that was claimed meanwhile


def test_a_late_time_out_may_lead_to_a_wait_that_this_event_answers() -> None:
    second = wait_for("paid", "yes", own="v")
    story = Story(made(wait_for("paid", timeout="1h", on_timeout="v"), second, send("yes")))

    story.starts().hears("paid", later(hours=2), "m2")

    assert [step.trail[0] for step in story.steps] == [
        Woke("w", "timeout", ""),
        Woke("v", "paid", "m2"),
    ]


def test_an_event_after_the_longest_stay_finds_the_pass_over() -> None:
    program = made(wait_for("paid", "end"), END, max_duration_days=7)
    late = Story(program).starts().hears("paid", later(days=7, minutes=1), "m2")

    assert late.told == ["woke w exit", "exited w max_duration"]
    assert Story(program).starts().hears("paid", later(days=6), "m2").now.status == "completed"


def test_a_closed_wait_never_opens_again(cases: Cases) -> None:
    case = cases["ev-after-timeout-handled"]
    node = wait_for(case["when"]["event"], "yes", timeout="1h", on_timeout="call_1")
    story = Story(made(node, send("yes"), days(9, own="call_1"))).starts().wakes()

    story.hears(case["when"]["event"], later(hours=2))

    assert story.steps == ()
    assert story.now.current_node == case["expect"]["position"]


def test_only_one_of_two_branches_is_ever_taken(cases: Cases) -> None:
    case = cases["ev-both-paths-never"]
    (event,), timeout = case["given"]["wait_for"]["events"], case["given"]["wait_for"]["timeout"]
    node = wait_for(event, "yes", timeout=timeout, on_timeout="no")
    story = Story(made(node, send("yes", "v"), send("no", "v"), days(30, own="v"))).starts()

    story.hears(event, later(days=case["when"]["event_after_days"]))
    for day in range(case["when"]["run_days"]):
        story.wakes(later(days=day))

    entries = [entry for step in story.all for entry in step.trail]
    taken = [entry.branch for entry in entries if isinstance(entry, Woke)]
    assert taken == case["expect"]["branches_taken"]


@pytest.mark.parametrize("case_id", ["ev-old-timestamp-arrives-now", "ev-future-timestamp"])
def test_arrival_counts_not_the_events_own_time(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    event = case["when"]["event"]
    node = wait_for("paid", timeout="1d", filter=[])
    story = Story(made(node)).starts(read_instant(case["given"]["wait_entered_utc"]))

    occurred = {"occurred_at": event["occurred_at"]}
    story.hears("paid", read_instant(event["arrives_at"]), "m2", **occurred)

    assert story.told[0] == f"woke w {case['expect']['branch']} m2"
    assert story.now.updated_at == read_instant(event["arrives_at"])


def test_an_empty_on_timeout_goes_on_down_next(cases: Cases) -> None:
    config = {"event": cases["ev-on-timeout-empty"]["given"]["wait"]["event"], "on_timeout": ""}
    story = Story(made(wait_for(**config, then="send", timeout="1h"), send("send"))).starts()

    assert story.wakes().steps[0].visits == (cases["ev-on-timeout-empty"]["expect"]["next_node"],)


def test_a_wait_asks_its_filter() -> None:
    tests = [{"property": "amount", "op": "gt", "value": 50}]
    story = Story(made(wait_for("paid", filter=tests))).starts()

    assert story.hears("paid", later(hours=1), amount=5).steps == ()
    assert story.hears("paid", later(hours=2), amount=500).now.status == "completed"


def test_a_trait_write_never_answers_a_wait_for_events() -> None:
    story = Story(made(wait_for("paid"))).starts()

    assert story.reacts(Event("paid", later(hours=1), "m2", {}, {"plan": "pro"})).steps == ()


def test_each_listed_event_has_its_own_way_and_one_may_end_the_pass() -> None:
    node = wait_for_any(on={"reply": "answered", "lost": ""}, timeout="5bd", on_timeout="call")
    program = made(node, send("answered"), send("call"))

    assert Story(program).starts().hears("reply", later(hours=1)).steps[0].visits == ("answered",)
    assert Story(program).starts().hears("lost", later(hours=1)).told == [
        "woke w lost",
        "exited w no_next_node",
    ]
    assert Story(program).starts().wakes().steps[0].visits == ("call",)


def test_opting_out_ends_every_pass_whatever_it_waits_for() -> None:
    story = Story(made(wait_for_any(on={"opt_out": "end", "x": "end"}), END)).starts()

    assert story.hears("opt_out", later(hours=1), "m2").told == [
        "woke w exit m2",
        "exited w exit_criteria",
    ]
    assert Story(made(days(3))).starts().hears("opt_out", later(hours=1)).now.status == "exited"


def test_exit_on_hears_a_report_under_all_of_its_names() -> None:
    program = made(days(3), settings={"exit_on": ["reply:email"]})

    assert Story(program).starts().hears("inbound_sms", later(hours=1)).steps == ()
    assert Story(program).starts().hears("inbound_email", later(hours=1)).now.status == "exited"


def test_an_identify_ends_a_pass_by_the_exit_rule_only() -> None:
    story = Story(made(days(3), settings={"exit_on": ["left"]})).starts()

    assert story.reacts(Event("left", later(hours=1), "m2", {}, {"plan": "pro"})).steps == ()
    assert story.reacts(Event("opt_out", later(hours=1), "m3", {}, {"plan": "x"})).steps == ()


def test_a_person_who_is_not_inside_cannot_leave() -> None:
    program = made(days(3), settings={"exit_on": ["left"]}, exit_criteria=PAID)

    assert Story(program).hears("left", START).steps == ()
    assert Story(program).starts().wakes().hears("paid", later(days=9)).steps == ()


# --- one event ends a pass and starts the next


def test_one_event_may_end_a_pass_and_start_the_next() -> None:
    trigger = {"kind": "event", "event": "cart"}
    story = Story(again(wait_for("cart", "end"), END, trigger=trigger)).hears("cart", START, "m1")

    story.hears("cart", later(days=1), "m2")

    assert story.told == [
        "woke w cart m2",
        "visited end",
        "exited end completed",
        "entered t",
        "visited t",
        "visited w",
        "waiting w",
    ]
    assert (story.now.entry_count, story.now.entered_by) == (2, "m2")
    assert story.now.entered_at == later(days=1)


def test_a_late_timer_an_exit_and_an_entry_are_three_steps_of_one_event() -> None:
    first = wait_for("x", timeout="1h", on_timeout="v")
    settings = {"exit_on": ["signed_up"]}
    story = Story(again(first, days(9, own="v"), settings=settings)).starts()

    story.starts(later(days=1), "m2")

    assert [line for line in story.told if not line.startswith("visited")] == [
        "woke w timeout",
        "waiting v",
        "woke v exit m2",
        "exited v exit_criteria",
        "entered t",
        "waiting w",
    ]
    assert all(step.at == later(days=1) for step in story.steps)


def test_the_exit_rule_that_ended_a_pass_is_asked_again_at_the_door() -> None:
    adult = Story(again(days(9), exit_criteria=ADULT, trigger=PLAN_CHANGED), age=9)

    adult.learns(START, plan="a").learns(later(days=1), plan="b", age=18)

    assert adult.told == [
        "woke w exit",
        "exited w exit_criteria",
        "entered t",
        "visited t",
        "exited t exit_criteria",
    ]


def test_another_version_neither_wakes_nor_ends_nor_enters_who_is_inside() -> None:
    story = Story(again(wait_for("signed_up", own="gone"))).starts()
    parked = story.now
    newer = again(wait_for("paid"), version=4, settings={"exit_on": ["signed_up"]})

    steps = walk.react(newer, story.person, parked, Event("signed_up", later(days=1), "m2"))

    assert [step.trail for step in steps] == [(Refused("t", "already_inside"),)]
    assert steps[0].instance is parked
    assert story.starts(later(days=1), "m2").told[0] == "woke gone signed_up m2"


# --- paused


def test_a_time_out_that_passed_during_the_pause_is_taken_on_resume_once(cases: Cases) -> None:
    case = cases["ev-paused-past-timeout"]
    until = read_instant(case["given"]["until_utc"])
    resumed = read_instant(case["when"]["resume_at_utc"])
    story = Story(made(wait_for("paid", "end", timeout="1d"), END)).starts(until - DAY)
    story.pauses(until - HOUR)

    assert story.wakes(until).told == []
    story.goes_on(resumed)

    assert story.told[:2] == ["resumed w", f"woke w {case['expect']['branch']}"]
    assert story.now.updated_at == read_instant(case["expect"]["closed_at_utc"])
    assert story.goes_on(resumed).told == []


def test_a_signal_does_not_wake_a_paused_person_but_still_ends_the_pass() -> None:
    settings = {"exit_on": ["left"]}
    program = made(wait_for("paid", "end", timeout="1d"), END, settings=settings)
    story = Story(program).starts().pauses(later(hours=1))

    assert story.hears("paid", later(hours=2)).steps == ()
    assert story.now.paused_at == later(hours=1)
    assert story.hears("left", later(hours=3)).told == ["woke w exit", "exited w exit_criteria"]
    assert story.now.paused_at is None


def test_an_event_after_the_time_out_of_a_paused_person_does_not_take_it() -> None:
    story = Story(made(wait_for("paid", timeout="1h"))).starts().pauses(later(minutes=1))

    assert story.hears("paid", later(hours=2)).steps == ()


def test_going_on_before_the_time_has_come_waits_on() -> None:
    story = Story(made(days(3))).starts()
    wait = story.now.wait

    story.pauses(later(days=1)).goes_on(later(days=2))

    assert (story.told, story.now.wait, story.now.wake_at) == (["resumed w"], wait, later(days=3))
    assert story.now.paused_at is None
    assert story.wakes().told == ["woke w timeout", "exited w no_next_node"]


def test_the_longest_stay_that_passed_during_a_pause_ends_the_pass_on_resume() -> None:
    story = Story(made(wait_for("paid"), max_duration_days=2)).starts().pauses(later(days=1))

    assert story.wakes(later(days=3)).told == []
    assert story.goes_on(later(days=4)).now.exit_reason == "max_duration"


def test_only_somebody_inside_can_be_paused() -> None:
    story = Story(made(END)).starts()

    assert story.pauses(later(hours=1)).now.paused_at is None


# --- what the walk itself wrote, and who is asked


def test_what_the_walk_writes_is_seen_by_its_own_later_conditions() -> None:
    tagged = {"root": {"segment": 5}}
    tag = {"id": "tag", "kind": "action", "action": {"kind": "add_to_segment", "segment_id": 5}}
    nodes = (write("grow", "age", 30, "if"), ask(ADULT, "tag", ""), {**tag, "next": "in"})
    story = Story(made(*nodes, ask(tagged, "end", "", own="in"), END), age=3).starts()

    assert story.told[3:] == [
        "effect grow update_trait",
        "visited if",
        "branched if on_true",
        "visited tag",
        "effect tag add_to_segment",
        "visited in",
        "branched in on_true",
        "visited end",
        "exited end completed",
    ]
    assert story.person.traits == {"age": 30}
    assert story.person.segments == {5}


def test_without_an_evaluator_a_condition_says_no_and_a_switch_takes_its_default(
    cases: Cases,
) -> None:
    everybody: dict[str, Any] = {"root": {}}
    which = {"cases": [{"label": "all", "definition": everybody, "next": ""}], "default": "end"}
    nodes = (ask(everybody, "", "which"), {"id": "which", "kind": "switch", "switch": which}, END)

    story = Story(made(*nodes, evaluator=None, exit_criteria=ADULT), age=30).starts()

    ports = [line.split()[2] for line in story.told if line.startswith("branched")]
    assert ports == cases["cond-no-evaluator"]["expect"]["taken"]
    assert story.now.exit_reason == "completed"


def test_an_evaluator_that_fails_is_an_error_of_the_step_to_be_tried_again() -> None:
    outage = [True]

    def evaluator(definition: Mapping[str, Any]) -> Predicate:
        def holds(facts: object) -> bool:
            if outage:
                raise TimeoutError("segments do not answer")
            return True

        return holds

    program = made(days(1, "if"), ask(ADULT, "", "nag"), send("nag"), evaluator=evaluator)
    story = Story(program).starts()
    with pytest.raises(TimeoutError, match="segments do not answer"):
        story.wakes()
    outage.clear()

    assert story.wakes().told == [
        "woke w timeout",
        "visited if",
        "branched if on_true",
        "exited if no_next_node",
    ]


# --- what travels into a message


def test_the_event_that_caused_the_step_travels_and_none_after_a_time_out(cases: Cases) -> None:
    case = cases["ev-properties-of-the-waking-event"]
    text = parse_template({"body": case["given"]["template"]})
    node = wait_for("overtaken", "send", timeout=case["given"]["wait_for"]["timeout"])
    program = made(node, send("send"))
    woken = Story(program).starts(rank=9).hears("overtaken", later(hours=1), rank=4)
    late = Story(program).starts(rank=9).wakes()

    rendered = [render(text, {}, story.sent[0].event) for story in (woken, late)]

    assert rendered == [Rendered({"body": "4"}), Missing(("event.rank",))]
    assert case["expect"]["missing_keys"] == [[], ["event.rank"]]


def test_properties_travel_from_the_door_up_to_the_first_wait() -> None:
    nodes = (send("now", "w"), days(1, "then"), send("then"))
    story = Story(made(*nodes)).starts(rank=4, note="x" * 513).wakes()

    assert [message.event for message in story.sent] == [{"rank": 4}, {}]


def test_who_enters_by_the_reserved_event_brings_no_properties() -> None:
    story = Story(made(send("now"), trigger={"kind": "api"}))
    story.reacts(Event("journey_enter_requested", START, "m1", {"journey_id": 12}))

    (message,) = story.sent
    assert isinstance(message, Message)
    assert message.event == {}
    assert story.now.entered_by == "m1"


def test_a_timer_before_its_time_does_nothing() -> None:
    story = Story(made(days(1))).starts()

    assert story.wakes(Instant("2026-06-02T09:59:59.999999999Z")).told == []
    assert story.now.status == "waiting"
