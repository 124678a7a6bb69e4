"""Four kinds of mail to send in thousands: each message its own, none built while it is sent.

- `plain`: 2 kB of text with a verification code and a link.
- `newsletter`: 30 kB, text and HTML in quoted-printable; no code.
- `attachment`: a short text with a code, and a PDF of 200 kB in base64.
- `corpus`: twelve messages such as people get, in turn: a reset of a password in German, a
  notification with twenty lines of headers, an order in ISO-2022-JP, an invoice with its PDF,
  pictures inside HTML, an invitation, a bounce, a reply in windows-1252, a login code in Chinese, a
  patch on a mailing list, a forwarded message, an HTML page with a large style.

Every message has its number in its subject, and the code that a reader should find is known
(`Letter.code`; None: there is none).  Rendering joins what is ready: a front of its own, and a tail
that all of a kind share, with no line that begins with a dot.  Made without chance: the same bytes
on every machine.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from typing import NamedTuple

_NUMBER, _CODE = b"0000000", b"909090"  # as long as what takes their place
_PDF = 200_000  # bytes
_PLAIN = 2048  # bytes
_NEWSLETTER = 30_000  # bytes
_IN_SUBJECT = re.compile(r"#([0-9]{7})(?![0-9])")

_TEXT = (
    "the a of to and in that for with on your our you we they it is was are from this by at as "
    "order account team message week project people time place change report season garden price "
    "meeting letter question answer product service support update release paper market summer "
    "winter city water light travel music kitchen table window morning evening friend family "
    "please thank know find make take read write open send receive share begin finish keep look "
    "new old small large good early late bright quiet simple useful free ready happy local"
)
_WORDS = _TEXT.split()


class Letter(NamedTuple):
    """A message as it is sent: `front` then `tail`; what a reader should see of it."""

    front: bytes
    tail: bytes
    code: str | None


@dataclass(frozen=True)
class Template:
    """A message with places for a number and perhaps a code; else `code` is that of all."""

    parts: tuple[bytes, ...]
    tail: bytes
    code: str | None

    def letter(self, number: int) -> Letter:
        """Message number so and so, up to 9,999,999."""
        code = f"{100_000 + number * 7919 % 900_000}".encode()
        of = {_NUMBER: b"%07d" % number, _CODE: code}
        front = b"".join(of.get(part, part) for part in self.parts)
        return Letter(front, self.tail, code.decode() if _CODE in self.parts else self.code)


def kind(name: str) -> Callable[[int], Letter]:
    """Give what makes message number so and so of a kind."""
    templates = _MAKERS[name]()
    return lambda number: templates[number % len(templates)].letter(number)


def number_of(subject: str | None) -> int | None:
    """Which message it is that has this subject, decoded; None for one that is not ours."""
    found = _IN_SUBJECT.search(subject or "")
    return int(found[1]) if found else None


def _template(raw: bytes, *, code: str | None = None, shared: int | None = None) -> Template:
    """Of a message with the number in its subject; from `shared` on its bytes are all messages'."""
    assert re.search(rb"(?m)^\.", raw) is None, "a line would need its dot doubled"
    assert raw.endswith(b"\r\n")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    shared = len(raw) if shared is None else shared
    front = raw[:shared]
    assert front.count(b"#" + _NUMBER) == 1
    parts = tuple(part for part in re.split(b"(%s|%s)" % (_NUMBER, _CODE), front) if part)
    return Template(parts, raw[shared:], code)


def _message(subject: str, *, sender: str, **headers: str) -> EmailMessage:
    """The front of a message; the number is put into its subject as it is, last."""
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = "Ada Example <ada@relay.localhost>"
    message["Subject"] = subject
    message["Date"] = "Mon, 16 Nov 2026 09:12:44 +0100"
    message["Message-ID"] = "<20261116091244.5D1E2A07@mx.sender.example>"
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


def _finished(message: EmailMessage, *, code: str | None = None) -> Template:
    """As a template, its number at the end of its subject, which may be encoded and folded."""
    for number, part in enumerate(p for p in message.walk() if p.is_multipart()):
        if part.get_content_maintype() == "multipart":
            part.set_boundary(f"=_part_{number}_7f3a90c1d2")  # else it is one of chance
    raw = message.as_bytes()
    raw = re.sub(rb"(?ms)^(Subject: .*?)(?=\r\n[^ \t])", rb"\1\r\n #" + _NUMBER, raw, count=1)
    return _template(re.sub(rb"(?m)^\.", b"=2E", raw), code=code)


def _prose(seed: int, characters: int) -> str:
    """Text of about so many characters, in lines of up to 72."""
    chance = random.Random(seed)
    sentences, size = [], 0
    while size < characters:
        words = chance.choices(_WORDS, k=chance.randint(6, 16))
        sentences.append(" ".join(words).capitalize() + ".")
        size += len(sentences[-1]) + 1
    paragraphs = [" ".join(sentences[at : at + 4]) for at in range(0, len(sentences), 4)]
    return "\n\n".join(textwrap.fill(paragraph, 72) for paragraph in paragraphs) + "\n"


# ---------------------------------------------------------------------------- the four kinds


def _plain() -> Sequence[Template]:
    message = _message("Your verification code", sender="Shop <no-reply@shop.example>")
    front = (
        "Hello Ada,\n\nyour verification code is 909090. It is good for ten minutes.\n\n"
        "Or follow this link: https://shop.example/activate?token=Zq81hWn2c0x\n\n"
    )
    message.set_content(front + _prose(1, _PLAIN), cte="7bit")
    raw = message.as_bytes()
    raw = raw.replace(b"verification code\r\n", b"verification code #0000000\r\n", 1)
    return [_template(raw[: _PLAIN - 2] + b"\r\n")]


def _newsletter() -> Sequence[Template]:
    message = _message(
        "What is new this week",
        sender='"The Weekly" <news@weekly.example>',
        List_Unsubscribe="<https://weekly.example/u/8f2c>, <mailto:u@weekly.example>",
        Precedence="bulk",
    )
    sections = [_prose(100 + number, 420) for number in range(40)]
    message.set_content("\n".join(sections[:8]), cte="quoted-printable")
    page = ["<html><head><style>", _style(40), "</style></head><body><table width='600'>"]
    for number, section in enumerate(sections):
        page.append(
            f'<tr><td class="c{number % 9}" style="padding:12px 24px;font:16px/24px Georgia">'
            f"<h2>{section.split('.')[0]}</h2><p>{section}</p>"
            f'<a href="https://weekly.example/a/{number}?utm_source=mail&amp;u=8f2c">Read on</a>'
            f'<img src="https://weekly.example/i/{number}.png" width="600" alt="">'
            "</td></tr>"
        )
        if sum(map(len, page)) > _NEWSLETTER * 0.8:
            break
    page.append("</table><p>You get this because you asked for it.</p></body></html>")
    message.add_alternative("\n".join(page), subtype="html", cte="quoted-printable")
    return [_finished(message)]


def _attachment() -> Sequence[Template]:
    message = _message("Your documents", sender="Office <office@firm.example>")
    message.set_content("Your access code is 909090.\n\n" + _prose(3, 500), cte="7bit")
    message.add_attachment(
        random.Random(3).randbytes(_PDF),
        maintype="application",
        subtype="pdf",
        filename="documents.pdf",
    )
    template = _finished(message)
    *front, last = template.parts  # the last holds the attachment
    shared = last.index(b"Content-Disposition: attachment")
    return [Template((*front, last[:shared]), last[shared:], None)]


def _corpus() -> Sequence[Template]:
    return [make() for make in _CORPUS]


_MAKERS: dict[str, Callable[[], Sequence[Template]]] = {
    "plain": _plain,
    "newsletter": _newsletter,
    "attachment": _attachment,
    "corpus": _corpus,
}
KINDS = tuple(_MAKERS)


# ---------------------------------------------------------------------------- the corpus


def _style(rules: int) -> str:
    return "\n".join(
        f".c{number}{{margin:{number}px auto;color:#{number * 4099 % 0xFFFFFF:06x};"
        "font-family:Arial,Helvetica,sans-serif;line-height:150%}"
        for number in range(rules)
    )


def _reset_in_german() -> Template:
    message = _message("Passwort zurücksetzen für Ihr Konto", sender="Bücherei <post@buch.example>")
    text = (
        "Guten Tag,\n\nIhr Bestätigungscode lautet 482913.\nEr ist zehn Minuten gültig.\n\n"
        "Mit freundlichen Grüßen\nIhre Bücherei\nhttps://buch.example/zurück?t=9xQ\n"
    )
    message.set_content(text, cte="quoted-printable")
    page = f"<html><body><p>{text}</p><p><b>482913</b></p></body></html>"
    message.add_alternative(page, subtype="html", cte="quoted-printable")
    return _finished(message, code="482913")


def _notification() -> Template:
    headers = {f"X-Forge-{name}": f"{name.lower()}-7741-{'ab' * 12}" for name in _WORDS[:14]}
    message = _message(
        "Re: [forge/engine] Keep the order of arrival (PR no. 77)",
        sender='"Grace" <notifications@forge.example>',
        List_ID="forge/engine <engine.forge.example>",
        References=" ".join(f"<forge/engine/pull/77/c{n}@forge.example>" for n in range(12)),
        DKIM_Signature="v=1; a=rsa-sha256; d=forge.example; s=s1; b=" + "kQ9z" * 80,
        **{name.replace("-", "_"): value for name, value in headers.items()},
    )
    message.set_content(_prose(11, 1500) + "\n-- \nhttps://forge.example/77#c12\n", cte="7bit")
    message.add_alternative(
        f"<p>{_prose(11, 1500)}</p><p><a href='https://forge.example/77#c12'>View it</a></p>",
        subtype="html",
        cte="7bit",
    )
    return _finished(message)


def _order_in_japanese() -> Template:
    message = _message("ご注文の確認", sender="店 <shop@mise.example>")
    text = "お客様\n\nご注文ありがとうございます。商品は明日発送いたします。\n" * 8
    message.set_content(text, charset="iso-2022-jp", cte="7bit")
    return _finished(message)


def _invoice() -> Template:
    message = _message("Your invoice for November", sender="Billing <billing@host.example>")
    message.set_content("Thank you. Your invoice is attached.\n\n" + _prose(12, 600), cte="7bit")
    message.add_alternative(f"<p>{_prose(12, 600)}</p>", subtype="html", cte="7bit")
    message.add_attachment(
        random.Random(12).randbytes(40_000),
        maintype="application",
        subtype="pdf",
        filename="Rechnung – November.pdf",
    )
    return _finished(message)


def _pictures() -> Template:
    message = _message("Photos from the garden", sender="Joan <joan@friends.example>")
    page = f"<p>{_prose(13, 400)}</p><img src='cid:one@friends'><img src='cid:two@friends'>"
    message.set_content(page, subtype="html", cte="quoted-printable")
    for name in ("one", "two"):
        message.add_related(
            random.Random(name).randbytes(15_000), "image", "png", cid=f"<{name}@friends>"
        )
    return _finished(message)


def _invitation() -> Template:
    message = _message("Invitation: planning", sender="Calendar <calendar@firm.example>")
    lines = ["BEGIN:VCALENDAR", "METHOD:REQUEST", "BEGIN:VEVENT", "UID:20261116@firm.example"]
    lines += [f"ATTENDEE;CN=P{n};RSVP=TRUE:mailto:p{n}@firm.example" for n in range(20)]
    calendar = "\n".join([*lines, "SUMMARY:Planning", "END:VEVENT", "END:VCALENDAR", ""])
    message.set_content("You are invited to: Planning\n\n" + _prose(14, 300), cte="7bit")
    message.add_alternative(calendar, subtype="calendar", params={"method": "REQUEST"}, cte="7bit")
    message.add_attachment(calendar, subtype="calendar", filename="invite.ics", cte="base64")
    return _finished(message)


def _bounce() -> Template:
    text = """\
        From: Mail Delivery System <MAILER-DAEMON@mx.sender.example>
        To: ada@relay.localhost
        Subject: Undelivered Mail Returned to Sender #0000000
        Auto-Submitted: auto-replied
        MIME-Version: 1.0
        Content-Type: multipart/report; report-type=delivery-status; boundary="6A1F.177"

        --6A1F.177
        Content-Type: text/plain; charset=us-ascii

        This is the mail system. Your message could not be delivered.

        <nobody@far.example>: host mx.far.example said: 550 5.1.1 no such user
        --6A1F.177
        Content-Type: message/delivery-status

        Reporting-MTA: dns; mx.sender.example

        Final-Recipient: rfc822; nobody@far.example
        Action: failed
        Status: 5.1.1
        --6A1F.177
        Content-Type: text/rfc822-headers

        From: Ada Example <ada@relay.localhost>
        Subject: Hello
        --6A1F.177--
        """
    return _template(textwrap.dedent(text).replace("\n", "\r\n").encode())


def _reply() -> Template:
    message = _message("AW: Angebot – Rückfrage", sender="Jürgen <juergen@werk.example>")
    quoted = "".join(f"> {line}\n" for line in _prose(15, 3000).splitlines())
    text = "Hallo Ada,\n\npasst so – 300 € sind für uns in Ordnung.\n\nGrüße\nJürgen\n\n" + quoted
    message.set_content(text, charset="windows-1252", cte="8bit")
    return _finished(message)


def _code_in_chinese() -> Template:
    message = _message("登录验证码", sender="=?utf-8?b?5pyN5Yqh?= <code@fuwu.example>")
    page = "<html><body><p>您好，您的验证码是 739154，五分钟内有效。</p></body></html>"
    message.set_content(page, subtype="html", cte="base64")
    return _finished(message, code="739154")


def _patch() -> Template:
    message = _message(
        "[PATCH 3/7] Count what was dropped",
        sender="Kernel Hacker <hacker@lists.example>",
        List_Post="<mailto:dev@lists.example>",
        Sender="dev-bounces@lists.example",
    )
    patch = "".join(
        f"{'+-  '[number % 4]}\tif (queue->length > limit[{number}])\n" for number in range(240)
    )
    message.set_content(_prose(16, 1200) + "\n---\n" + patch, cte="7bit")
    return _finished(message)


def _forwarded() -> Template:
    inner = _message("Minutes", sender="Linus <linus@firm.example>")
    inner.set_content(_prose(17, 2500), cte="7bit")
    message = _message("Fwd: Minutes", sender="Office <office@firm.example>")
    message.set_content("See below.\n", cte="7bit")
    message.add_attachment(inner)
    return _finished(message)


def _large_style() -> Template:
    message = _message("Confirm your address", sender="App <hello@app.example>")
    page = (
        f"<html><head><style>{_style(150)}</style></head><body><p>Your code is</p>"
        f"<h1>615 204</h1><p>{_prose(18, 900)}</p>"
        "<a href='https://app.example/confirm?t=Q1w2E3'>Confirm</a></body></html>"
    )
    message.set_content(page, subtype="html", cte="quoted-printable")
    return _finished(message, code="615204")


_CORPUS = (
    *(_reset_in_german, _notification, _order_in_japanese, _invoice, _pictures, _invitation),
    *(_bounce, _reply, _code_in_chinese, _patch, _forwarded, _large_style),
)
