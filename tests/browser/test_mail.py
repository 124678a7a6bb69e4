"""The mail view in a real browser: panes, addresses, keys, undo, codes, and lists without end.

Screenshots are left in `test-artefacts/`.
"""

from __future__ import annotations

import json
import shlex
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.test_pages import create_inbox, deliver, mail, row, signed_in
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)

ROW = 36  # px
EVERY = 200  # rows of a page


def in_sight(page: Page, one: Locator) -> bool:
    """Whether all of an element is on the screen."""
    box, size = one.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    return box["y"] >= 0 and box["y"] + box["height"] <= size["height"] and box["x"] >= 0


def standing(page: Page) -> Locator:
    """The row that the keys stand on."""
    return page.locator("#messages li.standing")


def test_inboxes_list_and_reader_stand_side_by_side(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """A click on an inbox shows its first message without scrolling; each state has an address; a
    bar that was moved stays; two panes fit a tablet and one a phone."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, *(mail(f"letter {n}", "t") for n in range(60)))
        page = signed_in(visit, relay, "mail")
        expect(page.get_by_role("heading", name="All mail")).to_be_visible()
        page.locator("#inboxes").get_by_role("link", name=address).click()
        newest = row(page, "messages", "letter 59")
        expect(newest).to_be_visible()
        assert in_sight(page, newest)
        assert page.evaluate("scrollY") == 0
        box = newest.bounding_box()
        assert box is not None
        assert box["height"] == ROW

        newest.get_by_role("link").click()
        subject = page.locator("#message-subject")
        expect(subject).to_have_text("letter 59")
        assert in_sight(page, subject)
        assert in_sight(page, newest)
        bar = page.get_by_role("separator", name="Width of the list")
        width = int(bar.get_attribute("aria-valuenow") or 0)
        bar.press("ArrowRight")
        page.reload()
        expect(subject).to_have_text("letter 59")
        assert int(bar.get_attribute("aria-valuenow") or 0) > width
        page.go_back()
        expect(subject).to_have_count(0)
        expect(newest).to_be_visible()
        page.go_forward()
        expect(subject).to_have_text("letter 59")

        rail, middle = page.locator(".rail"), page.locator(".middle")
        page.set_viewport_size({"width": 820, "height": 1000})
        expect(rail).to_be_hidden()
        expect(middle).to_be_visible()
        visit.check("tablet-message", axe)
        page.set_viewport_size({"width": 390, "height": 844})
        expect(middle).to_be_hidden()
        page.get_by_role("link", name="‹ Back").click()
        expect(newest).to_be_visible()
        expect(rail).to_be_hidden()
        page.get_by_role("link", name="‹ Inboxes").click()
        expect(rail).to_be_visible()
        expect(middle).to_be_hidden()
        visit.check("phone-inboxes", axe)
        assert visit.console == []
        assert visit.errors == []


def test_keys_do_what_buttons_do_and_a_deletion_can_be_taken_back(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """j k Enter x u # z / g ? and Escape; deleted mail is gone from the relay unless undone."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, *(mail(f"letter {n}", "t") for n in range(4)))
        page = signed_in(visit, relay, f"mail/{address}")
        rows, subject, press = (
            page.locator("#messages li"), page.locator("#message-subject"), page.keyboard.press
        )  # fmt: skip

        def left() -> list[str]:
            listed = api.get(f"/api/v1/mailboxes/{address}/messages").json()
            return [one["subject"] for one in listed]

        expect(rows).to_have_count(4)
        press("j")
        expect(standing(page)).to_contain_text("letter 3")
        press("j")
        expect(standing(page)).to_contain_text("letter 2")
        press("k")
        press("Enter")
        expect(subject).to_have_text("letter 3")
        press("j")
        expect(subject).to_have_text("letter 2")
        expect(standing(page)).not_to_contain_class("unread")
        press("u")
        expect(standing(page)).to_contain_class("unread")
        press("Escape")
        expect(subject).to_have_count(0)

        press("g")
        expect(standing(page)).to_contain_text("letter 3")
        press("x")
        press("j")
        press("x")
        chosen = page.get_by_role("group", name="Chosen messages")
        expect(chosen).to_contain_text("2 chosen")
        visit.check("chosen", axe)
        press("#")
        expect(rows).to_have_count(2)
        expect(page.locator("#toast")).to_contain_text("2 messages deleted")
        visit.check("undo", axe)
        press("z")
        expect(rows).to_have_count(4)
        expect(rows.first).to_contain_text("letter 3")
        assert left() == ["letter 3", "letter 2", "letter 1", "letter 0"]
        press("g")
        press("#")
        expect(rows).to_have_count(3)
        visit.to("now")  # what is left does not wait
        expect(page.locator("#tree")).to_be_visible()
        page.wait_for_function("!document.querySelector('#toast')")
        visit.to(f"mail/{address}")
        expect(rows).to_have_count(3)
        page.reload()
        expect(rows).to_have_count(3)
        assert left() == ["letter 2", "letter 1", "letter 0"]

        press("?")
        dialog = page.get_by_role("dialog", name="Keys")
        expect(dialog).to_be_visible()
        visit.check("keys-window", axe)
        press("Escape")
        expect(dialog).to_have_count(0)
        press("/")
        expect(page.get_by_label("Search", exact=True)).to_be_focused()
        page.keyboard.type("subject:1")
        expect(rows).to_have_count(1)
        page.reload()  # the search is in the address
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("letter 1")
        assert visit.errors == []


def test_a_code_is_copied_from_its_row_and_html_comes_first(
    relay: RelayProcess, browse: Browse
) -> None:
    """One click has the code; a mail of HTML alone has no empty text; a link in it leads the
    preview nowhere, and stands above; widths stay; an empty inbox says how to send to it."""
    html = (
        "<!doctype html><p>Hello <b>you</b></p>"
        '<a id="it" href="https://shop.example/verify?t=1">verify</a>'
    )
    with browse() as visit, relay.http() as api:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        address = api.post("/api/v1/mailboxes").json()["address"]
        page = signed_in(visit, relay, f"mail/{address}")
        hello = page.locator(".hello")
        expect(hello).to_contain_text(relay.run["smtp"])
        hello.get_by_role("button", name="swaks").click()
        expect(hello.locator("pre")).to_contain_text(f"--to {address}")
        visit.screenshot("first-mail")

        deliver(relay, address, mail("only HTML", None, html), mail("code", "Your code is 271828"))
        chip = row(page, "messages", "code").get_by_role("button", name="Copy the code 271828")
        chip.click()
        expect(chip).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == "271828"
        assert page.url.endswith(address.replace("@", "%40")) or page.url.endswith(address)

        page.get_by_role("link", name="only HTML").click()
        frame = page.frame_locator("iframe")
        expect(frame.locator("b")).to_have_text("you")
        assert frame.locator("html").evaluate("it => it.ownerDocument.compatMode") == "CSS1Compat"
        expect(page.get_by_role("button", name="Text", exact=True)).to_have_count(0)
        link = page.locator("#message-link a")
        expect(link).to_have_attribute("href", "https://shop.example/verify?t=1")
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(link).to_have_attribute("target", "_blank")
        frame.locator("#it").click()
        page.wait_for_timeout(200)
        expect(frame.locator("b")).to_have_text("you")
        assert visit.popups == []
        page.get_by_role("button", name="375").click()
        page.reload()
        expect(frame.locator("b")).to_have_text("you")
        box = page.locator("iframe").bounding_box()
        assert box is not None
        assert 370 <= box["width"] <= 380
        page.get_by_role("button", name="Checks").click()
        expect(page.locator("#message-checks")).to_contain_text("of 10")
        assert visit.errors == []


def test_a_list_without_end_has_few_rows_and_stays_where_it_is_read(
    relay: RelayProcess, browse: Browse
) -> None:
    """Of thousands only those near what is seen exist; new mail moves nothing that is read."""
    of = 3000
    with browse() as visit:
        page = visit.page
        page.goto(relay.run["http"])
        address = create_inbox(page)

        def entry(number: int) -> dict[str, object]:
            return {"id": f"00000000-0000-7000-8000-{number:012}", "from_address": "a@b.example",
                    "subject": f"number {number}.", "received_at": "2026-01-01T00:00:00Z",
                    "is_read": True, "has_attachments": False, "size": 1, "tags": [],
                    "snippet": "text", "otp": None}  # fmt: skip

        def answer(route: Route) -> None:
            url = urlsplit(route.request.url)
            start = int(parse_qs(url.query).get("cursor", ["0"])[0])
            end = min(of, start + EVERY)
            following = f'<{url.path}?cursor={end}>; rel="next"'
            route.fulfill(
                content_type="application/json",
                headers={"Link": following} if end < of else {},
                body=json.dumps([entry(of - 1 - number) for number in range(start, end)]),
            )

        listed = "**/api/v1/mailboxes/*/messages?*"
        page.route(listed, answer)
        page.reload()
        rows, scroller = page.locator("#messages li"), page.locator("#messages")
        expect(rows.first).to_contain_text(f"number {of - 1}.")
        page.wait_for_function(
            "height => { const it = document.getElementById('messages');"
            " it.scrollTo(0, it.scrollHeight); return it.scrollHeight === height; }",
            arg=of * ROW,
        )
        expect(rows.last).to_contain_text("number 0.")
        assert rows.count() < 300
        expect(rows.last).to_have_attribute("aria-posinset", str(of))

        scroller.evaluate("(it, top) => it.scrollTo(0, top)", 1000 * ROW)
        seen = row(page, "messages", f"number {of - 1001}.")
        expect(seen).to_be_visible()
        before = seen.bounding_box()
        deliver(relay, address, mail("comes meanwhile", "t"))
        expect(seen).to_have_attribute("aria-posinset", "1002")
        assert seen.bounding_box() == before
        scroller.evaluate("it => it.scrollTo(0, 0)")
        expect(rows.first).to_contain_text("comes meanwhile")
        assert visit.errors == []


def test_who_is_not_signed_in_is_told_how(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """The first visit names the command, and offers an inbox."""
    with browse("phone", "dark") as visit:
        page = visit.page
        page.goto(relay.run["http"])
        expect(page.get_by_text("relay open")).to_be_visible()
        expect(page.get_by_role("button", name="Create")).to_be_visible()
        assert in_sight(page, page.get_by_role("button", name="Create"))
        visit.check("first-visit", axe)


def test_what_strangers_wrote_neither_freezes_the_page_nor_runs_in_a_shell(
    relay: RelayProcess, browse: Browse
) -> None:
    """A sender of thousands of blanks; an address that is a shell's pipe, in lines to be copied."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        blanks = "\r\n ".join(["=?utf-8?q?" + "_" * 45 + "?="] * 300)
        slow = f"From: {blanks} <a@b.example>\r\nSubject: blanks\r\n\r\nx\r\n"
        deliver(relay, address, slow.encode())
        page = signed_in(visit, relay, f"mail/{address}")
        row(page, "messages", "blanks").get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text("blanks")

        pipe = "ann'|reboot|'@customer.example"
        deliver(relay, pipe, b"Subject: gone soon\r\n\r\nx\r\n")
        (found,) = eventually_sync(
            lambda: api.get("/api/v1/messages", params={"q": "gone soon"}).json(), "it is listed"
        )
        at = f"/api/v1/mailboxes/{quote(found['mailbox'], safe='')}/messages/{found['id']}"
        assert api.delete(at).status_code == 204
        page.goto(f"{page.url.partition('#')[0]}#/mail/{quote(found['mailbox'], safe='')}")
        lines = page.locator("section.hello pre")
        for client in ("curl", "swaks"):
            page.get_by_role("group", name="Client").get_by_role("button", name=client).click()
            words = shlex.split(lines.inner_text(), comments=True)
            assert pipe in words
            assert "reboot" not in " ".join(words).replace(pipe, "")
