"""A real HTTP server that hears what providers post, and answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from journeykit_server.delivery import Item
from journeykit_server.dialler import Dialler
from journeykit_server.signing import Signer
from tests.databases import START

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSB0ZXN0cywgMzIgYnl0ZXMgbG8="
HERE = ["127.0.0.0/8"]


class Heard(NamedTuple):
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class Receiver:
    """Answers `/204` with 204, and whatever else with `status` and `answer_headers`."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[Heard] = []
        self.status = 200
        self.answer_headers: dict[str, str] = {}
        self.busy = self.busiest = 0
        self.pause_seconds = 0.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            body = await request.read()
            self.heard.append(Heard(request.path, CIMultiDict(request.headers), body))
            await asyncio.sleep(self.pause_seconds)
        finally:
            self.busy -= 1
        told = request.path.removeprefix("/")
        return web.Response(
            status=int(told) if told.isdigit() else self.status, headers=self.answer_headers
        )


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[str]:
    """The address of a server, "http://127.0.0.1:43211", until the block ends."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.answer)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server(access_log=None)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


def call(url: str, message_id: str = "j7.v1.hook.ann.e1", **payload: object) -> Item:
    """A webhook node's effect."""
    told = {"id": message_id, "url": url, "headers": {}, "body": None, "event": {}, **payload}
    return Item(1, message_id, "ann", 7, 1, 1, "hook", "webhook", told, START, 1)


def send(channel: str, message_id: str = "j7.v1.hello.ann.e1", **payload: object) -> Item:
    """A message that is ready to go."""
    told = {
        "message_id": message_id,
        "channel": channel,
        "address": "+4915112345678",
        "texts": {"body": "Hello Ann"},
        "template_id": 3,
        "template_version": 2,
        "category": "marketing",
        "priority": 50,
        **payload,
    }
    return Item(1, message_id, "ann", 7, 1, 1, "hello", "send", told, START, 1)


def signer() -> Signer:
    return Signer([SECRET])


def here() -> Dialler:
    """A dialler that may call the tests' own server."""
    return Dialler(HERE)
