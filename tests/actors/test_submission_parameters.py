"""What programs ask for when they submit: of reports (RFC 3461) and of TLS (RFC 8689)."""

from __future__ import annotations

import smtplib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relay.db.pool import Pool
from relay.outbound.composing.message import LATEST
from relay.ports.certificate import Certificate
from tests.actors.test_submission import MAIL, TOKEN, Port, serving
from tests.certificates import write

ANYONE = ssl.create_default_context()
ANYONE.check_hostname, ANYONE.verify_mode = False, ssl.CERT_NONE

FROM = "MAIL FROM:<a@shop.example>"
TO = "RCPT TO:<Bob@y.example>"


async def stored(port: Port) -> list[tuple[Any, ...]]:
    return await port.pool.fetch(
        """
        SELECT l.recipient, l.notify, l.orcpt, c.ret, c.envid, c.require_tls, c.route_as
        FROM relay.outbound_letters l
        JOIN relay.outbound_contents c ON c.id = l.content_id
        ORDER BY l.id
        """
    )


def says(*lines: str) -> Any:
    """Say commands, and return the codes of their replies with the enhanced ones."""

    def session(client: smtplib.SMTP) -> list[str]:
        found = []
        for line in lines:
            if line == "DATA":
                code, reply = client.data(MAIL)
            else:
                code, reply = client.docmd(line)
            found.append(f"{code} {reply.decode().partition(' ')[0]}")
        return found

    return session


async def test_what_is_asked_for_is_stored(pool: Pool):
    """With the message, by recipient; who says nothing wants what is usual."""
    async with serving(pool) as port:
        said = await port.talk(
            TOKEN,
            says(
                f"{FROM} SIZE=100 RET=hdrs ENVID=Order+2B7 BODY=8BITMIME",
                f"{TO} NOTIFY=success,Failure ORCPT=rfc822;B+2Bob@Y.example",
                "RCPT TO:<eve@y.example> NOTIFY=NEVER",
                "RCPT TO:<kim@y.example>",
                "rcpt to: <kim@y.example> notify=NEVER",  # again: what was said first
                "RCPT TO:<postmaster> NOTIFY=DELAY",
                "DATA",
            ),
        )
        assert said == ["250 2.1.0"] + ["250 2.1.5"] * 5 + ["250 2.0.0"]
        content = ("HDRS", "Order+2B7", None, None)
        assert await stored(port) == [
            ("Bob@y.example", 3, "rfc822;B+2Bob@Y.example", *content),
            ("eve@y.example", 0, None, *content),
            ("kim@y.example", 14, None, *content),
            ("postmaster@relay.example", 4, None, *content),
        ]


async def test_the_next_message_asks_for_itself(pool: Pool):
    """What was refused, reset or said of another is not remembered."""
    async with serving(pool) as port:
        said = await port.talk(
            TOKEN,
            says(
                f"{FROM} RET=FULL ENVID=a", f"{TO} NOTIFY=NEVER", "RSET",
                f"{FROM} RET=FULL ENVID=b+", f"{FROM} RET=FULL ENVID=b COLOUR=red",
                FROM, f"{TO} NOTIFY=NEVER COLOUR=red", TO, "DATA",
            ),
        )  # fmt: skip
        assert said == [
            "250 2.1.0", "250 2.1.5", "250 2.0.0", "501 5.5.4", "555 5.5.4",
            "250 2.1.0", "555 5.5.4", "250 2.1.5", "250 2.0.0",
        ]  # fmt: skip
        assert await stored(port) == [("Bob@y.example", 14, None, None, None, None, None)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"{FROM} RET=HALF", "501 5.5.4"),
        (f"{FROM} RET=FULL RET=FULL", "501 5.5.4"),
        (f"{FROM} ENVID=", "501 5.5.4"),
        (f"{FROM} ENVID={'x' * 101}", "501 5.5.4"),
        (f"{FROM} ENVID=a+0D+0ARCPT", "501 5.5.4"),
        (f"{FROM} REQUIRETLS", "555 5.5.4"),  # not in clear
        (f"{FROM} NOTIFY=NEVER", "555 5.5.4"),
        (f"{TO} NOTIFY=NEVER,SUCCESS", "501 5.5.4"),
        (f"{TO} NOTIFY=", "501 5.5.4"),
        (f"{TO} NOTIFY=NEVER NOTIFY=NEVER", "501 5.5.4"),
        (f"{TO} ORCPT=rfc822;{'x' * 600}", "501 5.5.4"),
        (f"{TO} ORCPT=x", "501 5.5.4"),
        (f"{TO} RET=FULL", "555 5.5.4"),
    ],
)
async def test_what_is_malformed(pool: Pool, line: str, code: str):
    """Is refused, and the transaction goes on without it."""
    async with serving(pool) as port:
        lines = [line, FROM, TO] if line.startswith("MAIL") else [FROM, line, TO]
        said = await port.talk(TOKEN, says(*lines))
        assert said[0 if line.startswith("MAIL") else 1] == code
        assert said[-1] == "250 2.1.5"


async def test_where_nobody_is_told(pool: Pool):
    """DSN is not offered, its parameters are unknown, and nothing of them is stored."""
    async with serving(pool, reports=False) as port:

        def session(client: smtplib.SMTP) -> list[str]:
            assert not client.has_extn("dsn")
            return list(says(f"{FROM} RET=FULL", FROM, f"{TO} NOTIFY=NEVER", TO, "DATA")(client))

        assert await port.talk(TOKEN, session) == [
            "555 5.5.4", "250 2.1.0", "555 5.5.4", "250 2.1.5", "250 2.0.0",
        ]  # fmt: skip
        assert await stored(port) == [("Bob@y.example", None, None, None, None, None, None)]


async def test_helo_has_no_parameters(pool: Pool):
    """They came with EHLO."""
    async with serving(pool) as port:
        said = await port.talk(
            TOKEN, says("HELO x", f"{FROM} RET=FULL", FROM, f"{TO} NOTIFY=NEVER")
        )
        assert said[1:] == ["501 5.5.4", "250 2.1.0", "501 5.5.4"]


async def test_mail_may_say_that_it_needs_no_tls(pool: Pool):
    """By its header (RFC 8689, 3), which goes on with it."""
    async with serving(pool) as port:

        def session(client: smtplib.SMTP) -> list[str]:
            said = says(FROM, TO)(client)
            code, _ = client.data(b"TLS-Required: No\r\n" + MAIL)
            return [*said, str(code)]

        assert (await port.talk(TOKEN, session))[-1] == "250"
        assert await stored(port) == [("Bob@y.example", 14, None, None, None, False, None)]
        raw = await pool.fetch_value("SELECT blob FROM relay.outbound_contents")
        assert b"\r\nTLS-Required: No\r\n" in bytes(raw)


async def test_tls_all_the_way(pool: Pool, tmp_path: Path):
    """REQUIRETLS is offered in TLS alone, and stored."""
    certificate = Certificate.load(*write(tmp_path))
    async with serving(pool, certificate=certificate) as port:

        def session(client: smtplib.SMTP) -> list[str]:
            client.ehlo()
            assert not client.has_extn("requiretls")
            client.starttls(context=ANYONE)
            client.ehlo()
            assert client.has_extn("requiretls")
            assert client.has_extn("dsn")
            client.user, client.password = "any", TOKEN
            client.auth("PLAIN", client.auth_plain)
            return list(
                says(f"{FROM} REQUIRETLS=x", f"{FROM} requiretls RET=FULL", TO, "DATA")(client)
            )

        said = await port.talk(None, session)
        assert said == ["501 5.5.4", "250 2.1.0", "250 2.1.5", "250 2.0.0"]
        assert await stored(port) == [("Bob@y.example", 14, None, "FULL", None, True, None)]


async def test_a_life_time_for_what_has_none(pool: Pool):
    """It is the deadline of mail that says none, from when it may be sent."""
    async with serving(pool, lifetime=3600.0) as port:
        hour = timedelta(hours=1)
        for field, at in (
            ("", datetime.now(UTC) + hour),
            ("X-Relay-Not-After: 2099-01-01T00:00:00Z\r\n", datetime(2099, 1, 1, tzinfo=UTC)),
            ("X-Relay-Send-At: 2098-01-01T00:00:00Z\r\n", datetime(2098, 1, 1, 1, tzinfo=UTC)),
            ("X-Relay-Send-At: 2001-01-01T00:00:00Z\r\n", datetime.now(UTC) + hour),
            ("X-Relay-Send-At: 9998-12-31T23:30:00Z\r\n", LATEST),
        ):
            (message,) = await port.queued(
                await port.submit(TOKEN, field.encode() + MAIL, "b@y.example")
            )
            assert abs(message["not_after"] - at) < timedelta(minutes=5), field
