"""What a receiver of webhooks gets, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from standardwebhooks import Webhook, WebhookVerificationError
from whenever import TimeDelta

from journeykit_server import webhooks as module
from journeykit_server.clock import Clock, VirtualClock
from journeykit_server.delivery import Delivered, Failed, Item, Outcome, Refused, Unreachable
from journeykit_server.dialler import Dialler
from journeykit_server.signing import BadSecret, Signer, webhook_id
from journeykit_server.webhooks import GatewayProvider, HttpProvider, WebhookProvider
from tests.databases import START
from tests.server.receiver import SECRET, Receiver, call, here, listening, send, signer


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    heard = Receiver()
    async with listening(heard) as url:
        heard.url = url
        yield heard


@asynccontextmanager
async def webhooks(
    clock: Clock | None = None, dialler: Dialler | None = None
) -> AsyncIterator[WebhookProvider]:
    provider = WebhookProvider(clock or VirtualClock(START), signer(), dialler or here())
    try:
        yield provider
    finally:
        await provider.close()


async def outcome(item: Item, provider: HttpProvider | None = None) -> Outcome:
    if provider is not None:
        return (await provider.deliver([item]))[0]
    async with webhooks() as made:
        return (await made.deliver([item]))[0]


# -- what is sent --------------------------------------------------------------------------------


async def test_a_receiver_can_tell_that_a_request_is_ours(receiver: Receiver) -> None:
    async with webhooks(Clock()) as provider:
        await provider.deliver([call(receiver.url + "/hook")])

    (heard,) = receiver.heard
    assert Webhook(SECRET).verify(heard.body, dict(heard.headers)) == heard.json
    forged = heard.body.replace(b"ann", b"bob")
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(forged, dict(heard.headers))


async def test_a_receiver_may_change_to_a_new_secret_in_its_own_time(receiver: Receiver) -> None:
    old = "whsec_" + "b2xkIHNlY3JldCBvZiB0aGUgdGVzdHMsIDMyIGJ5dGU="
    provider = WebhookProvider(Clock(), Signer([SECRET, old]), here())
    await outcome(call(receiver.url), provider)
    await provider.close()

    (heard,) = receiver.heard
    for secret in (SECRET, old):
        Webhook(secret).verify(heard.body, dict(heard.headers))


async def test_a_retry_is_the_same_request_under_the_same_name_at_its_own_time(
    receiver: Receiver,
) -> None:
    async with webhooks(clock := VirtualClock(START)) as provider:
        await provider.deliver([call(receiver.url)])
        clock.set(START + TimeDelta(seconds=305))
        await provider.deliver([call(receiver.url)._replace(attempts=2)])

    one, two = receiver.heard
    assert one.body == two.body
    assert one.headers["webhook-id"] == two.headers["webhook-id"]
    assert webhook_id(1, "j7.v1.hook.ann.e1") == one.headers["webhook-id"]
    assert "." not in one.headers["webhook-id"]
    stamps = [int(each.headers["webhook-timestamp"]) for each in (one, two)]
    assert stamps == [START.timestamp(), START.timestamp() + 305]


async def test_a_node_without_a_body_sends_who_where_and_why(receiver: Receiver) -> None:
    await outcome(call(receiver.url + "/hook", event={"amount": 30}))

    (heard,) = receiver.heard
    assert heard.path == "/hook"
    assert heard.headers["Content-Type"] == "application/json"
    assert heard.json == {
        "type": "journey.webhook",
        "timestamp": "2026-06-01T10:00:00Z",
        "data": {
            "message_id": "j7.v1.hook.ann.e1",
            "tenant_id": 1,
            "user_id": "ann",
            "journey_id": 7,
            "version": 1,
            "entry_count": 1,
            "node_id": "hook",
            "event": {"amount": 30},
        },
    }


@pytest.mark.parametrize(
    ("body", "sent", "content"),
    [
        ({"text": "سلام"}, '{"text":"سلام"}', "application/json"),
        ([1, 2], "[1,2]", "application/json"),
        (False, "false", "application/json"),
        ("plain", "plain", "text/plain; charset=utf-8"),
        ("", "", "text/plain; charset=utf-8"),
    ],
)
async def test_a_body_is_sent_as_it_is_written(
    receiver: Receiver, body: object, sent: str, content: str
) -> None:
    await outcome(call(receiver.url, body=body))

    (heard,) = receiver.heard
    assert heard.body.decode() == sent
    assert heard.headers["Content-Type"] == content


async def test_the_person_is_in_the_headers_whatever_the_body(receiver: Receiver) -> None:
    item = call(receiver.url, "j7.v1.hook.a%2Eb.e1", body="x")._replace(user_id="a.b\r\nX: 1 آن")

    assert await outcome(item) == Delivered()

    (heard,) = receiver.heard
    assert heard.headers["Journeykit-User"] == "a.b%0D%0AX%3A%201%20%D8%A2%D9%86"
    assert heard.headers["Journeykit-Message"] == "j7.v1.hook.a%252Eb.e1"
    assert heard.headers["Journeykit-Tenant"] == "1"
    assert "X" not in heard.headers


async def test_a_node_s_headers_are_sent_and_its_content_type_wins(receiver: Receiver) -> None:
    headers = {
        "Authorization": "Bearer x",
        "content-type": "application/xml",
        "X-Name": "زهرا",
        "user-agent": "shop",
    }

    await outcome(call(receiver.url, headers=headers, body="<a/>"))

    (heard,) = receiver.heard
    assert heard.headers["Authorization"] == "Bearer x"
    assert heard.headers["content-type"] == "application/xml"
    assert heard.headers["X-Name"] == "زهرا"
    assert heard.headers["User-Agent"] == "shop"


RESERVED = "is one that journeykit sets itself. Take it out."
NO_NAME = "has a name that HTTP does not allow. Use letters, digits and hyphens."
BROKEN = "has a line break or control character in it. Write it on one line."


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("Host", "inside", f'The header "Host" {RESERVED}'),
        ("content-length", "5", f'The header "content-length" {RESERVED}'),
        ("Transfer-Encoding", "chunked", f'The header "Transfer-Encoding" {RESERVED}'),
        ("CONNECTION", "close", f'The header "CONNECTION" {RESERVED}'),
        ("webhook-signature", "v1,x", f'The header "webhook-signature" {RESERVED}'),
        ("Webhook-Id", "x", f'The header "Webhook-Id" {RESERVED}'),
        ("journeykit-user", "bob", f'The header "journeykit-user" {RESERVED}'),
        ("X\r\nHost", "x", f'The header "X……Host" {NO_NAME}'),
        ("X:", "x", f'The header "X:" {NO_NAME}'),
        ("", "x", f'The header "" {NO_NAME}'),
        ("X Y", "x", f'The header "X Y" {NO_NAME}'),
        ("زهرا", "x", f'The header "زهرا" {NO_NAME}'),
        ("X-A", "x\r\nHost: inside", f'The header "X-A" {BROKEN}'),
        ("X-A", "x\ny", f'The header "X-A" {BROKEN}'),
        ("X-A", "x\x00", f'The header "X-A" {BROKEN}'),
    ],
)
async def test_no_header_can_bring_another_one_in(
    receiver: Receiver, name: str, value: str, told: str
) -> None:
    item = call(receiver.url, headers={name: value})

    assert await outcome(item) == Refused("BAD_HEADER", told)
    assert receiver.heard == []


async def test_what_is_too_large_is_not_sent(receiver: Receiver) -> None:
    assert await outcome(call(receiver.url, body="x" * 262_145)) == Refused(
        "TOO_LARGE",
        "The request would have 262145 bytes; at most 262144 are sent. Send less, or the name of "
        "a place where the rest can be fetched.",
    )


async def test_a_node_without_an_address_says_so() -> None:
    assert await outcome(call("")) == Refused(
        "NO_URL",
        'The node has no address to call. Write it in "url", as "https://example.com/hook".',
    )


# -- where it may go -----------------------------------------------------------------------------


async def test_an_address_inside_is_never_called(receiver: Receiver) -> None:
    async with webhooks(dialler=Dialler()) as provider:
        told = await outcome(call(receiver.url), provider)

    assert isinstance(told, Refused)
    assert told.code == "BLOCKED_ADDRESS"
    assert receiver.heard == []


async def test_a_name_that_leads_inside_is_refused_for_good(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the url alone looked at, `localhost` by another name would pass."""
    monkeypatch.setattr("journeykit_server.dialler.KNOWN_NAMES", {})
    url = receiver.url.replace("127.0.0.1", "localhost")
    async with webhooks(dialler=Dialler()) as provider:
        told = await outcome(call(url), provider)

    assert isinstance(told, Refused)
    assert told.code == "BLOCKED_ADDRESS"
    assert told.message.startswith('"localhost:')
    assert receiver.heard == []


async def test_a_proxy_in_the_environment_is_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert await outcome(call(receiver.url)) == Delivered()
    assert len(receiver.heard) == 1


async def test_a_cookie_of_one_journey_is_not_told_to_the_next(receiver: Receiver) -> None:
    receiver.answer_headers = {"Set-Cookie": "a=1; Path=/"}
    url = receiver.url.replace("127.0.0.1", "localhost")  # an address alone keeps no cookies
    async with webhooks() as provider:
        await provider.deliver([call(url)])
        await provider.deliver([call(url)])

    assert "Cookie" not in receiver.heard[1].headers


# -- what an answer means ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_a_2xx_is_a_delivery(receiver: Receiver, status: int) -> None:
    assert await outcome(call(f"{receiver.url}/{status}")) == Delivered()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 422, 451, 499])
async def test_a_4xx_is_refused_for_good(receiver: Receiver, status: int) -> None:
    assert await outcome(call(f"{receiver.url}/{status}")) == Refused(
        "ENDPOINT_REFUSED",
        f'"{receiver.url}/…" answered {status} and will not take it. Mend the receiver or the '
        "node, then retry.",
    )


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_what_may_pass_fails_and_comes_again(receiver: Receiver, status: int) -> None:
    assert await outcome(call(f"{receiver.url}/{status}")) == Failed(
        f'"{receiver.url}/…" answered {status}.'
    )


async def test_nobody_there_is_a_failure() -> None:
    async with listening(Receiver()) as url:
        pass

    assert await outcome(call(url + "/secret")) == Failed(
        f'"{url}/…" cannot be reached: ClientConnectorError.'
    )


async def test_an_endpoint_that_does_not_answer_is_a_failure(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.05)
    receiver.pause_seconds = 0.5

    assert await outcome(call(receiver.url)) == Failed(
        f'"{receiver.url}/…" gave no answer within 10 seconds.'
    )


# -- many at once --------------------------------------------------------------------------------


async def test_outcomes_come_in_the_order_of_the_effects(receiver: Receiver) -> None:
    statuses = [204, 404, 500, 200, 410]
    items = [call(f"{receiver.url}/{status}", f"m{status}") for status in statuses]

    async with webhooks() as provider:
        told = await provider.deliver(items)

    assert [type(each) for each in told] == [Delivered, Refused, Failed, Delivered, Refused]


async def test_one_address_is_not_asked_by_a_hundred_at_a_time(receiver: Receiver) -> None:
    receiver.pause_seconds = 0.01
    async with webhooks() as provider:
        told = await provider.deliver([call(receiver.url, f"m{n}") for n in range(100)])

    assert set(told) == {Delivered()}
    assert receiver.busiest == module.AT_ONCE


async def test_a_slow_address_does_not_hold_up_another(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.2)
    quick = Receiver()
    receiver.pause_seconds = 5
    async with listening(quick) as url, webhooks() as provider:
        told = await provider.deliver([call(receiver.url), call(url, "other")])

    assert told == [
        Failed(
            f'"{receiver.url}/…" answers too slowly for all that goes to it; this waits for its '
            "next turn."
        ),
        Delivered(),
    ]


async def test_an_address_that_fails_again_and_again_is_left_alone(receiver: Receiver) -> None:
    receiver.status = 500
    async with webhooks(clock := VirtualClock(START)) as provider:
        for number in range(7):
            told = await outcome(call(receiver.url, f"m{number}"), provider)
        assert told == Failed(
            f'"{receiver.url}/…" is left alone for 30 more seconds: it did not answer, or asked '
            "for it.",
            30,
        )
        assert len(receiver.heard) == 5

        clock.set(START + TimeDelta(seconds=30))
        receiver.status = 200
        assert await outcome(call(receiver.url), provider) == Delivered()
        assert await outcome(call(receiver.url), provider) == Delivered()


async def test_a_fault_of_one_tenant_does_not_hold_up_another(receiver: Receiver) -> None:
    receiver.status = 500
    async with webhooks() as provider:
        for number in range(6):
            await outcome(call(receiver.url, f"m{number}"), provider)
        receiver.status = 200
        other = call(receiver.url)._replace(tenant_id=2)

        assert await outcome(other, provider) == Delivered()


async def test_somebody_who_does_not_wait_takes_the_requests_along(receiver: Receiver) -> None:
    receiver.pause_seconds = 5
    async with webhooks() as provider:
        offer = asyncio.ensure_future(provider.deliver([call(receiver.url)]))
        while not receiver.heard:
            await asyncio.sleep(0.01)
        offer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await offer


# -- the gateway ---------------------------------------------------------------------------------


async def gateway(receiver: Receiver, *items: Item) -> Sequence[Outcome]:
    provider = GatewayProvider(receiver.url + "/in", VirtualClock(START), signer())
    try:
        return await provider.deliver(items)
    finally:
        await provider.close()


async def test_a_gateway_gets_a_message_that_is_ready(receiver: Receiver) -> None:
    assert await gateway(receiver, send("sms")) == [Delivered("sms")]

    (heard,) = receiver.heard
    assert heard.path == "/in"
    assert heard.headers["webhook-id"] == webhook_id(1, "j7.v1.hello.ann.e1")
    assert heard.json == {
        "message_id": "j7.v1.hello.ann.e1",
        "tenant_id": 1,
        "user_id": "ann",
        "journey_id": 7,
        "version": 1,
        "entry_count": 1,
        "node_id": "hello",
        "channel": "sms",
        "address": "+4915112345678",
        "texts": {"body": "Hello Ann"},
        "template_id": 3,
        "template_version": 2,
        "category": "marketing",
        "priority": 50,
    }


async def test_a_gateway_says_with_410_that_a_person_cannot_be_reached(receiver: Receiver) -> None:
    """It is one address for everybody: it is not gone when one device is."""
    receiver.status = 410
    assert await gateway(receiver, send("push")) == [Unreachable("no_address")]

    receiver.status = 200
    assert await gateway(receiver, send("push")) == [Delivered("push")]


# -- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "fault"),
    [
        ("hunter2-hunter2-hunter2", 'does not begin with "whsec_"'),
        ("whsec_hunter2!", "is no base64"),
        ("whsec_aHVudGVyMg==", "has 7 bytes"),
    ],
)
def test_a_secret_that_is_none_is_told_and_not_repeated(secret: str, fault: str) -> None:
    with pytest.raises(BadSecret) as told:
        Signer([secret])

    assert str(told.value) == (
        f'A webhook secret is "whsec_" and 24 to 64 random bytes in base64; this one {fault}. '
        "Make one with: python -c \"import base64, secrets; print('whsec_' + "
        'base64.b64encode(secrets.token_bytes(32)).decode())"'
    )
    assert "hunter2" not in str(told.value)


async def test_no_secret_is_logged_or_shown(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    item = call(receiver.url + "/secret-path", headers={"Authorization": "Bearer secret-key"})
    receiver.status = 500
    async with webhooks() as provider:
        told = await outcome(item, provider)
        shown = caplog.text + repr(provider) + repr(provider.signer) + repr(told)

    assert "secret" not in shown
    assert SECRET.removeprefix("whsec_") not in shown
