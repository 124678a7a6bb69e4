"""What mail servers and providers send back, each in its own form, written after theirs.

`RECIPIENT` is whom the mail was for.  Each sample says what follows from it: `None` (it is left
alone), or the kind, the status, whether the recipient is suppressed, and whether they were full.
"""

# ruff: noqa: E501 - replies stand as servers write them
from __future__ import annotations

import base64
from typing import NamedTuple

RECIPIENT = "ada@customer.example"
PATH = "b-token@returns.example"

Follows = tuple[str, str | None, bool, bool] | None


class Sample(NamedTuple):
    name: str
    raw: bytes
    follows: Follows


def mail(
    body: str, *fields: str, kind: str = "text/plain; charset=utf-8", sender: str = ""
) -> bytes:
    """A mail to the return path."""
    head = [
        f"From: {sender or 'Mail Delivery System <MAILER-DAEMON@mx.customer.example>'}",
        f"To: <{PATH}>",
        *fields,
        "MIME-Version: 1.0",
        f"Content-Type: {kind}",
    ]
    return ("\n".join(head) + "\n\n" + body).replace("\n", "\r\n").encode()


def report(
    status: str,
    *,
    text: str = "Delivery failed.",
    subject: str = "Undelivered Mail Returned to Sender",
    kind: str = "message/delivery-status",
    more: tuple[str, ...] = ("Auto-Submitted: auto-replied",),
    wrapper: str = "multipart/report; report-type=delivery-status",
    sender: str = "",
    encoding: str = "",
) -> bytes:
    """A report of three parts (RFC 3462)."""
    head = f"Content-Transfer-Encoding: {encoding}\n" if encoding else ""
    body = f"""--=_b1
Content-Type: text/plain; charset=utf-8

{text}

--=_b1
Content-Type: {kind}
{head}
{status}
--=_b1
Content-Type: message/rfc822

From: Shop <shop@shop.example>
To: <{RECIPIENT}>
Subject: Your order
Message-ID: <0199aa00-0000-7000-8000-000000000000@shop.example>

Thank you.

--=_b1--
"""
    return mail(
        body, f"Subject: {subject}", *more, kind=f'{wrapper}; boundary="=_b1"', sender=sender
    )


def status(
    action: str,
    code: str,
    diagnostic: str = "",
    *,
    final: str = f"rfc822; {RECIPIENT}",
    original: str = "",
    mta: str = "dns; mx.customer.example",
) -> str:
    """A delivery status of one recipient."""
    lines = [f"Reporting-MTA: {mta}", "Arrival-Date: Mon, 23 Nov 2026 10:00:00 +0000", ""]
    lines += [f"Original-Recipient: {original}"] if original else []
    lines += [f"Final-Recipient: {final}", f"Action: {action}", f"Status: {code}"]
    lines += [f"Diagnostic-Code: {diagnostic}"] if diagnostic else []
    return "\n".join([*lines, ""])


def dsn(name: str, follows: Follows, *args: str, **how: str) -> Sample:
    return Sample(name, report(status(*args, **how)), follows)


def arf(kind: str, *, embedded: str = "message/rfc822", more: str = "") -> bytes:
    """A complaint (RFC 5965)."""
    return report(
        f"Feedback-Type: {kind}\nUser-Agent: SomeGenerator/1.0\nVersion: 1\n"
        f"Original-Mail-From: <{PATH}>\nOriginal-Rcpt-To: <{RECIPIENT}>\n{more}",
        kind="message/feedback-report",
        wrapper="multipart/report; report-type=feedback-report",
        subject="FW: Your order",
        sender="<abusedesk@isp.example>",
        more=(),
    )


def bounced(code: str | None, *, suppress: bool = False, full: bool = False) -> Follows:
    return ("bounced", code, suppress, full)


GONE = bounced("5.1.1", suppress=True)

_GMAIL = "smtp; 550-5.1.1 The email account that you tried to reach does not exist. Please try\n 550-5.1.1 double-checking the recipient's email address for typos or\n 550 5.1.1 unnecessary spaces. a640c23a62f3a-example - gsmtp"
_OUTLOOK = (
    "smtp;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup"
)

STANDARD = [
    # The forms of servers
    dsn("postfix unknown user", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 <ada@customer.example>: Recipient address rejected: User unknown",
        original=f"rfc822;{RECIPIENT}"),
    dsn("postfix unknown host", bounced("5.4.4"), "failed", "5.4.4",
        "X-Postfix; Host or domain name not found. Name service error for name=customer.example"),
    dsn("postfix expired", bounced("4.4.1"), "failed", "4.4.1",
        "X-Postfix; connect to customer.example[192.0.2.1]:25: Connection timed out"),
    dsn("postfix delayed", ("delayed", "4.4.1", False, False), "delayed", "4.4.1",
        "X-Postfix; connect to customer.example[192.0.2.1]:25: Connection refused"),
    dsn("postfix delivered", None, "delivered", "2.0.0", "smtp; 250 2.0.0 Ok: queued as 4ABC"),
    dsn("postfix relayed", None, "relayed", "2.1.5"),
    dsn("sendmail expanded", None, "expanded", "2.1.5"),
    dsn("sendmail user unknown", GONE, "failed", "5.1.1", "SMTP; 550 5.1.1 User unknown"),
    dsn("sendmail host unknown", bounced("5.1.2", suppress=True), "failed", "5.1.2",
        "SMTP; 550 Host unknown"),
    dsn("sendmail warning", ("delayed", "4.2.0", False, False), "delayed", "4.2.0"),
    dsn("exim general status", GONE, "failed", "5.0.0", "smtp; 550 5.1.1 No such user here"),
    dsn("exim without a status in its reply", bounced("5.0.0"), "failed", "5.0.0",
        "smtp; 550 no such address here"),
    dsn("exim several lines of a policy", bounced("5.7.1"), "failed", "5.0.0",
        "smtp; 550-5.7.1 Our system has detected that this message is\n 550 5.7.1 likely unsolicited"),
    dsn("exchange not found", bounced("5.1.10", suppress=True), "failed", "5.1.10", _OUTLOOK),
    dsn("exchange on premises", GONE, "failed", "5.1.1", final=f"RFC822;{RECIPIENT}",
        mta="dns;EX01.corp.customer.example"),
    dsn("exchange mailbox full", bounced("5.2.2", full=True), "failed", "5.2.2",
        "smtp;554 5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException"),
    dsn("outlook access denied", bounced("5.4.1"), "failed", "5.4.1",
        "smtp;550 5.4.1 Recipient address rejected: Access denied. [AMEEUR05.example]"),
    dsn("outlook blocked list", bounced("5.7.1"), "failed", "5.7.1",
        "smtp;550 5.7.1 Unfortunately, messages from [192.0.2.9] weren't sent. (S3140)"),
    dsn("outlook tenant policy", bounced("5.7.133"), "failed", "5.7.133",
        "smtp;550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup"),
    dsn("outlook sender rejected", bounced("5.1.8"), "failed", "5.1.8",
        "smtp;550 5.1.8 Access denied, bad outbound sender AS(42004)"),
    dsn("gmail does not exist", GONE, "failed", "5.1.1", _GMAIL),
    dsn("gmail disabled", bounced("5.2.1"), "failed", "5.2.1",
        "smtp; 550 5.2.1 The email account that you tried to reach is inactive."),
    dsn("gmail over quota", bounced("5.2.2", full=True), "failed", "5.2.2",
        "smtp; 552-5.2.2 The recipient's inbox is out of storage space and inactive.\n"
        " 552 5.2.2 Please direct the recipient to more help. - gsmtp"),
    dsn("gmail unauthenticated", bounced("5.7.26"), "failed", "5.7.26",
        "smtp; 550-5.7.26 This mail has been blocked because the sender is unauthenticated."),
    dsn("gmail rate", ("delayed", "4.7.28", False, False), "delayed", "4.7.28",
        "smtp; 421-4.7.28 Gmail has detected an unusual rate of unsolicited mail"),
    dsn("yahoo no account", bounced("5.0.0"), "failed", "5.0.0",
        "smtp; 554 delivery error: dd This user doesn't have a yahoo.com account - mta1.example"),
    dsn("yahoo not accepted for policy", bounced("5.7.9"), "failed", "5.7.9",
        "smtp; 554 5.7.9 Message not accepted for policy reasons."),
    dsn("yahoo mailbox gone", bounced("5.2.1"), "failed", "5.2.1",
        "smtp; 554 30 Sorry, your message cannot be delivered. This mailbox is disabled (554.30)."),
    dsn("icloud over quota", bounced("5.2.2", full=True), "failed", "5.2.2",
        "smtp; 552 5.2.2 <ada@customer.example>: user is over quota"),
    dsn("icloud local policy", bounced("5.7.1"), "failed", "5.7.1",
        "smtp; 550 5.7.1 [CS01] Message rejected due to local policy."),
    dsn("gmx unavailable", bounced("5.1.1", suppress=True), "failed", "5.1.1",
        "smtp; 550 Requested action not taken: mailbox unavailable"),
    dsn("web.de reputation under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 554 Nemesis ESMTP: transaction failed, bad reputation of 192.0.2.9"),
    dsn("a list of blocked hosts under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 Blocked - see https://www.spamhaus.org/query/ip/192.0.2.9"),
    dsn("5.1.1 of which the reply says 5.7.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.7.1 Relaying denied"),
    dsn("access denied under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 Access denied for 192.0.2.1 due to abuse"),
    dsn("sending activity under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 Unusual sending activity from your network"),
    dsn("unauthenticated under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 unauthenticated sender, rejected"),
    dsn("listed under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 IP listed at zen"),
    dsn("relay access denied under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 <ada@customer.example>: relay access denied"),
    dsn("no relay under 5.1.1", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 we do not relay"),
    dsn("a DNS that fails for now", bounced("5.1.2"), "failed", "5.1.2",
        "smtp; 554 5.1.2 temporary DNS failure"),
    dsn("full for now, of a relay", bounced("5.2.2", full=True), "failed", "5.2.2",
        "smtp; 552 5.2.2 mailbox temporarily over quota, try again later"),
    dsn("a block list that is named by a link alone", bounced("5.1.1"), "failed", "5.1.1",
        "smtp; 550 5.1.1 rejected, see https://www.spamhaus.org/query/ip/192.0.2.9"),
    dsn("a link whose path has a word of policy", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 User unknown; see https://support.example/content/1"),
    dsn("the same without its scheme", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 User unknown (support.example/policy/blocked?ip=192.0.2.9)"),
    dsn("postfix, a relay that has a list of recipients", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 <ada@customer.example>: Recipient address rejected: User unknown in\n"
        " relay recipient table"),
    dsn("postfix, virtual", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 <ada@customer.example>: Recipient address rejected: User unknown in\n"
        " virtual mailbox table"),
    dsn("domino", GONE, "failed", "5.1.1",
        "smtp; 550 5.1.1 User ada (ada@customer.example) not listed in Domino Directory"),
    dsn("ses general", bounced("5.1.1", suppress=True), "failed", "5.1.1",
        "smtp; 550 5.1.1 user unknown", mta="dns; a8-50.smtp-out.amazonses.com"),
    dsn("ses suppressed list", bounced("5.3.0"), "failed", "5.3.0",
        "Amazon SES did not send the message to this address because it is on the suppression list",
        mta="dns; amazonses.com"),
    dsn("null mx", bounced("5.1.10", suppress=True), "failed", "5.1.10",
        "smtp; 556 5.1.10 Recipient address has null MX"),
    dsn("bad syntax", bounced("5.1.3", suppress=True), "failed", "5.1.3", "smtp; 501 5.1.3 Bad syntax"),
    dsn("moved", bounced("5.1.6", suppress=True), "failed", "5.1.6", "smtp; 551 5.1.6 moved"),
    dsn("other address status", bounced("5.1.0"), "failed", "5.1.0", "smtp; 550 5.1.0 rejected"),
    dsn("bad sender address", bounced("5.1.7"), "failed", "5.1.7", "smtp; 550 5.1.7 sender"),
    dsn("message too large", bounced("5.3.4"), "failed", "5.3.4", "smtp; 552 5.3.4 too big"),
    dsn("loop", bounced("5.4.6"), "failed", "5.4.6", "X-Postfix; mail for x loops back to myself"),
    dsn("full for now, and given up", bounced("4.2.2", full=True), "failed", "4.2.2",
        "smtp; 452 4.2.2 The email account that you tried to reach is over quota"),
    dsn("delayed by a full mailbox", ("delayed", "4.2.2", False, False), "delayed", "4.2.2",
        "smtp; 452 4.2.2 over quota"),
    dsn("failed in a comment", GONE, "failed (permanent)", "5.1.1 (bad destination mailbox)"),
    dsn("capital letters", GONE, "FAILED", "5.1.1", final="RFC822;ADA@Customer.EXAMPLE"),
    dsn("in angle brackets", GONE, "failed", "5.1.1", final=f"rfc822;<{RECIPIENT}>"),
    dsn("without a type", GONE, "failed", "5.1.1", final=RECIPIENT),
    dsn("without an action", GONE, "", "5.1.1"),
    dsn("an action of its own", bounced("5.0.0"), "error", "5.0.0"),
    dsn("failed with the status of a success", None, "failed", "2.1.5"),
    dsn("forwarded: our recipient as the original", GONE, "failed", "5.1.1",
        final="rfc822; else@other.example", original=f"rfc822;{RECIPIENT}"),
    dsn("forwarded: somebody else only", bounced("5.1.1"), "failed", "5.1.1",
        final="rfc822; else@other.example"),
    dsn("forwarded and delayed", ("delayed", "4.4.1", False, False), "delayed", "4.4.1",
        final="rfc822; else@other.example"),
    dsn("x.400 beside ours", GONE, "failed", "5.1.1", final="x400; /S=ada/C=de/",
        original=f"rfc822;{RECIPIENT}"),
    Sample("two recipients, ours delivered", report(status("delivered", "2.1.5") + "\n"
           "Final-Recipient: rfc822; bob@customer.example\nAction: failed\nStatus: 5.1.1\n"), None),
    Sample("two recipients, ours failed", report(
        "Reporting-MTA: dns; mx.example\n\n"
        "Final-Recipient: rfc822; bob@customer.example\nAction: delivered\nStatus: 2.1.5\n\n"
        f"Final-Recipient: rfc822; {RECIPIENT}\nAction: failed\nStatus: 5.1.1\n"), GONE),
    Sample("no empty line behind the message's fields", report(
        f"Reporting-MTA: dns; mx.example\nFinal-Recipient: rfc822; {RECIPIENT}\nAction: failed\n"
        "Status: 5.1.1\n"), GONE),
    Sample("in utf-8 (RFC 6533)", report(
        status("failed", "5.1.1", final=f"utf-8; {RECIPIENT}"), kind="message/global-delivery-status"
    ), GONE),
    Sample("in utf-8, escaped", report(
        status("failed", "5.1.1", final=r"utf-8; \x{61}da@customer.example"),
        kind="message/global-delivery-status"), GONE),
    Sample("status in base64", report(
        base64.encodebytes(status("failed", "5.1.1").encode()).decode(), encoding="base64"), GONE),
    Sample("status in quoted-printable", report(
        status("failed", "5.1.1").replace("5.1.1", "5=2E1=2E1"), encoding="quoted-printable"), GONE),
    Sample("report without a first type", report(
        status("failed", "5.1.1"), wrapper="multipart/mixed"), GONE),
]  # fmt: skip

COMPLAINTS = [
    Sample(f"complaint: {kind}", arf(kind), ("complained", None, True, False))
    for kind in ("abuse", "fraud", "opt-out", "Abuse")
] + [
    Sample(f"no complaint: {kind}", arf(kind), None)
    for kind in ("not-spam", "auth-failure", "virus", "other", "miscategorized")
]

_RETURNED = f"From: Shop <shop@shop.example>\nTo: <{RECIPIENT}>\nSubject: Your order\n"
_FEEDBACK = "Feedback-Type: abuse\nUser-Agent: x/1\nVersion: 1\n"


def _receipt(raw: bytes) -> bytes:
    """A receipt (RFC 8098) for a mail, with a copy of it."""
    returned = raw.decode().replace("\r", "")
    return mail(
        "--=_o\nContent-Type: text/plain\n\nI have read it.\n--=_o\n"
        "Content-Type: message/disposition-notification\n\n"
        f"Final-Recipient: rfc822; {RECIPIENT}\n"
        "Disposition: automatic-action/MDN-sent-automatically; displayed\n\n--=_o\n"
        f"Content-Type: message/rfc822\n\n{returned}\n--=_o--\n",
        kind='multipart/report; report-type=disposition-notification; boundary="=_o"',
        sender=f"Ada <{RECIPIENT}>",
    )


def _passed_on(raw: bytes, *fields: str, sender: str = "Abuse desk <abuse@shop.example>") -> bytes:
    """A mail as an attachment of another."""
    inner = raw.decode().replace("\r", "")
    return mail(
        "--=_o\nContent-Type: text/plain\n\nSee below.\n--=_o\n"
        f"Content-Type: message/rfc822\n\n{inner}\n--=_o--\n",
        *("Subject: Fwd: abuse", "X-Loop: fbl", *fields),
        kind='multipart/mixed; boundary="=_o"',
        sender=sender,
    )


COMPLAINTS.append(Sample("receipt for ours", _passed_on(
    arf("abuse"), "Auto-Submitted: auto-replied"), None))  # fmt: skip


def _complained(*parts: str, kind: str = "multipart/report; report-type=feedback-report") -> bytes:
    """A complaint of these parts."""
    body = "".join(f"--=_c\nContent-Type: {part}\n\n" for part in parts)
    return mail(
        f"{body}--=_c--\n", "Subject: x", kind=f'{kind}; boundary="=_c"', sender="fbl@isp.example"
    )


COMPLAINT_FORMS = {
    "the path in the returned header alone": _complained(
        f"message/feedback-report\n\n{_FEEDBACK}",
        f"text/rfc822-headers\n\nReturn-Path: <{PATH}>\n{_RETURNED}",
    ),
    "the path without brackets": _complained(
        f"message/feedback-report\n\n{_FEEDBACK}Original-Mail-From: {PATH}\n",
        f"message/rfc822\n\n{_RETURNED}\nx\n",
    ),
    "the path in a field of a gateway": _complained(
        f"message/feedback-report\n\n{_FEEDBACK}",
        f"message/rfc822\n\nX-Envelope-Sender: <{PATH}>\n{_RETURNED}\nx\n",
    ),
    "in base64": _complained(
        "message/feedback-report\nContent-Transfer-Encoding: base64\n\n"
        + base64.b64encode(f"{_FEEDBACK}Original-Mail-From: <{PATH}>\n".encode()).decode(),
        f"message/rfc822\n\n{_RETURNED}\nx\n",
    ),
    "not said to be a report": _complained(
        f"message/feedback-report\n\n{_FEEDBACK}Original-Mail-From: <{PATH}>\n",
        f"message/rfc822\n\n{_RETURNED}\nx\n",
        kind="multipart/mixed",
    ),
    "the fields in another order, and folded": _complained(
        f"message/feedback-report\n\nOriginal-Mail-From:\n\t<{PATH}>\nVersion: 1\n"
        "feedback-type:\n Abuse\n",
        f"message/rfc822\n\n{_RETURNED}\nx\n",
    ),
    "passed on by an abuse desk": _passed_on(arf("abuse")),
    "Outlook.com, which sends the mail itself": _complained(
        f"message/rfc822\n\nX-HmXmrOriginalRecipient: {RECIPIENT}\nReturn-Path: {PATH}\n"
        f"{_RETURNED}\nx\n",
        kind="multipart/mixed",
    ),
}
"""Complaints that name our return path each in its way."""

_COPY = "\n\n--- Below this line is a copy of the message.\n\nReturn-Path: <b@c.example>\n"

TEXTS = [
    Sample("qmail", mail(
        "Hi. This is the qmail-send program at mx.customer.example.\nI'm afraid I wasn't able to "
        "deliver your message to the following addresses.\nThis is a permanent error; I've given "
        f"up. Sorry it didn't work out.\n\n<{RECIPIENT}>:\nSorry, no mailbox here by that name. "
        f"(#5.1.1)\n{_COPY}", "Subject: failure notice"), GONE),
    Sample("qmail, policy", mail(
        f"This is a permanent error; I've given up.\n\n<{RECIPIENT}>:\n192.0.2.1 failed after I "
        "sent the message.\nRemote host said: 554 5.7.1 Message rejected as spam\n",
        "Subject: failure notice"), bounced("5.7.1")),
    Sample("qmail, somebody else", mail(
        "This is a permanent error; I've given up.\n\n<else@other.example>:\nSorry, no mailbox "
        "here by that name. (#5.1.1)\n", "Subject: failure notice"), None),
    Sample("exim", mail(
        "This message was created automatically by mail delivery software.\n\nA message that you "
        "sent could not be delivered to one or more of its\nrecipients. This is a permanent error. "
        f"The following address(es) failed:\n\n  {RECIPIENT}\n    Unrouteable address\n",
        f"X-Failed-Recipients: {RECIPIENT}", "Auto-Submitted: auto-replied",
        "Subject: Mail delivery failed: returning message to sender"), bounced(None)),
    Sample("exim, a warning", mail(
        "A message that you sent has not yet been delivered to one or more of its recipients after "
        f"more than 24 hours.\n\n  {RECIPIENT}\n    Delay reason: Connection timed out\n\nNo action "
        "is required on your part.\n", "Subject: Warning: message 1abc delayed 24 hours",
        "Auto-Submitted: auto-replied"), ("delayed", None, False, False)),
    Sample("exchange 5.5", mail(
        "Your message\n\n  To: someone\n  Subject: x\n\ndid not reach the following recipient(s):\n"
        f"\n{RECIPIENT} on Mon, 23 Nov 2026\n    The recipient name is not recognized\n",
        "Subject: Undeliverable: x", sender="System Administrator <postmaster@customer.example>"),
        bounced(None)),
]  # fmt: skip

OTHERS = [
    Sample("vacation", mail(
        f"I am away until Monday. Write to {RECIPIENT} later.", "Subject: Out of office",
        "Auto-Submitted: auto-replied", sender=f"Ada <{RECIPIENT}>"), None),
    Sample("vacation of a postmaster", mail(
        "The postmaster is on holiday.", "Subject: Away", "Auto-Submitted: auto-replied",
        sender="postmaster@customer.example"), None),
    Sample("out of office that quotes an error", mail(
        f"I am away.\n\n> <{RECIPIENT}>: 550 5.1.1 User unknown\n> could not be delivered",
        "Subject: Automatic reply: Undeliverable", sender=f"Ada <{RECIPIENT}>"), None),
    Sample("challenge", mail(
        f"Your message to {RECIPIENT} awaits your confirmation: http://c.example/?x",
        "Subject: Please confirm your message", "Auto-Submitted: auto-replied",
        sender=f"{RECIPIENT}"), None),
    Sample("a person's answer", mail(
        "Thank you, it could not be delivered to my neighbour, but it is here.", "Subject: Re: x",
        sender=f"Ada <{RECIPIENT}>"), None),
    Sample("a receipt (MDN)", report(
        f"Reporting-UA: mua.example\nFinal-Recipient: rfc822; {RECIPIENT}\n"
        "Disposition: manual-action/MDN-sent-manually; displayed\n",
        kind="message/disposition-notification",
        wrapper="multipart/report; report-type=disposition-notification",
        sender=f"Ada <{RECIPIENT}>", subject="Read: Your order"), None),
    Sample("an automatic reply that returns a report passed on to it", _passed_on(
        report(status("failed", "5.1.1")), "Auto-Submitted: auto-replied"), None),
    Sample("the same, its parts one by one", report(
        status("failed", "5.1.1"), wrapper="multipart/mixed", subject="[Ticket 7] We have got it",
        sender="Help <help@customer.example>"), None),
    Sample("the same, with a comment", _passed_on(
        report(status("delayed", "4.4.1")), "Auto-Submitted: Auto-Replied (vacation)"), None),
    Sample("a receipt for a report that was passed on", _receipt(
        report(status("failed", "5.1.1"))), None),
    Sample("mail of a complaint's form that an automatic reply returns", mail(
        "--=_o\nContent-Type: message/rfc822\n\nX-HmXmrOriginalRecipient: a@b.example\n"
        f"{_RETURNED}\nx\n--=_o--\n", "Auto-Submitted: auto-replied",
        kind='multipart/mixed; boundary="=_o"', sender="Help <help@customer.example>"), None),
    Sample("a report that a gateway has put into a mail of its own", _passed_on(
        report(status("failed", "5.1.1"))), GONE),
    Sample("the same, by a mail server, which says that it is automatic", _passed_on(
        report(status("failed", "5.1.1")), "Auto-Submitted: auto-replied",
        sender="Mail Delivery System <MAILER-DAEMON@gateway.example>"), GONE),
    Sample("exim that signs as somebody", mail(
        f"A message that you sent could not be delivered.\n\n  {RECIPIENT}\n    no such user\n",
        f"X-Failed-Recipients: {RECIPIENT}", "Auto-Submitted: auto-replied",
        sender="Shop IT <it@customer.example>"), bounced(None)),
    Sample("spam", mail("Buy now!", "Subject: Hello", sender="x@y.example"), None),
    Sample("a DMARC report", mail(
        "This is a report.", "Subject: Report domain: shop.example Submitter: g.example",
        sender="noreply-dmarc@g.example"), None),
    Sample("nothing at all", b"", None),
    Sample("a report without a status", report("Reporting-MTA: dns; x\n"), None),
    Sample("a report of no recipient", report("Action: failed\nStatus: 5.1.1\n"), None),
]  # fmt: skip

SAMPLES = [*STANDARD, *COMPLAINTS, *TEXTS, *OTHERS]
