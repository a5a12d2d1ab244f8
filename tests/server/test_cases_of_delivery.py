"""The cases of texts, of the values that travel, and of refusals, through a real delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from whenever import TimeDelta

from journeykit_server.database import Database
from journeykit_server.delivery import LogProvider
from journeykit_server.outbox import Settled
from journeykit_server.tables import deliveries, messages
from journeykit_server.verify import verify
from tests.engine.journeys import wait
from tests.engine.test_template import properties_of
from tests.engine.walking import END, days
from tests.server.post import Post, message
from tests.server.shop import track

Cases = Mapping[str, Any]
PHONE = "+4915112345678"


@pytest.fixture
async def post(database: Database) -> Post:
    """What goes out lies in `deliveries`."""
    post = Post(database)
    post.runtime.outbox.provider = LogProvider(database)
    return post


async def texts(post: Post) -> list[str]:
    rows = await post.rows(deliveries)
    return [orjson.loads(row.payload)["texts"]["body"] for row in rows]


@pytest.mark.parametrize(
    "case_id",
    [
        "tpl-missing-after-wait",
        "tpl-no-shadowing",
        "tpl-zero-and-false",
        "tpl-null-is-missing",
        "tpl-empty-string",
        "tpl-no-second-pass",
    ],
)
async def test_a_message_is_delivered_as_the_case_tells_it(
    post: Post, cases: Cases, case_id: str
) -> None:
    given, expect = cases[case_id]["given"], cases[case_id]["expect"]
    await post.writes(body=given["template"])
    if given.get("event") is None:  # a timed wait lies between: no event caused the step
        await post.opens(wait(kind="duration", amount=1, unit="hour") | {"next": "a"}, message())
    else:
        await post.opens(message())
    await post.learns("ann", email="ann@x.org", **given.get("traits", {}))
    await post.hears(track("ann", "signed_up", **(given.get("event") or {})))
    post.clock.set(post.clock.now() + TimeDelta(hours=1))
    await post.runtime.wake()

    await post.mails()

    if expect.get("suppressed"):
        missing = ", ".join(expect["missing_keys"])
        assert await post.log() == [f"suppressed email {expect['suppressed']} {missing}"]
        assert await texts(post) == []
    else:
        (said,) = await texts(post)
        assert said == expect.get("rendered", said)
        assert expect.get("rendered_contains", "") in said


@pytest.mark.parametrize(
    "case_id",
    [
        "props-32-of-33",
        "props-512-exact",
        "props-too-long-does-not-use-a-place",
        "props-sort-order",
    ],
)
async def test_the_values_that_travel_arrive(post: Post, cases: Cases, case_id: str) -> None:
    case = cases[case_id]
    properties = properties_of(case["check"]["props"])
    await post.writes(body="{% for each in event %}{{ each[0] }} {% endfor %}")
    await post.opens(message())
    await post.learns("ann", email="ann@x.org")
    await post.hears(track("ann", "signed_up", "", **properties))

    assert await post.mails() == Settled(delivered=1)

    (row,) = await post.rows(deliveries)
    travelled = orjson.loads(row.payload)["event"]
    assert list(travelled) == case["expect"]["travel"]
    assert (await texts(post))[0].split() == case["expect"]["travel"]
    assert {name: properties[name] for name in travelled} == travelled


async def test_a_refusal_for_the_person_is_told_once_and_the_walk_goes_on(
    post: Post, cases: Cases
) -> None:
    case = cases["exit-on-unsubscribe-not-retried"]
    await post.writes()
    await post.writes("sms")
    await post.opens(
        message("mail", "w"), days(1, "text"), message("text", "end", channel="sms"), END
    )
    await post.signs_up("ann", phone=PHONE)
    await post.refuses("ann", case["given"]["unsubscribed_from"])

    for _ in range(case["when"]["polls"]):
        await post.runtime.wake()
        await post.runtime.deliver()
        post.clock.set(post.clock.now() + TimeDelta(hours=1))

    rows = {row.channel: row for row in await post.rows(messages)}
    mail, expect = rows["email"], case["expect"]
    assert (mail.state, mail.attempts) == ("suppressed", expect["email_attempts"])
    assert [row.channel for row in rows.values() if row.state == "suppressed"] == ["email"]
    assert len(await texts(post)) == expect["sms_sent"] and rows["sms"].state == "delivered"
    assert await post.where("ann") == "completed end"
    assert await verify(post.database) == []
