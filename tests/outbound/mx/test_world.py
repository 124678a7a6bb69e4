"""The table of domains, delivered to through a signed root: each exactly as the RFCs say."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import Encoding

from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.outbound.mx.dane import DaneFirst, DanePolicies
from relay.outbound.mx.sts import StsPolicies, web_pki
from relay.outbound.mx.sts_store import StsStore
from tests.dns.signed import SignedDns, programs
from tests.eventually import eventually
from tests.outbound.mx import cases
from tests.outbound.mx.cases import CASES, Plan, plan, receivers
from tests.outbound.mx.dane_postfix import DanePostfix, available
from tests.outbound.mx.pki import issue, serving
from tests.outbound.mx.policies import Here, PolicyServer
from tests.outbound.mx.test_direct import answers
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import HangUp, Script, Session, Sink, well_behaved

BESIDE = "beside-"
"""How the addresses begin that Postfix sends to."""


async def tarpit(session: Session, verb: str, line: str) -> bytes | None:
    """Let each answer wait."""
    await trio.sleep(0.1)
    return None


async def throttle(session: Session, verb: str, line: str) -> bytes | None:
    """Have nobody begin a mail."""
    if verb == "MAIL":
        raise HangUp(b"421 4.7.0 too many\r\n")
    return None


def greylist() -> Script:
    """Refuse each recipient once."""
    known: set[str] = set()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "RCPT" and line not in known:
            known.add(line)
            return b"451 4.7.1 come again\r\n"
        return None

    return script


def scripts() -> dict[str, Script]:
    """How each receiver behaves."""
    return {
        **dict.fromkeys(
            (cases.ANY, cases.WEB, cases.CLEAR, cases.OLD, cases.OTHER, cases.STRANGER, cases.UTF8),
            well_behaved,
        ),
        cases.REFUSES: answers("STARTTLS", b"454 4.7.0 not now\r\n"),
        cases.NONSENSE: answers("STARTTLS", b"220 go on\r\nnonsense\r\n"),
        cases.GREY: greylist(),
        cases.TARPIT: tarpit,
        cases.THROTTLE: throttle,
        cases.UNKNOWN: answers("RCPT", b"550 5.1.1 nobody\r\n"),
        cases.CLOSED: answers("connect", b"554 5.7.1 go away\r\n"),
        **({cases.SIX: well_behaved} if has_ipv6() else {}),
    }


@cache
def has_ipv6() -> bool:
    """Whether there is ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


BY_IPV6 = {"ipv6-only", "ipv4-dead"}
"""Cases that need it."""
SLOW = {"dane-servfail"}
"""A resolver needs ten seconds to give up a server that is not there; `test_dane.py` has the same
in an instant."""


def playable() -> list[str]:
    """The cases that can be had here."""
    return [name for name in CASES if has_ipv6() or name not in BY_IPV6]


@asynccontextmanager
async def table(
    pool: Pool, folder: Path, names: Sequence[str], count: int
) -> AsyncIterator[tuple[Plan, Outbound, dict[str, Sink]]]:
    """So many domains, of these cases in turn, their servers, and a relay that delivers to them."""
    found = receivers()
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        sinks: dict[str, Sink] = {}
        port = 0
        for number, script in scripts().items():
            chain = found.chains.get(number)
            sink = Sink(script, None if chain is None else serving(folder, chain))
            if number == cases.UTF8:
                sink.extensions = ("SMTPUTF8",)
            host = "::1" if number == cases.SIX else f"127.0.0.{number}"
            listeners = await trio.open_tcp_listeners(port, host=host)
            sink.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, sink.serve, listeners)
            sinks[number], port = sink, sink.port
        made = plan(count, port, found, names)
        names = [f"mta-sts.{domain}" for domain in made.policies]
        valid = serving(folder, (issue("policies", found.root, names=names), found.root))
        good = await nursery.start(PolicyServer(valid, made.policies, host=cases.GOOD_POLICIES).run)
        unknown = serving(folder, (issue("policies", names=names),))
        broken = PolicyServer(unknown, made.policies, host=cases.BROKEN_POLICIES, port=good.port)
        await nursery.start(broken.run)
        made.records["lame.root", "A"] = ["127.0.0.55"]
        names_served = SignedDns(
            made.records,
            unsigned={cases.UNSIGNED: made.unsigned},
            bogus=made.bogus,
            host=RESOLVER[0],
            port=RESOLVER[1],
        )
        stack.enter_context(names_served)
        asked = Resolver([names_served.address], server_timeout=8.0)
        context = web_pki()
        root = found.root.certificate.public_bytes(Encoding.PEM).decode()
        context.load_verify_locations(cadata=root)
        poster = Here(
            allow_private=True,
            timeout=20.0,
            context=lambda: context,
            resolve=asked.getaddrinfo,
        )
        poster.port = good.port
        store = StsStore(pool)
        for domain, (policy, _) in made.kept.items():
            await store.keep(domain, "0", policy)
        await pool.execute(
            "UPDATE relay.mta_sts_policies SET expires_at = now() WHERE domain = ANY(%s)",
            ([domain for domain, (_, holds) in made.kept.items() if not holds],),
        )
        sts = StsPolicies(store, lambda: asked, poster.get, lambda: context, b"key")
        outbound = await stack.enter_async_context(
            running_outbound(
                pool,
                "mx:",
                private_mx=True,
                mx_port=port,
                resolver=lambda: asked,
                policy=DaneFirst(DanePolicies(lambda: asked, port=port), sts),
                concurrency=64,
                within=600.0,
            )
        )
        yield made, outbound, sinks


async def outcomes(
    made: Plan, outbound: Outbound, sinks: dict[str, Sink]
) -> dict[str, tuple[str, Any]]:
    """Send a mail to every domain; by case, what became of it that should not have."""
    queued = await put(outbound.pool, *made.addresses())
    outbound.wake()
    await eventually(
        lambda: outbound.pool.fetch_value(
            "SELECT count(*) FROM relay.outbound_messages WHERE attempts > 0"
        ),
        "every mail was tried",
        until=lambda tried: tried == len(queued),
        within=300.0,
    )
    wrong: dict[str, tuple[str, Any]] = {}
    for one, (domain, (name, ends)) in zip(queued, made.ends.items(), strict=True):
        row = await outbound.becomes(one.id, ends.status, 1)
        if not (row[3] or "").startswith(ends.text):
            wrong[name] = domain, row
    arrived: dict[str, list[tuple[str, bool]]] = {}
    for number, sink in sinks.items():
        for received in sink.received:
            arrived.setdefault(received.recipient, []).append((number, received.secured))
    for address, (domain, (name, ends)) in zip(made.addresses(), made.ends.items(), strict=True):
        wanted = [] if ends.secured is None else [(ends.at, ends.secured)]
        if arrived.pop(address, []) != wanted:
            wrong[name] = domain, wanted
    assert not [address for address in arrived if not address.startswith(BESIDE)]
    return wrong


async def test_every_case_ends_as_the_rfcs_say(pool, tmp_path):
    """Delivered, deferred or refused, at the right server, by TLS where a policy demands it; and
    so does Postfix decide, asked at the same time, but where it is said why not."""
    programs()
    quick = [name for name in playable() if name not in SLOW]
    async with table(pool, tmp_path, quick, len(quick)) as (made, outbound, sinks):
        assert len(made.ends) == len(quick)
        async with trio.open_nursery() as nursery:
            if available():
                nursery.start_soon(decides_alike, made, sinks)
            assert await outcomes(made, outbound, sinks) == {}
            await _again(outbound, made)
    if not available():
        pytest.skip("every case ended so, and Postfix, which only root can run, was not asked")


async def _again(outbound: Outbound, made: Plan) -> None:
    """What was greylisted is taken the second time."""
    grey = [domain for domain, (name, _) in made.ends.items() if name == "greylisted"]
    assert grey
    await outbound.pool.execute(
        "UPDATE relay.outbound_due d SET run_at = now() FROM relay.outbound_letters l "
        "WHERE l.id = d.id AND l.domain = ANY(%s)",
        (grey,),
    )
    outbound.flush()
    for domain in grey:
        found = await outbound.pool.fetch_value(
            "SELECT id FROM relay.outbound_messages WHERE recipient = %s", (f"a@{domain}",)
        )
        await outbound.becomes(found, "sent", 2)


@pytest.mark.soak
async def test_500_domains_end_as_the_rfcs_say(pool, tmp_path):
    """The whole table, for the relay and for Postfix: no policy is broken, and no domain waits for
    another."""
    programs()
    async with table(pool, tmp_path, playable(), 500) as (made, outbound, sinks):
        assert len(made.ends) == 500
        assert await outcomes(made, outbound, sinks) == {}
        if available():
            await decides_alike(made, sinks)


def test_every_case_names_what_it_is_judged_by():
    """A clause of an RFC."""
    unclear = [name for name, case in CASES.items() if not re.fullmatch(CLAUSE, case.by)]
    assert not unclear


CLAUSE = r"RFC \d{4}, \d+(\.\d+)*"
_OWN = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() % 254 + 1}"
RESOLVER = (_OWN, 53) if available() else ("127.0.0.1", 0)
"""Where the DNS is asked: Postfix knows no other port, and another run needs another address."""

BY_STS = {name for name in CASES if name.startswith("sts-")}
"""Cases that Postfix decides without a policy, as it has no MTA-STS."""
_BEST = "the relay's name has no address here, and Postfix leaves out a server without one before "
UNLIKE = {
    "address-as-server": "Postfix connects to a server that is named by an address",
    "dane-starttls-breaks": "Postfix passes over plaintext behind the reply to STARTTLS, and "
    "shakes hands; the relay takes it for somebody in between (RFC 3207, 6), and waits",
    "international-at-the-second": "Postfix bounces at the first server without SMTPUTF8",
    "international-perhaps": "likewise",
    "this-relay": _BEST + "it looks for itself among them",
    "this-relay-second-first-dead": _BEST + "it looks for itself among them",
}
"""Where it decides differently, and why."""
ELSEWHERE = {"address-as-server-then-good"}
"""Likewise: it delivers, but to another."""
BREAKS = {"dane-starttls-breaks", "starttls-breaks"}
"""Likewise: it has TLS there."""


async def decides_alike(made: Plan, sinks: dict[str, Sink]) -> None:
    """Send to the same domains by Postfix, and look what it decides and where it delivers."""
    addresses = dict(zip(made.addresses(BESIDE), made.ends, strict=True))
    port = next(iter(sinks.values())).port
    with DanePostfix(RESOLVER[0], made.ends, port, ipv6=has_ipv6()) as beside:
        await trio.to_thread.run_sync(beside.send, addresses)
        found = await eventually(
            beside.results,
            "every mail was tried",
            until=lambda results: len(results) == len(addresses),
            within=300.0,
        )
    decided = {"sent": "sent", "deferred": "queued", "bounced": "bounced"}
    unlike = {}
    for address, domain in addresses.items():
        name, ends = made.ends[domain]
        status, code, why = found[address]
        wanted = "bounced" if ends.status == "failed" else ends.status
        if decided[status] != wanted and name not in BY_STS:
            unlike[name] = (ends.status, status, code, why)
    assert unlike.keys() == UNLIKE.keys(), unlike
    for number, sink in sinks.items():
        for received in sink.received:
            if received.recipient in addresses:
                name, ends = made.ends[addresses[received.recipient]]
                if name not in BREAKS | BY_STS | UNLIKE.keys() | ELSEWHERE:
                    assert (number, received.secured) == (ends.at, ends.secured), name
