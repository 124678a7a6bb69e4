"""What is queued when a received message is released: to whom, and with which bytes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest

from relay.outbound.composing.message import MalformedMessage, Message
from relay.outbound.submission.release import NotAllowed, Patterns, released
from relay.smtp.client import Mail

ID, OWNER = UUID(int=7), UUID(int=8)
AT = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
RAW = b"Received: x\r\nSubject: =?utf-8?q?=C3=BC?=\r\nBcc: c@d\r\n\r\n..\xff\r\n"
FRONT = (
    "Resent-From: a@shop.example\r\nResent-To: me@example.org, you@example.org\r\n"
    "Resent-Date: Sun, 22 Nov 2026 12:00:00 +0000\r\n"
    f"Resent-Message-ID: <{ID}@shop.example>\r\n"
).encode()


def release(
    raw: bytes = RAW,
    *,
    sender: str = "a@shop.example",
    to: Sequence[str] = ("me@example.org", "you@example.org", "ME@example.org"),
    patterns: Sequence[str] = ("*@example.org",),
) -> Message:
    return released(
        raw, sender=sender, to=to, allowed=Patterns(patterns), owner=OWNER, id=ID, at=AT,
        postmaster="postmaster@relay.example",
    )  # fmt: skip


def test_it_goes_out_byte_for_byte_behind_resent_fields():
    """Its reverse-path stays, each recipient is one, and its subject is for lists."""
    message = release()
    assert message.raw == FRONT + RAW
    assert (message.sender.address, message.subject, message.owner) == (
        "a@shop.example",
        "ü",
        OWNER,
    )
    assert [each.address for each in message.recipients] == ["me@example.org", "you@example.org"]


def test_a_last_line_without_its_end_gets_it_on_the_wire_alone():
    """BDAT can say such a message and DATA cannot; what is queued is what came."""
    raw = b"Subject: x\r\n\r\nthe end"
    message = release(raw)
    assert message.raw == FRONT + raw
    assert Mail("a@shop.example", ("me@example.org",), message.raw).data == FRONT + raw + b"\r\n"


def test_text_without_a_header_stays_text():
    """An empty line stands between, if there is none."""
    for raw, between in ((b"hello\r\n", b"\r\n"), (b"\r\nhello\r\n", b""), (b"", b"\r\n")):
        assert release(raw).raw == FRONT + between + raw


def test_what_has_no_reverse_path_is_resent_by_the_postmaster():
    """And has none afterwards: a bounce of it would be nobody's."""
    message = release(sender="")
    assert message.sender.address == ""
    assert message.raw is not None
    assert message.raw.startswith(b"Resent-From: postmaster@relay.example\r\n")


@pytest.mark.parametrize(
    ("patterns", "address", "may"),
    [
        ([], "me@example.org", False),
        (["*@example.org"], "Me@Example.ORG", True),
        (["*@Example.org"], "me@example.org", True),
        (["*@example.org"], "me@example.org.evil.example", False),
        (["*@example.org"], "me@evil-example.org", False),
        (["*@example.org"], "me@exampleXorg", False),
        (["qa-?@x.example", "me@example.org"], "qa-1@x.example", True),
        (["qa-?@x.example"], "qa-12@x.example", False),
        (["[ab]@x.example"], "a@x.example", False),
        (["*"], "me@example.org", True),
    ],
)
def test_patterns(patterns: list[str], address: str, may: bool):
    """Nobody without one; a star and a question mark are all that is special, case is none."""
    if may:
        assert release(to=[address], patterns=patterns).recipients
    else:
        with pytest.raises(NotAllowed):
            release(to=[address], patterns=patterns)


def test_one_recipient_who_may_not_is_enough():
    """Nothing is released then; what is no address is malformed, and becomes no header."""
    with pytest.raises(NotAllowed):
        release(to=["me@example.org", "me@evil.example"])
    for wrong in ("nobody", "a@b\r\nBcc: c@d", "a@example.org, b@evil.example"):
        with pytest.raises(MalformedMessage, match=r"to\[0\]"):
            release(to=[wrong], patterns=["*"])


@pytest.mark.parametrize(
    "address",
    [
        "evil%evil.example@example.org",
        "evil.example!evil@example.org",
        "a!b!c@example.org",
        '"evil@evil.example"@example.org',
        '"evil%evil.example"@example.org',
    ],
)
def test_a_wildcard_takes_nothing_that_leads_on(address: str) -> None:
    """What a server may pass on to elsewhere is allowed by its whole name alone."""
    for pattern in ("*@example.org", "*", "?*example.org", f"*{address[1:]}"):
        assert not Patterns([pattern]).match(address)
    assert Patterns(["*@example.org", address.upper()]).match(address)
    assert Patterns(["*@example.org"]).match("ok+a.b@EXAMPLE.org")
    assert not Patterns([]).match(address)
