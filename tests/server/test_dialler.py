"""Where a webhook may lead: never inside, however the address is written and whatever a name
service answers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
from aiohttp import ClientConnectorError, ClientSession, web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from journeykit_server.delivery import Refused
from journeykit_server.dialler import (
    BadNetwork,
    Blocked,
    CheckedResolver,
    Dialler,
    shown_url,
    was_blocked,
)

ADDRESSES_INSIDE = """
127.0.0.1 127.0.0.0 127.1.2.3 127.255.255.255 0.0.0.0 0.0.0.1 0.255.255.255
10.0.0.0 10.0.0.1 10.255.255.255 172.16.0.0 172.16.0.1 172.20.10.5 172.31.255.255
192.168.0.0 192.168.0.1 192.168.1.1 192.168.255.255 100.64.0.0 100.64.0.1 100.100.100.200
100.127.255.255 169.254.0.0 169.254.169.254 169.254.170.2 169.254.169.253 169.254.255.255
168.63.129.16 192.0.0.0 192.0.0.8 192.0.0.192 192.0.0.255 192.0.2.1 198.51.100.7 203.0.113.9
198.18.0.0 198.18.0.1 198.19.255.255 192.88.99.0 192.88.99.1 192.31.196.1 192.52.193.1
192.175.48.1 224.0.0.0 224.0.0.1 239.255.255.250 239.255.255.255 240.0.0.0 240.0.0.1
255.255.255.254 255.255.255.255
"""

ADDRESSES_INSIDE_6 = """
:: ::1 ::2 0:0:0:0:0:0:0:1 ::127.0.0.1 ::7f00:1 ::10.0.0.1
::ffff:127.0.0.1 ::ffff:7f00:1 ::FFFF:7F00:0001 0:0:0:0:0:ffff:7f00:1 ::ffff:10.0.0.1
::ffff:169.254.169.254 ::ffff:a9fe:a9fe ::ffff:192.168.1.1 ::ffff:0.0.0.0
::ffff:0:127.0.0.1 ::ffff:0:7f00:1 ::ffff:0:169.254.169.254
64:ff9b::127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::10.0.0.1 64:ff9b::c0a8:101
64:ff9b:1::1 64:ff9b:1::7f00:1 64:ff9b:1:ffff::a00:1
2002:7f00:1:: 2002:7f00:1::1 2002:a00:1:: 2002:a9fe:a9fe:: 2002:c0a8:101:: 2002:6440:1::
2001:0:4136:e378:8000:63bf:3fff:fdd2 2001::1 2001:0:7f00:1:: 2001:0:ffff::80ff:fffe
2001:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2001:db8:ffff::1 3fff::1 3fff:fff::1
2620:4f:8000::1 100::1 100:0:0:1::1 1fff::1 4000::1 5f00::1 5f00:ffff::1 8000::1
fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fdff:ffff::1 fe80::1 fe80::a9fe:a9fe febf::1
fec0::1 feff::1 ff00::1 ff02::1 ff05::1:3 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
"""

WRITTEN_OTHERWISE = [
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://0x7f000001/",
    "http://0X7F000001/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0177.1/",
    "http://127.0.0.01/",
    "http://127.0.0.0x1/",
    "http://0/",
    "http://00000/",
    "http://0x/",
    "http://0.0/",
    "http://10.1/",
    "http://192.168.257/",
    "http://3232235777/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://4294967295/",
    "http://999999999999/",
    "http://256.256.256.256/",
    "http://1.2.3.4.5/",
    "http://127.0.0.1./",
    "http://127.0.0.1../",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://１２７.0.0.1/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://a.localhost/",
    "http://localhost.localdomain/",
    "http://ip6-localhost/",
    "http://metadata/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://METADATA.google.internal./",
    "http://metadata.goog/",
    "http://instance-data/latest/",
    "https://127.0.0.1:8080/x?y=z#f",
    "http://[::1]:8080/",
    "http://[::ffff:7f00:1]/",
    "http://[fe80::1%25eth0]/",
]

UNREADABLE = [
    "",
    "x",
    "//example.com/",
    "ftp://example.com/",
    "data:text/plain,x",
    "sftp://example.com/etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "javascript:alert(1)",
    "http://",
    "http:///x",
    "http://ann:pw@example.com/",
    "http://ann@127.0.0.1/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1\\@example.com/",
    "http://example.com\\.evil.example/",
    "http://exa mple.com/",
    "http://example.com/\r\nHost: inside",
    "http://example.com/\x00",
    "http://example.com:99999/",
    "http://example.com:x/",
    "http://[::1/",
    "http://[1::2::3]/",
]

ADDRESSES_OUTSIDE = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.216.34 100.63.255.255 100.128.0.0 126.255.255.255
128.0.0.1 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0
192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
2000::1 2600::1 2606:4700:4700::1111 2a00:1450:4001:81b::200e 3ffe::1 2001:200::1
::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1
"""


def urls_inside() -> list[str]:
    wrapped = [f"http://[{address}]/" for address in ADDRESSES_INSIDE_6.split()]
    return (
        [f"http://{address}/" for address in ADDRESSES_INSIDE.split()] + wrapped + WRITTEN_OTHERWISE
    )


def code(refusal: Refused | None) -> str:
    return "" if refusal is None else refusal.code


def test_the_corpus_is_large_enough() -> None:
    assert len(set(urls_inside() + UNREADABLE)) >= 170


@pytest.mark.parametrize("url", urls_inside())
def test_an_address_inside_is_refused_however_it_is_written(url: str) -> None:
    assert code(Dialler().refusal(url)) == "BLOCKED_ADDRESS"


@pytest.mark.parametrize("url", UNREADABLE)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    assert code(Dialler().refusal(url)) == "BAD_URL"


@pytest.mark.parametrize("address", ADDRESSES_OUTSIDE.split())
def test_what_is_outside_may_be_called(address: str) -> None:
    host = f"[{address}]" if ":" in address else address

    assert Dialler().refusal(f"https://{host}/hook") is None
    assert Dialler().permits(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "http://example.com:8080/",
        "https://bücher.example/",
        "https://1.example.com/",
        "https://7.7.7.7.example/",
        "https://localhost.example.com/",
        "https://0x7f.example/",
    ],
)
def test_a_name_is_left_to_the_name_service(url: str) -> None:
    assert Dialler().refusal(url) is None


@given(st.ip_addresses(v=4))
def test_no_address_passes_that_python_calls_private(address: IPv4Address) -> None:
    assert address.is_global or not Dialler().permits(str(address))


@given(
    st.ip_addresses(v=4),
    st.sampled_from(["::ffff:{0}", "64:ff9b::{0}", "::ffff:0:{0}", "2002:{1:04x}:{2:04x}::1"]),
)
def test_an_address_inside_stays_inside_when_it_is_wrapped(
    address: IPv4Address, wrapped: str
) -> None:
    text = wrapped.format(address, int(address) >> 16, int(address) & 0xFFFF)

    assert Dialler().permits(text) == Dialler().permits(str(address))


@given(st.ip_addresses(v=6))
def test_no_address_of_ipv6_passes_outside_of_the_public_part(address: IPv6Address) -> None:
    inside_out = ("::", "64:ff9b::", "2002:")  # those with an address of IPv4 in them
    if not str(address).startswith(inside_out) and Dialler().permits(str(address)):
        assert address.is_global
        assert address in IPv6Network("2000::/3")


def test_the_operator_opens_networks() -> None:
    dialler = Dialler(["10.1.0.0/16", "fd00::/8", "127.0.0.0/8"])

    assert dialler.refusal("http://10.1.2.3/") is None
    assert dialler.refusal("http://[::ffff:10.1.2.3]/") is None
    assert dialler.refusal("http://[fd00::7]:8080/") is None
    assert dialler.refusal("http://localhost/") is None
    assert code(dialler.refusal("http://10.2.2.3/")) == "BLOCKED_ADDRESS"
    assert code(dialler.refusal("http://[::1]/")) == "BLOCKED_ADDRESS"


@pytest.mark.parametrize("network", ["10.0.0.0/33", "10.1.2.3/8", "inside", ""])
def test_a_network_that_is_none_is_told(network: str) -> None:
    with pytest.raises(BadNetwork) as told:
        Dialler([network])

    assert str(told.value) == (
        f'"{network}" is no network. Write it as "10.1.0.0/16", with no bit set behind the mask.'
    )


@pytest.mark.parametrize("port", [0, 22, 25, 110, 445, 993])
def test_ports_where_no_web_server_listens_are_refused(port: int) -> None:
    refusal = Dialler().refusal(f"http://example.com:{port}/")

    assert refusal == Refused(
        "BLOCKED_PORT",
        f'"example.com" is to be called on port {port}, where no web server listens. Use 80, 443 '
        "or one from 1024 on.",
    )


def test_a_refusal_says_what_to_do_and_repeats_no_secret() -> None:
    assert Dialler().refusal("http://10.0.0.7/T0/secret") == Refused(
        "BLOCKED_ADDRESS",
        '"10.0.0.7" leads to an address inside, which webhooks never call. Use a public address, '
        "or let the operator open its network with JOURNEYKIT_ALLOW_NETWORKS.",
    )
    assert Dialler().refusal("https://ann:secret@example.com/secret?secret=1") == Refused(
        "BAD_URL",
        'The webhook address "https://example.com/…" cannot be called: it holds a user name. '
        'Send credentials in a header, as "Authorization".',
    )


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert shown_url("https://ann:pw@example.com:8443/a/b?c=d#e") == "https://example.com:8443/…"
    assert shown_url("https://a@b:c@example.com?token") == "https://example.com/…"
    assert shown_url("secret") == "…"


# -- the address that is really dialled ----------------------------------------------------------


class Names(AbstractResolver):
    """A name service that gives one answer after another, and the last for ever."""

    def __init__(self, port: int, *answers: Sequence[str]) -> None:
        self.port = port
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=self.port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        pass


async def greets(_: web.Request) -> web.Response:
    response = web.Response(text="inside")
    response.force_close()
    return response


async def server() -> TestServer:
    app = web.Application()
    app.router.add_get("/", greets)
    listening = TestServer(app, host="127.0.0.1")
    await listening.start_server()
    return listening


async def fetch(dialler: Dialler, url: str = "http://hook.example/") -> str:
    async with (
        ClientSession(connector=dialler.connector()) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        return await response.text()


async def test_a_name_that_leads_inside_is_not_dialled() -> None:
    listening = await server()
    names = Names(listening.port or 0, ["127.0.0.1"])

    with pytest.raises(ClientConnectorError) as told:
        await fetch(Dialler(resolver=names))

    assert was_blocked(told.value)
    assert await fetch(Dialler(["127.0.0.0/8"], resolver=names)) == "inside"
    await listening.close()


@pytest.mark.parametrize("address", ["127.0.0.2", "::ffff:127.0.0.2", "10.0.0.1", "fd00::1"])
async def test_a_name_that_turns_inside_between_two_calls_gains_nothing(address: str) -> None:
    """Every connection asks anew, and dials what was answered to itself."""
    listening = await server()
    names = Names(listening.port or 0, ["127.0.0.1"], [address])
    connector = Dialler(["127.0.0.1/32"], resolver=names).connector()
    async with ClientSession(connector=connector) as session:
        async with session.get("http://hook.example/") as response:
            assert response.status == 200

        with pytest.raises(ClientConnectorError) as told:
            await session.get("http://hook.example/")

    assert was_blocked(told.value)
    assert names.asked == 2
    await listening.close()


async def test_of_several_answers_only_those_outside_are_dialled() -> None:
    """An AAAA record that leads inside beside an A record that does not, tried side by side."""
    listening = await server()
    names = Names(listening.port or 0, ["::1", "fd00::1", "127.0.0.1", "10.0.0.1"])

    # Only 127.0.0.1 plays the outside here.
    assert await fetch(Dialler(["127.0.0.1/32"], resolver=names)) == "inside"
    await listening.close()


async def test_an_answer_that_leads_inside_does_not_get_past_the_resolver() -> None:
    """So that a public address which is down for now is told from one that is never dialled."""
    names = Names(80, ["10.0.0.1", "93.184.216.34", "::ffff:127.0.0.1"])

    answers = await CheckedResolver(Dialler(), names).resolve("hook.example")

    assert [answer["host"] for answer in answers] == ["93.184.216.34"]


async def test_the_socket_is_the_last_door() -> None:
    """Even if a resolver were trusted that should not be: what is dialled is asked again."""
    info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", "80"))

    with pytest.raises(Blocked) as told:
        Dialler().socket(info)

    assert str(told.value) == "the address is one that is never dialled"
    with pytest.raises(ClientConnectorError) as refused:
        await fetch(Dialler(), "http://127.0.0.1:1/")  # a literal asks no name service
    assert was_blocked(refused.value)


async def test_the_machine_s_own_name_service_is_asked_and_checked() -> None:
    """`localhost` is refused before; here is what its look-up would meet."""
    with pytest.raises(ClientConnectorError) as told:
        await fetch(Dialler(), "http://localhost:1/")

    assert was_blocked(told.value)
