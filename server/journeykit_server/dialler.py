"""Where an address that somebody wrote into a journey may lead: to the public internet, and to the
networks that the operator opened. Never to this machine, its neighbours, or the cloud's own desk.

It is asked three times. Before a request, of what the url itself says (`Dialler.refusal`); of every
answer of the name service; and of each socket at the moment it is made, which is the address that
is really dialled: a name that answers differently the second time gains nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from yarl import URL

from journeykit_engine.check_nodes import url_fault
from journeykit_server.delivery import Refused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[str, ...]]
"""What `getaddrinfo` gives: family, type, protocol, canonical name, and the address itself."""

CONNECTIONS = 200  # at once in one process: one offer of the outbox
LOWEST_FREE_PORT = 1024  # below it only HTTP's own: an HTTP request to port 25 is a letter
HTTP_PORTS = (80, 443)

BLOCKED = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT, where some clouds keep their desk
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the desk of Azure, at an address that looks public
        "169.254.0.0/16",  # link-local, and the desk of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112, answers for private addresses
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # relays of 6to4, given up
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        # Of IPv6, only 2000::/3 is the public internet.
        "::/3",  # unspecified, loopback, translations, and the rest of what is not given out
        "4000::/2",  # not given out; 5f00::/16 is routing inside a network
        "8000::/1",  # private fc00::/7, link-local, fec0::/10, multicast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
"""A list of our own: the one in Python's `ipaddress` differs between its patch releases."""

# IPv4 addresses that are written as IPv6: where the four bytes stand, counted from the right.
WRAPPED = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("::ffff:0:0:0/96"), 0),  # translated
    (IPv6Network("::/96"), 0),  # compatible, given up
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
TEREDO = IPv6Network("2001::/32")
LEAST_WRAPPED = 0x00FFFFFF  # `::1` and `::` are addresses of IPv6 themselves

KNOWN_NAMES = {
    "localhost": "127.0.0.1",
    "localhost.localdomain": "127.0.0.1",
    "ip6-localhost": "::1",
    "ip6-loopback": "::1",
    "metadata": "169.254.169.254",
    "metadata.google.internal": "169.254.169.254",
    "metadata.goog": "169.254.169.254",
    "instance-data": "169.254.169.254",
    "instance-data.ec2.internal": "169.254.169.254",
}
"""Names that lead inside wherever they lead at all; no name service need be asked."""

NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")

BAD_URL = 'The webhook address "{shown}" cannot be called: {why}. {fix}'
BLOCKED_ADDRESS = (
    '"{host}" leads to an address inside, which webhooks never call. Use a public address, or let '
    "the operator open its network with JOURNEYKIT_ALLOW_NETWORKS."
)
BLOCKED_PORT = (
    '"{host}" is to be called on port {port}, where no web server listens. Use 80, 443 or one from '
    "1024 on."
)


class BadNetwork(ValueError):
    """A text that names no network."""


class Blocked(OSError):
    """An address is one that must not be dialled. It says none: that would tell what is inside."""

    def __init__(self) -> None:
        super().__init__("the address is one that is never dialled")


class Dialler:
    """Connections to the public internet, and to the networks in `allowed` ("10.1.0.0/16").

    `resolver` asks the name service; the machine's own where it is None. Raises `BadNetwork`.
    """

    def __init__(
        self, allowed: Iterable[str] = (), *, resolver: AbstractResolver | None = None
    ) -> None:
        self.allowed = tuple(map(_network, allowed))
        self.resolver = resolver

    def refusal(self, url: str) -> Refused | None:
        """Why this address is never called; None where its name has to be looked up, or may go."""
        if (fault := url_fault(url)) is not None:
            return _bad_url(url, *fault)
        try:
            read = URL(url)
            host, port = (read.raw_host or "").rstrip("."), read.port
        except ValueError:
            return _bad_url(url, "which cannot be read", "Write it as https://example.com/hook.")
        if not host:
            return _bad_url(url, "which names no host", "Write it as https://example.com/hook.")
        if not self._may_name(host):
            return Refused("BLOCKED_ADDRESS", BLOCKED_ADDRESS.format(host=host))
        if port is not None and port < LOWEST_FREE_PORT and port not in HTTP_PORTS:
            return Refused("BLOCKED_PORT", BLOCKED_PORT.format(host=host, port=port))
        return None

    def permits(self, address: str) -> bool:
        """Whether this address, written in the usual way, may be dialled.

        >>> Dialler().permits("93.184.216.34"), Dialler().permits("::ffff:127.0.0.1")
        (True, False)
        >>> Dialler(["10.0.0.0/8"]).permits("64:ff9b::10.1.2.3")
        True
        """
        return all(self._permits(each) for each in _meant(ip_address(address)))

    def connector(self) -> TCPConnector:
        """Made inside a running loop. A name is looked up anew for every connection, so that what
        was allowed yesterday is asked again today."""
        return TCPConnector(
            resolver=CheckedResolver(self, self.resolver or DefaultResolver()),
            use_dns_cache=False,
            socket_factory=self.socket,
            limit=CONNECTIONS,
        )

    def socket(self, info: AddressInfo) -> socket.socket:
        """The last door, of the address that is dialled. Raises `Blocked`."""
        family, kind, protocol, _, place = info
        if not self.permits(place[0]):
            raise Blocked()
        return socket.socket(family, kind, protocol)

    def _may_name(self, host: str) -> bool:
        name = host.lower()
        if name.endswith(".localhost"):
            name = "localhost"
        name = KNOWN_NAMES.get(name, name)
        try:
            return self.permits(name)
        except ValueError:
            # No address as addresses are written. Where the last part is a number it is one all
            # the same for some libraries: 127.1, 0x7f.1, 2130706433.
            return ":" not in name and not NUMBER.fullmatch(name.rpartition(".")[2])

    def _permits(self, address: Address) -> bool:
        return _is_in(address, self.allowed) or not _is_in(address, BLOCKED)


class CheckedResolver(AbstractResolver):
    """Passes on only such answers as may be dialled; where there is no other, raises `Blocked`."""

    def __init__(self, dialler: Dialler, inner: AbstractResolver) -> None:
        self.dialler = dialler
        self.inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answers = await self.inner.resolve(host, port, family)
        fit = [answer for answer in answers if self.dialler.permits(answer["host"])]
        if answers and not fit:
            raise Blocked()
        return fit

    async def close(self) -> None:
        await self.inner.close()


def was_blocked(error: BaseException) -> bool:
    """Whether a failed connection failed here and not out there."""
    return isinstance(getattr(error, "os_error", error), Blocked)


def _bad_url(url: str, why: str, fix: str) -> Refused:
    why = why.removeprefix("which ")
    return Refused("BAD_URL", BAD_URL.format(shown=shown_url(url), why=f"it {why}", fix=fix))


def shown_url(url: str) -> str:
    """An address as it may be told to people: a path, a query or a password may be a secret.

    >>> shown_url("https://ann:pw@hooks.example.com:8443/T0/B1/secret?key=1")
    'https://hooks.example.com:8443/…'
    """
    scheme, mark, rest = url.partition("://")
    if not mark or not scheme.isalpha():
        return "…"
    host = re.split(r"[/?#\\\s\x00-\x1f]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}/…"


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        wanted = 'Write it as "10.1.0.0/16", with no bit set behind the mask'
        raise BadNetwork(f'"{text}" is no network. {wanted}.') from error


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _meant(address: Address) -> Iterator[Address]:
    """What an address stands for: itself, or the IPv4 addresses that are packed inside it."""
    if isinstance(address, IPv4Address):
        yield address
        return
    number = int(address)
    for network, shift in WRAPPED:
        if address in network and number > LEAST_WRAPPED:
            yield IPv4Address(number >> shift & 0xFFFFFFFF)
            return
    yield address
    if address in TEREDO:
        yield IPv4Address(number >> 64 & 0xFFFFFFFF)  # its server
        yield IPv4Address(~number & 0xFFFFFFFF)  # itself, every bit turned round
