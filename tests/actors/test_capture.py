"""Capture from a client's side: mail for anybody is kept, and AUTH takes anything."""

from __future__ import annotations

import base64

import pytest
import trio

from relay.mailboxes.capture import Capture
from relay.smtp.limits import SmtpLimits
from tests.certificates import write
from tests.eventually import eventually
from tests.smtp.service import Client, Service, serving

CAPTURE = Capture.beside(["relay.localhost"], 3600.0, 100)
NOBODY = "550 5.1.1 No such mailbox here"


def coded(*parts: str) -> str:
    """Base64 of what is between NULs."""
    return base64.b64encode("\0".join(parts).encode()).decode()


async def logins(pool) -> list[str | None]:
    """As whom each message was sent, oldest first."""
    return [login for (login,) in await pool.fetch("SELECT login FROM relay.messages ORDER BY id")]


async def test_mail_for_anybody_is_kept(pool):
    """And says so; the relay's own domains keep their law, and so do addresses that are none."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        said = await client.deliver(b"x\r\n", "ada@shop.example", "eve@other.example")
        assert said.startswith("250 2.0.0 captured as ")
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        for nobody in ("nobody@relay.localhost", '"a b"@relay.localhost'):
            assert await client.ask(f"RCPT TO:<{nobody}>") == NOBODY, nobody
        for none in ("a@-shop.example", "ada"):
            assert (await client.ask(f"RCPT TO:<{none}>"))[:9] == "501 5.1.3", none
        assert (await client.ask("RSET"))[:3] == "250"
        bob = await service.mailbox()
        assert (await client.deliver(b"y\r\n", bob)).startswith("250 2.6.0 Stored as ")
        assert sorted(await service.stored()) == [
            ("ada@shop.example", "a@b.example", b"x\r\n"),
            ("bob@relay.localhost", "a@b.example", b"y\r\n"),
            ("eve@other.example", "a@b.example", b"x\r\n"),
        ]


async def test_one_mailbox_whichever_way_its_domain_is_spelled(pool):
    """In letters (IDNA 2008) or in A-labels, and shown as it was said first."""
    said = {
        "Grüße@BÜCHER.example": ("grüße@xn--bcher-kva.example", "grüße@bücher.example"),
        "grüße@xn--bcher-kva.example": ("grüße@xn--bcher-kva.example", "grüße@bücher.example"),
        "ada@XN--Bcher-kva.example": ("ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
        "ada@bücher.example": ("ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
        "ada@straße.example": ("ada@xn--strae-oqa.example", "ada@straße.example"),
        "ada@STRASSE.example": ("ada@strasse.example", None),
        "ada@faß.de": ("ada@xn--fa-hia.de", "ada@faß.de"),
    }
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        for address in said:
            assert (await client.ask("MAIL FROM:<a@b.example> SMTPUTF8"))[:3] == "250"
            assert (await client.ask(f"RCPT TO:<{address}>"))[:3] == "250", address
            assert (await client.ask("DATA"))[:3] == "354"
            assert (await client.ask(b"x\r\n."))[:13] == "250 2.0.0 cap"
        assert [to for to, _, _ in await service.stored()] == [to for to, _ in said.values()]
    rows = await pool.fetch("SELECT address, said FROM relay.mailboxes")
    assert sorted(rows, key=str) == sorted(set(said.values()), key=str)


async def test_a_local_part_that_needs_its_quotes_is_kept(pool):
    """Spaces, an @, backslashes; without regard to case, as any other."""
    same = ('"a b"@shop.example', '"A\\ b"@shop.example')
    others = ('"a@b"@shop.example', '"a\\"b\\\\c"@shop.example')
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        for address in (*same, *others):
            assert (await client.deliver(b"x\r\n", address))[:13] == "250 2.0.0 cap", address
        assert [to for to, _, _ in await service.stored()] == [same[0], same[0], *others]


async def test_nothing_is_made_before_the_mail_is_durable(pool):
    """A recipient that was named, and a message that was too large, leave nothing."""
    async with serving(pool, capture=CAPTURE) as service:
        async with service.client() as client:
            await client.begin("ada@shop.example")
        async with service.client() as client:
            assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
            assert (await client.ask("RCPT TO:<ada@shop.example>"))[:3] == "250"
        assert await pool.fetch("SELECT FROM relay.mailboxes") == []


async def test_without_capture_nothing_is_taken(pool):
    """Every foreign address is refused, and AUTH is not known."""
    async with serving(pool) as service, service.client() as client:
        assert "AUTH" not in await client.ask("EHLO client.example")
        assert (await client.ask(f"AUTH PLAIN {coded('', 'a', 'b')}"))[:9] == "500 5.5.1"
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        assert await client.ask("RCPT TO:<ada@shop.example>") == NOBODY


async def test_an_address_whose_mailbox_is_over_is_captured_anew(pool):
    """What it held does not come back, and two messages of one transaction's time are both kept."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        await client.deliver(b"old\r\n", "ada@shop.example")
        await pool.execute("UPDATE relay.mailboxes SET is_active = false")
        assert (await client.deliver(b"new\r\n", "ada@shop.example"))[:3] == "250"
        assert [
            (address, raw) for address, _, raw in await service.stored() if "shop" in address
        ] == [("ada@shop.example", b"new\r\n")]


async def test_a_mailbox_that_is_full_takes_no_more(pool):
    """The quotas of its plan hold, though it is the administrator's."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        await client.deliver(b"x\r\n", "ada@shop.example")
        await pool.execute("UPDATE relay.plans SET max_messages = 1 WHERE name = 'free'")
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        assert (await client.ask("RCPT TO:<ada@shop.example>"))[:9] == "452 4.2.2"
        assert (await client.ask("RCPT TO:<eve@shop.example>"))[:3] == "250"


async def test_too_many_mailboxes_lose_the_oldest(pool):
    """Soon after the one that is too many."""
    capture = Capture.beside(["relay.localhost"], 3600.0, 2)
    async with serving(pool, capture=capture) as service, service.client() as client:
        for number in range(4):
            await client.deliver(b"x\r\n", f"{number}@shop.example")

        async def two() -> bool:
            rows = await pool.fetch("SELECT address FROM relay.mailboxes WHERE is_active")
            return sorted(rows) == [("2@shop.example",), ("3@shop.example",)]

        await eventually(two, "the oldest are closed")


async def test_a_relay_that_starts_closes_what_is_too_many(pool):
    """Without any mail: such as one that was killed left, or a lower bound."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        for number in range(5):
            await client.deliver(b"x\r\n", f"{number}@shop.example")
    async with serving(pool, capture=Capture.beside(["relay.localhost"], 3600.0, 3)):

        async def three() -> bool:
            rows = await pool.fetch("SELECT address FROM relay.mailboxes WHERE is_active")
            return sorted(rows) == [(f"{number}@shop.example",) for number in (2, 3, 4)]

        await eventually(three, "the oldest are closed")


async def test_at_the_bound_what_is_live_has_its_mail(pool):
    """Two writers beyond the bound, at once: every 250 is stored, and the newest mailboxes stay."""
    capture = Capture.beside(["relay.localhost"], 3600.0, 25)
    async with serving(pool, capture=capture) as one, serving(pool, capture=capture) as other:

        async def session(end: Service, number: int) -> None:
            async with end.client() as client:
                for each in range(20):
                    said = await client.deliver(b"x\r\n", f"{number}-{each}@shop.example")
                    assert said[:3] == "250"

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(session, (one, other)[number % 2], number)

        async def live() -> list[bool]:
            rows = await pool.fetch(
                "SELECT b.is_active, count(m.id) FROM relay.mailboxes b "
                "LEFT JOIN relay.messages m ON m.mailbox_id = b.id "
                "GROUP BY b.id ORDER BY b.captured_at DESC, b.id DESC"
            )
            assert [stored for _, stored in rows] == [1] * 200
            return [is_live for is_live, _ in rows]

        await eventually(
            live, "the newest are live", until=lambda seen: seen == [True] * 25 + [False] * 175
        )


@pytest.mark.parametrize(
    ("said", "login"),
    [
        ([f"AUTH PLAIN {coded('', 'shop', 'x')}"], "shop"),
        (["AUTH PLAIN", coded("", "shop", "x")], "shop"),
        (["auth login", coded("shop"), coded("x")], "shop"),
        ([f"AUTH LOGIN {coded('shop')}", coded("x")], "shop"),
        (["AUTH PLAIN " + coded("as", "sh\u00f6p\r\n", "x")], "sh\u00f6p"),
        (["AUTH LOGIN", "=", "="], None),
    ],
)
async def test_anybody_may_sign_in(pool, said, login):
    """By PLAIN and LOGIN, in one line or in several; the name goes along with the message."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        assert "250-AUTH PLAIN LOGIN" in await client.ask("EHLO client.example")
        *first, last = [await client.ask(line) for line in said]
        assert all(reply[:4] == "334 " for reply in first)
        assert last == "235 2.7.0 Signed in"
        await client.deliver(b"x\r\n", "ada@shop.example")
        bob = await service.mailbox()
        await client.deliver(b"x\r\n", bob)
        assert await logins(pool) == [login, login]


async def test_anybody_may_sign_in_from_elsewhere_without_tls(pool):
    """As from another container: no password opens anything here, so none needs TLS."""
    async with (
        serving(pool, capture=CAPTURE, proxies=["127.0.0.2"]) as service,
        await trio.open_tcp_stream("127.0.0.1", service.port, local_address="127.0.0.2") as stream,
    ):
        client = Client(stream)
        await client.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 25\r\n")
        assert (await client.reply())[:3] == "220"
        assert "250-AUTH PLAIN LOGIN" in await client.ask("EHLO client.example")
        assert (await client.ask(f"AUTH PLAIN {coded('', 'shop', 'x')}"))[:3] == "235"
        await client.deliver(b"x\r\n", "ada@shop.example")
        assert await logins(pool) == ["shop"]


async def test_from_elsewhere_it_takes_tls_where_there_is_tls(pool, tmp_path):
    """A password may open something elsewhere: it is asked for in clear from this machine alone."""
    made = serving(pool, capture=CAPTURE, proxies=["127.0.0.2"], certificate=write(tmp_path))
    async with made as service:
        for named, offered in (("192.0.2.1", False), ("127.0.0.1", True)):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", service.port, local_address="127.0.0.2"
            )
            async with stream:
                client = Client(stream)
                await client.send(f"PROXY TCP4 {named} 127.0.0.1 1234 25\r\n".encode())
                assert (await client.reply())[:3] == "220"
                assert ("AUTH" in await client.ask("EHLO client.example")) is offered
                signed_in = await client.ask(f"AUTH PLAIN {coded('', 'shop', 'x')}")
                assert signed_in[:3] == ("235" if offered else "500")


async def test_what_is_no_sign_in(pool):
    """Each is refused with its reason, and the session goes on."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        assert (await client.ask("AUTH CRAM-MD5"))[:9] == "504 5.5.4"
        assert (await client.ask("AUTH"))[:9] == "504 5.5.4"
        assert (await client.ask("AUTH PLAIN !"))[:9] == "501 5.5.2"
        assert (await client.ask(f"AUTH PLAIN {coded('', 'a')}"))[:9] == "501 5.5.2"
        assert (await client.ask("AUTH PLAIN " + base64.b64encode(b"\0\xff\0x").decode()))[
            :3
        ] == "501"
        assert (await client.ask("AUTH LOGIN"))[:4] == "334 "
        assert (await client.ask("*"))[:3] == "501"
        assert (await client.ask("AUTH LOGIN"))[:4] == "334 "
        assert (await client.ask("x" * 5000))[:3] == "500"
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        assert (await client.ask("AUTH LOGIN"))[:9] == "503 5.5.1"
        assert (await client.ask("RSET"))[:3] == "250"
        assert (await client.ask(f"AUTH PLAIN {coded('', 'a', 'b')}"))[:3] == "235"
        assert (await client.ask(f"AUTH PLAIN {coded('', 'a', 'b')}"))[:9] == "503 5.5.1"
    async with serving(pool, capture=CAPTURE) as service, service.raw_client() as client:
        await client.reply()
        assert (await client.ask("HELO client.example"))[:3] == "250"
        assert (await client.ask("AUTH PLAIN"))[:9] == "503 5.5.1"


async def test_many_at_once_lose_and_double_nothing(pool):
    """A thousand messages over forty sessions, to a thousand addresses that each get two copies."""
    capture = Capture.beside(["relay.localhost"], 3600.0, 2000)
    async with serving(pool, capture=capture) as service:

        async def session(number: int) -> None:
            async with service.client() as client:
                for each in range(25):
                    address = f"{25 * number + each}@shop.example"
                    again = f"{(25 * number + each + 500) % 1000}@shop.example"
                    assert (await client.deliver(b"x\r\n", address, again))[:3] == "250"

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(session, number)
        found = [address for address, _, _ in await service.stored()]
    assert len(found) == 2000
    assert {found.count(address) for address in set(found)} == {2}
    assert await pool.fetch_value("SELECT count(*) FROM relay.mailboxes") == 1000


async def test_mailboxes_that_end_at_once_cost_nobody_his_mail(pool):
    """Two writers, the same few addresses, and mailboxes that are over again and again."""
    capture = Capture.beside(["relay.localhost"], 0.2, 2000)
    over, replies = trio.Event(), []
    async with serving(pool, capture=capture) as one, serving(pool, capture=capture) as other:

        async def session(end: Service, number: int) -> None:
            async with end.client() as client:
                for each in range(40):
                    names = [f"{(number + each + more) % 7}@shop.example" for more in range(3)]
                    replies.append((await client.deliver(b"x\r\n", *names))[:3])

        async def end_them() -> None:
            while not over.is_set():
                await pool.execute(
                    """
                    WITH ending AS (
                        SELECT id FROM relay.mailboxes WHERE is_active ORDER BY address FOR UPDATE
                    )
                    UPDATE relay.mailboxes m SET is_active = false FROM ending e WHERE m.id = e.id
                    """
                )
                await trio.sleep(0.02)

        async with trio.open_nursery() as ending:
            ending.start_soon(end_them)
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(session, (one, other)[number % 2], number)
            over.set()
        assert set(replies) <= {"250", "451"}, "never that there is no such mailbox"
        assert replies.count("250") > len(replies) * 3 // 4
        assert await pool.fetch_value("SELECT count(*) FROM relay.messages") >= 3 * replies.count(
            "250"
        )


async def test_who_could_be_given_no_mailbox_is_not_said_to_have_the_mail(pool):
    """Where one recipient's mailbox is over again and again, the sender tries again for all."""
    await pool.execute(
        "INSERT INTO relay.mailboxes (address, expires_at)"
        " VALUES ('over@shop.example', now() - interval '1 second')"
    )
    await pool.execute(
        "CREATE FUNCTION relay.stays() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    await pool.execute(
        "CREATE TRIGGER stays BEFORE UPDATE OF address ON relay.mailboxes"
        " FOR EACH ROW EXECUTE FUNCTION relay.stays()"
    )
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        names = ("one@shop.example", "over@shop.example")
        assert (await client.deliver(b"x\r\n", *names))[:3] == "451"
        assert (await client.deliver(b"x\r\n", names[0]))[:3] == "250"


async def test_an_address_that_was_set_aside_is_nobodys(pool):
    """Or mail to it would keep its old address from being captured anew."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        assert await client.ask("RCPT TO:<0@expired.invalid>") == NOBODY


async def test_a_message_is_not_copied_without_bounds(pool):
    """What is too large for so many recipients is refused: at RCPT if it is announced."""
    limits = SmtpLimits(max_stored_bytes=300_000)
    async with serving(pool, capture=CAPTURE, limits=limits) as service, service.client() as client:
        assert (await client.ask("MAIL FROM:<a@b.example> SIZE=100000"))[:3] == "250"
        replies = [await client.ask(f"RCPT TO:<{each}@shop.example>") for each in range(4)]
        assert [reply[:9] for reply in replies] == ["250 2.1.5"] * 3 + ["452 4.5.3"]
        assert (await client.ask("RSET"))[:3] == "250"
        names = [f"{each}@shop.example" for each in range(4)]
        assert (await client.deliver(b"x\r\n", *names))[:3] == "250"
        large = (b"x" * 98 + b"\r\n") * 990
        assert (await client.deliver(large, *names))[:9] == "452 4.5.3"
        assert (await client.deliver(large, *names[:3]))[:3] == "250"
