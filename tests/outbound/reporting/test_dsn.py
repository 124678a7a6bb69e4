"""Reports to submitters, as Python's email and the relay's own reader of reports see them."""

from __future__ import annotations

import email
import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any
from uuid import UUID

import pytest

from relay.outbound.reporting.dsn import FULL_MOST, HEADER_MOST, Fate, Original, compose, status_of
from relay.returns.law import Kind, finding
from relay.returns.report import DSN, Report, read

AT = datetime(2026, 11, 26, 12, 0, 0, 123456, UTC)
HEADER = b"Received: from x\r\nFrom: a@x.example\r\nMessage-ID:\r\n <1@x.example>\r\nSubject: s\r\n"
RAW = HEADER + b"\r\nThe text.\r\n.\r\nFrom here\r\n"
ID = UUID(int=0x1234)


def original(raw: bytes = RAW, submitter: str = "shop@x.example", **more: Any) -> Original:
    return Original(submitter, AT, raw[:FULL_MOST], len(raw), **more)


def failed(recipient: str = "no@y.example", **more: Any) -> Fate:
    values: dict[str, Any] = {
        "code": 550, "enhanced": "5.1.1", "text": "550 5.1.1 no such user", "phase": "rcpt",
        "peer": "mx.y.example[192.0.2.1]:25", "attempted_at": AT,
    }  # fmt: skip
    return Fate("failed", recipient, **values | more)


def made(*fates: Fate, of: Original | None = None) -> tuple[bytes, EmailMessage, Report]:
    raw = compose(of or original(), fates, hostname="mail.x.example", id=ID, now=AT)
    # Every line end is CRLF, and no line is longer than SMTP has it.
    assert raw.count(b"\n") == raw.count(b"\r\n") == raw.count(b"\r")
    assert raw.endswith(b"\r\n")
    assert max(map(len, raw.split(b"\r\n"))) <= 998
    message = email.message_from_bytes(raw, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    for part in message.walk():
        assert not part.defects
    assert next(message.iter_parts()).get_content_type() == "text/plain"
    assert message["Auto-Submitted"] == "auto-replied"
    found = read(raw)
    assert found.kind == DSN
    return raw, message, found


def blocks(message: EmailMessage) -> list[Any]:
    part = list(message.iter_parts())[1]
    found = part.get_payload()
    assert isinstance(found, list)
    return found


def returned(message: EmailMessage) -> Any:
    return list(message.iter_parts())[2]


def test_a_failure():
    """Each field where it belongs."""
    fate = failed(orcpt="rfc822;No+2Bx@y.example")
    raw, message, found = made(fate, of=original(envid="q+2B1", ret="HDRS"))
    assert raw.isascii()
    assert message["To"] == "shop@x.example"
    assert message["From"] == "Mail Delivery System <MAILER-DAEMON@mail.x.example>"
    assert message["Subject"] == "Undelivered mail returned to sender"
    assert message["Message-ID"] == f"<{ID}@mail.x.example>"
    assert message["References"] == message["In-Reply-To"] == "<1@x.example>"
    about, one = blocks(message)
    assert dict(about.items()) == {
        "Reporting-MTA": "dns; mail.x.example",
        "Original-Envelope-Id": "q+1",
        "Arrival-Date": "Thu, 26 Nov 2026 12:00:00 +0000",
    }
    assert dict(one.items()) == {
        "Original-Recipient": "rfc822; No+x@y.example",
        "Final-Recipient": "rfc822; no@y.example",
        "Action": "failed",
        "Status": "5.1.1",
        "Remote-MTA": "dns; mx.y.example",
        "Diagnostic-Code": "smtp; 550 5.1.1 no such user",
        "Last-Attempt-Date": "Thu, 26 Nov 2026 12:00:00 +0000",
    }
    assert returned(message).get_content_type() == "text/rfc822-headers"
    assert raw.partition(b"text/rfc822-headers\r\n\r\n")[2].startswith(HEADER)
    assert b"The text" not in raw
    (recipient,) = found.recipients
    assert recipient.final == "no@y.example"
    assert recipient.status == "5.1.1"
    follows = finding(found, "no@y.example")
    assert follows is not None
    assert follows.kind is Kind.BOUNCED


@pytest.mark.parametrize("action", ["relayed", "delivered", "delayed"])
def test_what_is_no_failure(action: str):
    """The law of what comes back takes none of these for a bounce; the header alone is returned."""
    fate = failed()._replace(action=action, code=250, enhanced="2.0.0", text="ok", until=AT)
    raw, message, found = made(fate, of=original(ret="FULL"))
    _, one = blocks(message)
    assert one["Action"] == action
    assert one["Status"] == ("4.0.0" if action == "delayed" else "2.0.0")
    assert (one["Will-Retry-Until"] is None) == (action != "delayed")
    assert (one["Remote-MTA"] is None) == (action == "delivered")
    assert b"The text" not in raw
    follows = finding(found, "no@y.example")
    assert follows is None or follows.kind is Kind.DELAYED


def test_several_recipients_in_one():
    """A block each, the worst in the subject."""
    waits = Fate("delayed", "later@y.example", text="450 4.2.1 later", code=450, enhanced="4.2.1")
    _, message, found = made(waits, failed(), failed("also@y.example"))
    assert message["Subject"] == "Undelivered mail returned to sender"
    assert [(one.final, one.action) for one in found.recipients] == [
        ("later@y.example", "delayed"), ("no@y.example", "failed"), ("also@y.example", "failed"),
    ]  # fmt: skip
    assert len(blocks(message)) == 4
    text = message.get_body(("plain",))
    assert text is not None
    assert "<also@y.example>" in text.get_content()


def test_the_whole_message():
    """Byte for byte, of a failure, as far as it is not too large."""
    raw, message, _ = made(failed(), of=original(ret="FULL"))
    assert returned(message).get_content_type() == "message/rfc822"
    assert RAW in raw
    eight = HEADER + b"\r\nsch\xc3\xb6n\r\n"
    raw, message, _ = made(failed(), of=original(eight, ret="FULL"))
    assert eight in raw
    assert message["Content-Transfer-Encoding"] == "8bit"
    for size in (FULL_MOST, FULL_MOST + 1):
        large = HEADER + b"\r\n" + b"x" * 70 + b"\r\n"
        large += b"y" * 76 + b"\r\n"
        large = (large + (b"z" * 76 + b"\r\n") * 1000)[: size - 2] + b"\r\n"
        kind = "message/rfc822" if size == FULL_MOST else "text/rfc822-headers"
        raw, message, _ = made(failed(), of=original(large, ret="FULL"))
        assert returned(message).get_content_type() == kind
        assert len(raw) < FULL_MOST + 5_000


def test_headers_that_no_server_would_take():
    """Beyond ASCII, too long a line, too many of them, or none: always a report in ASCII."""
    odd = "Subject: schön\r\nX-Long: ".encode() + b"x" * 2000 + b"\r\n\r\ntext\r\n"
    raw, message, _ = made(failed(), of=original(odd))
    assert raw.isascii()
    part = returned(message)
    assert part.get_content_type() == "text/rfc822-headers"
    assert "schön" in part.get_payload(decode=True).decode()
    many = b"X: y\r\n" * 20_000 + b"\r\ntext"
    raw, message, _ = made(failed(), of=original(many))
    assert HEADER_MOST - 10 < raw.count(b"X: y\r\n") * 6 <= HEADER_MOST
    assert len(raw) < HEADER_MOST + 5_000
    for bare in (b"\r\ntext only\r\n", b"", b"text\r\n\r\nmore"):
        made(failed(), of=original(bare))
    # A header of another's that would be taken for one of the report's.
    forged = b"Message-ID: <a@b>\r\n\tX-Evil: yes\r\n\r\n"
    raw, message, _ = made(failed(), of=original(forged))
    assert message["In-Reply-To"] == "<a@b>"
    assert message["X-Evil"] is None


def test_nothing_gets_out_of_its_field():
    """Whatever a server said, or a name holds."""
    evil = failed(text="550 no\r\n\r\nFinal-Recipient: rfc822; victim@y.example\x00\u2028 ok" * 60)
    raw, _, found = made(evil)
    assert [one.final for one in found.recipients] == ["no@y.example"]
    assert raw.isascii()
    assert b"\x00" not in raw
    long = "x" * 5000
    made(failed(text=f"550 {long}"))


def test_addresses_outside_ascii():
    """To who has none: in the form of RFC 6533 that is ASCII; to who has one: as they are."""
    raw, message, found = made(failed("jörg@y.example", orcpt=r"utf-8;\x{F6}@y.example"))
    assert raw.isascii()
    _, one = blocks(message)
    assert one["Final-Recipient"] == r"utf-8; j\x{F6}rg@y.example"
    assert one["Original-Recipient"] == r"utf-8; \x{F6}@y.example"
    assert (found.recipients[0].final, found.recipients[0].original) == (
        "jörg@y.example", "ö@y.example",
    )  # fmt: skip
    raw = compose(
        original(submitter="jürgen@x.example"), [failed("jörg@y.example")],
        hostname="mail.x.example", id=ID, now=AT,
    )  # fmt: skip
    assert b"Content-Type: message/global-delivery-status\r\n" in raw
    assert b"Content-Type: message/global-headers\r\n" in raw
    assert "Final-Recipient: utf-8; jörg@y.example\r\n".encode() in raw
    assert "To: <jürgen@x.example>\r\n".encode() in raw
    assert read(raw).recipients[0].final == "jörg@y.example"


@pytest.mark.parametrize(
    ("fate", "status"),
    [
        (failed(), "5.1.1"),
        (failed(enhanced=None), "5.0.0"),
        (failed(code=451, enhanced="4.7.1"), "4.7.1"),
        (failed(code=451, enhanced=None), "4.0.0"),
        (failed(code=None, enhanced=None, phase="connect"), "4.4.1"),
        (failed(code=None, enhanced=None, phase="mail"), "5.0.0"),
        (failed(code=250, enhanced="2.0.0"), "5.0.0"),
        (failed(enhanced="nonsense"), "5.0.0"),
        (failed(error="expired", code=450, enhanced="4.2.1"), "4.4.7"),
        (failed(error="suppressed"), "5.7.1"),
        (failed()._replace(action="delayed"), "4.0.0"),
        (failed(code=450, enhanced="4.2.2")._replace(action="delayed"), "4.2.2"),
        (failed(code=None, enhanced=None, phase="connect")._replace(action="delayed"), "4.4.1"),
        (failed(code=250, enhanced="2.1.5")._replace(action="relayed"), "2.1.5"),
        (failed(code=250, enhanced="5.0.0")._replace(action="delivered"), "2.0.0"),
    ],
)
def test_status_codes(fate: Fate, status: str):
    """Of the class that fits what became of it."""
    assert status_of(fate) == status


def test_what_the_queue_says_in_a_word():
    """Of a deadline the last attempt is told, of a suppression nothing of any server."""
    _, message, _ = made(failed(error="expired", code=450, enhanced="4.2.1", text="450 4.2.1 no"))
    _, one = blocks(message)
    assert one["Diagnostic-Code"] == "smtp; 450 4.2.1 no"
    raw, message, _ = made(failed(error="suppressed", text=None, peer=None))
    assert blocks(message)[1]["Diagnostic-Code"] is None
    assert b"suppression list" in raw
