"""What each node does to the person who arrives: waits, choices, splits, goals and sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from whenever import Instant

from journeykit_engine import allot, timing
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Assignment, Happened, Person
from journeykit_engine.nodes import Walker, best_hour, part
from journeykit_engine.program import compile_graph
from journeykit_engine.signal import Event
from journeykit_engine.timing import read_instant
from journeykit_engine.trail import (
    CallWebhook,
    GiveTask,
    Medium,
    Message,
    Noted,
    StartJourney,
    Suppressed,
    WriteTrait,
)
from tests.engine.journeys import Value, journey
from tests.engine.walking import (
    ADULT,
    END,
    PAID,
    START,
    Story,
    again,
    ask,
    days,
    halves,
    later,
    made,
    node,
    send,
    wait_for,
    write,
)

Cases = Mapping[str, dict[str, Any]]
NIGHT = Instant("2026-06-01T20:00:00Z")
OFFICE = {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "17:00"}
HALF_A_DAY = later(hours=12) - START
SMS: Value = {"channel": "sms", "template_id": 1}


def settings(**fields: Any) -> Value:
    return {"settings": fields}


def sends_at(story: Story) -> Instant | None:
    """When the one send of this journey goes: now, at its opening, or never."""
    if story.now.wait is not None:
        return story.now.wait.until
    return story.now.updated_at if story.sent else None


# --- waits


@pytest.mark.parametrize(
    ("config", "until"),
    [
        ({"kind": "duration", "amount": 24, "unit": "hour"}, "2026-03-08T17:00:00Z"),
        ({"kind": "duration", "amount": 1, "unit": "day"}, "2026-03-08T16:00:00Z"),
        ({"kind": "duration", "amount": 1, "unit": "business_day"}, "2026-03-09T16:00:00Z"),
        ({"kind": "until_time", "hour": 2, "minute": 30}, "2026-03-08T07:00:00Z"),
        ({"kind": "until_time", "hour": 9, "days": ["wed"]}, "2026-03-11T13:00:00Z"),
        ({"kind": "until_best_time", "fallback_hour": 8}, "2026-03-08T12:00:00Z"),
        ({"kind": "for_event", "event": "paid", "timeout": "1d"}, "2026-03-08T16:00:00Z"),
    ],
)
def test_a_wait_is_computed_in_the_recipients_zone(config: Value, until: str) -> None:
    story = Story(made(node("w", "wait", config), zone="Asia/Tokyo"))
    story.person = story.person._replace(timezone="America/New_York")

    assert story.starts(Instant("2026-03-07T17:00:00Z")).now.wake_at == Instant(until)


def test_a_wait_counts_the_workweek_of_the_settings_and_the_senders_clock() -> None:
    config = {"kind": "duration", "amount": 1, "unit": "business_day"}
    wait = node("w", "wait", config)
    friday = Instant("2026-06-05T05:00:00Z")
    sunday = made(wait, **settings(workweek=["sat", "sun"], timezone="Asia/Tehran"))
    sender = made(wait, **settings(timezone="Asia/Tokyo", send_window={**OFFICE, "tz": "sender"}))
    late = Instant("2026-06-04T16:00:00Z")  # Thursday, in Tokyo Friday already

    assert Story(sunday).starts(friday).now.wake_at == Instant("2026-06-06T05:00:00Z")
    story = Story(sender)
    story.person = story.person._replace(timezone="America/New_York")
    assert story.starts(late).now.wake_at == Instant("2026-06-07T16:00:00Z")


def test_a_timer_does_not_move_when_the_zone_changes() -> None:
    story = Story(made(days(1, "end"), END)).starts()
    story.person = story.person._replace(timezone="America/New_York")

    assert story.learns(later(hours=1), timezone="America/New_York").now.wake_at == later(days=1)


def test_a_loop_through_a_wall_clock_wait_lets_time_pass() -> None:
    wait = node("w", "wait", {"kind": "until_time", "hour": 10}, "w")
    story = Story(made(wait)).starts()

    times = [story.wakes().now.wake_at for _ in range(3)]

    assert times == [later(days=day) for day in (2, 3, 4)]


def opened(*hours: int, name: str = "message_opened", day: int = 20) -> dict[str, list[Happened]]:
    times = [Instant.from_utc(2026, 5, day, hour=hour) for hour in hours]
    return {name: [Happened(at) for at in times]}


@pytest.mark.parametrize(
    ("events", "hour"),
    [
        (opened(9, 18, 18, 20, 21), 18),
        (opened(9, 9, 18, 18, 20), 9),  # of two equal hours the earlier
        (opened(9, 18, 18, 20), None),  # four are no habit
        (opened(9, 9, 9) | opened(18, 18, name="Email Link Clicked"), 9),
        ({"message_opened": [Happened(Instant("2026-03-03T10:00:00Z"))] * 9}, None),
        ({"message_opened": [Happened(Instant("2026-03-03T10:00:01Z"))] * 9}, 10),
        ({"message_opened": [Happened(later(minutes=1))] * 9}, None),  # has not happened yet
        ({"opened": [Happened(START)] * 9}, None),
    ],
)
def test_the_best_hour_is_the_one_with_most_opens_of_ninety_days(
    events: Mapping[str, Sequence[Happened]], hour: int | None
) -> None:
    assert best_hour(Person("u", events=events), START, "UTC") == hour


def test_the_best_time_is_read_in_the_recipients_zone_when_it_is_needed() -> None:
    best = node("w", "wait", {"kind": "until_best_time", "fallback_hour": 3})
    story = Story(made(best))
    events = opened(9, 18, 18, 20, 21)
    story.person = story.person._replace(timezone="Asia/Tehran", events=events)

    # 18:00Z is 21:30 in Tehran; the wait ends when the clock there shows 21:00.
    assert story.starts().now.wake_at == Instant("2026-06-01T17:30:00Z")


# --- conditions and switches


def test_the_first_case_that_matches_wins() -> None:
    young = {"root": {"trait": "age", "op": "lt", "value": 65}}
    cases = [
        {"label": "", "definition": ADULT, "next": "a"},
        {"label": "young", "definition": young, "next": "b"},
    ]
    which = node("which", "switch", {"cases": cases, "default": "c"})
    program = made(which, send("a"), send("b"), send("c"))

    people: list[Value] = [{"age": 20}, {"age": 9}, {}]
    told = [Story(program, **traits).starts().told[3] for traits in people]

    assert told == ["branched which case 1", "branched which young", "branched which default"]


# --- splits and holdouts


def test_the_arm_is_the_hash_of_person_and_node_under_the_journeys_id() -> None:
    program = made(halves("test", "a", "b", percent=10), send("a"), send("b"))
    salted = allot.allotter("test", "12", 10, [1, 1])

    for number in range(50):
        user = f"u_{number}"
        is_holdout, arm = allot.draw(salted, user.encode())
        told = Story(program, user).starts().told[3]
        assert told == f"assigned test {'holdout' if is_holdout else 'AB'[arm]}"


@pytest.mark.parametrize(("salt", "key"), [({}, "12"), ({"salt": ""}, ""), ({"salt": "x"}, "x")])
def test_the_salt_is_the_journeys_id_unless_the_graph_says_otherwise(salt: Value, key: str) -> None:
    program = made(halves("test", "a", "a", percent=50, **salt), send("a"))
    expected = allot.allotter("test", key, 50, [1, 1])

    for number in range(30):
        held = Story(program, f"u_{number}").starts().now.is_holdout
        assert held is allot.draw(expected, f"u_{number}".encode())[0]


def test_an_arm_of_no_weight_gets_nobody_and_the_last_weighted_one_the_edge() -> None:
    branches = [
        {"weight": w, "next": "end", "variant": v} for w, v in [(0, "A"), (1, "B"), (0, "C")]
    ]
    program = made(node("test", "split", {"branches": branches}), END)

    arms = {Story(program, f"u_{number}").starts().now.variant for number in range(40)}

    assert arms == {"B"}


def test_an_arm_without_a_variant_is_called_by_its_place() -> None:
    branches = [{"next": "end"}]
    story = Story(made(node("test", "split", {"branches": branches}), END)).starts()

    assert story.now.variant == "branch 1"
    assert story.now.assignments == {"test": Assignment("branch 1", False)}


def test_an_exposure_is_told_for_both_arms() -> None:
    program = made(halves("test", "end", "end", percent=50), END)
    steps = [Story(program, f"u_{number}").starts().steps[0] for number in range(40)]

    exposures = {exposure for step in steps for exposure in step.exposures}

    assert {(each.node_id, each.variant, each.holdout) for each in exposures} == {
        ("test", "A", False),
        ("test", "B", False),
        ("test", "", True),
    }


def test_a_holdout_without_a_path_follows_the_first_branch_and_gets_nothing(cases: Cases) -> None:
    expect = cases["holdout-no-path"]["expect"]
    percent = cases["holdout-no-path"]["given"]["holdout_percent"]
    nodes = (send("a", "w"), days(1, "b"), send("b", "end"), END)
    story = Story(made(halves("test", "a", "end", percent=percent), *nodes)).starts()
    told = story.told
    told += story.wakes().told

    assert len(story.sent) == expect["sends"]
    assert [line for line in told if line.startswith("suppressed")] == [
        "suppressed a send holdout",
        "suppressed b send holdout",
    ]
    assert (story.now.status, story.now.is_holdout) == (expect["status"], True)


def test_a_holdout_takes_its_own_path_where_there_is_one() -> None:
    percent = halves("test", "a", percent=100, on_holdout="w")

    assert Story(made(percent, send("a"), days(1))).starts().steps[0].visits == ("t", "test", "w")


def test_state_is_written_for_a_holdout_and_nothing_leaves_the_house(cases: Cases) -> None:
    expect = cases["holdout-state-still-written"]["expect"]
    tag = {"kind": "add_to_segment", "segment_id": 5}
    nodes = (
        write("trait", "plan", "x", "tag"),
        node("tag", "action", tag, "hook"),
        node("hook", "action", {"kind": "webhook", "url": "https://example.org/"}, "jump"),
        node("jump", "action", {"kind": "enter_journey", "journey_id": 8}, "call"),
        node("call", "action", {"kind": "task", "task": "call"}, "send"),
        send("send", "end"),
    )
    story = Story(made(halves("test", "trait", percent=100), *nodes, END)).starts()

    entries = story.steps[0].trail
    withheld = [entry for entry in entries if isinstance(entry, Suppressed)]
    assert [effect.kind for effect in story.steps[0].effects] == expect["effects"]
    assert {entry.kind for entry in withheld} == {*expect["withheld"], "task"}
    assert {entry.reason for entry in withheld} == {"holdout"}
    assert withheld[-1].message_id == "j12.v3.send.u_1.e1"


def test_a_holdout_stays_one_through_later_splits_and_waits(cases: Cases) -> None:
    first, second = cases["holdout-second-split"]["given"]["holdout_percent"]
    nodes = (days(1, "two"), halves("two", "send", percent=second), send("send"))
    story = Story(made(halves("one", "w", percent=first), *nodes)).starts().wakes()

    assert len(story.sent) == cases["holdout-second-split"]["expect"]["sends"]
    assert story.now.is_holdout
    assert story.now.variant == "A"
    assert story.now.assignments == {"one": Assignment("", True), "two": Assignment("A", True)}


def test_a_later_split_tells_a_held_out_person_as_held_out() -> None:
    nodes = (halves("two", "end", "end"), END)
    told = Story(made(halves("one", "two", percent=100), *nodes)).starts().told

    assert [line for line in told if line.startswith("assigned")] == [
        "assigned one holdout",
        "assigned two holdout",
    ]


def test_a_new_pass_begins_without_the_arms_of_the_one_before() -> None:
    split = halves("test", "end", percent=100)
    program = again(ask(ADULT, "test", "end"), split, END)
    story = Story(program, age=20).starts()
    assert story.now.is_holdout
    story.person = story.person._replace(traits={})

    now = story.starts(later(hours=1), "m2").now

    assert (now.is_holdout, now.variant, now.assignments, now.entry_count) == (False, "", {}, 2)


def test_where_no_hash_can_be_made_nobody_is_treated(cases: Cases) -> None:
    story = Story(made(halves("test", "send", percent=0), send("send")), "\ud800").starts()

    assert len(story.sent) == cases["holdout-survives-error"]["expect"]["sent"]
    assert story.told[3:5] == ["error test ALLOCATION", "assigned test holdout"]
    assert story.now.is_holdout


# --- goals


def goal(window_days: int = 0, **config: Any) -> tuple[Value, ...]:
    asked = node("g", "goal", {"event": "paid", "window_days": window_days, **config}, "missed")
    return wait_for("ready", "g"), asked, send("missed")


def test_a_goal_that_is_reached_ends_the_pass_or_goes_its_own_way() -> None:
    plain = Story(made(*goal())).starts().hears("paid", later(days=400))
    plain.hears("ready", later(days=401))
    wired = Story(made(*goal(on_reached="end"), END)).starts().hears("paid", later(days=1))
    wired.hears("ready", later(days=2))
    missed = Story(made(*goal())).starts().hears("ready", later(days=1))

    assert plain.told[2:] == ["branched g on_reached", "exited g goal_reached"]
    assert plain.now.status == "completed"
    assert wired.told[-1] == "exited end completed"
    assert missed.told[2:4] == ["branched g next", "visited missed"]


@pytest.mark.parametrize(
    ("paid_at", "reached"),
    [
        (START, True),  # at the entry itself
        (later(days=7), True),  # exactly at the end
        (Instant("2026-06-08T10:00:00.000000001Z"), False),
    ],
)
def test_a_goal_counts_from_the_entry_to_the_end_of_its_window(
    paid_at: Instant, reached: bool
) -> None:
    story = (
        Story(made(*goal(7))).starts().hears("paid", paid_at, "m2").hears("ready", later(days=9))
    )

    assert story.told[2] == f"branched g {'on_reached' if reached else 'next'}"


def test_a_goal_knows_neither_what_was_before_nor_what_entered_the_person() -> None:
    trigger = {"kind": "event", "event": "paid"}
    before = Story(made(*goal())).hears("paid", Instant("2026-06-01T09:59:59Z"), "m0")
    entering = Story(made(*goal(), trigger=trigger)).hears("paid", START, "m1")

    assert before.starts().hears("ready", later(days=1)).told[2] == "branched g next"
    assert entering.hears("ready", later(days=1)).told[2] == "branched g next"


def test_a_goal_asks_its_filter_of_every_event() -> None:
    tests = [{"property": "amount", "op": "gte", "value": 50}]
    story = Story(made(*goal(filter=tests))).starts()
    story.hears("paid", later(days=1), amount=50).hears("paid", later(days=2), amount=5)

    assert story.hears("ready", later(days=3)).now.exit_reason == "goal_reached"


# --- names of messages


def test_a_message_has_the_name_of_the_case(cases: Cases) -> None:
    case = cases["msgid-format"]
    given, expect = case["given"], case["expect"]
    channels = [{"channel": name, "template_id": 1} for name in given["channels"]]
    own = send(given["node"], channels=channels, channel_mode="all")
    program = made(own, journey_id=given["journey"], version=given["version"])

    first, second = Story(program, given["user"]).starts().sent

    assert first.message_id == expect["message_id"]
    assert second.message_id == f"{expect['second_channel_id_starts_with']}.sms"


@pytest.mark.parametrize("case_id", ["msgid-dot-collision"])
def test_two_sends_never_share_a_name(case_id: str, cases: Cases) -> None:
    given = cases[case_id]["given"]
    ids = []
    for pair in given["pairs"]:
        program = made(send(pair["node"]), journey_id=given["journey"], version=given["version"])
        ids += [message.message_id for message in Story(program, pair["user"]).starts().sent]

    assert ids == ["j1.v1.a%2Eb.c.e1", "j1.v1.a.b%2Ec.e1"]
    assert part("50%.") == "50%25%2E"


def test_a_loop_numbers_its_second_and_later_messages(cases: Cases) -> None:
    case = cases["msgid-loop-collision"]
    story = Story(made(send("s", "w"), days(7, "s"))).starts()

    while story.now.wake_at is not None and story.now.wake_at <= later(case["when"]["run_days"]):
        story.wakes()

    assert [message.message_id for message in story.sent] == [
        "j12.v3.s.u_1.e1",
        "j12.v3.s.u_1.e1.n2",
        "j12.v3.s.u_1.e1.n3",
        "j12.v3.s.u_1.e1.n4",
    ]
    assert len(story.sent) == case["expect"]["sends_expected"]


def test_the_number_of_a_visit_stands_after_the_channel() -> None:
    channels = [{"channel": name, "template_id": 1} for name in ("push", "e.mail", "n2")]
    program = made(send("s", "w", channels=channels, channel_mode="all"), days(7, "s"))
    ids = [message.message_id for message in Story(program).starts().wakes().sent]

    assert ids == [
        "j12.v3.s.u_1.e1",
        "j12.v3.s.u_1.e1.e%2Email",
        "j12.v3.s.u_1.e1.%6E2",
        "j12.v3.s.u_1.e1.n2",
        "j12.v3.s.u_1.e1.e%2Email.n2",
        "j12.v3.s.u_1.e1.%6E2.n2",
    ]


def test_a_second_run_does_everything_again_under_names_of_its_own(cases: Cases) -> None:
    expect = cases["reentry-second-run-does-everything"]["expect"]
    tag = node("s", "action", {"kind": "add_to_segment", "segment_id": 5}, "b")
    story = Story(again(send("a", "s"), tag, send("b", "end"), END)).starts()

    story.starts(later(hours=1), "m2")

    kinds = [effect.kind for effect in story.steps[0].effects]
    assert kinds == [effect.split()[0] for effect in expect["effects"]]
    assert [message.message_id for message in story.sent[2:]] == expect["message_ids"]


# --- what leaves the house


def test_several_channels_are_tried_in_order_or_all_used() -> None:
    channels = [{"channel": "push", "template_id": 1}, {"channel": "email", "template_id": 2}]
    more: Value = {"category": "transactional", "priority": 90, "budget": "orders"}
    (message,) = Story(made(send("s", channels=channels, **more))).starts(rank=4).sent

    assert message == Message(
        "j12.v3.s.u_1.e1",
        {"rank": 4},
        "s",
        "push",
        1,
        "transactional",
        90,
        "orders",
        (Medium("email", 2, "j12.v3.s.u_1.e1.email"),),
    )
    everywhere = Story(made(send("s", channels=channels, channel_mode="all"))).starts().sent
    assert [(each.channel, each.template_id, each.fallback) for each in everywhere] == [
        ("push", 1, ()),
        ("email", 2, ()),
    ]


def test_a_message_is_marketing_of_middling_priority_unless_it_says_otherwise() -> None:
    (message,) = Story(made(send("s"))).starts().sent

    assert (message.category, message.priority, message.budget) == ("marketing", 50, "default")


def test_other_effects_carry_their_configuration_and_a_name_of_their_own() -> None:
    hook = {"kind": "webhook", "url": "https://example.org/", "headers": {"K": "v"}, "body": [1]}
    call = {"kind": "task", "task": "call", "title": "Ring", "connected_outcomes": ["spoke"]}
    nodes = (
        node("hook", "action", hook, "jump"),
        node("jump", "action", {"kind": "enter_journey", "journey_id": 8}, "call"),
        node("call", "action", call, "trait"),
        write("trait", "plan", {"a": 1}),
    )
    step = Story(made(*nodes)).starts(rank=4).steps[0]

    assert step.effects == (
        CallWebhook(
            "j12.v3.hook.u_1.e1", "hook", "https://example.org/", {"K": "v"}, [1], {"rank": 4}
        ),
        StartJourney("j12.v3.jump.u_1.e1", "jump", 8),
        GiveTask("j12.v3.call.u_1.e1", "call", "call", "Ring", ("spoke",)),
        WriteTrait("trait", "plan", {"a": 1}),
    )


# --- windows


@pytest.mark.parametrize(
    "case_id",
    [
        "win-close-exact",
        "win-open-exact",
        "win-friday-late-to-monday",
        "win-day-advance-resets-time",
        "win-overnight-overlap-inside",
        "win-overnight-friday-into-saturday",
        "win-overnight-midday",
        "win-sender-zone",
    ],
)
def test_a_send_is_held_at_the_step_until_its_window_opens(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    given, expect = dict(case["given"]), case["expect"]
    window = dict(given["send_window"])
    zone = window.pop("zone", given.get("sender_tz"))
    story = Story(
        made(send("s"), zone=given.get("sender_tz", "UTC"), **settings(send_window=window))
    )
    story.person = story.person._replace(timezone=given.get("contact_tz", zone))

    story.starts(read_instant(case["when"]["reach_send_at_utc"]))

    assert sends_at(story) == read_instant(expect["send_at_utc"])
    assert (story.now.wait is None) is expect["inside"]
    if not expect["inside"]:
        assert story.now.wait and story.now.wait.kind == "window"
        assert story.wakes().told == ["woke s timeout", "effect s send", "exited s no_next_node"]


@pytest.mark.parametrize(
    "case_id",
    ["win-recheck-closed-meanwhile", "win-recheck-overdue-by-hours", "win-contact-moved-west"],
)
def test_the_window_is_asked_again_when_the_step_runs(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    when, window = case["when"], dict(case["given"]["send_window"])
    zone = window.pop("zone")
    story = Story(made(send("s"), **settings(send_window=window)))
    story.person = story.person._replace(timezone=when.get("contact_tz_then", zone))
    due = read_instant(when.get("scheduled_for_utc") or when["due_at_utc"])
    held = story.starts(due - HALF_A_DAY).now
    assert held.wait and held.wait.kind == "window"
    story.instance = held._replace(wait=held.wait._replace(until=due), wake_at=due)
    story.person = story.person._replace(timezone=when.get("contact_tz_now", zone))

    story.wakes(read_instant(when["worker_runs_at_utc"]))

    opening = read_instant(case["expect"]["send_at_utc"])
    assert sends_at(story) == opening
    assert story.wakes(opening + HALF_A_DAY).told == ["woke s timeout", "waiting s"]
    assert story.wakes().told[1] == "effect s send"


def test_a_time_out_behind_a_held_send_counts_from_the_send(cases: Cases) -> None:
    case = cases["ev-clock-starts-at-the-send"]
    nodes = (send("s", "w"), wait_for("open", timeout="1h"))
    story = Story(made(*nodes, **settings(send_window=OFFICE)))

    story.starts(read_instant(case["when"]["entered_utc"])).wakes()

    assert story.now.wake_at == read_instant(case["expect"]["timeout_at_utc"])
    assert story.now.wait and story.now.wait.node_id == "w"


def test_the_values_of_the_event_do_not_outlast_a_hold() -> None:
    story = Story(made(send("s"), **settings(send_window=OFFICE))).starts(NIGHT, rank=4).wakes()

    assert [message.event for message in story.sent] == [{}]


def test_an_event_does_not_hurry_a_held_send_and_an_exit_ends_it() -> None:
    fields = settings(send_window=OFFICE, exit_on=["left"])
    story = Story(made(send("s", "w"), wait_for("paid"), exit_criteria=PAID, **fields)).starts(
        NIGHT
    )

    assert story.hears("opened", NIGHT).steps == ()
    assert story.hears("left", NIGHT).told == ["woke s exit", "exited s exit_criteria"]
    again_held = Story(story.program).starts(NIGHT).hears("paid", NIGHT, "m2")
    assert again_held.told == ["woke s exit m2", "exited s exit_criteria"]


def test_a_send_held_in_a_loop_keeps_the_number_of_its_visit() -> None:
    night_loop = (send("s", "w"), node("w", "wait", {"kind": "until_time", "hour": 20}, "s"))
    story = Story(made(*night_loop, **settings(send_window=OFFICE))).starts(NIGHT)
    for _ in range(3):
        story.wakes()

    assert [message.message_id for message in story.sent] == [
        "j12.v3.s.u_1.e1",
        "j12.v3.s.u_1.e1.n2",
    ]


def test_tasks_keep_the_window_and_webhooks_do_not() -> None:
    call = node("call", "action", {"kind": "task", "task": "call"})
    hook = node("hook", "action", {"kind": "webhook", "url": "https://example.org/"}, "call")
    story = Story(made(hook, call, **settings(send_window=OFFICE))).starts(NIGHT)

    assert story.told[2:] == ["visited hook", "effect hook webhook", "visited call", "waiting call"]


def test_a_broken_zone_name_is_noted_and_gives_way_to_the_senders(cases: Cases) -> None:
    case = cases["tz-bad-keys"]
    given, window = case["given"], case["given"]["send_window"]
    program = made(send("s"), zone=given["sender_tz"], **settings(send_window=window))

    for name in given["contact_tz_values"]:
        story = Story(program)
        story.person = story.person._replace(timezone=name)
        story.starts(read_instant(case["when"]["now_utc"]))

        assert sends_at(story) == read_instant(case["expect"]["send_at_utc"])
        notes = [entry for entry in story.steps[0].trail if isinstance(entry, Noted)]
        assert [note.note for note in notes] == ([] if name in ("", None) else ["bad_timezone"])


def test_a_broken_zone_name_is_noted_once_a_step_for_a_text_message_too() -> None:
    two = (send("a", "b", **SMS), send("b", "w", **SMS), days(1))
    sender = settings(jitter="1m", send_window={**OFFICE, "tz": "sender"})
    for fields in ({}, settings(jitter="1m"), settings(send_window=OFFICE), sender):
        story = Story(made(*two, **fields))
        story.person = story.person._replace(timezone="Mars/Phobos")
        story.starts()

        assert story.told.count("noted bad_timezone Mars/Phobos") == 1


# --- text messages


@pytest.mark.parametrize(
    "case_id",
    [
        "sms-before-eight",
        "sms-nine-pm-exact",
        "sms-sender-window-recipient-west",
        "sms-windows-never-meet",
        "sms-campaign-window-too-early",
    ],
)
def test_a_text_message_keeps_both_windows(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    window, recipient = dict(case["given"]["send_window"]), case["given"]["sms_window"]["zone"]
    zone = window.pop("zone")
    fields = settings(timezone=zone, send_window={**window, "tz": "sender"})
    never = case["expect"]["send_at_utc"] is None
    story = Story(made(send("s", **SMS), stored_anyway=never, **fields))
    story.person = story.person._replace(timezone=recipient)

    story.starts(read_instant(case["when"]["reach_sms_at_utc"]))

    expected = case["expect"]["send_at_utc"]
    assert sends_at(story) == (expected and read_instant(expected))
    if never:
        assert story.told[3:] == ["suppressed s send window_never_opens", "exited s no_next_node"]


@pytest.mark.parametrize(
    ("timezone", "phone", "reached", "opening"),
    [
        (None, None, "2026-07-06T22:00:00Z", "2026-07-07T07:00:00Z"),  # 08:00 in Lagos
        (None, "America/New_York", "2026-07-06T11:00:00Z", "2026-07-06T12:00:00Z"),
        ("Asia/Tokyo", "America/New_York", "2026-07-06T22:00:00Z", "2026-07-06T23:00:00Z"),
    ],
)
def test_the_zone_of_a_text_message_is_the_profiles_then_the_phones(
    timezone: str | None, phone: str | None, reached: str, opening: str
) -> None:
    story = Story(made(send("s", **SMS), zone="Africa/Lagos"))
    story.person = story.person._replace(timezone=timezone, phone_timezone=phone)

    assert sends_at(story.starts(Instant(reached))) == Instant(opening)


def test_the_phones_zone_is_for_text_messages_only() -> None:
    email = send("s", channel="email", template_id=1)
    story = Story(made(email, **settings(send_window=OFFICE)))
    story.person = story.person._replace(phone_timezone="Asia/Tokyo")

    assert story.starts().now.wait is None


def test_a_number_that_says_nothing_takes_the_senders_zone(cases: Cases) -> None:
    case = cases["sms-zone-ambiguous-phone"]
    fields = settings(timezone=case["given"]["sender_tz"], send_window=case["given"]["send_window"])
    story = Story(made(send("s", **SMS), **fields))

    story.starts(read_instant(case["when"]["reach_sms_at_utc"]))

    assert (story.now.wait is None) is case["expect"]["inside"]


# --- jitter


def test_jitter_is_the_hash_of_person_node_and_entry(cases: Cases) -> None:
    window = {"days": list(timing.DAY_NAMES), "from": "00:00", "to": "23:59"}
    assert cases["jitter-stable-on-retry"]["expect"]["first_equals_second"]
    program = again(send("s", "end"), END, **settings(jitter="30m", send_window=window))
    drawn = []
    for user in ("r-1", "r-1", "r-2"):
        story = Story(program, user).starts()
        share = allot.jitter_share(user, "s", 1)
        assert sends_at(story) == START.add(seconds=30 * 60 * share >> 32)
        drawn.append(sends_at(story))
        story.wakes()
        assert (len(story.sent), story.now.status) == (1, "completed")  # not put off once more

    assert drawn[0] == drawn[1] != drawn[2]
    second = story.starts(later(days=1), "m2").now
    assert second.wake_at == later(days=1).add(
        seconds=30 * 60 * allot.jitter_share("r-2", "s", 2) >> 32
    )


def test_jitter_spreads_those_who_come_while_the_window_is_closed() -> None:
    window = {"days": ["mon"], "from": "09:00", "to": "17:00"}
    program = made(send("s", "end"), END, **settings(jitter="2h", send_window=window))
    friday_evening, opening = Instant("2026-06-05T20:00:00Z"), Instant("2026-06-08T09:00:00Z")
    held = [Story(program, f"u_{i}").starts(friday_evening).now.wake_at for i in range(40)]
    seconds = [(at - opening).total("seconds") for at in held if at is not None]

    assert len(set(seconds)) > 30
    assert min(seconds) >= 0 and max(seconds) < 2 * 3600


@pytest.mark.parametrize("case_id", ["jitter-inside", "jitter-past-close-friday"])
def test_a_jitter_past_the_close_moves_to_the_next_opening(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    (window,) = case["given"]["windows"]
    minutes, _, seconds = case["given"]["drawn_delay"].partition("m")
    delay = 60 * int(minutes) + int(seconds.strip("s") or 0)
    users = (f"u_{number}" for number in range(100_000))
    user = next(user for user in users if 3600 * allot.jitter_share(user, "s", 1) >> 32 == delay)
    asked = {name: window[name] for name in ("days", "from", "to")}
    fields = settings(jitter=case["given"]["jitter"], send_window=asked)
    story = Story(made(send("s"), zone=window["zone"], **fields), user)

    story.starts(read_instant(case["when"]["base_utc"]))

    assert sends_at(story) == read_instant(case["expect"]["send_at_utc"])


def test_each_send_has_a_jitter_of_its_own() -> None:
    story = Story(made(send("a", "b"), send("b"), **settings(jitter="1h"))).starts().wakes()

    assert story.told == ["woke a timeout", "effect a send", "visited b", "waiting b"]


def test_jitter_needs_no_window_and_puts_off_outreach_only() -> None:
    hook = node("hook", "action", {"kind": "webhook", "url": "https://example.org/"}, "s")
    story = Story(made(hook, send("s"), **settings(jitter="1h"))).starts()

    assert story.told[2:] == ["visited hook", "effect hook webhook", "visited s", "waiting s"]
    assert START < (story.now.wake_at or START) < later(hours=1)


# --- the walker as the facts of a rule


def test_a_walker_answers_a_rule_about_itself() -> None:
    program = compile_graph(Graph.parse(journey(END)), "Asia/Tehran")
    person = Person("u_1", timezone="Asia/Tokyo")
    walker = Walker(program, person, START, None, 2, START, "m1")

    assert (walker.account_zone, walker.zone) == ("Asia/Tehran", "Asia/Tokyo")
    assert (walker.entered_at, walker.entered_by, walker.at) == (START, "m1", START)
    assert walker.named() == "u_1.e2"


def test_since_entry_counts_from_this_pass_without_its_own_event() -> None:
    trigger = {"kind": "event", "event": "paid"}
    nodes = (wait_for("ready", "if"), ask(PAID, "end", ""), END)
    story = Story(made(*nodes, trigger=trigger)).hears("paid", START, "m1")

    assert story.hears("ready", later(days=1)).told[2] == "branched if on_false"
    paid = Story(story.program).hears("paid", START, "m1").hears("paid", later(hours=1), "m2")
    assert paid.hears("ready", later(days=1)).told[2] == "branched if on_true"


def test_a_rule_that_asks_the_time_sees_the_time_of_the_step() -> None:
    morning = {"root": {"local": "hour", "op": "lt", "value": 12}}
    program = made(ask(morning, "end", ""), END)

    assert Story(program).starts().now.exit_reason == "completed"
    assert Story(program).reacts(Event("signed_up", NIGHT)).now.exit_reason == "no_next_node"
