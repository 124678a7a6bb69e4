"""What a person sees: the pages of a running relay in a real browser.

Screenshots are left in `test-artefacts/`.
"""

from __future__ import annotations

import smtplib
from email import policy
from email.message import EmailMessage

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import TIMEOUT, Browse
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
    before = address.text_content() or ""
    page.get_by_role("button", name="Create").click()
    expect(address).not_to_have_text(before)
    expect(page.locator("#stream")).to_have_text("listening")
    return address.inner_text()


def sign_in(page: Page, token: str) -> None:
    """Sign in, with whatever token."""
    page.get_by_label("Administrator's token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def node(page: Page, name: str) -> Locator:
    """The row of an actor in the tree."""
    return page.locator("#nodes tr").filter(has=page.get_by_role("cell", name=name, exact=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_pages_fit_and_load_nothing_from_elsewhere(
    relay: RelayProcess, browse: Browse, size: str, scheme: str
) -> None:
    """Both pages, filled: no wider than the screen, silent, of one origin, strict in policy."""
    own = relay.run["http"]
    with browse(size, scheme) as visit:
        page = visit.page
        answer = page.goto(f"{own}/")
        assert answer is not None
        allowed = answer.headers["content-security-policy"]
        assert "default-src 'none'" in allowed
        assert "unsafe" not in allowed
        expect(page.locator("#health")).to_have_text("ready")
        sign_in(page, relay.run["admin_token"])
        address = create_inbox(page)
        deliver(
            relay,
            address,
            mail("A subject that goes on " + "and on " * 20, "Your code is 482913.\n"),
            mail("Unbroken" * 30, None, '<h1>Hello</h1><p style="color: teal">styled</p>'),
        )
        page.get_by_role("button", name="Unbroken").click()
        expect(page.frame_locator("iframe").get_by_text("styled")).to_be_visible()
        expect(node(page, "control")).to_contain_text("running")
        visit.screenshot("page")
        assert visit.overflow() <= 0

        page.get_by_role("link", name="API").click()
        calls = page.locator("details")
        expect(calls.first).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        expect(page.get_by_text("GET /api/v1/logs")).to_be_visible()
        visit.screenshot("docs")
        assert visit.overflow() <= 0
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
        expect(page.locator("#messages tr")).to_have_count(0)
        deliver(relay, address, mail("first", "one"))
        expect(page.locator("#messages tr")).to_have_count(1)
        html = "<p>Your verification code is <b>482913</b></p>"
        deliver(relay, address, mail("second", "Your verification code is 482913", html))
        expect(page.locator("#messages tr")).to_have_count(2)
        expect(page.locator("#messages tr").first).to_contain_text("second")

        page.get_by_role("button", name="second").click()
        expect(page.locator("#message-facts")).to_contain_text("code 482913")
        expect(page.locator("#message-text")).to_contain_text("Your verification code is 482913")
        page.get_by_role("button", name="HTML").click()
        expect(page.frame_locator("iframe").locator("b")).to_have_text("482913")
        expect(page.locator("#message-text")).to_be_hidden()
        page.get_by_role("button", name="first").click()
        expect(page.locator("#message-text")).to_have_text("one\n")
        expect(page.locator("iframe")).to_have_count(0)

        assert create_inbox(page) != address
        expect(page.locator("#messages tr")).to_have_count(0)
        assert page.evaluate("window.since") == "the beginning"
        assert visit.console == []


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
        expect(page.locator("#inbox-problem")).not_to_be_empty()
        assert visit.errors == []


def test_the_tree_is_live(relay: RelayProcess, browse: Browse) -> None:
    """A wrong token is refused; with the right one, what happens to an actor shows by itself."""
    with browse() as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        sign_in(page, "wrong")
        expect(page.locator("#tree-problem")).to_contain_text("token")
        expect(page.locator("#tree")).to_be_hidden()
        sign_in(page, relay.run["admin_token"])
        expect(node(page, "reaper")).to_contain_text("running")
        expect(page.locator("#tree-problem")).to_be_empty()
        assert relay.run["admin_token"] not in page.content()
        assert page.locator("[name=token]").input_value() == ""

        page.evaluate("window.since = 'the beginning'")
        api.post("/api/v1/supervision/reaper/pause").raise_for_status()
        expect(node(page, "reaper")).to_contain_text("paused")
        node(page, "reaper").get_by_role("button", name="resume").click()
        expect(node(page, "reaper")).to_contain_text("running")
        restarts = node(page, "reaper").locator(".restarts")
        before = int(restarts.inner_text())
        node(page, "reaper").get_by_role("button", name="restart").click()
        expect(restarts).to_have_text(str(before + 1))
        assert page.evaluate("window.since") == "the beginning"

        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("#tree")).to_be_hidden()
        expect(page.locator("#nodes tr")).to_have_count(0)
        assert visit.errors == []


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until `target` has the focus."""
    expect(target).to_be_visible()
    for _ in range(60):
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
        tab_to(page, page.get_by_role("button", name="hello"))
        keys.press("Enter")
        expect(page.locator("#message-subject")).to_be_focused()
        tab_to(page, page.get_by_role("button", name="HTML"))
        keys.press("Space")
        expect(page.frame_locator("iframe").get_by_text("HTML of it")).to_be_visible()

        tab_to(page, page.get_by_label("Administrator's token"))
        keys.type(relay.run["admin_token"])
        keys.press("Enter")
        swap = node(page, "reaper").get_by_role("button").last
        expect(swap).to_have_text("pause")
        page.get_by_role("link", name="API").focus()
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
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            expect(frame.locator("body")).to_be_attached()
            previews.append(f"{own}{page.locator('iframe').get_attribute('src')}")
            page.wait_for_timeout(50)
        page.wait_for_timeout(300)
        assert elsewhere.connections == 0
        for name in clicked:
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            frame.locator("#it").click()
            page.wait_for_timeout(50)
        visit.screenshot("hostile")
        assert elsewhere.heard == set()
        assert page.url.rstrip("/") == own
        assert page.title() == "Relay"
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
        for subject in odd:
            page.get_by_role("button", name=subject).click()
            expect(page.locator("#message-subject")).to_have_text(subject)
        expect(page.locator("#messages tr")).to_have_count(len(odd))
        visit.screenshot("unparseable")
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hacked") is None
        assert visit.console == []
        assert visit.errors == []
