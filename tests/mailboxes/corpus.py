"""Mail of the usual kinds, made anew for each number: for the bench, and for comparing readers.

The same number gives the same bytes.  `real` is what the standard library's own tests are made of,
where they are installed.
"""

from __future__ import annotations

import base64
import email.policy
import random
import sysconfig
from email.message import EmailMessage
from pathlib import Path

_HEAD = """\
Return-Path: <bounce-{n}@mail.shop.example>
Received: from mta{m}.shop.example (mta{m}.shop.example [192.0.2.{m}])
 by mx.relay.localhost (Postfix) with ESMTPS id 4T{n:08X}
 for <inbox-{n}@relay.localhost>; Sun, 22 Nov 2026 10:{m:02}:07 +0000 (UTC)
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=shop.example; s=k1; t=17640{n:05};
 h=from:to:subject:date:message-id:mime-version:content-type;
 bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=;
 b={signature}
Date: Sun, 22 Nov 2026 10:{m:02}:06 +0000
From: "Shop, Accounts" <noreply@shop.example>
To: inbox-{n}@relay.localhost
Message-ID: <{n:016x}.{m}@mail.shop.example>
Subject: {subject}
MIME-Version: 1.0
List-Unsubscribe: <https://shop.example/unsubscribe?u={n}>
X-Mailer: shop-mailer 7.{m}
"""
_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had
by word but not what all were we when your can said there use an each which she do how their if will
up other about out many then them these so some her would make like him into time has look two more
write go see number no way could people my than first water been call who oil its now find long down
day did get come made may part account email address
"""
_WORDS = _TEXT.split()


def _signature(chosen: random.Random) -> str:
    return "\n  ".join(base64.b64encode(chosen.randbytes(54)).decode() for _ in range(4))


def _prose(chosen: random.Random, size: int) -> str:
    lines: list[str] = []
    length = 0
    while length < size:
        line = " ".join(chosen.choices(_WORDS, k=chosen.randint(8, 13))).capitalize() + "."
        lines.append(line)
        length += len(line) + 2
    return "\n".join(lines)


def _mail(number: int, subject: str, rest: str) -> bytes:
    chosen = random.Random(number)
    head = _HEAD.format(n=number, m=number % 60, subject=subject, signature=_signature(chosen))
    return (head + rest).replace("\n", "\r\n").encode()


def plain(number: int, size: int = 2048) -> bytes:
    """A text of 2 kB with headers as they are: every second one is about a code."""
    chosen = random.Random(number)
    code = f"Your verification code is {chosen.randint(100000, 999999)}.\n" if number % 2 else ""
    begin = (
        "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 7bit\n\n"
        f"Hello,\n\n{code}See https://shop.example/account/activate?token={number:024x} for more.\n"
    )
    subject = "Confirm your address" if code else "News of your order 2026-1188"
    made = _mail(number, subject, begin)
    return made + _prose(chosen, size - len(made)).replace("\n", "\r\n").encode() + b"\r\n"


def newsletter(number: int, size: int = 30_000) -> bytes:
    """A newsletter of 30 kB: a short text, and HTML of tables, styles, links and prices."""
    chosen = random.Random(number)
    rows: list[str] = []
    length = 0
    while length < size - 6000:
        item = len(rows)
        row = (
            '<tr><td class="cell" style="padding:0 12px 16px;font-family:Arial,sans-serif;'
            'font-size:14px;line-height:20px;color:#333333">'
            f'<a href="https://shop.example/p/{item}?utm_source=news&amp;utm_campaign=n{number}"'
            f' style="color:#0b57d0"><img src="https://cdn.shop.example/i/{item}.jpg" width="280"'
            f' height="180" alt="Item {item}"></a>'
            f"<h3>Item&nbsp;{item} &ndash; {chosen.randint(10, 999)},{item % 90 + 10} &euro;</h3>"
            f"<p>{_prose(chosen, 160)}</p></td></tr>\n"
        )
        rows.append(row)
        length += len(row) + 60
    markup = (
        "<!DOCTYPE html><html><head><title>News</title><style>\n"
        + "".join(f".c{i} {{ margin: {i}px 1234px; color: #4{i:02}482 }}\n" for i in range(40))
        + "</style></head><body><table>\n"
        + "".join(rows)
        + '</table><p><a href="https://shop.example/unsubscribe?u=1">Unsubscribe</a></p>'
        + "</body></html>\n"
    )
    message = EmailMessage(policy=email.policy.SMTP)
    message.set_content(_prose(chosen, 1200) + "\nGrüße\n", cte="quoted-printable")
    message.add_alternative(markup + "<!-- ü -->", subtype="html", cte="quoted-printable")
    del message["MIME-Version"]
    message.set_boundary(f"=_part_{number:020}")
    subject = "=?UTF-8?Q?Neues_f=C3=BCr_Sie=3A_bis_zu_50_=25_Rabatt?="
    return _mail(number, subject, "") + message.as_bytes()


def with_attachment(number: int, size: int = 200_000) -> bytes:
    """A short text and a file of 200 kB in base64."""
    chosen = random.Random(number)
    message = EmailMessage(policy=email.policy.SMTP)
    message.set_content(_prose(chosen, 600) + "\n")
    message.add_attachment(
        chosen.randbytes(size),
        maintype="application",
        subtype="pdf",
        filename=f"invoice-{number}.pdf",
    )
    del message["MIME-Version"]
    message.set_boundary(f"=_part_{number:020}")
    return _mail(number, f"Your invoice {number}", "") + message.as_bytes()


def real() -> list[bytes]:
    """The messages of the standard library's tests of `email`; none where those are not there."""
    folder = Path(sysconfig.get_path("stdlib")) / "test" / "test_email" / "data"
    return [path.read_bytes() for path in sorted(folder.glob("*.txt"))]
