"""Hostile mail, read in the page: nothing loads, runs, connects or leads away.

Screenshots are left in `test-artefacts/`.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.hostile import (
    CLICKS,
    CONNECTS,
    LEAVES,
    LOADS,
    PICTURES,
    RUNS,
    Elsewhere,
    catalogue,
    unparseable,
    whole,
)
from tests.browser.steps import create_inbox, deliver, mail
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


def test_hostile_mail_would_do_harm_without_protection(browse_at_home: Browse) -> None:
    """Shown bare, each entry of the catalogue is heard elsewhere, so silence means something."""
    with Elsewhere() as elsewhere, browse_at_home() as visit:
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


@pytest.mark.timeout(240)
def test_hostile_mail_does_nothing(relay: RelayProcess, browse_at_home: Browse) -> None:
    """Nothing in the catalogue loads, runs, connects or leads away, on the page or alone.  Once
    remote images are asked for, those that were counted are fetched, once each, without referrer
    and cookies, and nothing else; the next time none is."""
    own = relay.run["http"]
    with Elsewhere() as elsewhere, browse_at_home() as visit:
        page = visit.page
        page.goto(own)
        # Which a browser sends to every port of this host.
        visit.context.add_cookies([{"name": "app", "value": "secret", "url": own}])
        address = create_inbox(page)
        shown = catalogue(elsewhere.url, LOADS, RUNS, CONNECTS)
        clicked = catalogue(elsewhere.url, CLICKS)
        hostile = shown | clicked
        odd = whole(elsewhere.url)
        deliver(relay, address, *(mail(name, None, html) for name, html in hostile.items()))
        deliver(relay, address, *odd.values())
        assert len(hostile) + len(odd) >= 66
        frame, iframe = page.frame_locator("#message-html"), page.locator("#message-html")
        load = page.get_by_role("button", name="load once")

        def read(name: str) -> str:
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            # Its address comes with a ticket, a moment later.
            expect(iframe).to_have_attribute("src", re.compile("^/.*=blocked$"))
            expect(frame.locator("meta[name=referrer]")).to_be_attached()
            return f"{own}{iframe.get_attribute('src')}"

        previews, counted = [], []
        for name in [*shown, *odd]:
            previews.append(read(name))
            page.wait_for_timeout(50)
            if load.is_visible():
                counted.append(name)
        page.wait_for_timeout(300)
        assert elsewhere.connections == 0
        assert set(counted) == PICTURES
        assert page.url.startswith(f"{own}/#/mail/")
        assert page.evaluate("window.hacked") is None

        # Alone, while their tickets last.
        for preview in previews:
            page.goto(preview)
            assert page.url == preview
            assert page.evaluate("window.hacked") is None
        page.wait_for_timeout(300)
        assert elsewhere.connections == 0

        # With remote images, which most have none of: those that have one show it, and no more.
        named = dict(zip([*shown, *odd], previews, strict=True))
        for name, preview in named.items():
            loaded = preview.removesuffix("=blocked") + "=loaded"
            page.goto(loaded)
            if name in PICTURES:
                elsewhere.wait_for(name)
            page.wait_for_timeout(50)
            assert page.url == loaded
            assert page.evaluate("window.hacked") is None
        page.wait_for_timeout(300)
        assert elsewhere.heard == PICTURES
        assert elsewhere.told == []
        elsewhere.heard.clear()
        elsewhere.asked.clear()

        page.goto(f"{own}/#/mail/{address}")
        for name in counted:
            read(name)
            expect(page.locator("#remote-images")).to_contain_text("1 remote image")
            load.click()
            elsewhere.wait_for(name)
            expect(load).to_be_hidden()
        alone = f"{own}{iframe.get_attribute('src')}"
        assert alone.endswith("=loaded")
        for name in counted:
            read(name)
        page.wait_for_timeout(300)
        assert sorted(elsewhere.asked) == sorted(PICTURES)
        assert elsewhere.told == []
        elsewhere.heard.clear()
        asked = page.locator("#link-asked")
        for name in clicked:
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#message-subject")).to_have_text(name)
            frame.locator("#it a" if name == "link-shadow" else "#it").click()
            if name in ("link", "link-svg", "link-xlink", "link-shadow"):
                expect(asked).to_contain_text(f"{elsewhere.url}/{name}")
            page.wait_for_timeout(50)
        visit.screenshot("hostile")
        assert elsewhere.heard == set()
        assert page.url.startswith(f"{own}/#/mail/")
        assert page.title() == "Mail · Relay"
        assert page.evaluate("window.hacked") is None
        assert visit.popups == []

        page.goto(alone)
        elsewhere.wait_for(counted[-1])
        assert elsewhere.heard == {counted[-1]}
        assert elsewhere.told == []
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


def test_an_address_turns_nothing_around_it(relay: RelayProcess, browse_at_home: Browse) -> None:
    """Of a sender that is written backwards only the address itself is: the host stays before the
    bracket, and the recipient behind the arrow.  (What comes now has no such characters any more;
    what came before may.)"""
    sender = "x\u202eelpmaxe.knab-ecivres@evil.example"

    def turned(route: Route) -> None:
        answer = route.fetch()
        found = answer.json() | {"from_address": sender}
        found["headers"]["To"] = f"\u202e<{sender}>"
        route.fulfill(response=answer, json=found)

    with browse_at_home() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)
        page.route(re.compile(r"/messages/[0-9a-f-]{36}$"), turned)
        deliver(relay, address, mail("turned", "Hi", None))
        page.get_by_role("link", name="turned", exact=True).click()
        expect(page.locator("#message-subject")).to_have_text("turned")
        whom = page.locator("#message-facts bdi")
        expect(whom).to_have_text([sender, address])
        # Each may be on two lines.
        ends = whom.first.evaluate("one => [...one.getClientRects()].at(-1).right")
        begins = whom.last.evaluate("one => one.getClientRects()[0].left")
        assert ends < begins
        named = page.locator(".head p.small bdi")
        expect(named).to_have_text(f"\u202e<{sender}>")
