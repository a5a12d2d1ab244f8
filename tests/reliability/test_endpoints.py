"""Endpoints of webhooks that are slow, gone, busy or elsewhere, from the journey to the answer. Row
C66."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from whenever import TimeDelta

import journeykit as jk
from journeykit_server import webhooks
from journeykit_server.clock import Clock, instant
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered
from journeykit_server.dialler import Dialler
from journeykit_server.providers import Channels
from journeykit_server.runtime import Runtime
from journeykit_server.tables import dead_letters, messages, outbox
from journeykit_server.webhooks import WebhookProvider
from tests.databases import START
from tests.reliability.stage import later, order, process, read
from tests.server.receiver import HERE, Receiver, call, here, listening, signer


def calling(url: str) -> jk.Journey:
    """Whoever orders something is told to a receiver."""
    return jk.journey("Calling").on_event("order").webhook(url, id="hook").exit()


@asynccontextmanager
async def calls(database: Database, url: str) -> AsyncIterator[Runtime]:
    """A worker whose webhooks go out, and may go to this machine."""
    provider = WebhookProvider(database.clock, signer(), Dialler(HERE))
    channels = Channels(provider, {"webhook": provider})
    try:
        yield await process(database, calling(url), provider=channels)
    finally:
        await channels.close()


@asynccontextmanager
async def saying(answer: bytes, *, then_seconds: float = 60) -> AsyncIterator[str]:
    """A server that says so much, and then nothing for a long time."""
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        try:
            async with asyncio.timeout(then_seconds):
                await over.wait()
        except TimeoutError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    finally:
        over.set()
        server.close()


async def states(database: Database) -> list[str]:
    return [row.state for row in await read(database, messages)]


async def letters(database: Database) -> list[Any]:
    return await read(database, dead_letters)


# -- 2xx: it has it ------------------------------------------------------------------------------


async def test_c66_a_200_is_a_delivery_even_if_its_body_never_comes(database: Database) -> None:
    slow = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthank"
    async with saying(slow) as url, calls(database, url) as runtime:
        await order(runtime, "ann")

        assert (await runtime.deliver()).delivered == 1

    assert await states(database) == ["delivered"]


async def test_c66_a_200_with_an_endless_body_is_a_delivery() -> None:
    """No more of it is read than can be thrown away."""
    endless = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + b"\x1f\x8b" + bytes(2_000_000)
    async with saying(endless) as url:
        provider = WebhookProvider(Clock(), signer(), here())
        assert await provider.deliver([call(url)]) == [Delivered()]
        await provider.close()


async def test_c66_half_an_answer_is_none(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "REQUEST_SECONDS", 0.2)
    async with saying(b"HTTP/1.1 200 OK\r\nContent-") as url, calls(database, url) as runtime:
        await order(runtime, "ann")

        assert (await runtime.deliver()).failed == 1

    (row,) = await read(database, outbox)
    assert row.last_error.endswith("gave no answer within 10 seconds.")


# -- 3xx: nobody follows -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
async def test_c66_a_redirect_is_a_failure_and_not_followed(
    database: Database, status: int
) -> None:
    receiver, inside = Receiver(), Receiver()
    receiver.status = status
    async with listening(inside) as secret, listening(receiver) as url:
        receiver.answer_headers = {"Location": secret + "/latest/meta-data"}
        async with calls(database, url + "/hook") as runtime:
            await order(runtime, "ann")
            assert (await runtime.deliver()).failed == 1

    (row,) = await read(database, outbox)
    assert row.last_error == (
        f'"{url}/…" answered {status}, a redirect, which is never followed. Write where it leads.'
    )
    assert inside.heard == []


# -- 410: never again ----------------------------------------------------------------------------


async def test_c66_a_410_stops_the_calls_to_its_address(database: Database) -> None:
    receiver = Receiver()
    receiver.status = 410
    async with listening(receiver) as url, calls(database, url + "/hook") as runtime:
        await order(runtime, "ann")
        assert (await runtime.deliver()).dead == 1
        await order(runtime, "bob", "eve")
        assert (await runtime.deliver()).dead == 2

        assert len(receiver.heard) == 1  # bob and eve were not even offered
        assert [letter.code for letter in await letters(database)] == ["ENDPOINT_GONE"] * 3
        assert {letter.message for letter in await letters(database)} == {
            f'"{url}/…" has answered 410: it does not want to be called again. Take the node out '
            "of the journey, or mend the receiver and retry after an hour."
        }

        receiver.status = 200
        later(database, TimeDelta(hours=1))
        await order(runtime, "kim")
        assert (await runtime.deliver()).delivered == 1


# -- 429 and 503: not before ---------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("told", ["600", "Mon, 01 Jun 2026 10:10:00 GMT"])
async def test_c66_retry_after_is_waited_for(database: Database, status: int, told: str) -> None:
    receiver = Receiver()
    receiver.status, receiver.answer_headers = status, {"Retry-After": told}
    async with listening(receiver) as url, calls(database, url) as runtime:
        await order(runtime, "ann")
        assert (await runtime.deliver()).failed == 1
        (row,) = await read(database, outbox)
        assert instant(row.try_at) >= START + TimeDelta(seconds=600)

        # Whoever comes meanwhile is not sent there either.
        await order(runtime, "bob")
        assert (await runtime.deliver()).failed == 1
        assert len(receiver.heard) == 1

        receiver.status, receiver.answer_headers = 200, {}
        later(database, TimeDelta(minutes=12))
        delivered = (await runtime.deliver()).delivered + (await runtime.deliver()).delivered
        assert delivered == 2


@pytest.mark.parametrize(
    "told", ["", "soon", "-5", "1e9", "Mon, 01 Jan 2001 00:00:00 GMT", "99" * 200]
)
async def test_c66_a_retry_after_that_is_nonsense_keeps_nobody_for_ever(
    database: Database, told: str
) -> None:
    receiver = Receiver()
    receiver.status, receiver.answer_headers = 503, {"Retry-After": told}
    async with listening(receiver) as url, calls(database, url) as runtime:
        await order(runtime, "ann")
        assert (await runtime.deliver()).failed == 1

    (row,) = await read(database, outbox)
    assert instant(row.try_at) <= START + TimeDelta(hours=27)
