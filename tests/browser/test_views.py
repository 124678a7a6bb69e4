"""Every view, filled: it fits, is accessible, and loads nothing from elsewhere.

A screenshot of what is wrong is left in `test-artefacts/`.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import create_inbox, deliver, mail, node, row, signed_in
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


# What is pressed by a finger, and is lower than one needs.
_LOW = """() => [...document.querySelectorAll("button, select, summary, input, nav a, .rail a")]
    .filter((one) => one.type !== "checkbox" && one.checkVisibility({ visibilityProperty: true }))
    .filter((one) => one.getBoundingClientRect().height < 43.5)
    .map((one) => one.outerHTML)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_every_view_fits_is_accessible_and_loads_nothing_from_elsewhere(
    relay: RelayProcess, browse: Browse, axe: str, size: str, scheme: str
) -> None:
    """Each view, filled: no wider than the screen, silent, of one origin, strict in policy, and
    nothing for the rules of accessibility to find.  The same goes for a tablet's width."""
    own = relay.run["http"]
    with browse(size, scheme) as visit, relay.http() as api:
        page = visit.page

        def check(what: str) -> None:
            visit.check(what, axe)
            if size == "phone":
                assert page.evaluate(_LOW) == [], what
            if size == "desktop":
                visit.check_width(what, "tablet", axe)

        answer = page.goto(f"{own}/")
        assert answer is not None
        allowed = answer.headers["content-security-policy"]
        assert "default-src 'none'" in allowed
        assert "unsafe" not in allowed
        expect(page.locator("#health")).to_have_text("ready")
        check("signed-out")
        page = signed_in(visit, relay, "mail")
        address = create_inbox(page)
        deliver(
            relay,
            address,
            mail("A subject that goes on " + "and on " * 20, "Your code is 482913.\n"),
            mail("Unbroken" * 30, None, '<h1>Hello</h1><p style="color: teal">styled</p>'),
        )
        expect(page.locator("#messages li")).to_have_count(2)
        check("list")
        page.get_by_role("link", name="A subject that goes on").click()
        expect(page.locator("#message-code")).to_contain_text("482913")
        check("message")
        visit.to(f"mail/{address}")
        page.get_by_role("link", name="Unbroken").click()
        expect(page.frame_locator("iframe").get_by_text("styled")).to_be_visible()
        check("message-html")

        letter = {"from": f"a@{address.partition('@')[2]}", "to": ["nobody@relay.localhost"]}
        sent = api.post("/api/v1/messages/send", json={**letter, "subject": "S" * 90, "text": "t"})
        outbound = sent.json()["messages"][0]["id"]
        api.post("/api/v1/messages/send", json={**letter, "subject": "", "text": "t"})
        visit.to("now")
        expect(node(page, "control")).to_contain_text("running")
        expect(page.locator("#counts")).to_contain_text("mailboxes")
        check("now")
        visit.to(f"queue/{outbound}")
        expect(page.locator("#story dd").first).to_have_text("bounced")
        check("queue-story")
        visit.to("queue/overview")
        expect(page.locator("#queue-state")).to_contain_text("queued")
        check("queue-whole")
        visit.to("queue/bounced")
        expect(page.locator("#outbound li").first).to_be_visible()
        check("queue")
        visit.to("queue/failures")
        expect(page.locator("#failures li").first).to_be_visible()
        check("queue-failures")
        visit.to("accounts")
        expect(page.locator("#collector")).to_contain_text("letters wait")
        check("accounts")
        visit.to("devices")
        expect(page.locator("#device-counts")).to_contain_text("Blobs")
        check("devices")
        visit.to("keys")
        expect(page.get_by_role("button", name="Make a key")).to_be_visible()
        check("keys")
        visit.to("domains")
        expect(page.locator("#domain-facts")).to_contain_text("SMTP at")
        check("domains")
        visit.to("settings")
        expect(row(page, "settings", "RELAY_SMTP__BIND")).to_contain_text("environment")
        check("settings")
        visit.to("logs")
        expect(page.locator("#lines li").first).to_be_attached()
        check("logs")

        page.get_by_role("link", name="API", exact=True).click()
        expect(page.locator("details").first).to_be_visible()
        expect(page.get_by_text("GET /api/v1/logs")).to_be_visible()
        for name in ("createKey", "waitForMessage", "sendMessage", "changeMessages", "pushBlob"):
            page.locator(f"#{name} > summary").click()
            expect(page.locator(f"#{name} .call")).to_be_visible()
        check("docs")
        page.goto(f"{own}/problems/mailbox-not-found")
        expect(page.get_by_role("heading", name="What to do")).to_be_visible()
        check("problem")
        assert visit.console == []
        assert visit.errors == []
        assert visit.foreign(own) == []


_ICON = """() => new Promise((done) => {
    const shown = new Image();
    shown.onload = () => done(true);
    shown.onerror = () => done(false);
    shown.src = document.querySelector("link[rel=icon]").href;
})"""


@pytest.mark.parametrize(
    "path", ["/", "/#/signin", "/docs", "/problems/quota", "/unsubscribe?token=x", "/activate"]
)
def test_every_page_has_an_icon(relay: RelayProcess, browse: Browse, path: str) -> None:
    """Which its own policy lets the browser load."""
    with browse() as visit:
        visit.page.goto(f"{relay.run['http']}{path}")
        assert visit.page.evaluate(_ICON)
        assert [said for said in visit.console if "status of 400" not in said] == []
        assert visit.errors == []


_CUT_OFF = """() => [...document.querySelectorAll("#views a")].filter((link) => {
    const { left, right, width } = link.getBoundingClientRect();
    return !width || left < 0 || right > innerWidth;
}).map((link) => link.textContent)"""


@pytest.mark.parametrize("size", ["tablet", "phone"])
def test_every_view_is_reached_at_a_glance(relay: RelayProcess, browse: Browse, size: str) -> None:
    """The name of none is cut off, in any language; on a phone the queue shows its messages at
    once, with the states above them."""
    with browse(size) as visit:
        page = signed_in(visit, relay, "queue")
        for code in ("en", "de"):
            page.evaluate("code => localStorage.setItem('relay.language', code)", code)
            page.reload()
            expect(page.locator("html")).to_have_attribute("lang", code)
            expect(page.locator("#views a")).to_have_count(9)
            assert page.evaluate(_CUT_OFF) == []
            rows = 3 if (size, code) == ("phone", "de") else 2  # of 44 px, under a finger
            header = page.locator("header").bounding_box()
            assert header is not None
            assert header["height"] < rows * 44 + 22
            assert visit.overflow() <= 0
        expect(page.locator("#outbound")).to_be_visible()
        page.locator("#states [data-key=bounced]").click()
        expect(page.locator("#queue-heading")).to_have_text("Unzustellbar")
        assert visit.errors == []


def test_the_queue_says_that_it_loads(relay: RelayProcess, browse: Browse) -> None:
    """Until its first rows come it is no blank."""
    with browse() as visit:
        page = signed_in(visit, relay, "now")
        expect(node(page, "control")).to_contain_text("running")
        held: list[Route] = []
        page.route(re.compile(r"/api/v1/outbound\?"), lambda route: held.append(route))
        visit.to("queue/sent")
        none = page.locator("#outbound > .none")
        expect(none).to_have_text("Loading…")
        for route in held:
            route.continue_()
        page.unroute(re.compile(r"/api/v1/outbound\?"))
        expect(none).not_to_have_text("Loading…")
        assert visit.errors == []


_OVER = """() => {
    const said = document.querySelector("#health").getBoundingClientRect();
    return [...document.querySelectorAll("header a, header button")]
        .filter((one) => one.checkVisibility())
        .filter((one) => one.getBoundingClientRect().bottom > said.top + 1)
        .map((one) => one.textContent);
}"""


def test_why_it_is_not_ready_leaves_the_header_as_it_is(
    relay: RelayProcess, browse: Browse
) -> None:
    """A long reason has a line of its own, below all that one presses, signed in or out."""
    why = "; ".join(f"Not ready: 127.0.0.{n}:5432: Connection refused" for n in range(5))
    refusal = {"type": "/problems/unavailable", "title": "x", "status": 503, "detail": why}
    with browse() as visit:
        page = signed_in(visit, relay)
        page.route("**/readyz", lambda route: route.fulfill(status=503, json=refusal))
        page.reload()
        said = expect(page.locator("#health.problem"))
        said.to_contain_text("127.0.0.4")
        assert page.evaluate(_OVER) == []
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("#who").get_by_role("link", name="Sign in")).to_be_visible()
        said.to_contain_text("127.0.0.4")
        assert page.evaluate(_OVER) == []
