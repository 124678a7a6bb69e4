"""Every view as a picture, filled with realistic mail.

Run as `python -m tests.browser.screenshots OUT [VIEW …]`.
A relay is started and given newsletters with inline and remote images, invoices with attachments,
Arabic, Hebrew and Japanese, long links, a queue in which some fails and some waits, and the history
of a day.  Each view (or those that are named) is captured at 1400, 820 and 390 px, light and dark,
as `OUT/VIEW-WIDTH-SCHEME.png`.

Fails where a view is wider than the screen or the page reports an error: each is said, and the exit
code is 1.  Whether it is fit to be seen nobody but who looks can say.
"""

from __future__ import annotations

import argparse
import shutil
import smtplib
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from email import policy
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, SIZES, Visit
from tests.browser.steps import signed_in
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

ADA = "ada@customer.example"

_NEWSLETTER = """<!doctype html><html><head><style>
body { margin: 0; font-family: Georgia, serif; background: #f4f1ea } a { color: #a33 }
.go { background: #a33; color: #fff; padding: 12px 22px; border-radius: 6px; text-decoration: none }
@media (prefers-color-scheme: dark) {
  body { background: #111; color: #eee } .card { background: #222 } }
</style></head><body><table class="card" width="640" align="center"><tr><td>
<img src="cid:hero" width="640" height="180" alt="Autumn"></td></tr><tr><td style="padding: 28px">
<h1>The autumn list</h1><p>Hello Ada, here is what our readers loved this month.</p>
<p><a class="go" href="https://shop.example/autumn?utm_source=newsletter&utm_content=hero">See it
</a></p><table width="100%"><tr>
<td><img src="https://cdn.shop.example/a.png" width="170" height="120"
alt="Atlas"><br>Rivers<br>48 €
<td><img src="https://cdn.shop.example/b.png" width="170" height="120"
alt="Moths"><br>Moths<br>26 €
<td><img src="https://cdn.shop.example/c.png" width="170" height="120"
alt="Bread"><br>Bread<br>31 €
</tr></table><p><small>You asked for it. <a href="https://shop.example/unsubscribe">Unsubscribe</a>
</small></p></td></tr></table></body></html>"""
_LONG = "https://build.example/runs/1234567890123456789?" + "check_suite_focus=true&" * 12

# A minute of the last day each; a night, a morning's rush, and an hour in which much bounced.
_HISTORY = """
    INSERT INTO relay.history
        (at, received, sent, failed, bounced, waiting, oldest_due_seconds)
    SELECT date_trunc('minute', now()) - make_interval(mins => n), 40 + 30 * sin(n / 90.0),
           60 + 40 * sin(n / 140.0), n % 7, CASE WHEN n BETWEEN 300 AND 360 THEN 25 ELSE 1 END,
           200 + 150 * sin(n / 60.0), 5 + 4 * sin(n / 30.0)
    FROM generate_series(1, 1440) n
    ON CONFLICT DO NOTHING
"""


def picture(width: int, height: int, red: int, green: int, blue: int) -> bytes:
    """Return a PNG of a colour that grows brighter to the right and down."""
    rows = b"".join(
        b"\0"
        + b"".join(
            bytes((min(255, red + x * 60 // width), min(255, green + y * 60 // height), blue))
            for x in range(width)
        )
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def letters() -> Iterator[tuple[str, EmailMessage]]:
    """Yield whom each is to, and a mail."""

    def mail(to: str, sender: str, subject: str, text: str, tag: str = "") -> EmailMessage:
        made = EmailMessage(policy.SMTP)
        made["From"], made["To"], made["Subject"] = sender, to, subject
        if tag:
            made["X-Tags"] = tag
        made.set_content(text)
        return made

    made = mail(ADA, "Bob <bob@example.org>", "Re: lunch?", "Sure, 12:30 at the usual place.")
    yield ADA, made
    yield "charles@customer.example", mail(
        "charles@customer.example", "Shop <hello@shop.example>", "Welcome, Charles",
        "Please confirm your address: https://shop.example/confirm?t=1",
    )  # fmt: skip
    steps = "\n".join(f"  step {number}: ok" for number in range(40))
    subject = "[build.example/a-very-long-repository-name] Run failed: tests (ubuntu-24.04) - main"
    yield ADA, mail(ADA, "CI <ci@build.example>", subject, f"Failed.\n{_LONG}\n{steps}\n", "ci")
    yield ADA, mail(
        ADA, "日本の書店 <ja@shop.example>", "ご注文ありがとうございます",
        "エイダ様\n\nこの度はご注文いただき誠にありがとうございます。確認コードは 739201 です。\n",
    )  # fmt: skip
    yield ADA, mail(
        ADA, "חנות ספרים <he@shop.example>", "ההזמנה שלך בדרך",
        "שלום עדה,\n\nההזמנה שלך מספר 10482 יצאה לדרך. Tracking: RR123456789IL\n",
    )  # fmt: skip
    made = mail(
        ADA, "متجر الكتب <ar@shop.example>", "تأكيد طلبك رقم 482913",
        "مرحبا آدا،\n\nتم تأكيد طلبك وسيصل يوم الثلاثاء 24 نوفمبر.\n",
    )  # fmt: skip
    made.add_alternative(
        "<div dir=rtl style='font-family: sans-serif; padding: 20px'><h2>تأكيد طلبك</h2><p>"
        "مرحبا آدا،"
        " تم تأكيد طلبك رقم <b>482913</b>.</p><p><a href='https://shop.example/ar/orders/482913'>"
        "تتبع الطلب</a></p></div>",
        subtype="html",
    )
    yield ADA, made
    yield ADA, mail(
        ADA, "Login <no-reply@bank.example>", "Your verification code is 482913",
        "It is valid for ten minutes.\nhttps://bank.example/verify?token=" + "abcdefghij" * 9,
    )  # fmt: skip
    made = mail(
        ADA, "Billing Department <billing@shop.example>", "Invoice 2026-10482",
        "Dear Ada,\n\nplease find your invoice attached: 148.20 €.\n", "invoice",
    )  # fmt: skip
    for name, size in (
        ("invoice-2026-10482.pdf", 48_000),
        (f"terms-{'of-sale-' * 9}.pdf", 220_000),
    ):
        made.add_attachment(b"%PDF-1.7\n".ljust(size), "application", "pdf", filename=name)
    made.add_attachment(picture(300, 200, 40, 90, 150), "image", "png", filename="photo.png")
    yield ADA, made
    made = mail(
        ADA, '"Shop, Inc." <news@shop.example>',
        "The autumn list: forty-two new titles, three signed editions and one very large atlas",
        "Hello Ada, here is what our readers loved.", "newsletter",
    )  # fmt: skip
    made.add_alternative(_NEWSLETTER, subtype="html")
    html = made.get_body(("html",))
    assert html is not None
    html.add_related(picture(640, 180, 150, 90, 40), "image", "png", cid="<hero>")
    yield ADA, made


def fill(relay: RelayProcess) -> dict[str, str]:
    """Put everything there; returns the views by name."""
    for to, made in letters():
        with smtplib.SMTP(*relay.smtp) as client:
            client.sendmail("bounce@shop.example", [to], made.as_bytes())
    with relay.http() as api:
        for hours in (1, 5, 30, 200):
            api.post("/api/v1/mailboxes", json={"ttl_minutes": 60 * hours}).raise_for_status()
        box = api.post("/api/v1/mailboxes").json()["address"]
        theirs = api.post("/api/v1/keys", json={"owner": "shop", "scopes": ["send"]}).json()[
            "token"
        ]

        def send(number: int, to: str, by: str | None = None, **more: Any) -> str:
            subject = f"Your order {10_400 + number} has been shipped and is on its way to you"
            letter = {"from": f"shop@{box.partition('@')[2]}", "to": [to], "subject": subject}
            answer = api.post(
                "/api/v1/messages/send",
                json={**letter, "text": "Hello.\nIt is on its way.", **more},
                headers={"Authorization": f"Bearer {by}"} if by else {},
            )
            answer.raise_for_status()
            return str(answer.json()["messages"][0]["id"])

        for number in range(24):
            send(number, box if number % 3 else f"nobody{number % 2}@relay.localhost")
        bounced = send(24, "nobody@relay.localhost")
        hidden = send(25, box, theirs)
        for number in range(3):
            send(26 + number, "later@elsewhere.example", send_at="2099-01-01T00:00:00Z")
        held = send(29, "x@elsewhere.example", send_at="2099-01-01T00:00:00Z")
        api.post(f"/api/v1/outbound/{held}/hold").raise_for_status()
        for number in range(4):
            account = {"email": f"user{number}@customer.example", "login": f"user{number}"}
            api.post("/api/v1/accounts", json=account).raise_for_status()
        suppressed = {"address": "gone@example.org", "reason": "hard bounce"}
        api.post("/api/v1/suppressions", json=suppressed).raise_for_status()
        eventually_sync(
            lambda: api.get(f"/api/v1/outbound/{bounced}").json()["status"],
            "what bounces has bounced", until=lambda status: status == "bounced", within=30.0,
        )  # fmt: skip
        found = eventually_sync(
            lambda: api.get(f"/api/v1/mailboxes/{quote(ADA)}/messages").json(), "all is parsed",
            until=lambda items: len(items) == 8 and all(one["subject"] for one in items),
            within=30.0,
        )  # fmt: skip
    with psycopg.connect(relay.run["database_url"], autocommit=True) as connection:
        connection.execute(_HISTORY)

    def at(words: str) -> str:
        (one,) = (one["id"] for one in found if words in one["subject"])
        return f"mail/all/{quote(ADA)}/{one}"

    return {
        "now": "now", "mail": "mail/all", "inboxes": "mail", "inbox": f"mail/{ADA}",
        "newsletter": at("autumn"), "invoice": at("Invoice"), "code": at("verification"),
        "arabic": at("تأكيد"), "hebrew": at("ההזמנה"), "japanese": at("ご注文"),
        "long-link": at("build.example"), "headers": at("autumn"), "checks": at("autumn"),
        "source": at("autumn"), "raw": at("Invoice"), "tag": "mail/tag:invoice",
        "nothing-found": f"mail/{ADA}?q=nothing", "sent": "mail/sent", "queue": "queue",
        "queue-bounced": "queue/bounced", "story": f"queue/bounced/{bounced}",
        "story-of-another": f"queue/all/{hidden}", "failures": "queue/failures",
        "overview": "queue/overview", "accounts": "accounts", "devices": "devices",
        "domains": "domains", "keys": "keys", "settings": "settings", "logs": "logs",
    }  # fmt: skip


_TABS = {"headers": "Headers", "checks": "Checks", "source": "Source", "raw": "Raw"}
_PATHS = {"docs": "/docs", "docs-call": "/docs#waitForMessage", "problem": "/problems/quota"}
_STILL = 700  # ms, after which a view has what it asked for


def _keep(visit: Visit, out: Path, shown: str, wrong: list[str], name: str) -> None:
    visit.page.wait_for_timeout(_STILL)
    visit.page.screenshot(path=out / f"{name}-{shown}.png")
    if visit.overflow() > 0:
        wrong.append(f"{name}, {shown}: {visit.overflow()} px too wide")


def capture(browser: Browser, relay: RelayProcess, views: dict[str, str], out: Path) -> list[str]:
    """Capture each view at each size; returns what is wrong."""
    wrong: list[str] = []
    for size, scheme in ((size, scheme) for size in SIZES for scheme in ("light", "dark")):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        with closing(context):
            visit = Visit(context, context.new_page(), f"{width}-{scheme}")

            keep = partial(_keep, visit, out, f"{width}-{scheme}", wrong)
            if "signed-out" in views:
                visit.page.goto(relay.run["http"])
                expect(visit.page.locator("#health")).to_have_text("ready")
                keep("signed-out")
            page: Page = signed_in(visit, relay)
            for name, view in views.items():
                if name in _PATHS or name == "signed-out":
                    continue
                visit.to(view)
                page.wait_for_timeout(_STILL)
                if name in _TABS:
                    page.locator("#message-forms").get_by_role("button", name=_TABS[name]).click()
                if name == "palette":
                    page.keyboard.press("Control+k")
                    page.keyboard.type("in")
                keep(name)
                if name == "palette":
                    page.keyboard.press("Escape")
            for name in _PATHS.keys() & views.keys():
                page.goto(f"{relay.run['http']}{_PATHS[name]}")
                keep(name)
            wrong += [f"{size}, {scheme}: {error}" for error in visit.errors]
    return wrong


def main() -> int:
    """Do it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("views", nargs="*", metavar="VIEW")
    asked = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        parser.error("Chromium is not installed.")
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="relay-screenshots-") as folder:
        env = {"RELAY_OUTBOUND__UPSTREAM": "loop:"}
        with RelayProcess(Path(folder) / "data", env=env) as relay, sync_playwright() as driver:
            views = fill(relay) | {"palette": "mail/all", "signed-out": ""} | _PATHS
            unknown = set(asked.views) - views.keys()
            if unknown:
                parser.error(f"No view is {', '.join(sorted(unknown))}: {', '.join(views)}.")
            if asked.views:
                views = {name: views[name] for name in asked.views}
            with closing(
                driver.chromium.launch(executable_path=program, args=ARGUMENTS)
            ) as browser:
                wrong = capture(browser, relay, views, asked.out)
    sys.stderr.writelines(f"{one}\n" for one in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
