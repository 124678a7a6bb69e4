"""The sans-I/O client: every phase against everything that can come back."""

import base64
import hmac
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.errors import Bug, PermanentFailure
from relay.smtp.auth import Credentials
from relay.smtp.client import (
    LAW,
    Mail,
    OnceMail,
    Outcome,
    Phase,
    Seen,
    SmtpClient,
    UnfitMail,
    Verdict,
)
from relay.smtp.dsn import Dsn, MailParameters, Notify, RcptParameters
from relay.smtp.replies import MAX_TEXT, NotAReply, ReplyLimits, ReplyReader

EHLO = b"250-mx\r\n250-PIPELINING\r\n250-SIZE 10000\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
SERIAL = b"250 mx\r\n"
SECRET = Credentials("user", "pa55word")
MAIL = Mail("a@x.org", ("b@y.org",), b"Hi\r\n.dot\r\n")
GROUP = b"MAIL FROM:<a@x.org> SIZE=10\r\nRCPT TO:<b@y.org>\r\nDATA\r\n"
BODY = b"Hi\r\n..dot\r\n.\r\n"

COMES = {
    Seen.TRANSIENT: b"451 4.3.0 later\r\n",
    Seen.PERMANENT: b"550 5.7.1 no\r\n",
    Seen.CLOSING: b"421 4.3.2 closing\r\n",
    Seen.NONSENSE: b"\xff\xfe\x00 what?\r\n",
    Seen.MORE: b"350 go on\r\n",
    Seen.GOOD: b"250 2.0.0 ok\r\n",
}


class Talk:
    """A client and a clock; `hears` returns what the client then wants to send."""

    def __init__(self, ehlo: bytes = EHLO, **options) -> None:
        self.client = SmtpClient(**options)
        self.now = 0.0
        self.hears(b"220 mx ESMTP\r\n")
        if ehlo:
            self.hears(ehlo)

    def hears(self, data: bytes) -> bytes:
        self.now += 1
        self.client.receive(data, self.now)
        return self.client.data_to_send()

    def begin(self, mail: Mail = MAIL, **options) -> bytes:
        self.client.begin(mail, self.now, **options)
        return self.client.data_to_send()

    def meets(self, seen: Seen) -> None:
        if seen is Seen.ENDED:
            self.client.ended(self.now, "gone")
        elif seen is Seen.LATE:
            self.client.late(self.now, "late")
        else:
            self.hears(COMES[seen])

    @property
    def outcome(self) -> Outcome:
        assert self.client.result is not None
        (outcome,) = self.client.result
        return outcome


BEFORE = {  # what is heard before the phase, with PIPELINING offered and without
    Phase.MAIL: (),
    Phase.RCPT: (b"250 ok\r\n",),
    Phase.DATA: (b"250 ok\r\n", b"250 ok\r\n"),
    Phase.DOT: (b"250 ok\r\n", b"250 ok\r\n", b"354 go\r\n"),
}
PERMANENTLY = {
    Phase.MAIL: Verdict.FAILED,
    Phase.RCPT: Verdict.BOUNCED,
    Phase.DATA: Verdict.FAILED,
    Phase.DOT: Verdict.FAILED,
}
REPLIES_LEFT = {Phase.MAIL: 2, Phase.RCPT: 1, Phase.DATA: 0, Phase.DOT: 0}


@pytest.mark.parametrize("ehlo", [EHLO, SERIAL], ids=["pipelined", "serial"])
@pytest.mark.parametrize("seen", Seen)
@pytest.mark.parametrize("phase", BEFORE)
def test_every_answer_at_every_phase_of_a_mail(phase: Phase, seen: Seen, ehlo: bytes):
    """5yz is final, 4yz and trouble defer, and after the dot a lost answer is unknown."""
    if seen.value == {Phase.DATA: 1}.get(phase, 0) and phase is not Phase.DOT:
        return  # the conversation goes on: the tests of success
    talk = Talk(ehlo)
    talk.begin()
    for line in BEFORE[phase]:
        talk.hears(line)
    assert talk.client.awaits is phase
    talk.meets(seen)
    if ehlo is EHLO and talk.client.usable and seen in (Seen.TRANSIENT, Seen.PERMANENT):
        talk.hears(b"503 5.5.1 what?\r\n" * REPLIES_LEFT[phase])
    outcome = talk.outcome
    if seen is Seen.PERMANENT:
        expected = PERMANENTLY[phase]
    elif phase is Phase.DOT and seen is Seen.GOOD:
        expected = Verdict.DELIVERED
    elif phase is Phase.DOT and seen not in (Seen.TRANSIENT, Seen.CLOSING):
        expected = Verdict.UNKNOWN
    else:
        expected = Verdict.DEFERRED
    assert (outcome.verdict, outcome.phase) == (expected, phase)
    replied = seen in (Seen.TRANSIENT, Seen.PERMANENT) or (phase is Phase.DOT and seen is Seen.GOOD)
    assert outcome.connection_usable is replied
    assert outcome.route_trouble is not replied
    if seen in COMES and seen is not Seen.NONSENSE:
        assert outcome.code == int(COMES[seen][:3])
    else:
        assert outcome.code is None
    if seen is Seen.PERMANENT:
        assert (outcome.enhanced, outcome.text) == ("5.7.1", "no")
    assert not outcome.stale


OPENING: dict[
    Phase, tuple[tuple[bytes, ...], dict[str, Any]]
] = {  # what was heard before, and which options lead there
    Phase.CONNECT: ((), {}),
    Phase.EHLO: ((b"220 mx\r\n",), {"starttls": True}),
    Phase.TLS: ((b"220 mx\r\n", b"250-mx\r\n250 STARTTLS\r\n"), {"starttls": True}),
    Phase.AUTH: (
        (b"220 mx\r\n", b"250-mx\r\n250 AUTH PLAIN\r\n"),
        {"secure": True, "credentials": SECRET},
    ),
}


@pytest.mark.parametrize("seen", Seen)
@pytest.mark.parametrize("phase", OPENING)
def test_whatever_goes_wrong_in_opening_is_the_routes_trouble(phase: Phase, seen: Seen):
    """A 5yz to greeting, EHLO, STARTTLS or AUTH defers like any other failure there."""
    if seen is Seen.GOOD or (phase is Phase.AUTH and seen is Seen.MORE):
        return
    heard, options = OPENING[phase]
    talk = Talk.__new__(Talk)
    talk.client, talk.now = SmtpClient(**options), 0.0
    for line in heard:
        talk.hears(line)
    talk.meets(seen)
    failure = talk.client.failure
    assert failure is not None
    assert (failure.verdict, failure.phase) == (Verdict.DEFERRED, phase)
    assert failure.route_trouble
    assert not failure.connection_usable
    assert not talk.client.ready


def test_the_law_has_a_ruling_for_everything():
    """The table is complete, and nothing but a reply to the dot delivers."""
    for phase in Phase:
        assert len(LAW[phase]) == len(Seen)
        verdicts = {ruling.verdict for ruling in LAW[phase]}
        assert (Verdict.DELIVERED in verdicts) == (phase is Phase.DOT)
        assert (Verdict.BOUNCED in verdicts) == (phase is Phase.RCPT)


def test_a_group_goes_out_in_one_write():
    """With PIPELINING, MAIL, RCPT and DATA are one write; then message and dot, stuffed."""
    talk = Talk()
    assert talk.begin() == GROUP
    assert talk.hears(b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 go\r\n") == BODY
    assert talk.hears(b"250 2.0.0 queued\r\n") == b""
    assert talk.outcome[:5] == (Verdict.DELIVERED, Phase.DOT, 250, "2.0.0", "queued")
    assert [step[:2] for step in talk.outcome.trace] == [
        ("mail", 250),
        ("rcpt", 250),
        ("data", 354),
        ("dot", 250),
    ]


@pytest.mark.parametrize("dot", COMES.values())
def test_a_group_of_answers_means_what_they_mean_one_by_one(dot: bytes):
    """Read at once or byte by byte, to one recipient or several: the same is written and known."""
    welcome = b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 go\r\n"
    whole, bytewise, several = Talk(), Talk(), Talk()
    whole.begin()
    bytewise.begin()
    several.begin(Mail("a@x.org", ("b@y.org", "c@y.org"), MAIL.data))
    written = whole.hears(welcome)
    assert b"".join(bytewise.hears(bytes([byte])) for byte in welcome) == written
    assert several.hears(b"250 2.1.0 ok\r\n" + welcome) == written
    for talk in (whole, bytewise, several):
        talk.hears(dot)
    assert whole.outcome._replace(trace=()) == bytewise.outcome._replace(trace=())
    assert [step[:2] for step in whole.outcome.trace] == [
        step[:2] for step in bytewise.outcome.trace
    ]
    assert several.client.result is not None
    for outcome in several.client.result:
        assert outcome._replace(trace=()) == whole.outcome._replace(trace=())
    for talk in (bytewise, several):
        assert (talk.client.usable, talk.client.awaits) == (
            whole.client.usable,
            whole.client.awaits,
        )


def test_without_pipelining_each_command_waits():
    """Where PIPELINING is not offered, nothing is sent ahead of an answer."""
    talk = Talk(SERIAL)
    assert talk.begin(following=MAIL) == b"MAIL FROM:<a@x.org>\r\n"
    assert talk.hears(b"250 ok\r\n") == b"RCPT TO:<b@y.org>\r\n"
    assert talk.hears(b"250 ok\r\n") == b"DATA\r\n"
    assert talk.hears(b"354 go\r\n") == BODY
    talk.hears(b"250 ok\r\n")
    assert talk.outcome.verdict == Verdict.DELIVERED
    assert talk.client.ahead is None


def test_the_next_mail_goes_out_with_the_dot():
    """An announced mail's group shares the write of the dot, and its replies are its own."""
    talk = Talk()
    second = Mail("", ("c@y.org",), b"two\r\n")
    talk.begin(following=second)
    sent = talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    assert sent == BODY + b"MAIL FROM:<> SIZE=5\r\nRCPT TO:<c@y.org>\r\nDATA\r\n"
    talk.hears(b"552 5.3.4 first is too big\r\n250 ok\r\n250 ok\r\n354 go\r\n")
    assert (talk.outcome.verdict, talk.outcome.phase) == (Verdict.FAILED, Phase.DOT)
    assert talk.begin(second) == b"two\r\n.\r\n"
    talk.hears(b"250 ok\r\n")
    assert talk.outcome.verdict == Verdict.DELIVERED


def test_an_announced_mail_that_never_began_is_stale():
    """When the connection dies at the first dot, the second mail lost nothing."""
    talk = Talk()
    second = Mail("", ("c@y.org",), b"two\r\n")
    talk.begin(following=second)
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.client.ended(talk.now, "gone")
    assert talk.outcome.verdict == Verdict.UNKNOWN
    assert talk.begin(second) == b""
    assert talk.outcome[0] == Verdict.DEFERRED
    assert talk.outcome.stale


def test_another_mail_than_the_announced_one_is_not_sent():
    """The peer waits for the announced message; any other would be delivered to its recipient."""
    talk = Talk()
    talk.begin(following=Mail("", ("c@y.org",), b"two\r\n"))
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.hears(b"250 ok\r\n")
    assert talk.begin(MAIL) == b""
    assert talk.outcome.stale
    assert not talk.client.usable


@pytest.mark.parametrize("seen", [Seen.ENDED, Seen.CLOSING])
def test_a_reused_connection_that_ends_at_once_is_stale(seen: Seen):
    """The peer closed an idle connection: nothing was tried.  A fresh one would be trouble."""
    talk = Talk()
    talk.begin()
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.hears(b"250 ok\r\n")
    talk.begin()
    talk.meets(seen)
    assert talk.outcome.verdict == Verdict.DEFERRED
    assert talk.outcome.stale


def test_each_recipient_has_its_own_outcome():
    """Refused recipients get their own codes, the accepted one the dot's."""
    talk = Talk()
    mail = Mail("a@x.org", ("1@y.org", "2@y.org", "3@y.org"), b"x\r\n")
    talk.begin(mail)
    heard = b"250 ok\r\n550 5.1.1 unknown\r\n250 ok\r\n450 4.2.1 busy\r\n354 go\r\n"
    assert talk.hears(heard) == b"x\r\n.\r\n"
    talk.hears(b"250 2.0.0 ok\r\n")
    assert talk.client.result is not None
    assert [(one.verdict, one.phase, one.code) for one in talk.client.result] == [
        ("bounced", "rcpt", 550),
        ("delivered", "dot", 250),
        ("deferred", "rcpt", 450),
    ]


def test_a_refused_recipient_stays_refused_when_the_rest_breaks():
    """What was decided for one recipient does not change with what happens to another."""
    talk = Talk()
    talk.begin(Mail("a@x.org", ("1@y.org", "2@y.org"), b"x\r\n"))
    talk.hears(b"250 ok\r\n550 5.1.1 unknown\r\n250 ok\r\n354 go\r\n")
    talk.client.ended(talk.now, "gone")
    assert talk.client.result is not None
    assert [one.verdict for one in talk.client.result] == ["bounced", "unknown"]


def test_nobody_accepted_and_still_354_gets_an_empty_message():
    """RFC 2920: a lone dot ends the transaction, and the recipient is bounced, not delivered."""
    talk = Talk()
    talk.begin()
    assert talk.hears(b"250 ok\r\n550 no\r\n354 go\r\n") == b".\r\n"
    assert talk.client.result is None
    talk.hears(b"554 5.5.1 no valid recipients\r\n")
    assert (talk.outcome.verdict, talk.outcome.code) == (Verdict.BOUNCED, 550)
    assert talk.outcome.connection_usable


def test_a_sender_refused_and_still_354_ends_the_connection():
    """An empty message could reach the recipient that was accepted, so nothing is sent."""
    talk = Talk()
    talk.begin()
    assert talk.hears(b"550 5.7.1 no\r\n250 ok\r\n354 go\r\n") == b""
    assert (talk.outcome.verdict, talk.outcome.phase) == (Verdict.FAILED, Phase.MAIL)
    assert not talk.outcome.connection_usable


@pytest.mark.parametrize("data", [b"one\r\n", b".dots\r\n.\r\n..\r\n"])
def test_a_mail_that_is_sent_once_is_kept_until_then(data: bytes):
    """Its bytes are those of any other, and its envelope and size are known afterwards."""
    mail = Mail("a@b.example", ("c@d.example",), data, require_tls=True)
    once = OnceMail(mail)
    assert (once.data, once.size, once.gone) == (data, len(data), False)
    assert once.wire() == mail.wire()
    assert (once.data, once.size, once.gone) == (b"", len(data), True)
    assert (once.mail_from, once.rcpt_to) == (mail.mail_from, mail.rcpt_to)
    assert once.require_tls
    with pytest.raises(Bug):
        once.wire()


@pytest.mark.parametrize("ehlo", [EHLO, SERIAL], ids=["pipelined", "serial"])
def test_a_mail_that_was_let_go_is_wanted_when_the_peer_asks_for_it(ehlo: bytes):
    """It goes out as any other once it is there; nothing of it before."""
    mail = Mail("a@b.example", ("c@d.example",), b"one\r\n.two\r\n")
    once = OnceMail(mail)
    once.let_go()
    talk = Talk(ehlo)
    talk.begin(once)
    for line in (b"250 ok\r\n", b"250 ok\r\n"):
        talk.hears(line)
        assert not talk.client.wants_body
    assert talk.hears(b"354 go\r\n") == b""
    assert (talk.client.wants_body, talk.client.awaits) == (True, Phase.DATA)
    assert not talk.client.in_data
    once.have(mail)
    talk.client.go_on_with_body(talk.now)
    assert talk.client.data_to_send() == b"".join(mail.wire())
    assert (once.gone, talk.client.wants_body) == (True, False)
    talk.hears(b"250 taken\r\n")
    assert (talk.outcome.verdict, talk.outcome.phase) == (Verdict.DELIVERED, Phase.DOT)


def test_a_mail_that_was_let_go_and_cannot_be_had_again_is_deferred():
    """Without a word to the peer, who would take anything for the message."""
    once = OnceMail(Mail("a@b.example", ("c@d.example",), b"one\r\n"))
    once.let_go()
    talk = Talk()
    talk.begin(once)
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.client.has_no_body(talk.now)
    assert talk.client.data_to_send() == b""
    assert (talk.outcome.verdict, talk.outcome.phase) == (Verdict.DEFERRED, Phase.DATA)
    assert not talk.client.usable
    assert not talk.client.wants_body


@pytest.mark.parametrize("ehlo", [EHLO, SERIAL], ids=["pipelined", "serial"])
def test_after_a_refusal_the_next_mail_resets_first(ehlo: bytes):
    """A transaction that did not reach its dot is still open at the peer."""
    talk = Talk(ehlo)
    talk.begin()
    talk.hears(b"250 ok\r\n")
    talk.hears(b"550 no\r\n")
    if ehlo is EHLO:
        talk.hears(b"503 no\r\n")
    assert talk.outcome.verdict == Verdict.BOUNCED
    assert talk.begin() == (b"RSET\r\n" + GROUP if ehlo is EHLO else b"RSET\r\n")
    for line in (b"250 reset\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go\r\n", b"250 ok\r\n"):
        talk.hears(line)
    assert talk.outcome[0] == Verdict.DELIVERED
    assert [step[0] for step in talk.outcome.trace] == ["mail", "rcpt", "data", "dot"]


def test_what_the_peer_cannot_take_fails_without_asking_it():
    """Too large, 8-bit and SMTPUTF8 are known before a byte is sent; the connection lives on."""
    talk = Talk(b"250-mx\r\n250 SIZE 100\r\n")
    for mail, word in (
        (Mail("a@x", ("b@y",), b"x" * 99), "at most 100"),
        (Mail("a@x", ("b@y",), b"\xff\r\n"), "8BITMIME"),
        (Mail("a@x", ("jörg@y",), b"x\r\n"), "SMTPUTF8"),
        (Mail("a@x", ("b@y",), b"x\r\n", smtputf8=True), "SMTPUTF8"),
    ):
        assert talk.begin(mail) == b""
        assert (talk.outcome.verdict, talk.outcome.code) == (Verdict.FAILED, None)
        assert word in talk.outcome.text
        assert talk.outcome.connection_usable
    assert talk.begin(Mail("a@x", ("b@y",), b"x" * 98)) == b"MAIL FROM:<a@x> SIZE=100\r\n"


def test_eight_bit_and_utf8_are_declared_where_offered():
    """BODY=8BITMIME and SMTPUTF8 go with MAIL when the mail needs them."""
    sent = Talk().begin(Mail("ö@x", ("b@y",), b"\xc3\xb6\r\n"))
    assert sent.startswith("MAIL FROM:<ö@x> SIZE=4 BODY=8BITMIME SMTPUTF8\r\n".encode())


def test_fields_outside_ascii_are_declared_where_that_is_known_and_8_bit_text_elsewhere():
    """A message that its author wrote whole fails for them nowhere that takes 8-bit text."""
    mail = Mail("a@x", ("b@y",), b"Subject: \xc3\xb6\r\n\r\n", utf8_fields=True)
    assert Talk().begin(mail).startswith(b"MAIL FROM:<a@x> SIZE=15 BODY=8BITMIME SMTPUTF8\r\n")
    lacking = Talk(b"250-mx\r\n250 8BITMIME\r\n")
    assert lacking.begin(mail) == b"MAIL FROM:<a@x> BODY=8BITMIME\r\n"
    both = Mail("\u00f6@x", ("b@y",), mail.data, utf8_fields=True)
    assert Talk().begin(both).count(b"SMTPUTF8") == 1


def test_a_message_is_not_begun_without_time_for_its_answer():
    """Past `body_by` the connection is given up before the message, so nothing is in doubt."""
    talk = Talk()
    talk.begin(body_by=talk.now + 0.5)
    assert talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n") == b""
    assert (talk.outcome.verdict, talk.outcome.phase) == (Verdict.DEFERRED, Phase.DATA)


def test_a_dot_that_did_not_leave_is_not_in_doubt():
    """With bytes of the message unsent it is deferred; with only the next group unsent, unknown."""
    for missing, verdict in ((0, "unknown"), (len(GROUP), "unknown"), (len(GROUP) + 1, "deferred")):
        talk = Talk()
        talk.begin(following=Mail("a@x.org", ("b@y.org",), b"Hi\r\n.dot\r\n"))
        talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
        talk.client.ended(talk.now, "reset", unsent=missing)
        assert talk.outcome.verdict == verdict


def test_last_words_in_the_middle_of_a_message_count():
    """A peer that says 552 and hangs up before the end has failed the mail; a 250 is nonsense."""
    for words, verdict in ((b"552 5.3.4 big\r\n", "failed"), (b"250 ok\r\n", "deferred")):
        talk = Talk()
        talk.begin()
        talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
        talk.client.ended(talk.now, "reset", unsent=9, last=words)
        assert (talk.outcome.verdict, talk.outcome.connection_usable) == (verdict, False)


def test_an_answer_before_its_question_is_nonsense():
    """A 250 sent early could be taken for the dot's."""
    talk = Talk()
    talk.begin()
    assert talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n250 early\r\n") == b""
    assert talk.outcome.verdict == Verdict.DEFERRED
    talk = Talk()
    talk.client.receive(b"250 hm\r\n", 1.0)
    assert not talk.client.usable


# --- opening -------------------------------------------------------------------------------


def test_helo_is_tried_where_ehlo_is_unknown():
    """A peer without EHLO is greeted with HELO, unless TLS or AUTH would be missing then."""
    talk = Talk(ehlo=b"")
    assert talk.hears(b"502 5.5.1 what?\r\n") == b"HELO localhost\r\n"
    talk.hears(b"250 hi\r\n")
    assert talk.client.ready
    talk = Talk(b"502 what?\r\n", starttls=True)
    assert talk.client.failure is not None


def test_tls_starts_before_anything_else_and_greets_again():
    """After STARTTLS what was offered in clear is forgotten; credentials follow inside."""
    talk = Talk(ehlo=b"", starttls=True, credentials=SECRET)
    assert talk.hears(b"250-mx\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n") == b"STARTTLS\r\n"
    assert talk.hears(b"220 2.0.0 go\r\n") == b""
    assert talk.client.wants_tls
    talk.client.tls_established(talk.now, talk.now)
    assert talk.client.data_to_send() == b"EHLO localhost\r\n"
    assert talk.client.features == {}
    sent = talk.hears(b"250-mx\r\n250 AUTH PLAIN\r\n")
    assert sent == b"AUTH PLAIN " + base64.b64encode(b"\0user\0pa55word") + b"\r\n"
    talk.hears(b"235 2.7.0 ok\r\n")
    assert talk.client.ready
    assert [step[0] for step in talk.client.trace] == [
        "connect", "ehlo", "tls", "tls", "ehlo", "auth"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answers",
    [
        (b"250-mx\r\n250 AUTH PLAIN\r\n",),
        (b"250-mx\r\n250 STARTTLS\r\n", b"454 4.7.0 not now\r\n"),
        (b"250-mx\r\n250 STARTTLS\r\n", b"220 go\r\n250-mx\r\n250 AUTH PLAIN\r\n"),
        (b"250-mx\r\n250 STARTTLS\r\n220 go\r\n",),
    ],
    ids=["missing", "refused", "plaintext behind", "answered early"],
)
def test_no_credential_leaves_when_starttls_does_not_hold(answers: tuple[bytes, ...]):
    """Missing, refused, followed by plaintext: deferred, and no AUTH was written."""
    talk = Talk(ehlo=b"", starttls=True, credentials=SECRET)
    sent = b"".join(talk.hears(answer) for answer in answers)
    assert b"AUTH" not in sent
    failure = talk.client.failure
    assert failure is not None
    assert (failure.verdict, failure.phase) == (Verdict.DEFERRED, Phase.TLS)
    assert not talk.client.wants_tls


def test_credentials_in_clear_need_the_drivers_word():
    """Without TLS, AUTH happens only where the driver vouches for loopback; CRAM-MD5 first."""
    offer = b"250-mx\r\n250 AUTH PLAIN CRAM-MD5\r\n"
    talk = Talk(offer, credentials=SECRET)
    assert talk.client.failure is not None
    assert talk.client.failure.phase is Phase.AUTH
    talk = Talk(ehlo=b"", credentials=SECRET, plaintext_allowed=True)
    assert talk.hears(offer) == b"AUTH CRAM-MD5\r\n"
    sent = talk.hears(b"334 " + base64.b64encode(b"<1@mx>") + b"\r\n")
    digest = hmac.new(b"pa55word", b"<1@mx>", "md5").hexdigest()
    assert base64.b64decode(sent) == f"user {digest}".encode()


def test_auth_login_answers_its_two_questions():
    """LOGIN sends name and password one at a time; a third question ends it."""
    talk = Talk(ehlo=b"", credentials=SECRET, secure=True)
    assert talk.hears(b"250-mx\r\n250-AUTH=LOGIN\r\n250 HELP\r\n") == b"AUTH LOGIN\r\n"
    assert base64.b64decode(talk.hears(b"334 VXNlcm5hbWU6\r\n")) == b"user"
    assert base64.b64decode(talk.hears(b"334 UGFzc3dvcmQ6\r\n")) == b"pa55word"
    assert talk.hears(b"334 UGFzc3dvcmQ6\r\n") == b""
    assert talk.client.failure is not None
    assert "pa55word" not in repr(SECRET)


# --- what is sent, what is read ------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["", "a", "a@b\r\nRCPT TO:<c@d>", "a@b\n", "a\0@b", "a@b>", "<a@b", "a b@c", "a@b c", "a@@b",
     '"a\r\n"@b', '"a>b"@c', '"a<b"@c', '"a\\>b"@c', '"a"b"@c',
     "a@b\x7f", "a@b\u0085", "a@\u2028b", "a\ud800@b", "a@" + "b" * 260],
)  # fmt: skip
def test_no_address_can_become_a_command(bad: str):
    """What cannot stand between angle brackets is refused before a byte is sent."""
    with pytest.raises(UnfitMail) as caught:
        Mail("a@x", (bad,), b"")
    assert isinstance(caught.value, PermanentFailure)
    assert isinstance(caught.value, ValueError)
    if bad:
        with pytest.raises(UnfitMail):
            Mail(bad, ("a@x",), b"")


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b".", b"a", b".."]), max_size=30))
def test_the_message_arrives_as_it_was_and_ends_once(pieces: list[bytes]):
    """Unstuffed, the wire form is the message with CRLF line ends; the dot stands at its end."""
    data = b"".join(pieces)
    wire = b"".join(Mail("a@x", ("b@y",), data).wire())
    lines = wire.split(b"\r\n")
    assert lines[-2:] == [b".", b""]
    assert lines.count(b".") == 1
    assert b"\r" not in b"".join(lines)
    assert b"\n" not in b"".join(lines)
    received = [line.removeprefix(b".") for line in lines[:-2]]
    wanted = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert received == (wanted[:-1] if wanted[-1] == b"" else wanted)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(1, 40), max_size=20))
def test_replies_do_not_depend_on_how_they_were_cut(cuts: list[int]):
    """Any cut gives the same replies, single and multi-line."""
    stream = b"220 hi\r\n250-one\r\n250-2.1.0 two\r\n250 three\r\n550 5.1.1 caf\xe9\r\n354\r\n"
    reader = ReplyReader(ReplyLimits())
    found = []
    position = 0
    for cut in [*cuts, len(stream)]:
        reader.feed(stream[position : position + cut])
        position += cut
        while (reply := reader.next()) is not None:
            found.append((reply.code, reply.enhanced, reply.text))
    assert found == [
        (220, None, "hi"),
        (250, None, "one two three"),
        (550, "5.1.1", "caf\ufffd"),
        (354, None, ""),
    ]
    assert not reader.pending


_WORDS = st.sampled_from(
    [b"2.1.0", b"5.1.1", b"4.9999.1", b" ", b"\t", b"ok", b"caf\xe9", b"\x1b", b"y" * 600]
)


@settings(deadline=None)  # the machine may be busy
@given(
    st.sampled_from([b"250 ", b"250-", b"250", b"251 ", b"550 "]),
    st.lists(_WORDS, max_size=6),
    st.sampled_from([b"\r\n", b"\n", b"\r\n250 2.1.0 ok\r\n", b""]),
)
@example(b"250 ", [b"2.1.0", b" ", b"ok"], b"\r\n")
def test_an_ordinary_250_is_read_as_any_reply_is(code: bytes, words: list[bytes], end: bytes):
    """The short way takes it or leaves it, and gives what the long way gives."""
    line = code + b"".join(words) + end
    short, long = ReplyReader(ReplyLimits()), ReplyReader(ReplyLimits())
    short.feed(line)
    long.feed(line)
    taken = short.next_taken()
    if taken is not None:
        reply = long.next()
        assert reply is not None
        assert (reply.code, *reply.parsed()) == (250, *taken)
    with suppress(NotAReply):
        rest, wanted = short.next(), long.next()
        assert (rest and rest.parsed()) == (wanted and wanted.parsed())
    assert short.pending is long.pending


@pytest.mark.parametrize(
    "endless",
    [b"x" * 8192, b"250-more\r\n" * 500, b"250-" + b"x" * 3000 + b"\r\n", b"250 " + b"x" * 8192],
)
def test_endless_replies_end(endless: bytes):
    """A line without end, or lines without end, are read to a cap, and little of them is kept."""
    limits = ReplyLimits()
    reader = ReplyReader(limits)
    fed = 0
    with pytest.raises(NotAReply):
        while fed < 4_000_000:
            reader.feed(endless)
            fed += len(endless)
            assert reader.next() is None
    assert fed <= limits.max_bytes + len(endless)
    begun = reader.begun
    assert (begun is None) is not endless.startswith(b"250")
    if begun is not None:
        assert begun.code == 250
        assert len(begun.lines) <= limits.kept_lines + 1
        assert sum(map(len, begun.lines)) <= limits.kept_bytes + limits.kept_line_bytes


@pytest.mark.parametrize("lines", [999, 1000])
def test_a_reply_has_so_many_lines_and_no_more(lines: int):
    """However short they are: each costs as much time as a long one."""
    reader = ReplyReader(ReplyLimits())
    reader.feed(b"250-\r\n" * lines + b"250 2.0.0 end\r\n354 go\r\n")
    if lines < 1000:
        replies = [reader.next(), reader.next(), reader.next()]
        assert [reply and reply.code for reply in replies] == [250, 354, None]
        return
    with pytest.raises(NotAReply, match="a reply has over 1,000 lines"):
        reader.next()
    assert reader.begun is not None
    assert reader.begun.code == 250


LONG = (
    b"".join(b"250-2.0.0 line %d\r\n" % number for number in range(150))
    + b"250-" + b"x" * 5000 + b"\r\n250 2.0.0 end\r\n"
)  # fmt: skip


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(1, 1500), max_size=12))
@example([1] * 40)
@example([len(LONG) - 1])
@example([len(LONG) - 17])  # a CR is the last, behind a line too long to be kept
def test_a_long_reply_is_one_however_it_was_cut(cuts: list[int]):
    """Lines beyond those kept, and bytes beyond those kept of one, are read over."""
    stream = LONG + b"354 go\r\n"
    reader = ReplyReader(ReplyLimits())
    found = []
    position = 0
    for cut in [*cuts, len(stream)]:
        reader.feed(stream[position : position + cut])
        position += cut
        while (reply := reader.next()) is not None:
            found.append((reply.code, len(reply.lines), reply.enhanced, reply.text[:13]))
    assert found == [(250, 128, "2.0.0", "line 0 line 1"), (354, 1, None, "go")]
    assert not reader.pending


@pytest.mark.parametrize(
    "spoilt", [b"251 end\r\n", b"250-a\rb\r\n", b"250-" + b"x" * 5000 + b"\rx"]
)
def test_what_is_none_spoils_the_lines_before_it(spoilt: bytes):
    """Nothing is believed of a reply with two codes, or with a bare CR in it."""
    reader = ReplyReader(ReplyLimits())
    reader.feed(b"250-fine\r\n" + spoilt)
    with pytest.raises(NotAReply):
        reader.next()
    assert reader.begun is None


@pytest.mark.parametrize(
    ("begun", "verdict", "code"),
    [
        (b"250-2.0.0 taken\r\n", "delivered", 250),
        (b"250-2.0.0 taken\r\n25", "delivered", 250),
        (b"451-4.3.0 later\r\n", "deferred", 451),
        (b"554-5.7.1 no\r\n", "failed", 554),
        (b"250-a\r\n554 b\r\n", "unknown", None),
        (b"250 2.0.0 tak", "unknown", None),
        (b"354-what\r\n", "unknown", 354),
    ],
)
@pytest.mark.parametrize("end", [Seen.ENDED, Seen.LATE])
def test_an_answer_to_the_dot_that_breaks_off_is_believed(
    begun: bytes, verdict: str, code: int | None, end: Seen
):
    """Its first whole line has the code of them all; of two codes none counts."""
    talk = Talk()
    talk.begin()
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.hears(begun)
    if talk.client.result is None:
        talk.meets(end)
    assert (talk.outcome.verdict, talk.outcome.code) == (verdict, code)
    assert not talk.outcome.connection_usable
    assert [step[1] for step in talk.outcome.trace] == [250, 250, 354, *([code] if code else [])]


def test_half_an_answer_before_the_dot_has_left_is_not_the_dots():
    """A mail that is not wholly sent was not taken, whatever the peer had begun to say."""
    talk = Talk()
    talk.begin()
    talk.hears(b"250 ok\r\n250 ok\r\n354 go\r\n")
    talk.client.ended(talk.now, "reset", unsent=9, last=b"250-2.0.0 taken\r\n")
    assert talk.outcome.verdict == "deferred"


@pytest.mark.parametrize(
    "line", [b"hello\r\n", b"\r\n", b"25 x\r\n", b"250x\r\n", b"199 x\r\n", b"250-a\r\n251 b\r\n"]
)
def test_what_is_no_reply_is_said_to_be_none(line: bytes):
    """Nothing is guessed from a line that is not a reply."""
    reader = ReplyReader(ReplyLimits())
    reader.feed(line)
    with pytest.raises(NotAReply):
        reader.next()


def test_the_text_of_a_reply_is_bounded_and_clean():
    """Control characters never leave the reader, nor does more than the cap."""
    reader = ReplyReader(ReplyLimits())
    reader.feed(b"550-5.1.1 \x1b[31mred\x00\r\n" + b"550-5.1.1 " + b"y" * 2000 + b"\r\n550 end\r\n")
    reply = reader.next()
    assert reply is not None
    assert reply.text.startswith("[31mred yyy")
    assert len(reply.text) == MAX_TEXT
    assert reply.text.isprintable()


ASKED = Dsn(
    MailParameters("HDRS", "a1"), (RcptParameters(Notify.NEVER), RcptParameters(orcpt="rfc822;x@y"))
)


@pytest.mark.parametrize("serial", [False, True])
def test_what_was_asked_of_reports_goes_to_who_has_dsn(serial: bool):
    """And to nobody else; the lines are those of the mail otherwise."""
    mail = Mail("a@x.org", ("b@y.org", "c@y.org"), b"Hi\r\n", dsn=ASKED)
    without = Talk(SERIAL if serial else EHLO)
    assert b"NOTIFY" not in without.begin(mail)
    ehlo = b"250-mx\r\n250 DSN\r\n" if serial else b"250-mx\r\n250-PIPELINING\r\n250 DSN\r\n"
    lines = [
        b"MAIL FROM:<a@x.org> RET=HDRS ENVID=a1\r\n",
        b"RCPT TO:<b@y.org> NOTIFY=NEVER\r\n",
        b"RCPT TO:<c@y.org> ORCPT=rfc822;x@y\r\n",
        b"DATA\r\n",
    ]
    talk = Talk(ehlo)
    said = talk.begin(mail)
    for _ in range(3 if serial else 0):
        said += talk.hears(b"250 ok\r\n")
    assert said == b"".join(lines)
    # A mail that says nothing gets no parameter, and one behind new fields keeps its own.
    assert b"RET" not in Talk(ehlo).begin(MAIL)
    assert b" RET=HDRS ENVID=a1" in Talk(ehlo).begin(mail.behind(b"X: y\r\n"))
    returning = Mail("a@x.org", ("b@y.org",), b"Hi\r\n", dsn=Dsn(MailParameters(), (SUCCESS,)))
    back = Talk(b"250-mx\r\n250-PIPELINING\r\n250 DSN\r\n").begin(returning.returning("b-1@r.org"))
    assert back.startswith(b"MAIL FROM:<b-1@r.org>\r\nRCPT TO:<b@y.org> NOTIFY=FAILURE\r\n")


SUCCESS = RcptParameters(Notify.SUCCESS)


@pytest.mark.parametrize(
    ("verified", "offered", "goes"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_mail_that_requires_tls(verified: bool, offered: bool, goes: bool):
    """Goes to who has shown who it is and offers REQUIRETLS; else it fails, and nothing is said.

    By which code: RFC 8689, 4.2.1.
    """
    mail = Mail("a@x.org", ("b@y.org",), b"Hi\r\n", require_tls=True)
    talk = Talk(
        b"250-mx\r\n250-PIPELINING\r\n" + (b"250 REQUIRETLS\r\n" if offered else b"250 X\r\n")
    )
    talk.client.verified = verified
    said = talk.begin(mail)
    if goes:
        assert said.startswith(b"MAIL FROM:<a@x.org> REQUIRETLS\r\n")
        assert b"REQUIRETLS" not in Talk(EHLO).begin(MAIL)
        return
    assert said == b""
    assert talk.outcome.verdict is Verdict.FAILED
    assert talk.outcome.enhanced == ("5.7.30" if verified else "5.7.10")
    assert talk.outcome.connection_usable
    assert b"MAIL FROM" in talk.begin(MAIL)


@pytest.mark.parametrize(("verified", "offered"), [(True, True), (True, False), (False, True)])
def test_no_bounce_is_lost_for_want_of_tls(verified: bool, offered: bool):
    """RFC 8689, 5: it asks for REQUIRETLS where that may be, and goes all the same."""
    talk = Talk(b"250-mx\r\n250 REQUIRETLS\r\n" if offered else b"250 mx\r\n")
    talk.client.verified = verified
    said = talk.begin(Mail("", ("b@y.org",), b"Hi\r\n", require_tls=True))
    asks = b" REQUIRETLS" if verified and offered else b""
    assert said == b"MAIL FROM:<>%b\r\n" % asks
