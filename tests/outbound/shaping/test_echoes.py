"""What a reply says by itself: without what it repeats of the mail that it answers."""

from __future__ import annotations

import pytest

from relay.outbound.shaping.echoes import unechoed
from relay.outbound.shaping.file import SHIPPED
from relay.outbound.shaping.rules import Rules, parse
from relay.outbound.shaping.traffic import Learned, Receiver, Traffic
from relay.smtp.client import Outcome, Phase, Verdict

SAYS = "all messages from x will be permanently deferred"
RECIPIENT = f'"{SAYS}"@borrow.test'
SITE = Receiver("mx:mx.innocent.example")


def rules() -> Rules:
    """Those that are shipped."""
    return parse(SHIPPED.read_text(), SHIPPED.name)


def suspends(text: str, own: tuple[str, ...], code: int = 454) -> bool:
    """Whether a site that says so again and again is left alone."""
    traffic = Traffic(rules)
    outcome = Outcome(Verdict.DEFERRED, Phase.RCPT, code, None, text, False, True)
    return any(
        isinstance(traffic.learn(SITE, "y.example", outcome, float(at), str, own), Learned)
        for at in range(3)
    )


@pytest.mark.parametrize(
    "echo",
    [
        f"<{RECIPIENT}>: Relay access denied",
        f"<{RECIPIENT.upper()}>: Relay access denied",
        f"{RECIPIENT}: Relay access denied",
        f"{SAYS}@borrow.test: Relay access denied",
        f"Relay access denied for {SAYS.title()} (borrow.test)",
        f"Relay access denied for '{SAYS}'",
        f"no mailbox {SAYS}",
        f"<{SAYS}@borrow.test: Relay acc",
        SAYS.replace(" ", chr(92) + " ") + "@borrow.test unknown",
        SAYS.replace(" ", "  ") + "@borrow.test unknown",
        SAYS.replace(" ", "%20") + "@borrow.test unknown",
        f"&quot;{SAYS}&quot;@borrow.test unknown",
        f'user "{SAYS}" unknown',
        f"&lt;{SAYS}&gt; unknown",
    ],
)
def test_nobody_is_left_alone_for_words_of_the_recipient(echo):
    """However a server spells them; by the same words of its own it would be."""
    assert not suspends(echo, (RECIPIENT, "shop@x.example"))
    assert suspends(SAYS, ("ada@borrow.test", "shop@x.example"))
    assert suspends("All messages from 192.0.2.1 will be permanently deferred; see x", (RECIPIENT,))


@pytest.mark.parametrize(
    "own", [f'"{SAYS}"@evil.test', f"{SAYS}", f'"{SAYS.replace("f", chr(92) + "f")}"@evil.test']
)
def test_nor_for_words_of_the_sender_or_the_subject(own):
    """MAIL FROM comes back when its domain is not known, the subject when it is no good."""
    for text in (f"<{own}>: Sender address rejected: Domain not found", f"rejected: {SAYS}"):
        assert not suspends(text, ("ada@y.example", own), 450)


def test_a_reply_without_them_is_as_it_was():
    """So that what providers say is found; a word within another is no echo."""
    said = "4.7.650 The mail server [192.0.2.1] has been temporarily rate limited"
    assert unechoed(said, ("ada@y.example", "rate@x.example", "")) == said.replace("rate", "…")
    assert unechoed(said, ("imp@server.example", "tempo@x.example")) == said
    assert unechoed("for Ada@Y.Example: no, ada", ("ada@y.example",)) == "for …: no, …"


def test_one_reply_suspends_no_site_that_is_no_providers():
    """One may be odd, and the next is the proof."""
    traffic = Traffic(rules)
    outcome = Outcome(Verdict.DEFERRED, Phase.RCPT, 450, None, SAYS, False, True)
    assert traffic.learn(SITE, "y.example", outcome, 0.0, str) is None
    assert isinstance(traffic.learn(SITE, "y.example", outcome, 1.0, str), Learned)
