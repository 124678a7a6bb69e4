"""What a person sees: the pages of a running relay in a real browser.

Some screenshots, and one of what is wrong, are left in `test-artefacts/`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from email import policy
from email.message import EmailMessage
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.browser.conftest import SIZES, TIMEOUT, Browse
from tests.browser.steps import (
    SENDER,
    commands,
    create_inbox,
    deliver,
    mail,
    node,
    row,
    sign_in,
    signed_in,
)
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


def test_mail_appears_without_a_reload(relay: RelayProcess, browse: Browse) -> None:
    """A delivered message shows up by itself, opens as text or HTML, and brings its code."""
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        page.evaluate("window.since = 'the beginning'")
        address = create_inbox(page)
        rows = page.locator("#messages li")
        expect(rows).to_have_count(0)
        deliver(relay, address, mail("first", "one"))
        expect(rows).to_have_count(1)
        html = "<p>Your verification code is <b>482913</b></p>"
        text = "Your verification code is 482913 (see https://bücher.example/v?a=1&b=2)."
        deliver(relay, address, mail("second", text, html))
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("second")

        page.get_by_role("link", name="second").click()
        expect(page.locator("#message-code")).to_contain_text("482913")
        expect(page.frame_locator("iframe").locator("b")).to_have_text("482913")
        expect(page.locator("#message-text")).to_have_count(0)
        page.get_by_role("button", name="Text").click()
        expect(page.locator("#message-text")).to_contain_text("Your verification code is 482913")
        expect(page.locator("iframe")).to_have_count(0)
        link = page.locator("#message-text a")
        expect(link).to_have_text("https://xn--bcher-kva.example/v?a=1&b=2")  # as it is read
        expect(link).to_have_attribute("href", "https://bücher.example/v?a=1&b=2")
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(link).to_have_attribute("target", "_blank")
        page.get_by_role("link", name="first").click()
        expect(page.locator("#message-text")).to_have_text("one\n")
        expect(page.locator("iframe")).to_have_count(0)

        assert create_inbox(page) != address
        expect(page.locator("#messages li")).to_have_count(0)
        assert page.evaluate("window.since") == "the beginning"
        assert visit.console == []


def test_a_message_is_read_in_every_form(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """Headers, raw, attachment, links and code; searched, copied, downloaded, deleted."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = f"Ann Example <{SENDER}>", "The invoice"
    message["X-Note"] = "seen <b>as text</b>"
    message.set_content("Your code is 135790. Open https://shop.example/pay?x=1&y=2 soon.\n")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    with browse() as visit:
        page = visit.page
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(relay.run["http"])
        address = create_inbox(page)
        deliver(relay, address, message.as_bytes(), mail("Other", "nothing of it"))
        expect(page.locator("#messages li")).to_have_count(2)
        page.get_by_label("Search", exact=True).fill("invoice")
        expect(page.locator("#messages li")).to_have_count(1)
        page.get_by_role("link", name="The invoice").click()
        copy = page.locator("#message-code").get_by_role("button", name="Copy the code")
        copy.click()
        expect(copy).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == "135790"
        target = page.locator("#message-link a")
        expect(target).to_have_attribute("href", "https://shop.example/pay?x=1&y=2")
        expect(target).to_have_attribute("rel", "noopener noreferrer")
        page.get_by_role("button", name="Headers").click()
        expect(page.locator("#message-headers")).to_contain_text("seen <b>as text</b>")
        expect(page.locator("#message-path li")).to_contain_text(["this relay"])
        page.get_by_role("button", name="Raw").click()
        expect(page.locator("#message-raw")).to_contain_text("X-Note: seen")
        visit.check("raw", axe)
        page.get_by_role("button", name="Text", exact=True).click()
        expect(page.locator("#message-text")).to_contain_text("Your code is 135790")
        visit.check("text", axe)
        with page.expect_download() as download:
            page.get_by_role("button", name="invoice.pdf").click()
        assert download.value.suggested_filename == "invoice.pdf"
        assert download.value.path().read_bytes() == b"%PDF"
        with page.expect_download() as download:
            page.get_by_role("button", name="Download", exact=True).click()
        assert download.value.suggested_filename.endswith(".eml")
        assert b"X-Note: seen" in download.value.path().read_bytes()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("#messages li")).to_have_count(0)
        expect(page.locator("#message")).to_be_hidden()
        assert visit.errors == []


def test_what_a_sender_says_of_itself_is_no_verdict(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Results of checks that stand in the mail are shown as somebody's words, and never as good:
    whoever sends mail can write them.  What the relay found itself stands above them, a line with
    its reason for each of three, and in Checks with the rest; it says of none that it is good."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = f"Ann Example <{SENDER}>", "The forged one"
    message["Authentication-Results"] = "mx.google.example; spf=pass; dkim=pass header.d=x.example"
    message.set_content("text")
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        deliver(relay, address, message.as_bytes())
        page.get_by_role("link", name="The forged one").click()
        asked: list[Request] = []
        page.on("request", lambda one: asked.append(one) if "/checks" in one.url else None)
        page.get_by_role("button", name="Headers").click()
        own = page.locator("#message-verdicts")
        expect(own.locator("dt")).to_have_text(["SPF", "DKIM", "DMARC"])
        expect(own.locator(".verdict")).to_have_count(3)
        expect(own.locator(".is-pass")).to_have_count(0)
        expect(own.locator("dd").nth(1)).to_have_text("none the message has no DKIM signature")
        assert len(asked) == 1, "nothing is asked before it is looked at"
        claims = page.locator("#message-claims")
        expect(claims).to_have_text("said by mx.google.example: spf=pass dkim=pass")
        value = page.locator("#message-headers dd").first
        plain = value.evaluate("it => getComputedStyle(it).color")
        for one in claims.locator(".verdict").all():
            expect(one).to_have_css("color", plain)
        visit.check("claims", axe)
        found = own.inner_text()
        page.get_by_role("button", name="The score, and what to change").click()
        expect(page.get_by_role("button", name="Checks")).to_have_attribute("aria-pressed", "true")
        checks = page.locator("#message-checks")
        expect(checks.locator(".verdict")).to_have_count(3)
        expect(checks.locator(".is-pass")).to_have_count(0)
        assert found in checks.inner_text()
        assert visit.errors == []


def test_raw_is_shown_as_utf_8_where_it_is_that(relay: RelayProcess, browse: Browse) -> None:
    """Also where what is shown ends within a character; and octets that are no UTF-8 as Latin-1."""
    head = b"Subject: %s\r\nContent-Type: text/plain; charset=%s\r\n\r\n"
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        deliver(
            relay,
            address,
            head % (b"one", b"utf-8") + "Grüße aus 東京\r\n".encode(),
            head % (b"two", b"iso-8859-1") + "Grüße aus Köln\r\n".encode("latin-1"),
        )
        raw = page.locator("#message-raw")
        for subject, text in (("one", "Grüße aus 東京"), ("two", "Grüße aus Köln")):
            page.get_by_role("link", name=subject).click()
            expect(page.locator("#message-subject")).to_have_text(subject)
            page.get_by_role("button", name="Raw").click()
            expect(raw).to_contain_text(text)
        long = b"x" + "é".encode() * 500_001  # of which 1,000,000 octets are shown
        page.route("**/raw", lambda route: route.fulfill(body=long))
        page.get_by_role("link", name="one").click()
        expect(page.locator("#message-subject")).to_have_text("one")
        page.get_by_role("button", name="Raw").click()
        expect(raw).to_contain_text("the rest is in the download")
        assert raw.evaluate("it => it.textContent.split('\\n')[0]") == "x" + "é" * 499_999
        assert visit.errors == []


def test_an_anonymous_inbox_outlives_a_reload(relay: RelayProcess, browse: Browse) -> None:
    """Cookie and key open it again, no script can read the one, and no address holds a token."""
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        expect(page.locator(".hello pre")).to_contain_text(relay.run["smtp"])
        deliver(relay, address, mail("still here", "text", "<p>html</p>"))
        expect(page.locator("#messages li")).to_have_count(1)
        page.reload()
        expect(page.locator("#stream")).to_have_text("live")
        page.get_by_role("link", name="still here").click()
        page.get_by_role("button", name="HTML").click()
        expect(page.frame_locator("iframe").get_by_text("html")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        assert "rs_" not in page.evaluate("JSON.stringify(localStorage)")
        assert not [url for url in visit.requests if "token" in url or "rs_" in url]
        page.goto(f"{relay.run['http']}/#/mail")
        expect(page.locator("#inboxes li")).to_have_count(1)


def test_the_page_says_when_an_inbox_is_over(relay: RelayProcess, browse: Browse) -> None:
    """Deleted elsewhere, it is said to be over, nothing of it is offered any more; a wrong name is
    explained."""
    with browse() as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        api.delete(f"/api/v1/mailboxes/{address}").raise_for_status()
        over = page.get_by_role("alert").filter(has_text="This inbox is over")
        expect(over).to_be_visible()
        expect(page.get_by_role("button", name="Delete this inbox")).to_have_count(0)
        expect(page.locator("#inboxes li")).to_have_count(0)
        page.get_by_label("New inbox").fill("not a name")
        page.get_by_role("button", name="Create").click()
        expect(page.locator(".rail").get_by_role("alert")).to_contain_text("New inbox: ")
        assert visit.errors == []


def test_signing_in_opens_the_views_and_signing_out_shuts_them(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """A wrong token is refused; the right one stays in no field, script or storage."""
    with browse() as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        sign_in(page, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("token")
        visit.check("signin-refused", axe)
        expect(page.get_by_role("link", name="Queue")).to_have_count(0)
        page.get_by_label("Token").fill(relay.run["admin_token"])
        page.get_by_role("main").get_by_role("button", name="Sign in").click()
        expect(node(page, "reaper")).to_contain_text("running")
        assert relay.run["admin_token"] not in page.content()
        assert page.evaluate("document.cookie") == ""
        assert "ra_" not in page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        page.reload()
        expect(node(page, "reaper")).to_contain_text("running")
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("#tree")).to_have_count(0)
        page.reload()
        expect(page.get_by_role("link", name="Sign in")).to_be_visible()

        key = api.post("/api/v1/keys", json={"owner": "ci", "scopes": "read"}).json()
        sign_in(page, key["token"])
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        expect(page.get_by_role("link", name="Mail", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="Now")).to_have_count(0)
        api.delete(f"/api/v1/keys/{key['id']}").raise_for_status()
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("link", name="Sign in")).to_be_visible()
        assert visit.errors == []


def test_the_tree_is_live(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """What happens to an actor shows by itself, and what needs attention comes first."""
    with browse() as visit, relay.http() as api:
        page = signed_in(visit, relay)
        expect(node(page, "reaper")).to_contain_text("running")
        page.evaluate("window.since = 'the beginning'")
        api.post("/api/v1/supervision/reaper/pause").raise_for_status()
        expect(node(page, "reaper")).to_contain_text("paused")
        expect(page.locator(".attention")).to_contain_text("Reaper is paused.")
        expect(page.locator(".attention code")).to_have_text("relay actor resume reaper")
        menu = commands(page, "reaper")
        visit.check("now-menu", axe)
        # Arrows walk through it, and round.
        expect(menu.get_by_role("button").first).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(menu.get_by_role("button").nth(1)).to_be_focused()
        page.keyboard.press("End")
        expect(menu.get_by_role("link", name="log")).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(menu.get_by_role("button").first).to_be_focused()
        page.keyboard.press("ArrowUp")
        expect(menu.get_by_role("link", name="log")).to_be_focused()
        page.keyboard.press("Escape")
        page.locator(".attention").get_by_role("button", name="resume").click()
        expect(node(page, "reaper")).to_contain_text("running")
        expect(page.locator(".attention")).not_to_contain_text("Reaper")
        restarts = node(page, "reaper").locator(".restarts")
        before = int(restarts.inner_text())
        commands(page, "reaper").get_by_role("button", name="restart").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        visit.check("now-restart", axe)
        page.get_by_role("dialog").get_by_role("button", name="Restart").click()
        expect(restarts).to_have_text(str(before + 1))
        commands(page, "reaper").get_by_role("link", name="log").click()
        expect(page.get_by_label("Actor")).to_have_value("reaper")
        assert page.evaluate("window.since") == "the beginning"
        assert visit.errors == []


def test_the_tree_is_walked_and_folded_by_arrows(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """One row is in the order of Tab; arrows move, open and shut, and a row says how deep it is."""
    with browse() as visit, relay.http() as api:
        deliver(relay, api.post("/api/v1/mailboxes").json()["address"], mail("To parse", "t"))
        page = signed_in(visit, relay)
        keys, tree = page.keyboard, page.get_by_role("treegrid", name="The tree, live")
        root, group, writer = (node(page, name) for name in ("relay", "mail", "writer"))
        summariser, parser = node(page, "summariser"), node(page, "parser-1")
        expect(writer).to_have_attribute("aria-level", "3")
        expect(group.locator(".last")).to_have_text("4 × running")
        expect(tree.locator("tr[tabindex='0']")).to_have_count(1)
        expect(summariser).to_have_attribute("aria-expanded", "false")  # once it has a process
        expect(parser).to_have_count(0)
        visit.to("now/summariser")
        expect(summariser).to_be_focused()
        keys.press("ArrowRight")
        expect(parser).to_have_attribute("aria-level", "4")
        keys.press("ArrowRight")
        expect(parser).to_be_focused()
        for row in (summariser, summariser, group):  # to what it is under, shut, and on
            keys.press("ArrowLeft")
            expect(row).to_be_focused()
        expect(parser).to_have_count(0)
        keys.press("ArrowLeft")
        expect(group).to_have_attribute("aria-expanded", "false")
        expect(writer).to_have_count(0)
        visit.check("now-folded", axe)
        keys.press("ArrowDown")
        expect(node(page, "outbound")).to_be_focused()
        keys.press("Tab")
        expect(node(page, "outbound").get_by_role("button")).to_be_focused()
        keys.press("Home")
        expect(root).to_be_focused()
        expect(tree.locator("tr[tabindex='0']")).to_have_count(1)
        keys.press("End")
        expect(node(page, "control")).to_be_focused()
        keys.press("Enter")
        expect(page.locator("#commands")).to_contain_text("Started again whenever it ends.")
        keys.press("Escape")
        group.locator(".actor").click()
        expect(writer).to_be_visible()
        page.get_by_role("link", name="writer").click()  # of the drawing
        expect(writer).to_be_focused()
        assert visit.errors == []


_DOTS = """() => {
    window.dots = [0, 0, 0];
    const hops = [...document.querySelectorAll("#flow ol:first-child .edge")];
    const count = (seen) => {
        for (const one of seen) {
            if (one.addedNodes[0]?.localName === "i") window.dots[hops.indexOf(one.target)] += 1;
        }
    };
    for (const hop of hops) new MutationObserver(count).observe(hop, { childList: true });
}"""


def test_mail_is_drawn_as_it_passes(relay: RelayProcess, browse: Browse) -> None:
    """What passed lately is told at the first look; then each mail that passes is one dot; what is
    sent or stored by a call, and what comes back by the loop, is told where it enters."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, mail("Before", "t"))
        page = signed_in(visit, relay)
        hop = page.locator("#flow ol").first.locator(".edge").first
        expect(hop).to_have_text(re.compile(r"^[\d.]+/(s|min)$"))
        page.evaluate(_DOTS)
        deliver(relay, address, *[mail(f"Mail {number}", "t") for number in range(3)])
        drawn = eventually_sync(
            lambda: page.evaluate("window.dots"), "what passed is drawn", until=lambda n: min(n) > 2
        )
        assert drawn[0] == 3, "there is a dot for what did not pass"
        expect(hop.locator("i")).to_have_count(0)
        letter = {"from": "a@relay.localhost", "to": [address], "subject": "s", "text": "t"}
        api.post("/api/v1/messages/send", json=letter).raise_for_status()
        api.post(f"/api/v1/mailboxes/{address}/test-message").raise_for_status()
        writer, queue = (page.get_by_role("link", name=name) for name in ("writer", "queue"))
        expect(queue.and_(page.locator(".station"))).to_contain_text(re.compile(r"HTTP [\d.]+/"))
        expect(writer).to_contain_text(re.compile(r"HTTP [\d.]+/.* · loop [\d.]+/"))
        page.emulate_media(reduced_motion="reduce")
        deliver(relay, address, mail("After", "t"))
        expect(hop.locator("i")).to_have_css("display", "none")
        assert visit.errors == []


def test_charts_begin_with_what_the_relay_has_kept(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """The last hours are drawn at once, further back at a press; live values go on beside them.

    There is more of it than the other tests bring to the relay that they share with this one.
    """
    with psycopg.connect(relay.run["database_url"], autocommit=True) as sql:
        sql.execute(
            """
            INSERT INTO relay.history
            SELECT date_trunc('minute', now()) - make_interval(mins => ago),
                   CASE WHEN ago > 70 THEN 600000 ELSE 6000 END, 60, 0, 0, 7, 5
            FROM generate_series(2, 600) ago
            ON CONFLICT DO NOTHING
            """
        )
    with browse() as visit:
        page = signed_in(visit, relay)
        received = page.locator(".plot").filter(has_text="Received")
        expect(received).to_contain_text("at most 100/s")
        expect(received.locator("strong")).to_have_text(re.compile(r"^[\d.]+/(s|min)$"))
        page.get_by_role("button", name="24 hours").click()
        expect(received).to_contain_text("at most 10,000/s")
        expect(page.locator(".flow")).to_have_count(2)
        expect(page.locator(".flow").last).to_contain_text("0 in hand")
        # The queue's own are of the whole day at once.
        visit.to("queue/overview")
        expect(page.locator(".plot")).to_have_count(4)
        expect(page.get_by_role("button", name="24 hours")).to_have_attribute(
            "aria-pressed", "true"
        )
        expect(page.get_by_role("img", name=re.compile("^Sent: .*24 hours"))).to_be_visible()
        expect(page.locator(".plot").filter(has_text="Sent")).to_contain_text("at most 1.0/s")
        expect(page.locator(".plot").filter(has_text="Waiting")).to_contain_text("at most 7")
        visit.check("queue-day", axe)
        visit.check_width("queue-day", "phone", axe)
        assert visit.errors == []


def test_a_chart_that_has_just_begun_says_so(relay: RelayProcess, browse: Browse) -> None:
    """One dot is no curve."""
    with browse() as visit:
        visit.page.route("**/api/v1/history?*", lambda asked: asked.fulfill(json=[]))
        page = signed_in(visit, relay, "now")
        waiting = page.locator(".plot").filter(has_text="Waiting")
        expect(waiting).to_contain_text("collecting")
        expect(waiting).to_contain_text("at most", timeout=30_000)  # once there are two
        assert visit.errors == []


def test_a_key_sees_what_became_of_its_own_mail(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """The charts of its queue are of that alone, as its name says."""
    with browse() as visit, relay.http() as api:
        made = {"owner": "charts", "scopes": ["send"]}
        token = api.post("/api/v1/keys", json=made).json()["token"]
        box = api.post("/api/v1/mailboxes").json()["address"]
        letter = {"from": "a@relay.localhost", "to": [box], "subject": "s", "text": "t"}
        for _ in range(2):
            api.post(
                "/api/v1/messages/send",
                json=letter,
                headers={"Authorization": f"Bearer {token}"},
            ).raise_for_status()
        own = "SELECT id FROM relay.outbound_letters WHERE recipient = %s"
        with psycopg.connect(relay.run["database_url"], autocommit=True) as sql:
            eventually_sync(
                lambda: (
                    sql.execute(
                        "UPDATE relay.outbound_log SET finished_at = now() - interval '9 minutes'"
                        f" WHERE id IN ({own})",
                        [box],
                    ).rowcount
                ),
                "both are sent, and that was a while ago",
                until=lambda count: count == 2,
            )
        page = visit.page
        page.goto(relay.run["http"])
        sign_in(page, token)
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        visit.to("queue/overview")
        expect(page.locator(".plot")).to_have_count(2)
        page.get_by_role("button", name="1 hour").click()
        expect(page.locator(".plot").first).to_contain_text("at most 2.0/min")
        expect(page.get_by_role("heading", name="Your queue")).to_be_visible()
        visit.check("queue-day-of-a-key", axe)
        assert visit.errors == []


def test_all_of_a_list_are_held_and_cancelled(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """As the filter says; how many these are is in the question."""
    with browse() as visit, relay.http() as api:
        for number in range(3):
            body = {"from": "a@relay.localhost", "subject": f"all {number}", "text": "t"}
            to = f"x{number}@{'one' if number else 'two'}.all.example"
            body |= {"send_at": "2099-01-01T00:00:00Z"}
            api.post("/api/v1/messages/send", json={**body, "to": [to]}).raise_for_status()
        page = signed_in(visit, relay, "queue/queued")
        page.get_by_label("Destination").fill("one.all.example")
        expect(row(page, "outbound", "all 0")).to_have_count(0)
        # The filter stands in the address: a reload, back, a story and another state keep it.
        asked = re.compile(r"#/queue/queued\?domain=one\.all\.example$")
        expect(page).to_have_url(asked)
        page.reload()
        expect(page.get_by_label("Destination")).to_have_value("one.all.example")
        row(page, "outbound", "all 1").get_by_role("link").click()
        expect(page).to_have_url(re.compile(r"#/queue/queued/[0-9a-f-]{36}\?domain="))
        page.get_by_role("link", name="Close").click()
        expect(page).to_have_url(asked)
        visit.to("queue/queued")
        expect(row(page, "outbound", "all 0")).to_be_visible()
        page.go_back()
        expect(row(page, "outbound", "all 0")).to_have_count(0)
        dialog, states = page.get_by_role("dialog"), page.locator("#states")
        for verb, state in (("hold", "Queued"), ("cancel", "Held")):
            states.get_by_role("link", name=state).click()
            page.locator("#acts").get_by_role("button", name=f"{verb} 2").click()
            expect(dialog).to_contain_text("2 messages")
            expect(dialog).to_contain_text("one.all.example")
            visit.check(f"{verb}-all", axe)
            dialog.get_by_role("button", name=verb.capitalize()).click()
            expect(page.get_by_text("2 messages changed")).to_be_visible()
            expect(row(page, "outbound", "all")).to_have_count(0)
        expect(page.locator("#acts")).to_be_hidden()  # there is nothing to act on
        # Of a list with all states the buttons say how many of it they are for.
        states.get_by_role("link", name="All").click()
        expect(row(page, "outbound", "all")).to_have_count(2)
        expect(page.locator("#acts").get_by_role("button")).to_have_count(0)
        page.get_by_label("Destination").fill("all.example")
        page.get_by_label("Destination").fill("two.all.example")
        expect(row(page, "outbound", "all 0")).to_be_visible()
        expect(page.locator("#acts").get_by_role("button")).to_have_text(["hold 1", "cancel 1"])
        assert visit.errors == []


def test_a_messages_story_is_told_and_changed(relay: RelayProcess, browse: Browse) -> None:
    """Held, cancelled, retried and suppressed from the page; each attempt with its phases."""
    with browse() as visit, relay.http() as api:

        def send(subject: str, to: str) -> None:
            body = {"from": "a@relay.localhost", "to": [to], "subject": subject, "text": "t"}
            api.post("/api/v1/messages/send", json=body).raise_for_status()

        page = signed_in(visit, relay, "queue")
        page.get_by_role("button", name="pause all").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        visit.to("queue/overview")
        expect(page.locator("#queue-state")).to_contain_text("Paused")
        here = page.locator(".rail [aria-current=page]")
        expect(here).to_have_text("The whole queue")
        visit.to("queue/all")
        send("waits", "x@relay.localhost")
        row(page, "outbound", "waits").get_by_role("link").click()
        story = page.locator("#story")
        story.get_by_role("button", name="hold").click()
        expect(story.locator("dd").first).to_have_text("held")
        if not story.locator("#story-raw").count():
            story.get_by_text("As it is sent").click()
        expect(story.locator("#story-raw")).to_contain_text("Subject: waits")
        story.get_by_role("button", name="retry").click()
        expect(story.locator("dd").first).to_have_text("queued")
        expect(story.locator("#story-raw")).to_contain_text("Message-ID: <")
        page.get_by_role("button", name="resume all").click()
        expect(story.locator("dd").first).to_have_text("bounced")
        expect(story.locator(".phases .said")).to_contain_text("550 5.1.1")
        story.get_by_role("link", name="Close").click()
        for key in ("j", "k", "Enter"):  # to the first row, wherever it stood
            page.keyboard.press(key)
        expect(page.locator("#story-title")).to_contain_text("waits")
        expect(story.locator("dd").first).to_have_text("bounced")
        story.get_by_role("link", name="Log lines").click()
        expect(page.locator("#lines")).to_contain_text("outbound.refused")

        visit.to("queue/overview")
        page.get_by_label("Address").fill("x@elsewhere.example")
        page.get_by_role("button", name="Suppress").click()
        suppressed = row(page, "suppressions", "x@elsewhere.example")
        expect(suppressed).to_be_visible()
        suppressed.get_by_role("button", name="remove").click()
        expect(suppressed).to_have_count(0)
        page.locator("#states").get_by_role("link", name="Bounced").click()
        expect(page).to_have_url(re.compile("#/queue/bounced$"))
        expect(row(page, "outbound", "waits")).to_be_visible()
        page.get_by_label("Destination").fill("other.example")
        expect(row(page, "outbound", "waits")).to_have_count(0)
        assert visit.errors == []


def test_a_click_in_the_queue_shows_the_story_beside_it(
    relay: RelayProcess, browse: Browse
) -> None:
    """Each state has its list and its address; a story opens beside it and stays on a reload."""
    with browse() as visit, relay.http() as api:
        body = {"from": "a@relay.localhost", "to": ["y@relay.localhost"], "text": "t"}
        for number in range(40):
            api.post("/api/v1/messages/send", json={**body, "subject": f"no {number}"})
        page = signed_in(visit, relay, "queue/bounced")
        states = page.locator("#states")
        expect(states.get_by_role("link", name="Bounced")).to_have_attribute("aria-current", "page")
        expect(states.get_by_role("link", name="Bounced").locator(".count")).to_have_text(
            re.compile(r"\d")
        )
        chosen = row(page, "outbound", "no 39")
        chosen.get_by_role("link").click()
        title = page.locator("#story-title")
        expect(title).to_be_in_viewport()
        expect(title).to_have_text("no 39")
        expect(chosen).to_be_in_viewport()
        expect(page).to_have_url(re.compile("#/queue/bounced/[0-9a-f-]{36}$"))
        page.reload()
        expect(title).to_have_text("no 39")
        page.go_back()
        expect(title).to_be_hidden()
        # Somebody reads further down: what comes does not move it.
        scroller = page.locator("#outbound")
        scroller.evaluate("it => it.scrollTo(0, 200)")
        read = row(page, "outbound", "no 30")
        before = read.bounding_box()
        api.post("/api/v1/messages/send", json={**body, "subject": "comes later"})
        for _ in range(2):
            with page.expect_response(lambda got: "/api/v1/outbound?" in got.url):
                pass
        assert read.bounding_box() == before
        scroller.evaluate("it => it.scrollTo(0, 0)")
        expect(row(page, "outbound", "comes later")).to_be_visible()
        # One group of all that failed alike, retried at once.
        visit.to("queue/failures")
        group = row(page, "failures", "no such mailbox").first
        count = int(group.locator(".count").inner_text())
        assert count >= 41
        group.get_by_role("link").click()
        expect(title).to_be_in_viewport()
        # Beside it are the others of the group.
        expect(page).to_have_url(re.compile(r"#/queue/bounced/[0-9a-f-]{36}\?domain="))
        expect(row(page, "outbound", "no such mailbox").nth(20)).to_be_attached()
        opened = page.url.partition("#/queue/bounced/")[2]
        visit.to("queue/failures")
        group.get_by_role("button", name="Retry all").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"Retry {count} messages")
        dialog.get_by_role("button", name="Retry").click()
        expect(page.get_by_text(f"{count} messages queued again")).to_be_visible()
        visit.to(f"queue/all/{opened}")
        expect(page.locator("#story .attempts > li")).to_have_count(2)
        assert visit.errors == []


def test_accounts_are_made_and_changed(relay: RelayProcess, browse: Browse) -> None:
    """An account made on the page gets its letter, and its status changes by a press."""
    with browse() as visit, relay.http() as api:
        made = api.post("/api/v1/mailboxes").json()["address"]
        page = signed_in(visit, relay, "accounts")
        page.get_by_label("Email").fill(made)
        page.get_by_label("Login").fill("ann")
        page.get_by_role("button", name="Make an account").click()
        ann = row(page, "accounts", made)
        expect(ann).to_contain_text("provisioned")
        arrived = api.get(f"/api/v1/mailboxes/{made}/messages/wait", params={"timeout": 20})
        assert arrived.status_code == 200
        ann.get_by_text("show").click()
        expect(ann.get_by_role("link", name="activation")).to_be_visible()
        ann.get_by_role("button", name="suspend").click()
        expect(ann).to_contain_text("suspended")
        ann.get_by_role("button", name="unsuspend").click()
        expect(ann).to_contain_text("provisioned")
        page.get_by_label("Email").fill("no address")
        page.get_by_label("Login").fill("bob")
        page.get_by_role("button", name="Make an account").click()
        expect(page.get_by_role("alert").filter(has_text="email")).to_be_visible()
        assert visit.errors == []


def test_the_lines_in_empty_views_run_as_they_stand(
    relay: RelayProcess, browse: Browse, tmp_path: Path
) -> None:
    """Each brings something into its view, and stands there no more."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "RELAY_DATA_DIR": str(relay.data_dir)}
    with browse() as visit:
        page = signed_in(visit, relay, "queue/all")
        for view, rows in (
            ("queue/all", "#outbound li"),
            ("accounts", "#accounts tbody tr"),
            ("devices", "#device-inboxes tbody tr"),
        ):
            visit.to(view)
            lines = page.locator("main .snippet-code pre")
            expect(lines).to_have_count(1)
            said = lines.text_content()
            assert said
            if view == "accounts":  # the relay has some by other tests, this one perhaps
                said = said.replace("ann", f"ann-{secrets.token_hex(4)}")
            subprocess.run(["sh", "-e", "-c", said], env=env, cwd=tmp_path, check=True, timeout=60)
            expect(page.locator(rows).first).to_be_visible()
            expect(lines).to_be_hidden()
        assert visit.errors == []


def test_devices_show_what_waits(relay: RelayProcess, browse: Browse) -> None:
    """A blob that is put makes its device's inbox a row."""
    with browse() as visit, relay.http() as api:
        page = signed_in(visit, relay, "devices")
        key = "5a" * 32
        put = api.post(f"/api/v1/devices/{key}/blobs", content=b"x" * 1000)
        assert put.status_code == 201
        expect(row(page, "device-inboxes", key)).to_contain_text("1")
        assert visit.errors == []


def test_the_log_is_live_and_filtered(relay: RelayProcess, browse: Browse) -> None:
    """Lines come by themselves; a text, or a press of a field, narrows them; held still, nothing
    moves, and nothing is lost."""
    with browse("phone") as visit, relay.http() as api:
        page = signed_in(visit, relay, "logs")
        expect(page.locator("#lines li").first).to_be_attached()
        left = "at => at.scrollHeight - at.scrollTop - at.clientHeight"
        assert page.locator("#lines").evaluate(left) < 40  # at its end, where it follows
        page.get_by_label("Actor").fill("nobody")
        expect(page.locator("#line-count")).to_have_text("No actor is called nobody.")
        page.get_by_label("Actor").fill("")
        page.get_by_label("Text or message id").fill("supervision.pause")
        # Asked for anew a moment after the last key: until then the old lines stand.
        others = page.locator("#lines li").filter(has_not_text="supervision.pause")
        expect(others).to_have_count(0)
        api.post("/api/v1/supervision/webhooks/pause").raise_for_status()
        api.post("/api/v1/supervision/webhooks/resume").raise_for_status()
        # Other tests may have paused others before: the line to wait for is that of the webhooks.
        expect(page.locator("#lines li").last).to_contain_text("target=webhooks")
        count = page.locator("#lines li").count()
        page.get_by_role("button", name="Pause").click()
        api.post("/api/v1/supervision/webhooks/pause").raise_for_status()
        api.post("/api/v1/supervision/webhooks/resume").raise_for_status()
        expect(page.get_by_role("button", name="Resume (1 more)")).to_be_visible()
        expect(page.locator("#lines li")).to_have_count(count)
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("#lines li")).to_have_count(count + 1)
        page.locator("#lines li").last.get_by_text("target=webhooks").click()
        wanted = "supervision.pause target=webhooks"
        expect(page.get_by_label("Text or message id")).to_have_value(wanted)
        expect(page).to_have_url(re.compile("#/logs\\?text=supervision.pause[+]target%3Dwebhooks$"))
        page.reload()
        expect(page.get_by_label("Text or message id")).to_have_value(wanted)
        expect(page.locator("#lines li").last).to_contain_text("target=webhooks")
        assert visit.errors == []


_CUT = """
    self.cuts = [];
    const real = self.fetch;
    self.fetch = (url, options = {}) => {
        const cut = new AbortController();
        if (String(url).includes("/api/v1/logs")) cuts.push(() => cut.abort());
        return real(url, { ...options, signal: AbortSignal.any([options.signal, cut.signal].filter(Boolean)) });
    };
"""  # noqa: E501 - as a script reads


def test_lines_that_came_while_held_outlive_a_new_stream(
    relay: RelayProcess, browse: Browse
) -> None:
    """A connection that breaks while the page is held still loses no line, and brings none twice,
    neither then nor after."""
    with browse() as visit, relay.http() as api:
        visit.page.add_init_script(_CUT)
        page = signed_in(visit, relay, "logs?text=supervision.resume")
        swap, lines = page.locator("#log-hold"), page.locator("#lines li")

        def turn() -> None:
            for verb in ("pause", "resume"):
                api.post(f"/api/v1/supervision/webhooks/{verb}").raise_for_status()

        turn()
        expect(lines.last).to_contain_text("target=webhooks")
        count = lines.count()
        swap.click()
        turn()
        expect(swap).to_have_text("Resume (1 more)")
        with page.expect_response("**/api/v1/logs?*"):
            page.evaluate("cuts.pop()()")
        turn()
        expect(swap).to_have_text("Resume (2 more)")
        swap.click()
        expect(lines).to_have_count(count + 2)
        with page.expect_response("**/api/v1/logs?*"):
            page.evaluate("cuts.pop()()")
        turn()
        expect(lines).to_have_count(count + 3)
        assert visit.errors == []


def test_a_trace_is_shown_line_by_line(relay: RelayProcess, browse: Browse) -> None:
    """What the log has in several lines, such as a trace, is shown so, monospaced."""
    trace = "Traceback:\n  File 'a.py', line 1, in f\nValueError: no"
    line = {"timestamp": "2026-01-01T00:00:00Z", "level": "error", "event": "actor.failed",
            "exception": trace}  # fmt: skip
    with browse() as visit:
        page = visit.page
        page.route("**/api/v1/logs?*", lambda it: it.fulfill(body=f"{json.dumps(line)}\n"))
        signed_in(visit, relay, "logs")
        shown = page.locator("#lines pre").first
        expect(shown).to_have_text(trace)
        box = shown.bounding_box()
        assert box is not None
        height = shown.evaluate("it => parseFloat(getComputedStyle(it).lineHeight)")
        assert round(box["height"] / height) == 3
        assert "mono" in shown.evaluate("it => getComputedStyle(it).fontFamily")


def test_the_log_tells_a_messages_story(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """A press of an id shows every line with it, of every actor, and leads to its deliveries."""
    with browse() as visit, relay.http() as api:
        letter = {"from": "a@relay.localhost", "to": ["nobody@relay.localhost"], "text": "t"}
        sent = api.post("/api/v1/messages/send", json=letter).json()["messages"][0]["id"]
        page = signed_in(visit, relay, "logs?actor=sender&text=outbound.refused")
        page.locator("#lines .field").filter(has_text=sent).click()
        expect(page.get_by_label("Text or message id")).to_have_value(sent)
        expect(page.get_by_label("Actor")).to_have_value("")
        expect(page.get_by_label("Level")).to_have_value("debug")
        expect(page.locator("#lines li").first).to_contain_text(sent)
        expect(page.locator("#log-story")).to_contain_text("that this node wrote since its start")
        kept = page.locator("#log-kept li")
        expect(kept.first).to_contain_text("queued")
        expect(kept.nth(1)).to_contain_text("Attempt 1")
        expect(kept.last).to_contain_text("bounced")
        visit.check("log-story", axe)
        page.get_by_role("link", name="Its deliveries").click()
        expect(page.locator("#story dd").first).to_have_text("bounced")
        assert visit.errors == []


def test_settings_are_found_and_say_where_they_come_from(
    relay: RelayProcess, browse: Browse
) -> None:
    """By words of what they mean, in the view and in the palette, which leads to one."""
    with browse() as visit:
        page = signed_in(visit, relay, "settings")
        rows = page.locator("#settings tbody tr")
        expect(row(page, "settings", "RELAY_SMTP__BIND")).to_contain_text("environment")
        expect(row(page, "settings", "RELAY_SECRET_KEY")).to_contain_text("default")
        every = rows.count()
        page.get_by_label("only what is set").check()
        expect(row(page, "settings", "RELAY_SMTP__CHAOS")).to_have_count(0)
        assert 0 < rows.count() < every
        page.get_by_label("only what is set").uncheck()
        page.get_by_label("Find a setting").fill("privileges loopback 2525")
        expect(rows).to_have_count(1)
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill("smtp__chaos")
        page.get_by_role("option", name="RELAY_SMTP__CHAOS").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("Faults on demand")
        expect(page).to_have_url(re.compile("#/settings/smtp.chaos$"))
        width, height = SIZES["phone"]
        page.set_viewport_size({"width": width, "height": height})
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill("smtp__chaos")
        name = page.get_by_role("option", name="RELAY_SMTP__CHAOS").locator(".name")
        expect(name).to_have_text("RELAY_SMTP__CHAOS")
        assert name.evaluate(_WHOLE)  # what it means gives way to its name
        visit.screenshot("palette-phone")
        assert visit.errors == []


_WHOLE = "it => it.scrollWidth <= it.clientWidth && it.scrollHeight <= it.clientHeight"


def test_domains_say_what_they_do(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """The relay's own, with who sends from them, and those that only keys name; what one publishes
    fits each screen, and what is wrong with it has another colour than what is well."""
    with browse() as visit, relay.http() as api:
        wanted = {"owner": "shop", "scopes": "send", "from": ["@shop.example", "own"]}
        key = api.post("/api/v1/keys", json=wanted).json()
        page = signed_in(visit, relay, "domains")
        own = row(page, "domains", "relay.localhost")
        expect(own).to_contain_text("received; new inboxes are here")
        expect(own).to_contain_text("no-reply@relay.localhost")
        expect(row(page, "domains", "shop.example")).to_contain_text("@shop.example (shop)")
        expect(page.get_by_text("RELAY_SMTP__DOMAINS=")).to_be_visible()
        page.get_by_label("A domain to check").fill("shop.example")
        page.get_by_role("button", name="Check what it publishes").click()
        expect(row(page, "records", "DKIM")).to_contain_text("relay dkim create", timeout=30_000)
        expect(row(page, "records", "DKIM").locator("td.ok")).to_have_text("no")
        bad = "getComputedStyle(document.querySelector('#records .wrong td.ok')).color"
        assert page.evaluate(bad) == "rgb(176, 0, 32)"
        visit.check("domain-check", axe)
        for size in ("tablet", "phone"):
            visit.check_width("domain-check", size, axe)
        own.get_by_role("button", name="Check what").click()
        only = page.locator("#records tbody tr")
        expect(only).to_have_count(1)
        expect(only.locator("td.ok")).to_have_text("not public")
        expect(only).to_contain_text("names that end in localhost are not public")
        assert page.locator("#records .wrong").count() == 0
        visit.to("keys")
        expect(row(page, "keys", "shop")).to_contain_text("@shop.example, own inboxes")
        api.delete(f"/api/v1/keys/{key['id']}").raise_for_status()
        assert visit.errors == []


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until `target` has the focus."""
    expect(target).to_be_visible()
    for _ in range(100):  # every actor and group has three commands
        if target.evaluate("it => it === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


def test_the_keyboard_is_enough(relay: RelayProcess, browse_at_home: Browse) -> None:
    """Everything can be reached and pressed by keys, and live changes leave the focus alone."""
    # In a window: behind the page's last link, keys go on through its bars to the first one.
    with browse_at_home() as visit, relay.http() as api:
        page, keys = visit.page, visit.page.keyboard
        page.goto(relay.run["http"])
        tab_to(page, page.get_by_label("New inbox"))
        keys.press("Enter")
        expect(page.locator("#stream")).to_have_text("live")
        address = page.locator("#address").inner_text()
        deliver(relay, address, mail("hello", "text of it", "<p>HTML of it</p>"))
        tab_to(page, page.get_by_role("link", name="hello"))
        keys.press("Enter")
        expect(page.locator("#message-subject")).to_be_focused()
        tab_to(page, page.get_by_role("button", name="HTML"))
        keys.press("Space")
        expect(page.frame_locator("iframe").get_by_text("HTML of it")).to_be_visible()

        tab_to(page, page.get_by_role("link", name="Sign in"))
        keys.press("Enter")
        expect(page.get_by_role("heading", name="Sign in")).to_be_focused()
        tab_to(page, page.get_by_label("Token"))
        keys.type(relay.run["admin_token"])
        keys.press("Enter")
        tab_to(page, page.get_by_role("link", name="Now"))
        keys.press("Enter")
        menu, opener = page.locator("#commands"), node(page, "reaper")
        tab_to(page, node(page, "relay"))
        while not opener.evaluate("it => it === document.activeElement"):
            keys.press("ArrowDown")
        for verb, state in (("pause", "paused"), ("resume", "running")):
            keys.press("Enter")
            tab_to(page, menu.get_by_role("button", name=verb))
            keys.press("Enter")
            expect(node(page, "reaper")).to_contain_text(state)
            api.post("/api/v1/supervision/summariser/restart").raise_for_status()
            expect(opener).to_be_focused()
        keys.press("Enter")
        keys.press("Escape")
        expect(menu).to_be_hidden()
        expect(opener).to_be_focused()
        outline = opener.evaluate("it => getComputedStyle(it).outlineStyle")
        assert outline != "none", "the focus cannot be seen"
