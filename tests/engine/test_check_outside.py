"""What a graph names outside itself: it must be there, and take people in."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_engine.check import check
from journeykit_engine.check_outside import Neighbour, Outside
from tests.engine.journeys import Value, journey


def jump(target: int) -> Value:
    action = {"kind": "enter_journey", "journey_id": target}
    return journey({"id": "go", "kind": "action", "action": action}, journey_id=1)


def send(**action: Any) -> Value:
    return journey({"id": "s", "kind": "action", "action": {"kind": "send", **action}})


def around(neighbour: Neighbour, **more: Neighbour) -> Outside:
    others = {int(name.removeprefix("j")): other for name, other in more.items()}
    return Outside({2: neighbour, **others})


PROBLEMS = [
    (
        Outside({}),
        "JOURNEY_UNKNOWN",
        'The enter_journey node "go" enters journey 2, which does not exist.',
        "Name a journey of this account.",
    ),
    (
        around(Neighbour("archived", "api")),
        "JOURNEY_ARCHIVED",
        'The enter_journey node "go" enters journey 2, which is archived and takes nobody in.',
        "Name another journey.",
    ),
    (
        around(Neighbour("published", "event")),
        "NOT_API_TRIGGER",
        (
            'The enter_journey node "go" enters journey 2, whose trigger is of the kind event: '
            "nobody can be sent there."
        ),
        "Give journey 2 an api trigger, or name another journey.",
    ),
]
WARNINGS = [
    (
        around(Neighbour("draft", "api")),
        "JOURNEY_NOT_PUBLISHED",
        'The enter_journey node "go" enters journey 2, which is not published: nobody will enter '
        "it.",
        "Publish journey 2 before this one.",
    ),
    (
        around(Neighbour("published", "api", frozenset({1}))),
        "JOURNEY_LOOP",
        'The enter_journey node "go" enters journey 2, which leads back to this one.',
        "See that people leave the circle: nobody is sent on more than 10 times in a day.",
    ),
]


@pytest.mark.parametrize(("outside", "code", "message", "fix"), PROBLEMS)
def test_a_journey_that_takes_nobody_in_is_a_problem(
    outside: Outside, code: str, message: str, fix: str
) -> None:
    report = check(jump(2), outside=outside)

    [problem] = report.problems
    assert problem == (code, "go", "nodes[1].action.journey_id", message, fix)


@pytest.mark.parametrize(("outside", "code", "message", "fix"), WARNINGS)
def test_people_who_would_go_in_circles_or_nowhere_are_a_warning(
    outside: Outside, code: str, message: str, fix: str
) -> None:
    report = check(jump(2), outside=outside)

    assert report.valid
    assert (code, "go", "nodes[1].action.journey_id", message, fix) in report.warnings


@pytest.mark.parametrize("status", ["published", "paused"])
def test_a_journey_with_an_api_trigger_may_be_entered(status: Any) -> None:
    report = check(jump(2), outside=around(Neighbour(status, "api", frozenset({3}))))

    assert (report.problems, report.warnings) == ((), ())


def test_a_circle_over_several_journeys_is_seen_and_ends() -> None:
    others = {
        "j3": Neighbour("published", "api", frozenset({4})),
        "j4": Neighbour("published", "api", frozenset({3, 1})),
    }
    outside = around(Neighbour("published", "api", frozenset({3})), **others)

    assert [warning.code for warning in check(jump(2), outside=outside).warnings] == [
        "JOURNEY_LOOP"
    ]


def test_a_circle_that_does_not_lead_back_here_is_somebody_elses() -> None:
    outside = around(
        Neighbour("published", "api", frozenset({3})),
        j3=Neighbour("published", "api", frozenset({2})),
    )

    assert check(jump(2), outside=outside).warnings == ()


def test_a_journey_that_enters_itself_is_told_once() -> None:
    report = check(jump(1), outside=Outside({1: Neighbour("published", "api", frozenset({1}))}))

    assert [problem.code for problem in report.problems] == ["ENTERS_ITSELF"]
    assert report.warnings == ()


def test_a_template_that_is_not_there_is_a_problem_at_its_channel() -> None:
    channels = [{"channel": "push", "template_id": 7}, {"channel": "sms", "template_id": 8}]

    one = check(send(channel="push", template_id=7), outside=Outside({}, {8: "push"}))
    many = check(send(channels=channels), outside=Outside({}, {7: "push"}))

    assert one.problems == (
        (
            "TEMPLATE_UNKNOWN",
            "s",
            "nodes[1].action.template_id",
            'The send node "s" sends template 7, which does not exist or is archived.',
            "Choose a template of this account.",
        ),
    )
    assert [problem.path for problem in many.problems] == [
        "nodes[1].action.channels[1].template_id"
    ]


def test_where_texts_are_kept_elsewhere_no_template_is_missed() -> None:
    assert check(send(channel="push", template_id=7), outside=Outside({})).valid


def test_a_text_of_another_channel_is_a_warning() -> None:
    outside = Outside({}, {7: "sms", 8: ""})

    assert check(send(channel="email", template_id=8), outside=outside).warnings == ()
    assert check(send(channel="email", template_id=7), outside=outside) == (
        (),
        (
            (
                "TEMPLATE_OTHER_CHANNEL",
                "s",
                "nodes[1].action.template_id",
                'The send node "s" sends template 7 by "email"; it is written for "sms".',
                "Choose a template of this channel, or see that its texts fit.",
            ),
        ),
    )
