"""What happens to a page that stays open: races, outages, restarts, and an owner's other doings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import create_inbox, deliver, mail, node, row, signed_in
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay without senders, collector and devices, that a test may stop and start."""
    place = tmp_path_factory.mktemp("endurance") / "data"
    with RelayProcess(place, arguments=("--only", "ingest,control")) as process:
        process.keep_ports()
        yield process


def send(relay: RelayProcess, subject: str) -> str:
    """Queue a message; its id."""
    body = {"from": "a@relay.localhost", "to": ["x@elsewhere.example"], "subject": subject,
            "text": "t"}  # fmt: skip
    with relay.http() as api:
        sent = api.post("/api/v1/messages/send", json=body).raise_for_status()
        return str(sent.json()["messages"][0]["id"])


def entered(page: Page, relay: RelayProcess, scope: str) -> str:
    """Sign in with a new key; its id.  Unlike the administrator's token it outlives a restart."""
    with relay.http() as api:
        key = api.post("/api/v1/keys", json={"owner": "ci", "scopes": scope}).json()
    page.goto(f"{relay.run['http']}/#/signin")
    page.get_by_label("Token").fill(key["token"])
    page.get_by_role("main").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return str(key["id"])


def late(page: Page, pattern: str) -> Callable[[], None]:
    """Hold the answers to calls that match back until the function returned is called."""
    held: list[Route] = []
    page.route(re.compile(pattern), lambda route: held.append(route))

    def let_go() -> None:
        for route in held:
            route.continue_()
        page.unroute(re.compile(pattern))

    return let_go


def test_a_relay_of_receiving_alone_shows_every_view(own: RelayProcess, browse: Browse) -> None:
    """Without senders, collector and devices no view breaks."""
    with browse() as visit:
        page = signed_in(visit, own, "now")
        expect(node(page, "control")).to_contain_text("running")
        expect(page.locator("#counts")).to_contain_text("queued")
        for view, shown in (
            ("mail", "#folders"), ("queue/overview", "#queue-state"), ("accounts", "#collector"),
            ("logs", "#lines li"),
        ):  # fmt: skip
            visit.to(view)
            expect(page.locator(shown).first).to_be_visible()
            if view == "accounts":
                expect(page.locator("#accounts pre")).to_contain_text("relay account create")
        visit.to("queue/all")
        expect(page.locator("#outbound pre")).to_contain_text("relay send")
        page.wait_for_timeout(300)
        assert visit.console == []
        visit.to("devices")
        expect(page.get_by_role("alert")).to_contain_text("no device inbox")
        assert visit.errors == []


OFFERED = {
    "read": ["Mail"],
    "send": ["Mail", "Queue"],
    "accounts": ["Mail", "Accounts"],
    "admin": ["Now", "Mail", "Queue", "Accounts", "Domains", "API keys", "Settings", "Logs"],
}


def test_a_key_sees_what_it_may(own: RelayProcess, browse: Browse) -> None:
    """Every view that a key is offered works for it, and what it may not is not offered."""
    with browse() as visit:
        page = visit.page
        for scope, titles in OFFERED.items():
            entered(page, own, scope)
            expect(page.locator("h1")).to_be_focused()
            links = page.locator("#views a")
            expect(links.filter(has_not_text="Devices")).to_have_text(titles)
            for title in titles:
                links.filter(has_text=title).click()
                expect(page.get_by_role("heading", level=1)).to_have_text(title)
                page.wait_for_timeout(200)
            visit.to("mail")
            create = page.get_by_role("button", name="Create")
            expect(create).to_have_count(1 if scope in {"read", "admin"} else 0)
            if scope in {"read", "admin"}:
                create_inbox(page)
            visit.to("mail")  # signed out, an open one would be another's
            page.get_by_role("button", name="Sign out").click()
        assert visit.console == []
        assert visit.errors == []


def test_odd_addresses_open_something(own: RelayProcess, browse: Browse) -> None:
    """What is no address of a view, or none that can be decoded, opens the first view."""
    with browse() as visit:
        for odd in ("#/%", "#/toString", "#/__proto__", "#/inboxes/%E0%A4%A"):
            visit.page.goto(f"{own.run['http']}/{odd}")
            visit.page.reload()
            expect(visit.page.locator("#inboxes")).to_be_visible()
        assert visit.errors == []


def test_skipping_to_the_view_stays_in_it(own: RelayProcess, browse: Browse) -> None:
    """The first link leads past the head of the page, not to another view."""
    with browse() as visit:
        page = signed_in(visit, own, "queue")
        expect(page.locator("#queue-state")).to_contain_text("queued")
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#view")).to_be_focused()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queue")


def test_all_of_a_full_anonymous_inbox_can_be_listed(own: RelayProcess, browse: Browse) -> None:
    """Page by page, by its own session alone, and mail that comes meanwhile stands first."""
    with browse() as visit:
        page = visit.page
        page.goto(own.run["http"])
        page.get_by_label("New inbox").fill("o.neil+2f")
        address = create_inbox(page)
        deliver(own, address, *(mail(f"number {n}", "t") for n in range(120)))
        rows = page.locator("#messages li")
        expect(rows).to_have_count(120)
        page.reload()
        expect(rows.first).to_contain_text("number 119")
        page.locator("#messages").evaluate("it => it.scrollTo(0, it.scrollHeight)")
        expect(rows).to_have_count(120)
        expect(rows.last).to_contain_text("number 0")
        deliver(own, address, mail("the newest", "t"))
        expect(rows).to_have_count(121)
        expect(rows.first).to_contain_text("the newest")
        assert visit.console == []
        assert visit.errors == []


def test_the_story_shown_is_of_the_message_chosen(own: RelayProcess, browse: Browse) -> None:
    """An answer that comes late does not replace what was opened after it."""
    first, second = send(own, "the first"), send(own, "the second")
    with browse() as visit:
        page = signed_in(visit, own, "queue")
        expect(row(page, "outbound", "the second")).to_be_visible()
        let_go = late(page, f"outbound/{first}$")
        visit.to(f"queue/{first}")
        visit.to(f"queue/{second}")
        title = page.locator("#story-title")
        expect(title).to_have_text("the second")
        page.evaluate(
            "window.seen = [];"
            "new MutationObserver(() => seen.push(document.getElementById('story-title')"
            "?.textContent)).observe(document.getElementById('story'), {childList: true})"
        )
        let_go()
        page.wait_for_timeout(500)
        expect(title).to_have_text("the second")
        assert "the first" not in page.evaluate("window.seen")


def test_what_is_wrong_stays_said(own: RelayProcess, browse: Browse) -> None:
    """A refusal is not wiped away by the next look that succeeds."""
    with browse() as visit:
        visit.page.clock.install()
        page = signed_in(visit, own, "queue/00000000-0000-0000-0000-000000000000")
        said = page.get_by_role("alert").filter(has_text="no such message")
        expect(said).to_be_visible()
        with page.expect_response(lambda got: "/api/v1/queue" in got.url and got.ok):
            page.clock.run_for(5_000)
        expect(said).to_be_visible()


def test_the_focus_stays_while_rows_leave(own: RelayProcess, browse: Browse) -> None:
    """A row that leaves the list above, or a story that changes, takes no focus along."""
    send(own, "below")
    above = send(own, "above")
    with browse() as visit, own.http() as api:
        page = signed_in(visit, own, "queue/queued")
        below = row(page, "outbound", "below").first.get_by_role("link")
        below.focus()
        api.post(f"/api/v1/outbound/{above}/hold").raise_for_status()
        expect(row(page, "outbound", "above")).to_have_count(0)
        expect(below).to_be_focused()
        visit.to(f"queue/{above}")
        expect(page.locator("#story-title")).to_be_focused()
        cancel = page.locator("#story").get_by_role("button", name="cancel")
        cancel.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#story dd").first).to_have_text("cancelled")
        expect(page.locator("#story-title")).to_be_focused()
        visit.to("accounts")
        page.get_by_label("Email").fill("focus@relay.localhost")
        page.get_by_label("Login").fill("focus")
        page.keyboard.press("Enter")
        account = row(page, "accounts", "focus@relay.localhost")
        account.get_by_role("button", name="suspend").focus()
        page.keyboard.press("Enter")
        expect(account).to_contain_text("suspended")
        expect(account.get_by_role("button", name="unsuspend")).to_be_focused()


def test_a_session_that_ends_elsewhere_ends_here(own: RelayProcess, browse: Browse) -> None:
    """A revoked key's page asks to sign in, even where it only watches."""
    with browse() as visit, own.http() as api:
        page = visit.page
        key = entered(page, own, "read")
        create_inbox(page)
        api.delete(f"/api/v1/keys/{key}").raise_for_status()
        expect(page.get_by_role("link", name="Sign in")).to_be_visible()
        assert visit.errors == []


def test_the_page_outlives_its_relay(own: RelayProcess, browse: Browse) -> None:
    """Stopped, it says so and keeps the log's last lines; started again, all goes on, but that
    the administrator, whose token is new with each start, is asked for it."""
    with browse() as visit, browse() as other:
        theirs = signed_in(other, own, "queue")
        page = visit.page
        entered(page, own, "admin")
        visit.to("logs")
        expect(page.locator("#lines li").first).to_be_visible()
        watched = visit.context.new_page()
        watched.goto(f"{own.run['http']}/#/now")
        expect(node(watched, "control")).to_contain_text("running")
        inbox = visit.context.new_page()
        inbox.goto(f"{own.run['http']}/#/mail")
        address = create_inbox(inbox)
        own.stop()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        assert page.locator("#lines li").count() > 0
        expect(watched.locator("#counts")).to_contain_text("unknown")
        expect(watched.locator(".stale #tree, #tree.stale")).to_be_visible()
        expect(inbox.locator("#stream")).to_contain_text("does not answer")
        own.start()
        expect(inbox.locator("#stream")).to_have_text("live")
        deliver(own, address, mail("after it all", "t"))
        expect(row(inbox, "messages", "after it all")).to_be_visible()
        expect(row(inbox, "inboxes", address).locator(".count")).to_have_text("1")
        expect(node(watched, "control")).to_contain_text("running")
        expect(watched.locator("#counts")).to_contain_text("mailboxes")
        expect(watched.locator(".stale")).to_have_count(0)
        expect(page.get_by_role("alert")).to_be_empty()
        expect(theirs.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert visit.errors == []
        assert other.errors == []


def test_charts_outlive_a_restart(own: RelayProcess, browse: Browse) -> None:
    """What one run of the relay received, the next one draws at once: the database has kept it.

    Only minutes that are over are drawn, so what the relay wrote as it ended is moved back by some.
    """
    with own.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
    deliver(own, address, *[mail(f"Mail {number}", "t") for number in range(30)])
    own.stop()
    own.start()
    with psycopg.connect(own.run["database_url"], autocommit=True) as sql:
        sql.execute("UPDATE relay.history SET at = at - interval '1 day' WHERE received = 0")
        sql.execute("UPDATE relay.history SET at = at - interval '2 hours' WHERE received > 0")
    with browse() as visit, own.http() as api:
        page = signed_in(visit, own)
        received = page.locator(".plot").filter(has_text="Received")
        expect(received.locator("strong")).to_have_text("0/s")
        expect(received).to_contain_text("at most 0/s")
        page.get_by_role("button", name="24 hours").click()
        expect(received).to_contain_text(re.compile(r"at most [1-9]"))
        assert api.get("/api/v1/overview").json()["counters"]["received"] == 0
        assert visit.errors == []


def test_nothing_goes_on_in_a_view_that_was_left(own: RelayProcess, browse: Browse) -> None:
    """After a tour of the views only the health is asked for, and how much mail is unread, which
    the icon shows."""
    with browse() as visit:
        visit.page.clock.install()
        page = signed_in(visit, own, "now")
        for view in ("now", "mail", "queue", "accounts", "logs", "now", "logs", "signin"):
            visit.to(view)
            title = "Sign in" if view == "signin" else view.capitalize()
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
        page.evaluate("fetch('/healthz')")  # whatever was asked before it is known by now
        visit.requests.clear()
        page.clock.run_for(60_000)
        page.evaluate("fetch('/healthz')")
        asked = {url.removeprefix(own.run["http"]) for url in visit.requests}
        assert "/healthz" in asked
        unread = {"/api/v1/messages?q=is%3Aunread&limit=50", "/api/v1/quota", "/ui/icon.svg"}
        assert asked <= {"/healthz", "/readyz", "/api/v1/session"} | unread


def test_a_wrong_clock_in_the_browser_changes_nothing(own: RelayProcess, browse: Browse) -> None:
    """Time left is told by the relay's clock."""
    with browse() as visit:
        page = visit.page
        page.add_init_script("const now = Date.now; Date.now = () => now() + 7200e3;")
        page.goto(own.run["http"])
        create_inbox(page)
        expect(page.locator("#expires")).to_contain_text("60 min left")
        page.reload()
        expect(page.locator("#inboxes li")).to_contain_text("60 min")


def test_a_message_leads_to_its_neighbours(own: RelayProcess, browse: Browse) -> None:
    """Older and newer mail is one press away, and the ends say so."""
    with browse() as visit:
        page = visit.page
        page.goto(own.run["http"])
        address = create_inbox(page)
        deliver(own, address, *(mail(f"letter {n}", "t") for n in range(3)))
        row(page, "messages", "letter 1").get_by_role("link").click()
        subject = page.locator("#message-subject")
        page.get_by_role("link", name="Older").click()
        expect(subject).to_have_text("letter 0")
        expect(page.get_by_role("link", name="Older")).to_have_count(0)
        page.get_by_role("link", name="Newer").click()
        expect(subject).to_have_text("letter 1")
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(subject).to_have_text("letter 0")
        expect(subject).to_be_focused()
