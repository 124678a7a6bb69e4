"""Every view as a picture, filled with realistic mail.

Run as `python -m tests.browser.screenshots OUT [VIEW …] [--width WIDTH]`.
A relay is started and given newsletters with inline and remote images, invoices with attachments,
Arabic, Hebrew and Japanese, long links, mail that filters would take for junk, a queue in which
some is refused, some waits and some is held back, and the history of a day.  Each view (or those
that are named), with what opens on it, is captured at 1400, 820 and 390 px, light and dark, as
`OUT/VIEW-WIDTH-SCHEME.png`: `first-…` before there is anything, `de-…` in German, in light only.

Fails where a view is wider than the screen or the page reports an error: each is said, and the exit
code is 1.  Whether it is fit to be seen nobody but who looks can say.
"""

from __future__ import annotations

import argparse
import json
import shutil
import smtplib
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email import policy
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import trio
from playwright.sync_api import (
    Browser,
    Error,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from tests.browser.conftest import ARGUMENTS, SIZES, Visit
from tests.browser.steps import (
    commands,
    create_inbox,
    deliver,
    mail,
    signed_in,
    unsubscribing,
)
from tests.dns.server import DnsServer
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
_JUNK = """<html><body><div style="display: none">win win win</div><script>go()</script>
<form action="https://win.example"><input name="card"></form>
<img src="https://win.example/a.png"><img src="https://win.example/b.png">
<p><a href="http://192.0.2.7/claim">https://bank.example/login</a> <a href="https://bit.ly/x">now</a>
<video src="https://win.example/film.mp4"></video></body></html>"""
_LONG = "https://build.example/runs/1234567890123456789?" + "check_suite_focus=true&" * 12

Act = Callable[[Page], object]

# What the world publishes.
_ZONE: dict[tuple[str, str], list[str]] = {
    ("shop.example", "MX"): ["10 mx.shop.example.", "20 a-second-exchanger.shop.example."],
    ("mx.shop.example", "A"): ["192.0.2.1"],
    ("a-second-exchanger.shop.example", "A"): ["192.0.2.2"],
    ("shop.example", "TXT"): ['"v=spf1 ip4:192.0.2.0/24 include:_spf.mail.example ~all"'],
    ("_spf.mail.example", "TXT"): ['"v=spf1 ip4:198.51.100.0/24 -all"'],
    ("_dmarc.shop.example", "TXT"): ['"v=DMARC1; p=none"'],
    ("_mta-sts.shop.example", "TXT"): ['"v=STSv1; id=20260101"'],
    ("_dmarc.bank.example", "TXT"): ['"v=DMARC1; p=reject"'],
}

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
        ADA, "YOUR BANK <service@bank.example>", "URGENT!!! You have WON 1,000,000 $", "win", "junk"
    )
    made.set_content(_JUNK, subtype="html")
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


def refused(other: RelayProcess, api: Any) -> None:
    """Have mail refused by another server, and mail wait for one that does not answer."""
    host, port = other.smtp
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        down = nobody.getsockname()[1]
    # Who was refused for there being nobody is sent nothing again.
    for name, upstream, first in (
        ("away", f"{host}:{port}", 0),
        ("waits", f"127.0.0.1:{down}", 5),
    ):
        sender = {"address": f"{name}@relay.localhost", "upstream": f"smtp://{upstream}"}
        api.post("/api/v1/senders", json=sender).raise_for_status()
        for number in range(first, first + 5):
            letter = {
                "from": f"{name}@relay.localhost",
                "to": [f"reader{number}@customers-of-the-shop.example"],
                "subject": f"The receipt of your order {10_500 + number}, and what comes next",
                "text": "Hello.\n\nThank you for your order.\n",
            }
            api.post("/api/v1/messages/send", json=letter).raise_for_status()


def fill(relay: RelayProcess, other: RelayProcess) -> dict[str, Shot]:
    """Put everything there; returns the views by name."""
    for to, made in letters():
        with smtplib.SMTP(*relay.smtp) as client:
            client.sendmail("bounce@shop.example", [to], made.as_bytes())
    with relay.http() as api:
        refused(other, api)
        for hours in (1, 5, 30, 200):
            api.post("/api/v1/mailboxes", json={"ttl_minutes": 60 * hours}).raise_for_status()
        empty = api.post("/api/v1/mailboxes").json()["address"]
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
        for number, count in ((1, 3), (2, 1)):
            for size in range(count):
                blobs = f"/api/v1/devices/{number:064x}/blobs"
                api.post(blobs, content=bytes(900 * (size + 1))).raise_for_status()
        suppressed = {"address": "gone@example.org", "reason": "hard bounce"}
        api.post("/api/v1/suppressions", json=suppressed).raise_for_status()
        eventually_sync(
            lambda: api.get(f"/api/v1/outbound/{bounced}").json()["status"],
            "what bounces has bounced", until=lambda status: status == "bounced", within=30.0,
        )  # fmt: skip
        eventually_sync(
            lambda: api.get("/api/v1/outbound?domain=customers-of-the-shop.example").json(),
            "what is refused has bounced",
            until=lambda items: sum(one["status"] == "bounced" for one in items) == 5,
            within=30.0,
        )  # fmt: skip
        turned = next(
            one["id"]
            for one in api.get("/api/v1/outbound?status=bounced").json()
            if one["recipient"].endswith("customers-of-the-shop.example")
        )
        found = eventually_sync(
            lambda: api.get(f"/api/v1/mailboxes/{quote(ADA)}/messages").json(), "all is parsed",
            until=lambda items: len(items) == 9 and all(one["subject"] for one in items),
            within=30.0,
        )  # fmt: skip
    with psycopg.connect(relay.run["database_url"], autocommit=True) as connection:
        connection.execute(_HISTORY)

    def at(words: str) -> str:
        (one,) = (one["id"] for one in found if words in one["subject"])
        return f"mail/all/{quote(ADA)}/{one}"

    views = {
        "now": "now", "mail": "mail/all", "inboxes": "mail", "inbox": f"mail/{ADA}",
        "empty-inbox": f"mail/{empty}", "newsletter": at("autumn"), "invoice": at("Invoice"),
        "code": at("verification"), "arabic": at("تأكيد"), "hebrew": at("ההזמנה"),
        "japanese": at("ご注文"), "long-link": at("build.example"), "tag": "mail/tag:invoice",
        "search": "mail/all?q=from:shop.example", "nothing-found": f"mail/{ADA}?q=nothing",
        "sent": "mail/sent", "queue": "queue", "queue-bounced": "queue/bounced",
        "queue-queued": "queue/queued", "story": f"queue/bounced/{bounced}",
        "story-of-another": f"queue/all/{hidden}", "failures": "queue/failures",
        "failure": f"queue/failures/{turned}", "overview": "queue/overview",
        "accounts": "accounts", "devices": "devices", "domains": "domains", "keys": "keys",
        "settings": "settings", "logs": "logs", "logs-of-one": f"logs?text={turned}",
        "logs-filtered": "logs?actor=ingest&text=event=smtp.session_ended accepted=1",
    }  # fmt: skip
    opened: dict[str, tuple[str, Act | None]] = {
        "width-375": (at("autumn"), partial(_press, "375")),
        "width-768": (at("autumn"), partial(_press, "768")),
        "dark-shade": (at("autumn"), partial(_press, "dark")),
        "images-loaded": (at("autumn"), partial(_press, "load once")),
        "link-asked": (at("autumn"), _link),
        "headers": (at("autumn"), partial(_press, "Headers")),
        "source": (at("autumn"), partial(_press, "Source")),
        "raw": (at("Invoice"), partial(_press, "Raw")),
        "checks": (at("autumn"), partial(_press, "Checks")),
        "checks-poor": (at("WON"), partial(_press, "Checks")),
        "deleted": (at("Invoice"), partial(_press, "Delete")),
        "reply": (at("Invoice"), partial(_press, "Reply")),
        "add-tag": (at("Invoice"), partial(_press, "+ Tag")),
        "release": (at("Invoice"), partial(_press, "Forward")),
        "delete-inbox": (f"mail/{ADA}", partial(_press, "Delete this inbox")),
        "chosen": ("mail/all", _choose),
        "queue-chosen": ("queue", _choose),
        "palette": ("mail/all", _palette),
        "keys-help": ("mail/all", lambda page: page.keyboard.press("?")),
        "cancel-all": (
            "queue/queued",
            lambda page: page.locator("#acts [data-verb=cancel]").click(),
        ),
        "retry-group": (
            "queue/failures",
            lambda page: page.locator("#failures button").first.click(),
        ),
        "pause-all": ("queue/overview", partial(_press, "pause all")),
        "commands": ("now", lambda page: commands(page, "sender")),
        "restart": ("now", _restart),
        "letters": ("accounts", lambda page: page.locator("#accounts summary").first.click()),
        "domain-check": ("domains", _domain),
        "domain-local": ("domains", lambda page: page.locator("#domains td button").last.click()),
        "try-deferred": ("queue/queued", partial(_press, "try deferred now")),
        "unsubscribe": (unsubscribing(relay, bounced, "nobody@relay.localhost"), None),
        "comes-above": (at("Invoice"), partial(_comes, relay)),
        "revoke": ("keys", partial(_press, "revoke")),
        "settings-found": ("settings?q=retention", None),
    }
    german = {name: views[name] for name in _GERMAN}
    return (
        {name: Shot(view) for name, view in views.items()}
        | {name: Shot(view, act) for name, (view, act) in opened.items()}
        | _PAGES
        | {f"de-{name}": Shot(view, german=True) for name, view in german.items()}
        | {
            "de-checks": Shot(at("WON"), _checks, german=True),
            "de-keys-help": Shot("mail/all", lambda page: page.keyboard.press("?"), german=True),
            "de-docs-call": Shot("/docs#waitForMessage", german=True),
            "de-problem": Shot("/problems/quota", german=True),
        }
    )


class Shot(NamedTuple):
    """A view, and what is done on it first; `act` says False where there is nothing to be done."""

    at: str
    act: Act | None = None
    german: bool = False


def _press(name: str, page: Page) -> bool:
    found = page.get_by_role("button", name=name, exact=True).locator("visible=true")
    if not found.count():
        return False  # as the widths are on a phone
    found.first.click()
    return True


def _checks(page: Page) -> None:
    page.locator("#message-forms button").last.click()


def _link(page: Page) -> None:
    page.frame_locator("#message-html").get_by_role("link", name="See it").click()


def _comes(relay: RelayProcess, page: Page) -> None:
    expect(page.locator("#message-subject")).to_be_visible()
    deliver(relay, "grace@customer.example", *(mail(f"Order {n}", "It is paid.") for n in (1, 2)))


def _choose(page: Page) -> None:
    for at in (3, 4, 6):
        page.locator(".row .pick input").nth(at).check()


def _palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("invoice")
    expect(page.locator("#palette li").first).to_contain_text("invoice")


def _restart(page: Page) -> None:
    commands(page, "sender").get_by_role("button", name="restart").click()


def _domain(page: Page) -> None:
    page.get_by_label("A domain to check").fill("shop.example")
    page.get_by_role("button", name="Check what it publishes").click()
    expect(page.locator("#records tbody tr").first).to_be_visible()
    page.locator("#records").scroll_into_view_if_needed()


def _try(page: Page) -> None:
    page.locator("#getMailbox").get_by_role("button", name="Try it").click()
    page.locator("#getMailbox [role=status]").scroll_into_view_if_needed()


def _find(page: Page) -> None:
    page.get_by_label("Find a call").fill("message")


FIRST = {
    "first-now": Shot("now"), "first-visit": Shot("mail/all"), "first-inboxes": Shot("mail"),
    "first-sent": Shot("mail/sent"), "first-rails": Shot("mail/all", partial(_press, "Rails")),
    "first-queue": Shot("queue"), "first-failures": Shot("queue/failures"),
    "first-overview": Shot("queue/overview"), "first-accounts": Shot("accounts"),
    "first-devices": Shot("devices"), "first-domains": Shot("domains"), "first-keys": Shot("keys"),
    "first-logs": Shot("logs?text=nothing"),
}  # fmt: skip
_PAGES = {
    "docs": Shot("/docs"), "docs-call": Shot("/docs#waitForMessage"),
    "docs-send": Shot("/docs#sendMessage"), "docs-tried": Shot("/docs#getMailbox", _try),
    "docs-found": Shot("/docs", _find), "docs-problems": Shot("/docs#problems"),
    "problem": Shot("/problems/quota"),
}  # fmt: skip
_GERMAN = (
    "now", "mail", "newsletter", "invoice", "queue", "queue-queued", "failures", "failure",
    "overview", "accounts", "devices", "domains", "keys", "settings", "logs",
)  # fmt: skip
_ALONE = ("signed-out", "signin", "own-inbox")  # of who has not signed in
_PATIENCE = 15.0  # seconds that a view has to be filled
_REST = 150  # ms that nothing may come in, once it is

# What a picture has to wait for, in words; null: nothing.
_UNFILLED = r"""() => {
    const seen = (one) => one.checkVisibility({ visibilityProperty: true });
    const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
    if (document.readyState !== "complete") return "the document";
    const main = document.querySelector("main");
    if (!main?.querySelector(":not(h1)")) return "the view";
    const frame = all("#message-html").find((one) => !one.classList.contains("seen"));
    if (frame) return "the frame";
    const reader = all(".reader article").find((one) => !one.childElementCount);
    if (reader) return "the reader";
    const framed = all("iframe").flatMap((one) => [...one.contentDocument?.images ?? []]);
    if (![...document.images, ...framed].every((one) => one.complete)) return "a picture";
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
        const said = words.currentNode.data.trim();
        const { parentElement: place } = words.currentNode;
        const yet = place.closest("#flow, #health") ? /(^| )…$/ : /^(Loading|Lädt|Asking|DNS).*…$/;
        if (yet.test(said) && seen(place)) return said;
    }
    const moves = document.getAnimations().some(({ effect }) => !effect.target.closest("#flow"));
    return moves ? "a movement" : null;
}"""


class Calls:
    """What a page has asked for and not been answered.

    An answer counts as soon as it begins: a stream has no end, nor, for a browser, has an answer
    that no script reads.
    """

    def __init__(self, page: Page) -> None:
        self.open: set[Request] = set()
        page.on("request", lambda request: self.open.add(request))
        page.on("response", lambda response: self.open.discard(response.request))
        page.on("requestfailed", lambda request: self.open.discard(request))


def _filled(page: Page, calls: Calls) -> None:
    """Wait until a view has what it asked for, and shows it."""
    ends = time.monotonic() + _PATIENCE
    why: object = None
    while time.monotonic() < ends:
        page.wait_for_timeout(_REST)
        asked = [one.url for one in calls.open]
        why = asked or page.evaluate(_UNFILLED)
        if not why:
            return
    raise AssertionError(f"the view waits for {why}")


def _keep(visit: Visit, calls: Calls, out: Path, shown: str, wrong: list[str], name: str) -> None:
    _filled(visit.page, calls)
    visit.page.screenshot(path=out / f"{name}-{shown}.png")
    if visit.overflow() > 0:
        wrong.append(f"{name}, {shown}: {visit.overflow()} px too wide")


def _remote(route: Route) -> None:
    """Answer as the newsletter's server does: one of its pictures is gone."""
    if route.request.url.endswith("c.png"):
        return route.fulfill(status=404)
    return route.fulfill(body=picture(340, 240, 60, 120, 90), content_type="image/png")


def _tidy(page: Page) -> None:
    """Close what was opened, and take back what was deleted."""
    while page.locator("dialog[open], :popover-open").count():
        page.keyboard.press("Escape")
    undo = page.locator("#toast button")
    if undo.count():
        undo.click()
    page.evaluate("localStorage.removeItem('relay.preview_width')")


def _alone(visit: Visit, relay: RelayProcess, views: dict[str, Shot], keep: Any) -> None:
    """Capture what is seen by who has not signed in."""
    page = visit.page
    page.goto(relay.run["http"])
    expect(page.locator("#health")).to_have_text("ready")
    if "signed-out" in views:
        keep("signed-out")
    if "signin" in views:
        visit.to("signin")
        keep("signin")
    if "own-inbox" in views:
        visit.to("mail")
        create_inbox(page)
        keep("own-inbox")


def capture(
    browser: Browser,
    relay: RelayProcess,
    views: dict[str, Shot],
    out: Path,
    only: int | None = None,
) -> list[str]:
    """Capture each view at each size, or at one width; returns what is wrong."""
    wrong: list[str] = []
    for size, scheme in ((size, scheme) for size in SIZES for scheme in ("light", "dark")):
        width, height = SIZES[size]
        if only not in (None, width):
            continue
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            has_touch=size != "desktop",
        )
        with closing(context):
            context.route("https://*.shop.example/**", _remote)
            visit = Visit(context, context.new_page(), f"{width}-{scheme}")
            calls = Calls(visit.page)
            keep = partial(_keep, visit, calls, out, f"{width}-{scheme}", wrong)
            if views.keys() & set(_ALONE):
                _alone(visit, relay, views, keep)
            page: Page = signed_in(visit, relay)
            for german in (False, True) if scheme == "light" else (False,):
                if german:
                    page.evaluate("localStorage.setItem('relay.language', 'de')")
                for name, shot in views.items():
                    if shot.german == german and name not in _ALONE:
                        try:
                            _show(page, relay, shot)
                            _filled(page, calls)
                            if shot.act is None or shot.act(page) is not False:
                                keep(name)
                            _tidy(page)
                        except (Error, AssertionError) as error:
                            wrong.append(f"{name}, {width}-{scheme}: {error}")
            wrong += [f"{size}, {scheme}: {error}" for error in visit.errors]
    return wrong


def _show(page: Page, relay: RelayProcess, shot: Shot) -> None:
    path = shot.at if shot.at.startswith("/") else f"/#/{shot.at}"
    page.goto("about:blank")  # a page of its own, whatever was shown before
    page.goto(f"{relay.run['http']}{path}")


@contextmanager
def _names() -> Iterator[str]:
    """Serve `_ZONE`; yields where."""
    server, stop, ready = DnsServer(_ZONE), trio.Event(), threading.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            tokens.append(trio.lowlevel.current_trio_token())
            ready.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    ready.wait()
    try:
        yield f"127.0.0.1:{server.address[1]}"
    finally:
        tokens[0].run_sync_soon(stop.set)
        thread.join()


def main() -> int:
    """Do it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("views", nargs="*", metavar="VIEW")
    parser.add_argument("--width", type=int, choices=[width for width, _ in SIZES.values()])
    asked = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        parser.error("Chromium is not installed.")
    asked.out.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="relay-screenshots-") as folder,
        _names() as names,
        sync_playwright() as driver,
        closing(driver.chromium.launch(executable_path=program, args=ARGUMENTS)) as browser,
    ):
        env = {
            "RELAY_OUTBOUND__UPSTREAM": "loop:",
            "RELAY_DNS__SERVERS": json.dumps([names]),
            "RELAY_OUTBOUND__RELEASE_TO": json.dumps(["*@customer.example"]),
        }
        strict = {"RELAY_SMTP__CAPTURE": "off"}
        with (
            RelayProcess(Path(folder) / "data", env=env) as relay,
            RelayProcess(Path(folder) / "other", env=strict) as other,
        ):
            first = {name: shot for name, shot in FIRST.items() if name in (asked.views or FIRST)}
            if first:
                wrong += capture(browser, relay, first, asked.out, asked.width)
            views = fill(relay, other) | {name: Shot("") for name in _ALONE}
            unknown = set(asked.views) - views.keys() - FIRST.keys()
            if unknown:
                parser.error(f"No view is {', '.join(sorted(unknown))}: {', '.join(views)}.")
            if asked.views:
                views = {name: shot for name, shot in views.items() if name in asked.views}
            if views:
                wrong += capture(browser, relay, views, asked.out, asked.width)
    sys.stderr.writelines(f"{one}\n" for one in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
