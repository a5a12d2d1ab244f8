"""A policy says what an account allows; it is read strictly, and its latest version counts."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_engine.timing import EVERY_DAY, Window
from journeykit_server.database import Database
from journeykit_server.policy import BadPolicy, Policy, policies, read_policy, save_policy

WHOLE: dict[str, Any] = {
    "quiet_hours": {"from": "22:00", "to": "08:00"},
    "caps": {"default": {"per_day": 3}, "*": {"per_day": 5}},
    "opt_in": ["sms"],
    "channels_off": ["push"],
    "addresses": {"email": "mail", "fax": "fax_number"},
}


def test_a_whole_policy_is_read() -> None:
    policy = Policy.parse(WHOLE)

    assert policy.window("UTC") == Window("UTC", EVERY_DAY, 8 * 60, 22 * 60)
    assert policy.caps == {"default": 3, "*": 5}
    assert (policy.opt_in, policy.channels_off) == (frozenset({"sms"}), frozenset({"push"}))
    assert policy.addresses == {
        "email": "mail",
        "fax": "fax_number",
        "sms": "phone",
        "whatsapp": "phone",
        "push": "push_token",
    }


@pytest.mark.parametrize(
    "nothing",
    [
        "{}",
        '{"quiet_hours": null, "caps": {}}',
        '{"caps": null, "opt_in": null, "channels_off": null, "addresses": null}',
    ],
)
def test_an_empty_policy_limits_nothing(nothing: str) -> None:
    assert Policy.parse(nothing) == Policy()
    assert Policy().window("UTC") is None


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("[]", "The policy is []; write an object."),
        (
            '{"a": NaN}',
            "The policy is no JSON that can be kept: The number NaN at a is no JSON number.",
        ),
        (
            {"cap": {}},
            'The policy has the unknown field "cap"; '
            "it may have quiet_hours, caps, opt_in, channels_off, addresses.",
        ),
        ({"quiet_hours": "22-8"}, 'quiet_hours is "22-8"; write an object.'),
        (
            {"quiet_hours": {"from": "22:00", "till": "08:00"}},
            'quiet_hours has the unknown field "till"; it may have from, to.',
        ),
        (
            {"quiet_hours": {"from": "22:00", "to": "8"}},
            'quiet_hours: "to" is "8"; write a time from "00:00" to "23:59", as "22:00".',
        ),
        (
            {"quiet_hours": {"from": "22:00"}},
            'quiet_hours: "to" is null; write a time from "00:00" to "23:59", as "22:00".',
        ),
        (
            {"quiet_hours": {"from": "08:00", "to": "08:00"}},
            'quiet_hours: "from" and "to" are both "08:00", so it would always be quiet. '
            "Write two different times, or null.",
        ),
        (
            {"caps": {"default": {"per_day": 0}}},
            'caps["default"]: per_day is 0; write a whole number from 1 to 10000.',
        ),
        (
            {"caps": {"default": {"per_day": True}}},
            'caps["default"]: per_day is true; write a whole number from 1 to 10000.',
        ),
        (
            {"caps": {"default": {"per_week": 1}}},
            'caps["default"] has the unknown field "per_week"; it may have per_day.',
        ),
        ({"opt_in": "sms"}, 'opt_in is "sms"; write a list of names of channels.'),
        ({"channels_off": [1]}, "channels_off is [1]; write a list of names of channels."),
        ({"caps": False}, "caps is false; write an object."),
        ({"caps": []}, "caps is []; write an object."),
        ({"opt_in": ""}, 'opt_in is ""; write a list of names of channels.'),
        ({"opt_in": {}}, "opt_in is {}; write a list of names of channels."),
        ({"channels_off": 0}, "channels_off is 0; write a list of names of channels."),
        ({"addresses": 0}, "addresses is 0; write an object."),
        (
            {"opt_in": ["SMS"]},
            'opt_in names the channel "SMS"; write one channel in small letters, as "sms".',
        ),
        (
            {"channels_off": ["*"]},
            'channels_off names the channel "*"; write one channel in small letters, as "sms".',
        ),
        (
            {"addresses": {" sms": "phone"}},
            'addresses names the channel " sms"; write one channel in small letters, as "sms".',
        ),
        (
            {"addresses": {"email": ""}},
            'addresses["email"] is ""; write the name of the trait that holds the address.',
        ),
        (
            {"caps": {f"b{n}": {"per_day": 1} for n in range(201)}},
            "caps has 201 names; 200 are enough.",
        ),
    ],
)
async def test_a_fault_is_named(database: Database, document: Any, told: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        await save_policy(database, 1, document)

    assert str(refused.value) == told
    assert await read_policy(database, 1) == (0, {})


async def test_the_latest_version_counts_for_its_account(database: Database) -> None:
    assert await save_policy(database, 1, {"opt_in": ["sms"]}) == 1
    assert await save_policy(database, 1, WHOLE) == 2
    assert await save_policy(database, 2, {}) == 1

    found = await database.read(lambda connection: policies(connection, [1, 2, 3, 1]))

    assert found == {1: Policy.parse(WHOLE), 2: Policy(), 3: Policy()}
    assert await read_policy(database, 1) == (2, WHOLE)
    assert await read_policy(database, 1, 1) == (1, {"opt_in": ["sms"]})
