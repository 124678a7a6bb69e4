"""Who is signed in, in a real browser: reloads, tabs, links, neighbours on other ports, keys.

Screenshots are left in `test-artefacts/`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import SENDER, deliver, mail, node, row, signed_in
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


@contextmanager
def neighbour() -> Iterator[tuple[str, list[str]]]:
    """Another server of this host: its URL, and the cookies that it is sent."""
    cookies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.extend(self.headers.get_all("Cookie", []))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>x</title><link rel=icon href='data:,'>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", cookies
        finally:
            server.shutdown()


def signed_out(page: Page) -> None:
    """The page asks to sign in, and shows nothing that needs it."""
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    expect(page.get_by_role("link", name="Queue")).to_have_count(0)


def test_a_session_is_all_tabs_and_ends_in_all(relay: RelayProcess, browse: Browse) -> None:
    """A new tab is let in by the one that is open, and a reload by its own; signed out in one,
    both ask to sign in, and a tab without another does."""
    url = f"{relay.run['http']}/#/now"
    with browse() as visit:
        page = signed_in(visit, relay)
        expect(node(page, "reaper")).to_contain_text("running")
        second = visit.context.new_page()
        second.goto(url)
        expect(node(second, "reaper")).to_contain_text("running")
        for tab in (page, second):
            tab.reload()
            expect(node(tab, "reaper")).to_contain_text("running")
        assert page.evaluate("document.cookie") == ""
        visit.screenshot("second-tab")

        second.get_by_role("button", name="Sign out").click()
        for tab in (second, page):
            signed_out(tab)
            expect(tab.get_by_role("heading", level=1)).to_have_text("Sign in")
        visit.screenshot("signed-out-elsewhere")

        # Signing in again in one lets the other in, too, with the new cookie and its key.
        second.get_by_label("Token").fill(relay.run["admin_token"])
        second.get_by_role("main").get_by_role("button", name="Sign in").click()
        for tab in (second, page):
            expect(node(tab, "reaper")).to_contain_text("running")
        third = visit.context.new_page()
        page.close()
        second.close()
        third.goto(url)
        signed_out(third)
        assert "rp_" not in third.evaluate("JSON.stringify([localStorage, sessionStorage])")
        assert visit.errors == []


def test_a_link_signs_in_once(relay: RelayProcess, browse: Browse) -> None:
    """The code leaves the address at once; used again, it says so where nobody is signed in."""
    with relay.http() as api, browse() as visit:
        made = api.post("/api/v1/session/links").raise_for_status().json()
        page = visit.page
        page.goto(made["url"])
        expect(page.get_by_role("heading", name="All mail")).to_be_visible()
        assert page.url == f"{relay.run['http']}/#/mail"
        assert not [url for url in visit.requests if made["code"] in url.partition("#")[0]]
        with browse() as other:
            other.page.goto(made["url"])
            expect(other.page.get_by_role("alert").first).to_contain_text("relay open")
            signed_out(other.page)
            assert made["code"] not in other.page.url
            other.screenshot("used-link")
            assert other.errors == []
        # Where another tab is, this one is, too.
        again = visit.context.new_page()
        again.goto(made["url"])
        expect(again.get_by_role("heading", name="All mail")).to_be_visible()
        assert again.url == f"{relay.run['http']}/#/mail"
        expect(again.get_by_role("button", name="Sign out")).to_be_visible()
        expect(again.get_by_text("used, or is too old")).to_have_count(0)
        assert visit.errors == []


def test_what_a_neighbour_is_sent_opens_nothing(relay: RelayProcess, browse: Browse) -> None:
    """A server on another port of the host gets the cookie, which no call of the API takes alone;
    a page from there that has it, too, is none of ours."""
    own = relay.run["http"]
    with browse() as visit, neighbour() as (elsewhere, cookies):
        page = signed_in(visit, relay)
        expect(node(page, "reaper")).to_contain_text("running")
        theirs = visit.context.new_page()
        theirs.goto(elsewhere)
        assert cookies == [], "the cookie goes to the paths of the API alone"
        theirs.goto(f"{elsewhere}/api/v1/x")
        assert len(cookies) == 1
        assert f"relay_session_{httpx.URL(own).port}=" in cookies[0]
        for path in ("/api/v1/supervision", "/api/v1/queue", "/api/v1/logs", "/api/v1/mailboxes"):
            got = httpx.get(own + path, headers={"Cookie": cookies[0]})
            assert got.status_code == 401, path
        for path in ("/api/v1/queue/pause", "/api/v1/supervision/reaper/pause"):
            got = httpx.post(own + path, headers={"Cookie": cookies[0], "X-Relay-Page": "1"})
            assert got.status_code == 401, path
        # From their page, with the browser's own cookie and a made-up key.
        answer = theirs.evaluate(
            """async (url) => {
                try {
                    const headers = { "X-Relay-Page-Key": "rp_x" };
                    return (await fetch(url, { credentials: "include", headers })).status;
                } catch {
                    return "refused";
                }
            }""",
            f"{own}/api/v1/queue",
        )
        assert answer == "refused"
        assert theirs.evaluate("JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"
        expect(node(page, "reaper")).to_contain_text("running")


def test_what_was_shown_and_loaded_by_links_is_over_with_the_session(
    relay: RelayProcess, browse: Browse
) -> None:
    """The administrator reads HTML, downloads, sees mail come; signed out, none of the addresses
    that the browser used opens anything, nor do its cookie and key."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = f"Ann Example <{SENDER}>", "The invoice"
    message.set_content("plain\n")
    message.add_alternative("<p>styled</p>", subtype="html")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, message.as_bytes())
        page = signed_in(visit, relay, f"mail/{address}")
        expect(page.locator("#stream")).to_have_text("live")
        deliver(relay, address, mail("comes by itself", "t"))
        expect(row(page, "messages", "comes by itself")).to_be_visible()
        page.get_by_role("link", name="The invoice").click()
        expect(page.frame_locator("iframe").get_by_text("styled")).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="invoice.pdf").click()
        assert download.value.path().read_bytes() == b"%PDF"
        visit.screenshot("operator-reads-html")
        used = [page.locator("iframe").get_attribute("src") or "", download.value.url]
        links = [link.removeprefix(relay.run["http"]) for link in used]
        assert all("ticket=" in link for link in links)
        cookies = {one["name"]: one["value"] for one in visit.context.cookies()}
        key = page.evaluate("sessionStorage.getItem('relay.page_key')")
        with httpx.Client(base_url=relay.run["http"], cookies=cookies) as thief:
            assert [thief.get(link).status_code for link in links] == [200, 200]
            page.get_by_role("button", name="Sign out").click()
            signed_out(page)
            thief.headers["X-Relay-Page-Key"] = key
            assert [thief.get(link).status_code for link in links] == [404, 404]
            assert thief.get("/api/v1/queue").status_code == 401
        assert page.evaluate("sessionStorage.length") == 0
        assert visit.errors == []


def test_signing_out_shuts_an_open_inbox(relay: RelayProcess, browse: Browse) -> None:
    """The address and the errors of an inbox that may not be read any more are gone."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        page = signed_in(visit, relay, f"mail/{address}")
        expect(page.locator("#stream")).to_have_text("live")
        page.get_by_role("button", name="Sign out").click()
        signed_out(page)
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        expect(page.locator("main").get_by_role("status")).to_have_text("You are signed out.")
        expect(page.locator("main")).not_to_contain_text(address)


def test_a_key_is_made_with_the_token_itself(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """The page says where it is; a wrong one makes none; revoked, it says so."""
    with browse() as visit:
        page = signed_in(visit, relay, "keys")
        token = page.get_by_label("admin_token in run/relay.json")
        expect(token).to_be_visible()
        page.get_by_label("Owner").fill("ci server")
        page.get_by_label("send").check()
        make = page.get_by_role("button", name="Make a key")
        make.click()
        expect(token).to_be_focused()  # the browser asks, nothing was sent
        token.fill("ra_wrong")
        make.click()
        expect(page.get_by_role("alert").first).to_contain_text("makes no keys")
        expect(row(page, "keys", "ci server")).to_have_count(0)
        token.fill(relay.run["admin_token"])
        make.click()
        made = page.locator("#key-made output")
        expect(made).to_contain_text("rk_")
        expect(token).to_have_value("")
        visit.check("keys", axe)
        expect(page.get_by_label("read")).to_be_checked()  # as at first
        headers = {"Authorization": f"Bearer {made.inner_text()}"}
        who = httpx.get(f"{relay.run['http']}/api/v1/session", headers=headers).json()
        assert (who["owner"], who["scopes"]) == ("ci server", ["read", "send"])
        assert relay.run["admin_token"] not in page.content()
        mine = row(page, "keys", "ci server")
        mine.get_by_role("button", name="revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(mine.get_by_role("button")).to_have_count(0)
        who = httpx.get(f"{relay.run['http']}/api/v1/session", headers=headers)
        assert who.status_code == 401
        assert visit.errors == []
