"""What a person sees: the pages of a running relay in a real browser.

Screenshots are left in `test-artefacts/`.
"""

from __future__ import annotations

import re
import smtplib
from email import policy
from email.message import EmailMessage

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import TIMEOUT, Browse, Visit
from tests.browser.hostile import (
    CLICKS,
    CONNECTS,
    LEAVES,
    LOADS,
    RUNS,
    Elsewhere,
    catalogue,
    unparseable,
)
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)

SENDER = "sender@client.example"


def deliver(relay: RelayProcess, address: str, *messages: bytes) -> None:
    """Send messages over SMTP, one after the other."""
    with smtplib.SMTP(*relay.smtp) as client:
        for message in messages:
            client.sendmail(SENDER, [address], message)


def mail(subject: str, text: str | None, html: str | None = None) -> bytes:
    """Return a message with text, HTML or both."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = f"Ann Example <{SENDER}>", subject
    if text is not None:
        message.set_content(text)
        if html is not None:
            message.add_alternative(html, subtype="html")
    elif html is not None:
        message.set_content(html, subtype="html")
    return message.as_bytes()


def create_inbox(page: Page) -> str:
    """Create an inbox on the page, and return its address once mail for it is listened for."""
    address = page.locator("#address")
    before = address.inner_text() if address.count() else ""
    page.get_by_role("button", name="Create").click()
    expect(address).to_be_visible()
    expect(address).not_to_have_text(before)
    expect(page.locator("#stream")).to_have_text("listening")
    return address.inner_text()


def sign_in(page: Page, token: str) -> None:
    """Sign in, with whatever token."""
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("main").get_by_role("button", name="Sign in").click()


def signed_in(visit: Visit, relay: RelayProcess, view: str = "now") -> Page:
    """Open a view as the administrator."""
    page = visit.page
    page.goto(f"{relay.run['http']}/#/signin")
    page.get_by_label("Token").fill(relay.run["admin_token"])
    page.get_by_role("main").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.goto(f"{relay.run['http']}/#/{view}")
    return page


def node(page: Page, name: str) -> Locator:
    """The row of an actor in the tree."""
    return page.locator("#tree tr").filter(has=page.get_by_role("cell", name=name, exact=True))


def row(page: Page, table: str, text: str) -> Locator:
    """The row of a table or list that holds a text."""
    return page.locator(f"#{table} :is(tbody tr, li)").filter(has_text=text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_every_view_fits_is_accessible_and_loads_nothing_from_elsewhere(
    relay: RelayProcess, browse: Browse, axe: str, size: str, scheme: str
) -> None:
    """Each view, filled: no wider than the screen, silent, of one origin, strict in policy, and
    nothing for the rules of accessibility to find."""
    own = relay.run["http"]
    with browse(size, scheme) as visit, relay.http() as api:
        page = visit.page
        answer = page.goto(f"{own}/")
        assert answer is not None
        allowed = answer.headers["content-security-policy"]
        assert "default-src 'none'" in allowed
        assert "unsafe" not in allowed
        expect(page.locator("#health")).to_have_text("ready")
        visit.check("signed-out", axe)
        page = signed_in(visit, relay, "mail")
        address = create_inbox(page)
        deliver(
            relay,
            address,
            mail("A subject that goes on " + "and on " * 20, "Your code is 482913.\n"),
            mail("Unbroken" * 30, None, '<h1>Hello</h1><p style="color: teal">styled</p>'),
        )
        expect(page.locator("#messages li")).to_have_count(2)
        visit.check("list", axe)
        page.get_by_role("link", name="A subject that goes on").click()
        expect(page.locator("#message-code")).to_contain_text("482913")
        visit.check("message", axe)
        visit.to(f"mail/{address}")
        page.get_by_role("link", name="Unbroken").click()
        expect(page.frame_locator("iframe").get_by_text("styled")).to_be_visible()
        visit.check("message-html", axe)

        letter = {"from": f"a@{address.partition('@')[2]}", "to": ["nobody@relay.localhost"]}
        sent = api.post("/api/v1/messages/send", json={**letter, "subject": "S" * 90, "text": "t"})
        outbound = sent.json()["messages"][0]["id"]
        visit.to("now")
        expect(node(page, "control")).to_contain_text("running")
        expect(page.locator("#counts")).to_contain_text("mailboxes")
        visit.check("now", axe)
        visit.to(f"queue/{outbound}")
        expect(page.locator("#story dd").first).to_have_text("bounced")
        visit.check("queue", axe)
        visit.to("accounts")
        expect(page.locator("#collector")).to_contain_text("letters wait")
        visit.check("accounts", axe)
        visit.to("devices")
        expect(page.locator("#device-counts")).to_contain_text("blobs")
        visit.check("devices", axe)
        visit.to("keys")
        expect(page.get_by_role("button", name="Make a key")).to_be_visible()
        visit.check("keys", axe)
        visit.to("logs")
        expect(page.locator("#lines li").first).to_be_attached()
        visit.check("logs", axe)

        page.get_by_role("link", name="API").click()
        calls = page.locator("details")
        expect(calls.first).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        expect(page.get_by_text("GET /api/v1/logs")).to_be_visible()
        visit.check("docs", axe)
        assert visit.console == []
        assert visit.errors == []
        assert visit.foreign(own) == []


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
        deliver(relay, address, mail("second", "Your verification code is 482913", html))
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("second")

        page.get_by_role("link", name="second").click()
        expect(page.locator("#message-code")).to_contain_text("482913")
        expect(page.frame_locator("iframe").locator("b")).to_have_text("482913")
        expect(page.locator("#message-text")).to_have_count(0)
        page.get_by_role("button", name="Text").click()
        expect(page.locator("#message-text")).to_contain_text("Your verification code is 482913")
        expect(page.locator("iframe")).to_have_count(0)
        page.get_by_role("link", name="first").click()
        expect(page.locator("#message-text")).to_have_text("one\n")
        expect(page.locator("iframe")).to_have_count(0)

        assert create_inbox(page) != address
        expect(page.locator("#messages li")).to_have_count(0)
        assert page.evaluate("window.since") == "the beginning"
        assert visit.console == []


def test_a_message_is_read_in_every_form(relay: RelayProcess, browse: Browse) -> None:
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
        page.get_by_role("button", name="Copy the code", exact=True).click()
        expect(page.get_by_role("button", name="Copy the code", exact=True)).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == "135790"
        target = page.locator("#message-link a")
        expect(target).to_have_attribute("href", "https://shop.example/pay?x=1&y=2")
        expect(target).to_have_attribute("rel", "noopener noreferrer")
        page.get_by_role("button", name="Headers").click()
        expect(page.locator("#message-headers")).to_contain_text("seen <b>as text</b>")
        page.get_by_role("button", name="Raw").click()
        expect(page.locator("#message-raw")).to_contain_text("X-Note: seen")
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


def test_an_anonymous_inbox_outlives_a_reload(relay: RelayProcess, browse: Browse) -> None:
    """Cookie and key open it again, no script can read the one, and no address holds a token."""
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        deliver(relay, address, mail("still here", "text", "<p>html</p>"))
        expect(page.locator("#messages li")).to_have_count(1)
        page.reload()
        expect(page.locator("#stream")).to_have_text("listening")
        page.get_by_role("link", name="still here").click()
        page.get_by_role("button", name="HTML").click()
        expect(page.frame_locator("iframe").get_by_text("html")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        assert "rs_" not in page.evaluate("JSON.stringify(localStorage)")
        assert not [url for url in visit.requests if "token" in url or "rs_" in url]
        page.goto(f"{relay.run['http']}/#/mail")
        expect(page.locator("#inboxes li")).to_have_count(1)


def test_the_page_says_when_an_inbox_is_over(relay: RelayProcess, browse: Browse) -> None:
    """Deleted elsewhere, the inbox is said to be gone, and a wrong name is explained."""
    with browse() as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        api.delete(f"/api/v1/mailboxes/{address}").raise_for_status()
        expect(page.locator("#stream")).to_contain_text("mailbox")
        page.get_by_label("Name").fill("not a name")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert").first).not_to_be_empty()
        assert visit.errors == []


def test_signing_in_opens_the_views_and_signing_out_shuts_them(
    relay: RelayProcess, browse: Browse
) -> None:
    """A wrong token is refused; the right one stays in no field, script or storage."""
    with browse() as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        sign_in(page, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("token")
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


def test_the_tree_is_live(relay: RelayProcess, browse: Browse) -> None:
    """What happens to an actor shows by itself, and what needs attention comes first."""
    with browse() as visit, relay.http() as api:
        page = signed_in(visit, relay)
        expect(node(page, "reaper")).to_contain_text("running")
        page.evaluate("window.since = 'the beginning'")
        api.post("/api/v1/supervision/reaper/pause").raise_for_status()
        expect(node(page, "reaper")).to_contain_text("paused")
        expect(page.locator(".attention")).to_contain_text("Reaper is paused.")
        node(page, "reaper").get_by_role("button", name="resume").click()
        expect(node(page, "reaper")).to_contain_text("running")
        expect(page.locator(".attention")).not_to_contain_text("Reaper")
        restarts = node(page, "reaper").locator(".restarts")
        before = int(restarts.inner_text())
        node(page, "reaper").get_by_role("button", name="restart").click()
        expect(restarts).to_have_text(str(before + 1))
        node(page, "reaper").get_by_role("link", name="log").click()
        expect(page.get_by_label("Actor")).to_have_value("reaper")
        assert page.evaluate("window.since") == "the beginning"
        assert visit.errors == []


def test_a_messages_story_is_told_and_changed(relay: RelayProcess, browse: Browse) -> None:
    """Held, cancelled, retried and suppressed from the page; each attempt with its phases."""
    with browse() as visit, relay.http() as api:

        def send(subject: str, to: str) -> None:
            body = {"from": "a@relay.localhost", "to": [to], "subject": subject, "text": "t"}
            api.post("/api/v1/messages/send", json=body).raise_for_status()

        page = signed_in(visit, relay, "queue")
        page.get_by_role("button", name="pause all").click()
        expect(page.locator("#queue-state")).to_contain_text("Paused")
        send("waits", "x@relay.localhost")
        row(page, "outbound", "waits").get_by_role("link").click()
        story = page.locator("#story")
        story.get_by_role("button", name="hold").click()
        expect(story.locator("dd").first).to_have_text("held")
        story.get_by_role("button", name="retry").click()
        expect(story.locator("dd").first).to_have_text("queued")
        page.get_by_role("button", name="resume all").click()
        expect(story.locator("dd").first).to_have_text("bounced")
        expect(story.locator(".phases li").last).to_contain_text("550")
        story.get_by_role("link", name="Log lines").click()
        expect(page.locator("#lines")).to_contain_text("outbound.refused")

        visit.to("queue")
        page.get_by_label("Address").fill("x@elsewhere.example")
        page.get_by_role("button", name="Suppress").click()
        suppressed = row(page, "suppressions", "x@elsewhere.example")
        expect(suppressed).to_be_visible()
        page.get_by_label("Status").select_option("bounced")
        expect(row(page, "outbound", "waits")).to_be_visible()
        page.get_by_label("Destination").fill("other.example")
        expect(row(page, "outbound", "waits")).to_have_count(0)
        suppressed.get_by_role("button", name="remove").click()
        expect(suppressed).to_have_count(0)
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
        ann.get_by_role("button", name="suspend").click()
        expect(ann).to_contain_text("suspended")
        ann.get_by_role("button", name="unsuspend").click()
        expect(ann).to_contain_text("provisioned")
        page.get_by_label("Email").fill("no address")
        page.get_by_label("Login").fill("bob")
        page.get_by_role("button", name="Make an account").click()
        expect(page.get_by_role("alert").filter(has_text="email")).to_be_visible()
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
    """Lines come by themselves; a text narrows them; held still, nothing moves."""
    with browse() as visit, relay.http() as api:
        page = signed_in(visit, relay, "logs")
        expect(page.locator("#lines li").first).to_be_attached()
        page.get_by_label("Text or message id").fill("supervision.pause")
        page.get_by_label("Text or message id").press("Enter")
        api.post("/api/v1/supervision/webhooks/pause").raise_for_status()
        api.post("/api/v1/supervision/webhooks/resume").raise_for_status()
        # Other tests may have paused others before: the line to wait for is that of the webhooks.
        expect(page.locator("#lines li").last).to_contain_text("target=webhooks")
        count = page.locator("#lines li").count()
        page.get_by_role("button", name="hold still").click()
        api.post("/api/v1/supervision/webhooks/pause").raise_for_status()
        api.post("/api/v1/supervision/webhooks/resume").raise_for_status()
        expect(page.locator("#lines li")).to_have_count(count)
        page.get_by_role("button", name="go on").click()
        expect(page.locator("#lines li")).to_have_count(count + 1)
        assert visit.errors == []


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until `target` has the focus."""
    expect(target).to_be_visible()
    for _ in range(100):  # every actor and group has three commands
        if target.evaluate("it => it === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


def test_the_keyboard_is_enough(relay: RelayProcess, browse: Browse) -> None:
    """Everything can be reached and pressed by keys, and live changes leave the focus alone."""
    with browse() as visit, relay.http() as api:
        page, keys = visit.page, visit.page.keyboard
        page.goto(relay.run["http"])
        tab_to(page, page.get_by_label("Name"))
        keys.press("Enter")
        expect(page.locator("#stream")).to_have_text("listening")
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
        swap = node(page, "reaper").locator("button").last
        expect(swap).to_have_text("pause")
        tab_to(page, swap)
        keys.press("Enter")
        expect(swap).to_have_text("resume")
        api.post("/api/v1/supervision/summariser/restart").raise_for_status()
        expect(swap).to_be_focused()
        keys.press("Enter")
        expect(swap).to_have_text("pause")
        expect(swap).to_be_focused()
        outline = swap.evaluate("it => getComputedStyle(it).outlineStyle")
        assert outline != "none", "the focus cannot be seen"


def test_hostile_mail_would_do_harm_without_protection(browse: Browse) -> None:
    """Shown bare, each entry of the catalogue is heard elsewhere, so silence means something."""
    with Elsewhere() as elsewhere, browse() as visit:
        page = visit.page
        for name, html in catalogue(elsewhere.url, LOADS, RUNS).items():
            page.goto(elsewhere.url)
            if name in LEAVES:
                with page.expect_navigation(url=f"{elsewhere.url}/{name}*"):
                    page.set_content(html, wait_until="commit")
            else:
                page.set_content(html, wait_until="commit")
            elsewhere.wait_for(name)
        for name in CONNECTS:
            # An origin of its own: a connection kept from another entry would serve this one.
            with Elsewhere() as unknown:
                page.set_content(catalogue(unknown.url, CONNECTS)[name])
                unknown.wait_for_connections(1)


def test_hostile_mail_does_nothing(relay: RelayProcess, browse: Browse) -> None:
    """Nothing in the catalogue loads, runs, connects or leads away, on the page or alone."""
    own = relay.run["http"]
    with Elsewhere() as elsewhere, browse() as visit:
        page = visit.page
        page.goto(own)
        address = create_inbox(page)
        shown = catalogue(elsewhere.url, LOADS, RUNS, CONNECTS)
        clicked = catalogue(elsewhere.url, CLICKS)
        hostile = shown | clicked
        deliver(relay, address, *(mail(name, None, html) for name, html in hostile.items()))
        frame, previews = page.frame_locator("iframe"), []
        for name in shown:
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            # Its address comes with a ticket, a moment later.
            expect(page.locator("iframe")).to_have_attribute("src", re.compile("^/"))
            expect(frame.locator("body")).to_be_attached()
            previews.append(f"{own}{page.locator('iframe').get_attribute('src')}")
            page.wait_for_timeout(50)
        page.wait_for_timeout(300)
        assert elsewhere.connections == 0
        for name in clicked:
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            frame.locator("#it").click()
            page.wait_for_timeout(50)
        visit.screenshot("hostile")
        assert elsewhere.heard == set()
        assert page.url.startswith(f"{own}/#/mail/")
        assert page.title() == "Mail · Relay"
        assert page.evaluate("window.hacked") is None
        assert visit.popups == []

        connections = elsewhere.connections  # a link that is pressed may have made some
        for preview in previews:
            page.goto(preview)
            assert page.url == preview
            assert page.evaluate("window.hacked") is None
        page.wait_for_timeout(300)
        assert elsewhere.connections == connections
        assert elsewhere.heard == set()
        assert visit.dialogs == []
        assert visit.downloads == []
        assert visit.errors == []


def test_what_breaks_parsers_is_listed_and_opens(relay: RelayProcess, browse: Browse) -> None:
    """Bombs and broken headers, with markup for a subject, are shown as text like other mail."""
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        odd = unparseable()
        head = f"To: <{address}>\r\nSubject: "
        deliver(relay, address, *(f"{head}{s}\r\n".encode() + text for s, text in odd.items()))
        # New mail goes on top, and moves a row away from under a click.
        expect(page.locator("#messages li")).to_have_count(len(odd))
        for subject in odd:
            page.get_by_role("link", name=subject).click()
            expect(page.locator("#message-subject")).to_have_text(subject)
        visit.screenshot("unparseable")
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hacked") is None
        assert visit.console == []
        assert visit.errors == []
