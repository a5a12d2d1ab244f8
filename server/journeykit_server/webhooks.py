"""Effects that go out as signed HTTP requests: the webhook nodes of a journey, and messages handed
to a gateway of the operator's.

Both are one `POST`, signed after the Standard Webhooks, and judged by its status alone:

| answer | a webhook | the gateway |
| --- | --- | --- |
| 2xx, however slow its body | delivered | delivered |
| 3xx | fails and is tried again; nobody follows it | the same |
| 410 | refused, and its address is not called for an hour | the person cannot be reached so |
| 408, 425, 429, 5xx, none | fails; a `Retry-After` is kept for the whole address | the same |
| any other | refused for good | the same |

What a webhook carries: where the node has a `body`, exactly that, a text as it is and anything else
as JSON, for receivers that want it their own way; where it has none, an envelope with the person,
the place in the journey and the event that caused it. The person is in the headers either way. A
body is the same at every attempt. Nothing of an answer's body is believed or kept.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
from aiohttp import ClientError, ClientResponse, ClientSession, DummyCookieJar
from whenever import Instant

from journeykit_engine.check_nodes import HEADER_NAME
from journeykit_server.circuit import LONGEST_REST_SECONDS, Circuits
from journeykit_server.clock import Clock
from journeykit_server.delivery import Delivered, Failed, Item, Outcome, Refused, Unreachable
from journeykit_server.dialler import (
    BLOCKED_ADDRESS,
    Dialler,
    shown_url,
    was_blocked,
)
from journeykit_server.signing import Signer

REQUEST_SECONDS = 10.0  # from the first packet to the status
BATCH_SECONDS = 20.0  # for all requests of an offer; those without a place by then come again
DRAIN_SECONDS, DRAIN_BYTES = 0.5, 65_536  # of an answer's body, that its connection can be reused
AT_ONCE = 20  # requests to one address: a slow one must not meet a hundred at a time
MOST_BYTES = 262_144  # of a body that is sent
PASSING = (408, 425, 429)  # of the 4xx: nothing is wrong, only the moment
GONE_SECONDS = 3_600.0  # a 410 is believed so long, then one request asks again
GONE_URLS = 10_000  # remembered by one process

RESERVED = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
RESERVED_STARTS = ("webhook-", "journeykit-")
LINE_BREAK = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

BAD_HEADER = 'The header "{name}" {fault}. {fix}'
TOO_LARGE = (
    f"The request would have {{size}} bytes; at most {MOST_BYTES} are sent. Send less, or the name "
    "of a place where the rest can be fetched."
)
ANSWERED = '"{url}" answered {status}.'
NO_URL = 'The node has no address to call. Write it in "url", as "https://example.com/hook".'
ENDPOINT_GONE = (
    '"{url}" has answered 410: it does not want to be called again. Take the node out of the '
    "journey, or mend the receiver and retry after an hour."
)
REFUSED = (
    '"{url}" answered {status} and will not take it. Mend the receiver or the node, then retry.'
)
REDIRECTS = '"{url}" answered {status}, a redirect, which is never followed. Write where it leads.'
RESTS = '"{url}" is left alone for {seconds:.0f} more seconds: it did not answer, or asked for it.'
TOO_SLOW = f'"{{url}}" gave no answer within {REQUEST_SECONDS:.0f} seconds.'
NO_PLACE = '"{url}" answers too slowly for all that goes to it; this waits for its next turn.'
NO_CONNECTION = '"{url}" cannot be reached: {error}.'
BAD_REQUEST = '"{url}" cannot be called: its address or a header is none that HTTP takes. Mend it.'
NO_ADDRESS = "no_address"


class Request(NamedTuple):
    """What is posted, and where. `body` is signed as it is."""

    url: str
    headers: Mapping[str, str]
    body: bytes


class HttpProvider(ABC):
    """Posts each effect, all of an offer at once, and takes the status for its outcome.

    The session is made when the first effect comes, in the loop that is running then; `close` ends
    it.
    """

    def __init__(
        self, clock: Clock, signer: Signer, dialler: Dialler, *, circuits: Circuits | None = None
    ) -> None:
        self.clock = clock
        self.signer = signer
        self.dialler = dialler
        self.circuits = circuits or Circuits(clock)
        self._session: ClientSession | None = None

    @abstractmethod
    def request(self, item: Item) -> Request | Refused | Unreachable:
        """What to post for an effect, or why it can never be posted."""

    @abstractmethod
    def on_gone(self, endpoint: Endpoint) -> Outcome:
        """What a 410 means."""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        places: dict[Endpoint, asyncio.Semaphore] = {}
        return await asyncio.gather(*(self._deliver_one(item, places) for item in items))

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _deliver_one(self, item: Item, places: dict[Endpoint, asyncio.Semaphore]) -> Outcome:
        request = self.request(item)
        if not isinstance(request, Request):
            return request
        if len(request.body) > MOST_BYTES:
            return Refused("TOO_LARGE", TOO_LARGE.format(size=len(request.body)))
        endpoint = Endpoint(item.tenant_id, request.url)
        place = places.setdefault(endpoint, asyncio.Semaphore(AT_ONCE))
        try:
            async with asyncio.timeout(BATCH_SECONDS), place:
                return await self._call(item, request, endpoint)
        except TimeoutError:
            return Failed(NO_PLACE.format(url=endpoint.shown))

    async def _call(self, item: Item, request: Request, endpoint: Endpoint) -> Outcome:
        if (rest := self.circuits.rest(endpoint)) > 0:
            return Failed(RESTS.format(url=endpoint.shown, seconds=rest), rest)
        signed = self.signer.headers(
            item.tenant_id, item.message_id, self.clock.now(), request.body
        )
        try:
            status, pause = await self._post(request, {**request.headers, **signed})
        except ValueError:  # an address or a header that only now turns out to be none
            return Refused("BAD_REQUEST", BAD_REQUEST.format(url=endpoint.shown))
        except (ClientError, TimeoutError, OSError) as error:
            return self._unanswered(error, endpoint)
        return self._judge(item, status, pause, endpoint)

    async def _post(self, request: Request, headers: Mapping[str, str]) -> tuple[int, float]:
        """The status, and how many seconds the endpoint asks for."""
        session = self._opened()
        async with asyncio.timeout(REQUEST_SECONDS):
            response = await session.post(
                request.url, data=request.body, headers=headers, allow_redirects=False
            )
        pause = _retry_after(response.headers.get("Retry-After", ""), self.clock.now())
        await _drain(response)
        return response.status, pause

    def _opened(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                connector=self.dialler.connector(),
                cookie_jar=DummyCookieJar(),
                headers={"User-Agent": "journeykit"},
                trust_env=False,  # no proxy out of the environment: it would dial for us
                auto_decompress=False,  # what is thrown away need not be blown up first
                raise_for_status=False,
            )
        return self._session

    def _unanswered(self, error: Exception, endpoint: Endpoint) -> Outcome:
        if was_blocked(error):
            return Refused("BLOCKED_ADDRESS", BLOCKED_ADDRESS.format(host=endpoint.host))
        self.circuits.failed(endpoint)
        if isinstance(error, TimeoutError):
            return Failed(TOO_SLOW.format(url=endpoint.shown))
        # The name of the error alone: its text has the address, and what a resolver answered.
        return Failed(NO_CONNECTION.format(url=endpoint.shown, error=type(error).__name__))

    def _judge(self, item: Item, status: int, pause: float, endpoint: Endpoint) -> Outcome:
        if 300 <= status < 400 or status in PASSING or status >= 500:
            return self._failed(status, pause, endpoint)
        self.circuits.worked(endpoint)
        if status < 300:
            return Delivered(str(item.payload.get("channel") or ""))
        if status == 410:
            return self.on_gone(endpoint)
        return Refused("ENDPOINT_REFUSED", REFUSED.format(url=endpoint.shown, status=status))

    def _failed(self, status: int, pause: float, endpoint: Endpoint) -> Failed:
        if pause > 0:
            self.circuits.rests(endpoint, pause)
        elif status not in PASSING:
            self.circuits.failed(endpoint)
        told = REDIRECTS if status < 400 else ANSWERED
        return Failed(told.format(url=endpoint.shown, status=status), pause)


class Endpoint(NamedTuple):
    """Who rests, is gone, or is asked too much at once: one address of one tenant. Tenants do not
    share one, that a fault of one does not hold up another."""

    tenant_id: int
    url: str

    @property
    def shown(self) -> str:
        return shown_url(self.url)

    @property
    def host(self) -> str:
        return self.shown.removesuffix("/…").partition("://")[2]


class WebhookProvider(HttpProvider):
    """Calls the addresses that journeys name, never one inside.

    An address that answers 410 is gone: for an hour this process refuses what goes there without
    asking, then one request asks again. What was refused is a dead letter ENDPOINT_GONE, which is
    where it lasts.
    """

    def __init__(
        self, clock: Clock, signer: Signer, dialler: Dialler, *, circuits: Circuits | None = None
    ) -> None:
        super().__init__(clock, signer, dialler, circuits=circuits)
        self._gone: OrderedDict[Endpoint, float] = OrderedDict()  # until when, monotonic

    def request(self, item: Item) -> Request | Refused:
        url = str(item.payload.get("url") or "")
        if not url:
            return Refused("NO_URL", NO_URL)
        endpoint = Endpoint(item.tenant_id, url)
        if self._gone.get(endpoint, 0.0) > self.clock.monotonic():
            return Refused("ENDPOINT_GONE", ENDPOINT_GONE.format(url=endpoint.shown))
        if (refusal := self.dialler.refusal(url)) is not None:
            return refusal
        return _webhook_request(url, item)

    def on_gone(self, endpoint: Endpoint) -> Outcome:
        self._gone[endpoint] = self.clock.monotonic() + GONE_SECONDS
        self._gone.move_to_end(endpoint)
        while len(self._gone) > GONE_URLS:
            self._gone.popitem(last=False)
        return Refused("ENDPOINT_GONE", ENDPOINT_GONE.format(url=endpoint.shown))


class GatewayProvider(HttpProvider):
    """Hands messages to a gateway, which sends them by SMS, push or whatever it has.

    It gets JSON: `message_id`, `tenant_id`, `user_id`, `journey_id`, `version`, `entry_count`,
    `node_id`, `channel`, `address`, `texts`, `template_id`, `template_version`, `category`,
    `priority`. It must take a `webhook-id` of a tenant once. The operator named its address, so it
    may lie inside: `dialler` is to open the networks it lies in.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        signer: Signer,
        dialler: Dialler | None = None,
        *,
        circuits: Circuits | None = None,
    ) -> None:
        super().__init__(clock, signer, dialler or Dialler(ANYWHERE), circuits=circuits)
        self.url = url

    def request(self, item: Item) -> Request | Unreachable:
        told = {name: item.payload.get(name) for name in GATEWAY_FIELDS}
        body = orjson.dumps({**_person(item), **told})
        return Request(self.url, {**JSON, **_identity(item)}, body)

    def on_gone(self, endpoint: Endpoint) -> Outcome:
        return Unreachable(NO_ADDRESS)


ANYWHERE = ("0.0.0.0/0", "::/0")
GATEWAY_FIELDS = (
    "channel",
    "address",
    "texts",
    "template_id",
    "template_version",
    "category",
    "priority",
)
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain; charset=utf-8"}


def _webhook_request(url: str, item: Item) -> Request | Refused:
    asked = {str(name): str(value) for name, value in (item.payload.get("headers") or {}).items()}
    for name, value in asked.items():
        if (refusal := _header_refusal(name, value)) is not None:
            return refusal
    body = item.payload.get("body")
    content = TEXT if isinstance(body, str) else JSON
    if any(name.lower() == "content-type" for name in asked):
        content = {}
    return Request(url, {**content, **asked, **_identity(item)}, _bytes(body, item))


def _header_refusal(name: str, value: str) -> Refused | None:
    if not HEADER_NAME.fullmatch(name):
        fault, fix = "has a name that HTTP does not allow", "Use letters, digits and hyphens."
    elif name.lower() in RESERVED or name.lower().startswith(RESERVED_STARTS):
        fault, fix = "is one that journeykit sets itself", "Take it out."
    elif LINE_BREAK.search(value):
        fault, fix = "has a line break or control character in it", "Write it on one line."
    else:
        return None
    shown = LINE_BREAK.sub("…", name)
    return Refused("BAD_HEADER", BAD_HEADER.format(name=shown, fault=fault, fix=fix))


def _bytes(body: Any, item: Item) -> bytes:
    if body is None:
        return orjson.dumps(_envelope(item))
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def _envelope(item: Item) -> dict[str, Any]:
    return {
        "type": "journey.webhook",
        "timestamp": item.created_at.format_iso(),
        "data": {**_person(item), "event": item.payload.get("event") or {}},
    }


def _person(item: Item) -> dict[str, Any]:
    return {
        "message_id": item.message_id,
        "tenant_id": item.tenant_id,
        "user_id": item.user_id,
        "journey_id": item.journey_id,
        "version": item.version,
        "entry_count": item.entry_count,
        "node_id": item.node_id,
    }


def _identity(item: Item) -> dict[str, str]:
    """Who is meant, for a receiver that cannot read it from the body. Ids are percent-encoded: a
    header takes no line break, and not every letter."""
    return {
        "Journeykit-Tenant": str(item.tenant_id),
        "Journeykit-User": quote(item.user_id, safe=""),
        "Journeykit-Message": quote(item.message_id, safe=""),
    }


async def _drain(response: ClientResponse) -> None:
    """Read a little, for the next request can have the connection then; what is long or slow costs
    it."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            await response.content.readexactly(DRAIN_BYTES + 1)
    except asyncio.IncompleteReadError:
        response.release()  # it was shorter, as it should be
    except (ClientError, TimeoutError, OSError):
        response.close()
    else:
        response.close()


def _retry_after(told: str, now: Instant) -> float:
    """Seconds, out of a number of them or a date; 0 for none, for nonsense and for the past.

    >>> _retry_after("120", Instant("2026-06-01T10:00:00Z"))
    120.0
    >>> _retry_after("Mon, 01 Jun 2026 10:00:30 GMT", Instant("2026-06-01T10:00:00Z"))
    30.0
    """
    told = told.strip()
    if told.isascii() and told.isdigit():
        seconds = float(told[:12])
    else:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - now.timestamp()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_REST_SECONDS)
