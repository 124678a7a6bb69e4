"""Traffic rules, whole: sinks that ask for something, and senders that heed it."""

from __future__ import annotations

import random
import socket
from collections import Counter
from contextlib import suppress

import trio
from trio.testing import wait_all_tasks_blocked

from relay.db.listen import Hub
from relay.lifecycle.letters import Letters
from relay.lifecycle.token_mailer import TokenMailer
from relay.outbound.active_queue.dispatch import Group
from relay.outbound.admin import QueueAdmin, Wanted
from relay.outbound.mx.connections import Shared, SiteConnections
from relay.outbound.mx.exchangers import Exchanger
from relay.outbound.mx.sites import Site, site_of
from relay.outbound.pacing.held_back import Standing
from relay.outbound.pacing.shared_rates import SharedRates
from relay.outbound.routing.routes import IDLE
from relay.outbound.shaping.rules import Rules, parse
from relay.outbound.shaping.traffic import SUSPENDED, Traffic
from relay.smtp.client import Mail
from relay.smtp.connection import Deadlines
from tests.eventually import eventually
from tests.lifecycle.collecting import KEY
from tests.lifecycle.people import insert
from tests.outbound.mx.test_direct import World, answers, mx, world
from tests.outbound.node import put
from tests.outbound.sink import Script, Session, running_sink, well_behaved

TCP_ESTABLISHED = 1  # of the kernel's states (linux/tcp_states.h)


def traffic(text: str) -> Traffic:
    """By these rules."""
    rules = parse(text, "rules.toml")
    return Traffic(lambda: rules)


def provider(*lines: str) -> str:
    """A provider whose hosts end in `example`, as those of `mx` do."""
    return "\n".join(["[provider.big]", 'mx = ["mx2.example", "mx3.example"]', *lines])


SUSPENDS = """
[[provider.big.replies]]
code = 421
text = "unusual rate .* address"
suspend = "2h"
"""
NOT_NOW = b"421 4.7.28 An unusual rate of mail from your address b@one.example\r\n"


async def rows(w: World) -> list[tuple[object, ...]]:
    """What all nodes know."""
    return await w.outbound.pool.fetch(
        """
        SELECT receiver, kind, factor, domain, reason, until > now() + interval '119 minutes'
        FROM relay.outbound_shaping
        ORDER BY kind
        """
    )


def shut(w: World) -> list[Standing]:
    """What this node holds back, and shows."""
    return [
        one
        for one in w.outbound.gates.statistics(trio.current_time())
        if one.opens_in > 7000 and one.domain is None
    ]


async def test_a_provider_that_asks_to_be_left_alone_is(pool):
    """With all its sites, on a node that has not met it, after a restart; until a flush."""
    zone = {**mx("one.example", "2"), **mx("two.example", "3"), **mx("other.example", "4")}
    refuse = {"now": True}

    async def script(session: Session, said: str, line: str) -> bytes | None:
        return NOT_NOW if said == "RCPT" and refuse["now"] else None

    scripts: dict[str, Script] = {"2": script, "3": well_behaved, "4": well_behaved}
    async with world(pool, zone, scripts, traffic=traffic(provider() + SUSPENDS)) as w:
        (row,) = await w.send("a@one.example", status="queued")
        assert row[3].startswith("421 4.7.28")
        await eventually(lambda: rows(w), "it is known to all", until=bool)
        ((receiver, kind, factor, domain, reason, long),) = await rows(w)
        assert (receiver, kind, factor, domain, long) == (
            "big", "suspended", 1.0, "one.example", True,
        )  # fmt: skip
        assert str(reason).startswith("421 4.7.28 An unusual rate of mail")
        assert "@" not in str(reason)
        (standing,) = shut(w)
        assert (standing.route, standing.reason) == ("big", reason)
        assert str(standing.rule).startswith("big:")
        await put(pool, "a@two.example")
        (row,) = await w.send("a@other.example")
        assert row[0] == "sent"
        await w.outbound.at_rest()
        assert w.sinks["3"].sessions == []
    # Another node, or this one after a restart.
    refuse["now"] = False
    hub = Hub()
    async with world(pool, zone, scripts, traffic=traffic(provider() + SUSPENDS), hub=hub) as w:
        (again,) = await eventually(lambda: shut(w), "it is known at the start", until=bool)
        assert (again.reason, again.rule) == (reason, standing.rule)
        await w.send("b@other.example")
        assert w.sinks["3"].sessions == []
        admin = QueueAdmin(pool)
        # What is flushed is nothing of the provider's, and ends nothing of it.
        await admin.flush("other.example")
        await admin.flush(route="default")
        await admin.flush(wanted=Wanted(tag="spring"))
        assert len(await rows(w)) == 1
        await admin.flush("one.example")
        assert await rows(w) == []
        hub.publish("relay_shaping", None)  # as the listener does
        await eventually(lambda: shut(w), "it is let go", until=lambda found: not found)
        w.outbound.flush()
        await eventually(
            lambda: [len(w.sinks[number].received) for number in ("2", "3")],
            "what has waited goes",
            until=lambda counts: counts == [1, 1],
        )


async def test_a_suspension_is_stored_after_an_outage_of_its_table(pool):
    """It holds here meanwhile."""
    await pool.execute("ALTER TABLE relay.outbound_shaping RENAME TO gone")
    try:
        one = traffic(provider() + SUSPENDS)
        scripts: dict[str, Script] = {"2": answers("RCPT", NOT_NOW)}
        await pool.execute("ALTER TABLE relay.gone RENAME TO outbound_shaping")
        async with world(pool, mx("one.example", "2"), scripts, traffic=one) as w:
            await w.send("a@one.example", status="queued")
            await eventually(lambda: rows(w), "it is stored", until=bool)
            assert len(one.in_force(trio.current_time(), SUSPENDED)) == 1
    finally:
        await pool.execute("ALTER TABLE IF EXISTS relay.gone RENAME TO outbound_shaping")


async def test_what_is_refused_for_good_is_suppressed(pool):
    """For the owner, with the reply; what somebody put on the list stays as it is."""
    rules = provider() + "\n[[provider.big.replies]]\nenhanced = '5.1.1'\nsuppress = true\n"
    no = answers("RCPT", b"550 5.1.1 no such user here\r\n")
    await pool.execute("INSERT INTO relay.suppressions (address) VALUES ('c@other.example')")
    async with world(pool, mx("one.example", "2"), {"2": no}, traffic=traffic(rules)) as w:
        await w.send("Gone@one.example", status="bounced")
        found = await eventually(
            lambda: pool.fetch(
                "SELECT address, cause, reason FROM relay.suppressions WHERE cause = 'bounced'"
            ),
            "it is suppressed",
            until=bool,
        )
        assert found == [("gone@one.example", "bounced", "550 5.1.1 no such user here")]
        assert w.outbound.gates.statistics(trio.current_time()) == []


async def test_a_letter_that_is_refused_for_good_suppresses_nobody(pool):
    """Others said that address: whoever signs up under it later is written to."""
    rules = "[[default.replies]]\nenhanced = '5.1.1'\nsuppress = true\n"
    no = answers("RCPT", b"550 5.1.1 no such user here\r\n")
    await insert(pool)  # of an address at example.org
    letters = Letters(sender="no-reply@shop.example", base="https://shop.example")
    async with world(pool, mx("example.org", "2"), {"2": no}, traffic=traffic(rules)) as w:
        await TokenMailer(pool, letters, 10, 5.0).mail_batch(KEY)
        letter = await pool.fetch_value(
            "SELECT id FROM relay.outbound_letters WHERE token IS NOT NULL"
        )
        w.outbound.wake()
        await w.outbound.becomes(letter, "bounced")
        await w.send("other@example.org", status="bounced")
        found = await eventually(
            lambda: pool.fetch("SELECT address FROM relay.suppressions"), "the other is suppressed"
        )
    assert found == [("other@example.org",)]


def is_open(session: Session) -> bool:
    """Whether the client has not closed a connection, read or not: it may do so without QUIT."""
    assert isinstance(session.stream, trio.SocketStream)
    with suppress(OSError):  # it is closed here
        state = session.stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] == TCP_ESTABLISHED
    return False


async def test_a_provider_has_so_many_connections_and_mails_on_each(pool):
    """All its sites together, idle ones included; others have as many as they like."""
    zone = {
        **mx("one.example", "2"),
        **mx("two.example", "3"),
        **mx("other.example", "4"),
    }
    sessions: dict[str, list[Session]] = {"big": [], "other": []}
    most = {"big": 0, "other": 0}
    dots: list[str] = []  # of which session of the provider's

    def counting(name: str) -> Script:
        async def script(session: Session, said: str, line: str) -> bytes | None:
            kind = "big" if name in "23" else "other"
            if said == "connect":
                sessions[kind].append(session)
            most[kind] = max(most[kind], sum(map(is_open, sessions[kind])))
            if said == "dot":
                if kind == "big":
                    dots.append(f"{name} {session.number}")
                await trio.sleep(0.01)
            return None

        return script

    rules = traffic(provider("connections = 2", "messages = 5"))
    async with world(
        pool, zone, {n: counting(n) for n in "234"}, traffic=rules, concurrency=32
    ) as w:
        await w.send(
            *(
                f"a{number}@{name}.example"
                for number in range(20)
                for name in ("one", "two", "other")
            )
        )
        assert most["big"] == 2
        assert most["other"] > 2
        assert len(dots) == 40
        assert max(Counter(dots).values()) == 5


async def test_what_is_told_goodbye_counts_until_it_is_closed(mock_clock):
    """A new connection waits for one that was idle for long, which has its time to answer."""
    goodbye = trio.Event()

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said == "QUIT":
            await goodbye.wait()
        return None

    group = Group(lambda _now: 2)
    shared = Shared(group, lambda: 1000)
    mail = Mail("a@b.example", ("b@c.example",), b"Subject: Hi\r\n\r\nHi.\r\n")
    async with running_sink(script) as sink, trio.open_nursery() as nursery:
        site = site_of((Exchanger("mx.example", 0, ("127.0.0.1",)),), {})
        assert isinstance(site, Site)
        connections = SiteConnections(
            site, sink.port, "relay.example", Deadlines(), random.Random(1), shared=shared
        )
        connections.give_back(await connections.open("c.example", mail))
        mock_clock.jump(IDLE + 1)
        nursery.start_soon(connections.tidy)
        (session,) = sink.sessions
        await eventually(lambda: "QUIT" in session.said, "it is told goodbye")
        group.workers = 1
        await shared.make_room()  # for one there is
        group.workers = 2
        room: list[bool] = []

        async def made_room() -> None:
            await shared.make_room()
            room.append(is_open(session))

        nursery.start_soon(made_room)
        await wait_all_tasks_blocked()
        assert room == []
        goodbye.set()
        await eventually(lambda: room, "there is room")
        assert room == [False]


async def test_a_provider_is_sent_no_more_than_its_rate(pool):
    """From the first mail on, whatever domain brings it; nobody else is held up."""
    zone = {**mx("one.example", "2"), **mx("two.example", "3"), **mx("other.example", "4")}
    rules = traffic(provider('rate = "20/s"'))
    rates = SharedRates(pool, named=rules)
    scripts: dict[str, Script] = dict.fromkeys("234", well_behaved)
    async with world(pool, zone, scripts, traffic=rules, rates=rates, concurrency=32) as w:
        began = trio.current_time()
        await put(
            pool, *(f"a{number}@{name}.example" for number in range(30) for name in ("one", "two"))
        )
        await put(pool, *(f"a{number}@other.example" for number in range(60)))
        w.outbound.wake()
        at_once = 0

        def arrived() -> int:
            nonlocal at_once
            big = sum(len(w.sinks[number].received) for number in "23")
            assert big <= 20 + 20 * (trio.current_time() - began) + 1
            if len(w.sinks["4"].received) == 60 and not at_once:
                at_once = 60 - big
            return big

        await eventually(arrived, "all arrive", until=lambda count: count == 60)
        assert at_once > 0


async def test_new_rules_hold_for_what_goes_from_then_on(pool):
    """They are read anew, and no delivery is lost."""
    now = {"rules": parse("", "rules.toml")}
    one = Traffic(lambda: now["rules"])
    scripts: dict[str, Script] = {"2": well_behaved}
    async with world(pool, mx("one.example", "2"), scripts, traffic=one) as w:
        await w.send("a@one.example")
        now["rules"] = parse(provider("messages = 1"), "rules.toml")
        for number in range(3):
            await w.send(f"b{number}@one.example")
        assert len(w.sinks["2"].sessions) == 4
        now["rules"] = Rules()
        await w.send("c@one.example")
