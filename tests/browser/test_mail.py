"""The mail view in a real browser: panes, addresses, keys, undo, codes, and lists without end.

Some screenshots, and one of what is wrong, are left in `test-artefacts/`.
"""

from __future__ import annotations

import json
import re
import shlex
import smtplib
import subprocess
import uuid
from email import policy
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import TIMEOUT, Browse, says
from tests.browser.hostile import PNG, Elsewhere
from tests.browser.steps import SENDER, create_inbox, deliver, mail, row, signed_in
from tests.clients.senders import HERE as CLIENTS
from tests.clients.senders import program
from tests.eventually import eventually_sync
from tests.npm import node_modules
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
        expect(newest.locator(".from > *")).to_have_text(["Ann Example", SENDER])
        (latest,) = api.get(f"/api/v1/mailboxes/{address}/messages?limit=1").json()
        exact = page.evaluate(
            "at => new Intl.DateTimeFormat([], {timeStyle: 'medium'}).format(new Date(at))",
            latest["received_at"],
        )
        expect(newest.locator("time")).to_have_text("now")
        newest.locator("time").hover()
        expect(newest.locator("time")).to_have_attribute("title", re.compile(f"{exact}$"))
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
        moved = int(bar.get_attribute("aria-valuenow") or 0)
        assert moved > width
        handle, pane = bar.bounding_box(), page.locator(".middle").bounding_box()
        assert handle is not None
        assert pane is not None
        page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + 200)
        page.mouse.down()
        page.mouse.move(handle["x"] + handle["width"] / 2 - 60, handle["y"] + 220, steps=3)
        page.mouse.up()
        expect(bar).to_have_attribute("aria-valuenow", str(moved - 60))
        narrower = page.locator(".middle").bounding_box()
        assert narrower is not None
        assert narrower["width"] == pane["width"] - 60
        page.reload()
        expect(subject).to_have_text("letter 59")
        expect(bar).to_have_attribute("aria-valuenow", str(moved - 60))
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


def test_what_an_application_sends_is_seen_at_once(relay: RelayProcess, browse: Browse) -> None:
    """Signed in by SMTP with any password, to an address that nobody made: the row comes by itself,
    with the user name as its tag.  It comes by the stream of events: no list that is asked for
    meanwhile is answered, so a page that asks every so often would never show it.  How long that
    takes is measured by the bench `page`."""
    word = f"w{uuid.uuid4().hex}"
    with browse() as visit:
        page = signed_in(visit, relay, "mail")
        expect(page.get_by_role("heading", name="All mail")).to_be_visible()
        expect(page.locator("#stream")).to_have_text("live")
        page.route("**/api/v1/messages?*", lambda _: None)  # asked, and never answered
        with smtplib.SMTP(*relay.smtp) as client:
            client.login("shop-app", "any password")
            client.sendmail("a@shop.example", [f"{word}@customer.example"], mail(word, "t"))
        expect(row(page, "messages", word).locator(".tag")).to_have_text("shop-app")
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

        press("g")  # no letter follows
        expect(standing(page)).to_contain_text("letter 3")
        press("x")
        press("j")
        press("x")
        chosen = page.get_by_role("group", name="Chosen messages")
        expect(chosen).to_contain_text("2 chosen")
        visit.check("chosen", axe)
        press("Escape")
        expect(chosen).to_be_hidden()
        place = rows.nth(3).bounding_box()
        rows.nth(1).get_by_role("checkbox").click()
        assert rows.nth(3).bounding_box() == place, "what is chosen moves no row"
        rows.nth(3).get_by_role("checkbox").click(modifiers=["Shift"])
        expect(chosen).to_contain_text("3 chosen")
        rows.nth(1).get_by_role("checkbox").click()
        expect(chosen).to_contain_text("2 chosen")
        press("Escape")
        press("g")
        press("x")
        press("j")
        press("X")
        press("#")
        expect(rows).to_have_count(2)
        expect(page.locator("#toast")).to_contain_text("2 messages deleted")
        visit.check("undo", axe)
        press("z")
        expect(rows).to_have_count(4)
        expect(rows.first).to_contain_text("letter 3")
        expect(standing(page)).to_have_count(1)
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
        offered = page.locator("#search-terms option")
        page.keyboard.type("is:unread subj")
        expect(offered).to_have_count(1)
        expect(offered).to_have_attribute("value", "is:unread subject:")
        page.get_by_label("Search", exact=True).fill("")
        page.keyboard.type("subject:1")
        expect(rows).to_have_count(1)
        page.reload()  # the search is in the address
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("letter 1")
        expect(page.locator(".top")).to_contain_text("1 found")

        search, none = page.get_by_label("Search", exact=True), page.locator(".empty")
        press("/")
        search.fill("letter from:")  # goes on
        search.fill("letter larger:many")
        expect(none).to_contain_text("larger: takes bytes")
        expect(rows).to_have_count(0)
        visit.check("search-refused", axe)
        search.fill('"letter 1 and')
        expect(none).to_contain_text("a quotation mark is not closed")
        search.fill("letter")
        press("Enter")
        expect(rows).to_have_count(3)
        expect(search).not_to_be_focused()
        press("j")
        expect(standing(page)).to_have_count(1)
        press("Escape")
        expect(search).to_have_value("")
        search.fill("letter 1")
        expect(rows).to_have_count(1)
        press("Escape")
        expect(search).to_have_value("")
        expect(rows).to_have_count(3)
        page.get_by_role("button", name="Delete this inbox").click()
        asked = page.get_by_role("dialog", name="Delete this inbox")
        expect(asked).to_contain_text(address)
        asked.get_by_role("button", name="Cancel").click()
        assert len(left()) == 3

        press("g")
        press("s")
        expect(page.locator("#settings td").first).to_be_visible()
        for letter, name in (("q", "Queue"), ("n", "Now"), ("k", "API keys"), ("i", "Mail")):
            press("g")
            press(letter)
            expect(page.locator("#views [aria-current]")).to_have_text(name)
        press("g")
        press("s")
        expect(page.locator("#settings td").first).to_be_visible()
        press("/")
        expect(page.get_by_label("Find a setting")).to_be_focused()
        press("Tab")
        press("?")
        expect(dialog).to_be_visible()
        assert visit.errors == []


def test_a_code_is_copied_from_its_row_and_html_comes_first(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """One click has the code; a mail of HTML alone has no empty text; a link in it leads the
    preview nowhere, and stands above; widths stay; an empty inbox says how to send to it.  All of
    it in an inbox with a slash in its name."""
    html = (
        "<!doctype html><p>Hello <b>you</b></p>"
        '<a id="it" href="https://shop.example/verify?t=1">verify</a>'
    )
    with browse() as visit, relay.http() as api:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        name = f"a/b%2f?{uuid.uuid4().hex}"
        address = api.post("/api/v1/mailboxes", json={"local_part": name}).json()["address"]
        page = signed_in(visit, relay, f"mail/{quote(address, safe='')}")
        hello = page.locator(".hello")
        expect(hello).to_contain_text(relay.run["smtp"])
        hello.get_by_role("button", name="swaks").click()
        expect(hello.locator("pre")).to_contain_text(f"--to {shlex.quote(address)}")
        visit.screenshot("first-mail")
        deliver(relay, address, mail("only HTML", None, html), mail("code", "Your code is 271828"))
        chip = row(page, "messages", "code").get_by_role("button", name="Copy the code 271828")
        chip.click()
        expect(chip).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == "271828"
        assert page.url.endswith(quote(address, safe=""))

        page.get_by_role("link", name="only HTML").click()
        frame = page.frame_locator("iframe")
        expect(frame.locator("b")).to_have_text("you")
        mode = "it => it.ownerDocument.compatMode"
        assert says(frame.locator("html"), mode) == "CSS1Compat"
        expect(page.get_by_role("button", name="Text", exact=True)).to_have_count(0)
        link = page.locator("#message-link a")
        expect(link).to_have_attribute("href", "https://shop.example/verify?t=1")
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(link).to_have_attribute("target", "_blank")
        frame.locator("#it").click()
        asked = page.locator("#link-asked")
        expect(asked).to_contain_text("https://shop.example/verify?t=1")
        expect(asked.get_by_role("link")).to_have_attribute("rel", "noopener noreferrer")
        visit.check("link-asked", axe)
        expect(frame.locator("b")).to_have_text("you")
        assert visit.popups == []
        inner = "it => it.ownerDocument.defaultView.innerWidth"
        page.get_by_role("button", name="768").click()
        eventually_sync(lambda: 764 <= says(frame.locator("html"), inner) <= 770, "it is so wide")
        page.get_by_role("button", name="375").click()
        page.reload()
        expect(frame.locator("b")).to_have_text("you")
        box = page.locator("iframe").bounding_box()
        assert box is not None
        assert 370 <= box["width"] <= 380
        page.get_by_role("button", name="Checks").click()
        expect(page.locator("#message-checks")).to_contain_text("of 10")
        visit.check("checks", axe)
        assert visit.errors == []


def newsletter(remote: str, relay: str) -> bytes:
    """A mail that brings a picture and points at others."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = "Ann <a@news.example>", "Newsletter"
    message["Received"] = "from b by c.example; Mon, 23 Nov 2026 01:12:44 +0000"
    message["Received"] = "from a by b.example; Mon, 23 Nov 2026 01:10:02 +0000"
    message.set_content(
        "<style>#own { outline-color: light-dark(#010101, #020202) }"
        "#far { color-scheme: light dark; outline-color: light-dark(#010101, #020202) }"
        "#two { color-scheme: only light; outline-color: light-dark(#010101, #020202) }"
        "@media (prefers-color-scheme: dark) { #own { opacity: .5 } }"
        "@media (prefers-color-scheme: light) { #far { opacity: .6 } }"
        "@supports (display: block) { @media screen {"
        " @media (prefers-color-scheme: dark) { #far { opacity: .7 } } } }</style>"
        f"<p>{'words ' * 2000}</p><img id=own src=cid:a@b><img id=far src={remote}/1.png>"
        f"<table background='{remote}/2.png'><tr><td>cell</table>"
        f"<img src={remote}/1.png><img src={relay}/own.png><img src=http://127.0.0.1:1/x>"
        "<picture><source media='(prefers-color-scheme:dark)' srcset=cid:c@d>"
        "<img id=two src=cid:a@b></picture><meta name=color-scheme content='light dark'>",
        subtype="html",
    )
    message.add_related(PNG, maintype="image", subtype="png", cid="<a@b>", filename="p.png")
    message.add_related(PNG, maintype="image", subtype="png", cid="<c@d>", filename="d.png")
    message.add_attachment(PNG, maintype="image", subtype="png", filename="photo.png")
    return message.as_bytes()


def test_a_newsletter_is_shown_whole(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """As tall as it is, with the pictures it brings; those elsewhere, on this machine, too, once
    they are asked for; its source, its way and its attachment beside it."""
    own = relay.run["http"]
    with Elsewhere() as pictures, browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, newsletter(pictures.url, own))
        page = signed_in(visit, relay, f"mail/{address}")
        page.get_by_role("link", name="Newsletter").click()
        frame = page.frame_locator("iframe")
        width = "it => it.complete && it.naturalWidth"
        expect(frame.locator("#own")).to_be_visible()
        eventually_sync(lambda: says(frame.locator("#own"), width) == 2, "its own is shown")
        notice = page.locator("#remote-images")
        expect(notice).to_have_text("3 remote images ·load onceTheir sender learns that you read.")
        for screen in (390, 820, 1400):
            page.set_viewport_size({"width": screen, "height": 900})
            visit.screenshot(f"remote-images-{screen}")
            middle = (
                "all => all.map(it => it.getBoundingClientRect()).map(it => it.y + it.height / 2)"
            )
            middles = notice.locator("> *").evaluate_all(middle)
            assert max(middles) - min(middles) < 4, f"{middles} at {screen}"
            box = notice.bounding_box()
            assert box is not None
            assert box["height"] < 48, screen
        assert "data:" in (frame.locator("#far").get_attribute("src") or "")
        tall = "it => it.scrollHeight <= it.ownerDocument.defaultView.innerHeight"
        eventually_sync(lambda: says(frame.locator("html"), tall), "it does not scroll alone")
        visit.check("newsletter", axe)
        # Whichever scheme the browser is in, the chosen one is shown: light, dark, and light again.
        shades = page.get_by_role("button", name="dark", exact=True)
        drawn = []  # of the picture that has another for dark mode
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for mine, far in (("1", "0.6"), ("0.5", "0.7"), ("1", "0.6")):
                expect(frame.locator("#own")).to_have_css("opacity", mine)
                expect(frame.locator("#far")).to_have_css("opacity", far)
                one = "rgb(1, 1, 1)" if mine == "1" else "rgb(2, 2, 2)"
                for name, color in (("own", one), ("far", one), ("two", "rgb(1, 1, 1)")):
                    expect(frame.locator(f"#{name}")).to_have_css("outline-color", color)
                source = says(frame.locator("#two"), "it => it.currentSrc.split('?')[0]")
                drawn.append((mine, source))
                if mine == "0.5":
                    visit.check(f"newsletter-dark-{scheme}", axe)
                shades.click()
            shades.click()
        assert len(set(drawn)) == 2, drawn
        page.emulate_media(color_scheme="light")
        assert pictures.asked == []
        page.keyboard.press("i")
        eventually_sync(lambda: says(frame.locator("#far"), width) == 2, "it is fetched")
        expect(notice).to_contain_text("1 remote image could not be loaded")
        expect(notice.get_by_role("button")).to_have_count(0)
        pictures.wait_for("2.png")
        assert sorted(pictures.asked) == ["1.png", "2.png"]
        foreign = [url for url in visit.foreign(own) if not url.startswith(pictures.url)]
        assert foreign == ["http://127.0.0.1:1/x"]
        assert not [url for url in visit.requests if url.endswith("/own.png")]

        expect(page.locator("#message-attachments img")).to_have_count(1)
        expect(page.locator("#message-attachments")).to_have_text(re.compile("photo.png"))
        expect(page.get_by_text("2 pictures in the message")).to_be_visible()
        page.get_by_role("button", name="Source").click()
        expect(page.locator("#message-source .is-value").first).to_contain_text("127.0.0.1")
        visit.check("source", axe)
        page.get_by_role("button", name="Headers").click()
        hops = page.locator("#message-path li")
        expect(hops).to_contain_text(["b.example", "+3 min", "this relay"])
        expect(hops.last.locator(".delay")).to_be_visible()
        visit.check("headers", axe)
        assert visit.errors == []


def test_no_white_box_stands_where_a_message_comes(relay: RelayProcess, browse: Browse) -> None:
    """Until its HTML is there the frame is not seen, and has the height of the message before."""
    with browse("desktop", "dark") as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        high = "<p style='height: 900px'>high</p>"
        deliver(relay, address, *[mail(f"box {number}", None, high) for number in range(2)])
        page = signed_in(visit, relay, f"mail/{address}")
        held: list[Route] = []
        page.route("**/html?*", lambda asked: held.append(asked))
        frame = page.locator("#message-html")
        for least in (0, 900):
            row(page, "messages", f"box {least and 1}").get_by_role("link").click()
            eventually_sync(lambda: page.evaluate("0") or len(held), "its HTML is asked for")
            expect(frame).to_have_css("opacity", "0")
            assert frame.evaluate("it => it.offsetHeight") >= least
            held.pop().continue_()
            expect(frame).to_have_css("opacity", "1")
            eventually_sync(lambda: frame.evaluate("it => it.offsetHeight > 900"), "it fits")
        assert visit.errors == []


def test_all_is_found_by_one_key_and_tabs_agree(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Ctrl K finds messages and does things; many are tagged and marked at once; what one tab does
    the other shows; mail is seen soon after its 250, in the title, too."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        page = signed_in(visit, relay, f"mail/{address}")
        page.get_by_role("button", name="Send a test mail").click()
        rows, press = page.locator("#messages li"), page.keyboard.press
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("482913")
        with smtplib.SMTP(*relay.smtp) as client:
            client.sendmail("a@client.example", [address], mail("first", "t"))
            page.evaluate(
                "() => { const it = document.querySelector('#messages'); self.seen = new Promise("
                "done => new MutationObserver(() => done(performance.now()))"
                ".observe(it, {childList: true, subtree: true})); }"
            )
            client.sendmail("a@client.example", [address], mail("needle", "t"))
            began = page.evaluate("performance.now()")
        took = page.evaluate("self.seen") - began
        assert took < 5000, "it is about 100 ms on an idle machine"
        expect(rows).to_have_count(3)
        expect(page).to_have_title(re.compile(r"^\(\d+\+?\) Mail · Relay$"))

        other = visit.context.new_page()
        other.goto(page.url)
        expect(other.locator("#messages li.unread")).to_have_count(3)
        press("g")
        press("x")
        press("j")
        press("x")
        page.get_by_role("button", name="Tag the chosen").click()
        visit.check("tag-window", axe)
        page.keyboard.type("both")
        press("Enter")
        expect(other.locator("#messages li").filter(has_text="both")).to_have_count(2)
        expect(page.get_by_role("group", name="Chosen messages")).to_be_hidden()
        # Until the browser has taken the window away, keys still go to its field.
        expect(page.locator("dialog")).to_have_count(0)
        press("g")
        press("e")
        expect(other.locator("#messages li.unread")).to_have_count(2)

        find = page.get_by_role("button", name="Find or do")
        expect(find).to_have_attribute("title", re.compile("Ctrl K"))
        find.click()
        found = page.get_by_role("listbox", name="Found")
        expect(found).to_contain_text("Sign out")
        press("Escape")
        press("Meta+k")
        expect(found).to_contain_text("Sign out")
        press("Escape")
        expect(found).to_have_count(0)
        press("Control+k")
        page.keyboard.type("needle")
        expect(found.get_by_role("option").first).to_contain_text("message")
        visit.check("palette", axe)
        press("Enter")
        expect(page.locator("#message-subject")).to_have_text("needle")
        press("r")
        expect(page.get_by_role("textbox", name="Subject")).to_have_value("Re: needle")
        page.keyboard.type("Thank you!")
        written = page.get_by_role("textbox", name="Text")
        expect(written).to_have_value(re.compile(r"^Thank you!\n\n>"))  # above what is quoted
        visit.check("reply", axe)
        to = page.get_by_role("textbox", name="To")
        given = to.input_value()
        to.fill(f"Thank you!{SENDER}")
        page.get_by_role("button", name="Send", exact=True).click()
        refused = page.locator("label:has([name=to]) + [role=alert]")
        expect(refused).to_contain_text(re.compile("^To: "))
        expect(to).to_be_focused()
        to.fill(given)
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("#toast")).to_contain_text("Queued")
        page.get_by_role("button", name="Delete", exact=True).click()
        visit.to("now")  # which ends the time to take it back
        expect(other.locator("#messages li")).to_have_count(2)
        visit.to("mail/tag%3Aboth")
        expect(page.get_by_role("heading", name="# both")).to_be_visible()
        expect(row(page, "messages", "first")).to_be_visible()
        visit.check("tag", axe)

        away = visit.context.new_page()  # in another view, and not looked at
        away.add_init_script(_NOTED)
        with away.expect_response("**/api/v1/messages/events"):
            away.goto(f"{relay.run['http']}/#/queue")
            expect(away.get_by_role("button", name="Sign out")).to_be_visible()
        deliver(relay, address, mail("elsewhere", "t"))
        noted = "self.noted.includes('Ann Example')"
        # By the feed: the page looks every 15 s.  A poll is no eval there.
        eventually_sync(lambda: away.evaluate(noted), "it is told of", within=10)
        away.evaluate("import('/ui/badge.js').then((badge) => badge.look())")
        assert away.evaluate("self.noted.length") == 1, "it is told of once"
        expect(away).to_have_title(re.compile(r"^\(\d+\+?\) Queue · Relay$"))
        assert visit.errors == []


def test_the_palette_finds_inboxes_and_actors(relay: RelayProcess, browse: Browse) -> None:
    """An inbox is opened, an actor's log too; what has a word that begins as is typed stands before
    what has that within a word."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        page, found = signed_in(visit, relay, "now"), visit.page.get_by_role("listbox")
        press = page.keyboard.press

        def find(words: str, kind: str, name: str) -> None:
            press("Control+k")
            page.get_by_role("combobox", name="Find or do").fill(words)
            named = found.get_by_role("option").filter(has=page.get_by_text(name, exact=True))
            named.filter(has=page.get_by_text(kind, exact=True)).click()

        expect(page.locator("#tree")).to_be_visible()
        find(address.partition("@")[0], "inbox", address)
        expect(page.locator("#address")).to_have_text(address)
        find("reap", "actor", "reaper")
        page.wait_for_url("**/#/logs?actor=reaper")
        visit.to("mail")
        expect(page.get_by_role("heading", level=2, name="All mail")).to_be_visible()
        press("Control+k")
        page.get_by_role("combobox", name="Find or do").fill("in")
        expect(found.get_by_text("ingest", exact=True)).to_be_visible()
        titles = found.locator(".name").all_inner_texts()
        assert titles.index("New inbox") < titles.index("Domains")
        assert visit.errors == []


def test_the_palette_shows_the_nearest_message_first(relay: RelayProcess, browse: Browse) -> None:
    """What is named exactly so stands first, then what begins so, then what has it as a word;
    however many have it as a part, and came later."""
    word = f"w{uuid.uuid4().hex[:8]}"
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        subjects = [f"Re: {word} 3", f"{word} 3 is due", f"{word} 3"]
        deliver(relay, address, *[mail(one, "t") for one in subjects])
        listed = f"/api/v1/mailboxes/{address}/messages"
        eventually_sync(lambda: len(api.get(listed).json()) == 3, "they are parsed")
        deliver(relay, address, *[mail(f"{word} {number}", "t") for number in range(30, 40)])
        many = f"/api/v1/messages?q={word}"
        eventually_sync(lambda: len(api.get(many).json()) == 13, "they are found")
        page = signed_in(visit, relay, "now")
        page.keyboard.press("Control+k")
        page.get_by_role("combobox", name="Find or do").fill(f"{word} 3")
        options = page.get_by_role("option").filter(has=page.get_by_text("message", exact=True))
        expect(options).to_have_count(6)
        titles = options.locator(".name").all_inner_texts()
        assert titles[:3] == [f"{word} 3", f"{word} 3 is due", f"Re: {word} 3"]
        assert titles[3:] == [f"{word} {number}" for number in (39, 38, 37)]
        assert visit.errors == []


def test_the_palette_commands_actors_and_the_queue(relay: RelayProcess, browse: Browse) -> None:
    """In any view: an actor is restarted, deliveries are paused and tried, each after a question;
    what came of it is said."""
    with browse() as visit, relay.http() as api:
        page, dialog = signed_in(visit, relay, "settings"), visit.page.get_by_role("dialog")

        def do(words: str, name: str) -> None:
            expect(dialog).to_have_count(0)  # the last one closes when its answer has come
            page.keyboard.press("Control+k")
            page.get_by_role("combobox", name="Find or do").fill(words)
            page.get_by_role("option").filter(has=page.get_by_text(name, exact=True)).click()

        letter = {"from": "a@relay.localhost", "to": ["nobody-has-it@relay.localhost"], "text": "t"}
        api.post("/api/v1/messages/send", json=letter | {"subject": "s"}).raise_for_status()
        bounced = "/api/v1/outbound?status=bounced&recipient=nobody-has-it@relay.localhost"
        eventually_sync(lambda: api.get(bounced).json(), "it is bounced")
        page.keyboard.press("Control+k")
        for words in ("queue", "flush"):
            page.get_by_role("combobox", name="Find or do").fill(words)
            named = page.get_by_role("option").filter(has_text="Try all deferred mail now")
            expect(named).to_be_visible()
        page.keyboard.press("Escape")
        do("retry bounced", "retry all: Bounced")
        expect(dialog).to_contain_text(re.compile(r"Retry \d+ messages?\?"))
        expect(dialog).to_contain_text("Bounced. They are tried at once")
        dialog.get_by_role("button", name="Change nothing").click()

        do("deferred", "Try all deferred mail now")
        expect(dialog).to_contain_text(re.compile("No deferred mail is meant|Try .+ now"))
        page.keyboard.press("Escape")
        do("pause all", "Pause all deliveries")
        dialog.get_by_role("button", name="Pause").click()
        eventually_sync(lambda: api.get("/api/v1/queue").json()["paused"], "they are paused")
        do("resume all", "Resume all deliveries")
        expect(dialog).to_contain_text("Deliveries go on.")
        dialog.get_by_role("button", name="Close").click()

        do("restart reaper", "reaper: restart")
        expect(dialog).to_contain_text("Restart reaper?")
        with page.expect_response(
            lambda one: one.url.endswith("/supervision/reaper/restart")
        ) as one:
            dialog.get_by_role("button", name="Restart").click()
        assert one.value.ok
        expect(dialog).to_have_count(0)
        assert visit.errors == []


def test_g_leads_to_views(relay: RelayProcess, browse: Browse) -> None:
    """Each view that there is has its letter."""
    with browse() as visit:
        page = signed_in(visit, relay, "mail")
        press = page.keyboard.press

        def led(key: str, view: str) -> bool:
            press("g")
            press(key)
            return str(page.evaluate("location.hash")) == f"#/{view}"

        press("?")
        told = page.get_by_role("dialog", name="Keys").locator("dt:has(kbd:text-is('g …')) + dd")
        letters = re.findall(r"\b(\w) ([\w ]+?)(?:,|$)", told.inner_text().partition(": ")[2])
        press("Escape")
        assert len(letters) == page.locator("#views a").count()
        for key, name in letters:
            view = "keys" if name == "API keys" else name
            # Where the machine is slow the second key may come too late.
            eventually_sync(partial(led, key, view), f"g {key}")
            current = page.locator(f"#views [data-view={view}]")
            expect(current).to_have_attribute("aria-current", "page")
        assert visit.errors == []


@pytest.mark.parametrize(
    ("subject", "text", "direction"),
    [
        ("رمز الدخول", "مرحبا، هذا رمزك", "rtl"),
        ("קוד הכניסה", "שלום, זה הקוד שלך", "rtl"),
        ("Your code", "Hello, this is it", "ltr"),
    ],
    ids=["Arabic", "Hebrew", "English"],
)
def test_mail_is_shown_in_the_direction_of_its_script(
    relay: RelayProcess, browse: Browse, subject: str, text: str, direction: str
) -> None:
    """In the list, as a subject and as a text."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, mail(subject, text))
        page = signed_in(visit, relay, f"mail/{address}")
        listed = row(page, "messages", subject)
        for name in ("subject", "snippet"):
            expect(listed.locator(f".{name}")).to_have_css("direction", direction)
        listed.locator(".subject").click()
        for name in ("message-subject", "message-text"):
            expect(page.locator(f"#{name}")).to_have_css("direction", direction)
        expect(page.locator("#message-text")).to_contain_text(text)
        assert visit.errors == []


_NOTED = """
    self.noted = [];
    self.Notification = class {
        static permission = "granted";
        constructor(title) { self.noted.push(title); }
    };
    localStorage.setItem("relay.notify", "yes");
    Object.defineProperty(document, "hidden", { get: () => true });
"""


# Scroll 400 px a frame, as far as asked: the most rows that were there at once, how many there ever
# were, and how many were made, or moved among the others, in a frame at most.
SCROLL = """async (far) => {
    const scroller = document.getElementById("messages");
    const body = scroller.querySelector("ul");
    const made = new Set(body.children);
    let [most, moved] = [body.children.length, 0];
    const watch = new MutationObserver((changes) => {
        for (const {addedNodes} of changes) for (const row of addedNodes) made.add(row);
        moved = Math.max(moved, changes.length);
    });
    watch.observe(body, {childList: true});
    const ends = Date.now() + 60000; // for who would never come there
    while (scroller.scrollTop < far && Date.now() < ends) {
        scroller.scrollTop += 400;
        await new Promise(requestAnimationFrame);
        most = Math.max(most, body.children.length);
    }
    watch.disconnect();
    return {far: scroller.scrollTop, most, made: made.size, moved};
}"""
MANY = 6_000
FILL = """
    WITH made AS (
        INSERT INTO relay.messages (mailbox_id, received_at, raw_email)
        SELECT b.id, now() - make_interval(secs => n),
               convert_to(format(E'Subject: letter %%s\\r\\n\\r\\ntext\\r\\n', n), 'UTF8')
        FROM generate_series(1, %(many)s) n
        JOIN relay.mailboxes b ON b.address = %(address)s
        RETURNING id, mailbox_id, raw_email
    ), parsed AS (
        INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject, body_text, tags)
        SELECT id, mailbox_id, 'Ann <a@client.example>',
               substr(split_part(convert_from(raw_email, 'UTF8'), E'\\r', 1), 10), 'text', '{many}'
        FROM made
    )
    SELECT
"""
UNPARSED = """
    DELETE FROM relay.unsummarised u
    USING relay.mailboxes b
    WHERE b.id = u.mailbox_id AND b.address = %(address)s
"""


def test_a_real_list_is_scrolled_with_few_rows(relay: RelayProcess, browse: Browse) -> None:
    """Of 6,000 messages in the database, as they come page by page: however far it is scrolled,
    the page has few rows, fills the same ones anew, and moves few of them in a frame.

    That says that a frame's work does not grow with the list. How long it takes is the machine's
    affair: `python -m tests.bench page` counts frames, on a list of 100,000."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        fill(relay, address, MANY)
        page = signed_in(visit, relay, f"mail/{address}")
        expect(row(page, "messages", "letter 1").first).to_be_visible()
        listed: list[str] = []
        page.on("request", lambda one: listed.append(one.url) if "/messages?" in one.url else None)
        drawn = page.evaluate(SCROLL, 3000 * ROW)
        assert drawn["far"] >= 3000 * ROW
        assert max(drawn["most"], drawn["made"]) < 300, drawn
        assert drawn["moved"] < 300, drawn
        # Each page was asked for once, and none that is far from what is seen.
        pages = [one for one in listed if "cursor=" in one]
        assert 14 <= len(pages) == len(set(pages)) <= 18, pages
        at = int(page.locator("#messages").evaluate("it => Math.round(it.scrollTop / 36)"))
        expect(row(page, "messages", f"letter {at + 5}").first).to_be_visible()
        visit.screenshot("scrolled")
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


def fill(relay: RelayProcess, address: str, many: int) -> None:
    """Put so many messages into an inbox, the newest letter 1, at once: or they would be parsed."""
    with psycopg.connect(relay.run["database_url"]) as sql:
        sql.execute(FILL, {"many": many, "address": address})
        sql.execute(UNPARSED, {"address": address})


def load(page: Page, count: int) -> None:
    """Scroll to the end again and again, until the list has so many rows."""
    page.wait_for_function(
        "height => { const it = document.getElementById('messages');"
        " it?.scrollTo(0, it.scrollHeight); return it?.scrollHeight === height; }",
        arg=count * ROW,
        timeout=4 * TIMEOUT,
    )


def letter(page: Page, number: int) -> Locator:
    """The row of one of those that `fill` made."""
    link = page.get_by_role("link", name=f"letter {number}", exact=True)
    return page.locator("#messages li").filter(has=link)


def test_what_others_change_is_seen_without_a_reload(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Two browsers, and a program: lists, counts, what is read and what could be taken back; what
    is no more is said so, and offers nothing."""
    with browse() as visit, browse() as other, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        mailbox = f"/api/v1/mailboxes/{address}"
        fill(relay, address, 130)
        page = signed_in(visit, relay, f"mail/{address}")
        there = signed_in(other, relay, f"mail/all?q={address}")
        badge = page.locator("#inboxes li").filter(has_text=address).locator(".badge")
        expect(badge).to_have_text("130")
        ids = [one["id"] for one in api.get(f"{mailbox}/messages?limit=5").json()]

        letter(there, 1).get_by_role("link").click()
        expect(letter(page, 1)).not_to_have_class(re.compile("unread"))
        expect(badge).to_have_text("129")
        there.get_by_role("button", name="+ Tag").click()
        there.keyboard.type("parcel")
        there.keyboard.press("Enter")
        expect(letter(page, 1)).to_contain_text("parcel")
        expect(page.locator("#folders")).to_contain_text("# parcel")

        letter(page, 2).get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text("letter 2")
        api.patch(f"{mailbox}/messages/{ids[1]}", json={"tags": ["by a program"]})
        expect(page.locator("#message-tags")).to_contain_text("by a program")
        api.delete(f"{mailbox}/messages/{ids[1]}")
        expect(letter(page, 2)).to_have_count(0)
        expect(letter(there, 2)).to_have_count(0)
        deleted = page.get_by_role("alert").filter(has_text="This message is deleted.")
        expect(deleted).to_be_visible()
        expect(page.locator("#message-subject")).to_have_text("letter 2")
        acts = page.locator("#message").get_by_role("button")
        expect(acts).to_have_text(["Text", "Source", "Headers"])

        letter(page, 3).get_by_role("checkbox").click()
        page.get_by_role("button", name="Delete the chosen").click()
        expect(page.get_by_role("button", name="Undo")).to_be_visible()
        api.delete(f"{mailbox}/messages/{ids[2]}")
        expect(page.get_by_role("button", name="Undo")).to_have_count(0)

        api.delete(f"{mailbox}/messages?q=-subject:%22letter 130%22")
        expect(page.locator("#messages li")).to_have_count(1)
        expect(there.locator("#messages li")).to_have_count(1)
        expect(badge).to_have_text("1")

        letter(page, 130).get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text("letter 130")
        expect(deleted).to_be_hidden()
        api.delete(mailbox)
        over = page.locator(".middle").get_by_role("alert")
        expect(over).to_have_text("This inbox is over, and its mail is gone.")
        for shown in (page, there):
            expect(shown.locator("#messages li")).to_have_count(0)
        expect(deleted).to_be_visible()
        expect(acts).to_have_text(["Text", "Source", "Headers"])
        visit.check("inbox-over", axe)
        page.reload()
        expect(over).to_contain_text("There is no such mailbox, or it is over")
        expect(page.locator(".reader .none")).to_be_hidden()
        for name in ("Delete this inbox", "Delete", "Reply"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        visit.check("inbox-unknown", axe)
        assert visit.errors == other.errors == []


@pytest.mark.parametrize("whose", ["a key's", "this browser's"])
def test_what_was_deleted_is_gone_though_the_page_is_left(
    relay: RelayProcess, browse: Browse, whose: str
) -> None:
    """While it could be taken back: one call outlives the page, however many were chosen."""
    with browse() as visit, relay.http() as api:
        page, rows = visit.page, visit.page.locator("#messages li")
        if whose == "a key's":
            address = api.post("/api/v1/mailboxes").json()["address"]
        else:
            page.goto(relay.run["http"])
            address = create_inbox(page)
        fill(relay, address, 41)
        if whose == "a key's":
            signed_in(visit, relay, f"mail/{address}")
        else:
            page.reload()
        expect(rows).to_have_count(41)
        rows.nth(0).get_by_role("checkbox").click()
        rows.nth(39).get_by_role("checkbox").click(modifiers=["Shift"])
        page.get_by_role("button", name="Delete the chosen").click()
        expect(rows).to_have_count(1)
        expect(page.locator("#toast")).to_contain_text("40 messages deleted.")
        page.goto("about:blank")
        messages = f"/api/v1/mailboxes/{address}/messages?limit=200"
        eventually_sync(lambda: len(api.get(messages).json()) == 1, "the others are gone")
        (left,) = api.get(messages).json()
        assert left["subject"] == "letter 41"
        assert visit.errors == []


def test_a_thousand_are_deleted_and_taken_back_at_once(relay: RelayProcess, browse: Browse) -> None:
    """The list is drawn once for all of them, each time; they are back where they were."""
    many = 1000
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        fill(relay, address, many)
        page = signed_in(visit, relay, f"mail/{address}")
        rows, scroller = page.locator("#messages li"), page.locator("#messages")
        chosen = page.get_by_role("group", name="Chosen messages")

        def times() -> int:
            """How often the list was made shorter or longer since it was asked."""
            return int(page.evaluate("self.drawn.splice(0).length"))

        count = page.locator(f"#inboxes a[data-key='{address}'] .count")
        unread = page.locator(f"#inboxes a[data-key='{address}'] .badge")
        # All that match, most of it not loaded: the rail counts none of it, until it is taken back.
        expect(count).to_have_text(str(many))
        rows.first.get_by_role("checkbox").click()
        expect(chosen.get_by_role("button", name="All 1,000", exact=True)).to_be_visible()
        chosen.get_by_role("button", name="All").click()
        expect(chosen).to_contain_text("All that match are chosen: 1,000")
        page.get_by_role("button", name="Delete the chosen").click()
        assert count.inner_text() == "0"
        page.get_by_role("button", name="Undo").click()
        expect(count).to_have_text(str(many))
        load(page, many)
        scroller.evaluate("it => it.scrollTo(0, 0)")
        expect(rows.first).to_contain_text("letter 1")
        rows.first.get_by_role("checkbox").click()
        chosen.get_by_role("button", name="All").click()
        rows.first.get_by_role("checkbox").click()
        expect(chosen).to_contain_text(f"{many - 1} chosen")
        page.evaluate(
            "() => { self.drawn = []; new MutationObserver((all) => self.drawn.push(...all))"
            ".observe(document.querySelector('#messages ul'), {attributeFilter: ['style']}); }"
        )
        expect(count).to_have_text(str(many))
        page.get_by_role("button", name="Delete the chosen").click()
        expect(page.locator("#toast")).to_contain_text("999 messages deleted.")
        expect(rows).to_have_count(1)
        assert times() == 1
        assert (count.inner_text(), unread.inner_text()) == ("1", "1"), "though it may be undone"
        page.get_by_role("button", name="Undo").click()
        expect(count).to_have_text(str(many))
        expect(rows.nth(1)).to_contain_text("letter 2")
        assert times() == 1
        for index in (0, 500, many - 1):
            scroller.evaluate("(it, top) => it.scrollTo(0, top)", index * ROW)
            expect(letter(page, index + 1)).to_have_attribute("aria-posinset", str(index + 1))
        assert api.get(f"/api/v1/mailboxes/{address}").json()["message_count"] == many
        # So are more than one call deletes; and though the page is left meanwhile, they go.
        fill(relay, address, 2)
        page.reload()
        load(page, many + 2)
        for again in (False, True):
            scroller.evaluate("it => it.scrollTo(0, 0)")
            rows.first.get_by_role("checkbox").click()
            chosen.get_by_role("button", name="All").click()
            rows.first.get_by_role("checkbox").click()
            page.get_by_role("button", name="Delete the chosen").click()
            expect(page.locator("#toast")).to_contain_text("1,001 messages deleted.")
            expect(rows).to_have_count(1)
            if not again:
                page.get_by_role("button", name="Undo").click()
                expect(rows.nth(1)).to_be_visible()
        page.reload()
        expect(rows).to_have_count(1)
        eventually_sync(
            lambda: api.get(f"/api/v1/mailboxes/{address}").json()["message_count"],
            "all the others are gone",
            until=lambda count: count == 1,
        )
        expect(rows).to_have_count(1)
        page.wait_for_function("sessionStorage.getItem('relay.deletions') === 'null'")
        assert visit.errors == []


def test_a_place_far_down_is_kept_and_keys_go_on_from_what_is_read(
    relay: RelayProcess, browse: Browse
) -> None:
    """Further down than is loaded unasked: a reload leads there, also one before the list is there
    again.  Of a message that is not among the rows nobody knows the next one: j opens none."""
    many, far, unasked = 4600, 4300, 21 * EVERY
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        fill(relay, address, many)
        page = signed_in(visit, relay, f"mail/{address}")
        scroller = page.locator("#messages")
        expect(letter(page, 1)).to_be_visible()
        load(page, many)
        scroller.evaluate("(it, top) => it.scrollTo(0, top)", far * ROW)
        expect(letter(page, far + 1)).to_be_visible()
        page.reload(wait_until="commit")
        page.evaluate("document.readyState")  # Chromium reloads only a page that is the one shown
        page.reload()
        expect(letter(page, far + 1)).to_be_in_viewport(timeout=4 * TIMEOUT)
        assert scroller.evaluate("it => it.scrollTop") == far * ROW

        letter(page, far + 5).get_by_role("link").click()
        subject = page.locator("#message-subject")
        expect(subject).to_have_text(f"letter {far + 5}")
        page.keyboard.press("j")
        expect(subject).to_have_text(f"letter {far + 6}")
        other = visit.context.new_page()  # which was nowhere yet
        other.goto(page.url)
        expect(other.locator("#message-subject")).to_have_text(f"letter {far + 6}")
        other.wait_for_function(
            "height => document.getElementById('messages').scrollHeight >= height",
            arg=unasked * ROW,
            timeout=4 * TIMEOUT,
        )
        before = other.url
        for key in ("j", "k"):
            other.keyboard.press(key)
            assert other.evaluate("location.href") == before
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


def test_the_row_of_a_message_that_an_address_leads_to_is_in_sight(
    relay: RelayProcess, browse: Browse
) -> None:
    """Also where its list was left elsewhere, beside another; a reload leaves the list there."""
    many = 120
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        fill(relay, address, many)
        page = signed_in(visit, relay, f"mail/{address}")
        first = letter(page, 1).get_by_role("link").get_attribute("href")
        load(page, many)
        letter(page, many).get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text(f"letter {many}")
        scroller = page.locator("#messages")
        assert scroller.evaluate("it => it.scrollTop") > 0
        page.goto("about:blank")
        page.goto(f"{relay.run['http']}/{first}")
        expect(letter(page, 1)).to_be_in_viewport()
        expect(page.locator("#message-subject")).to_have_text("letter 1")
        scroller.evaluate("(it, top) => it.scrollTo(0, top)", 60 * ROW)
        expect(letter(page, 61)).to_be_in_viewport()
        page.reload()
        expect(letter(page, 61)).to_be_in_viewport()
        assert scroller.evaluate("it => it.scrollTop") == 60 * ROW
        assert visit.errors == []


def test_a_page_that_is_not_secure_copies_and_says_why_it_is_silent(
    browse: Browse, tmp_path: Path, axe: str
) -> None:
    """By a name and without TLS a browser gives a page neither its clipboard nor notifications."""
    env = {"RELAY_HTTP__PUBLIC_URL": "http://relay.example"}
    with RelayProcess(tmp_path / "data", env=env) as relay, browse() as visit:
        page = visit.page
        page.goto(relay.run["http"].replace("127.0.0.1", "relay.example"))
        assert page.evaluate("isSecureContext") is False
        address = create_inbox(page)
        copy = page.get_by_role("button", name="Copy the address")
        copy.click()
        expect(copy).to_have_text("copied")
        search = page.get_by_label("Search", exact=True)
        search.press("Control+v")
        expect(search).to_have_value(address)
        page.get_by_role("button", name="Notify me").click()
        said = page.locator(".rail .foot")
        expect(said).to_contain_text("only of pages that come over HTTPS")
        visit.check("not-secure", axe)
        assert visit.errors == []
    with browse() as visit, RelayProcess(tmp_path / "data") as relay:
        visit.page.goto(relay.run["http"])  # where Chromium without a head refuses unasked
        visit.page.get_by_role("button", name="Notify me").click()
        expect(visit.page.locator(".rail .foot")).to_contain_text("refuses notifications")


def test_a_reload_leaves_what_is_read_and_the_queue_where_they_were(
    relay: RelayProcess, browse: Browse
) -> None:
    """A long HTML mail is as tall as before only later; the queue's second page is asked for."""
    html = "<p>long</p>" * 300 + "<p id=end>the end</p>"
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, mail("long", None, html))
        page = signed_in(visit, relay, f"mail/{address}")
        page.get_by_role("link", name="long").click()
        end, reader = page.frame_locator("iframe").locator("#end"), page.locator(".reader")
        expect(end).to_be_attached()
        end.scroll_into_view_if_needed()
        top = reader.evaluate("it => it.scrollTop")
        assert top > 1000
        page.reload()
        eventually_sync(
            lambda: reader.evaluate("it => it.scrollTop"), "scrolled", until=lambda at: at == top
        )
        # Another message begins at its top.
        deliver(relay, address, mail("other", None, html))
        page.get_by_role("link", name="other").click()
        expect(page.locator("#message-subject")).to_have_text("other")
        assert reader.evaluate("it => it.scrollTop") == 0

        to = [f"x{number}@reload.example" for number in range(80)]
        body = {"from": "a@relay.localhost", "subject": "queued", "text": "t", "to": to}
        body |= {"send_at": "2099-01-01T00:00:00Z"}
        api.post("/api/v1/messages/send", json=body).raise_for_status()
        visit.to("queue/queued?domain=reload.example")
        rows, scroller = page.locator("#outbound li.row"), page.locator("#outbound")
        expect(rows).to_have_count(50)
        page.locator("#outbound .more button").click()
        expect(rows).to_have_count(80)
        scroller.evaluate("it => it.scrollTo(0, it.scrollHeight)")
        top = scroller.evaluate("it => it.scrollTop")
        assert top > 0
        page.reload()
        expect(rows).to_have_count(80)
        eventually_sync(
            lambda: scroller.evaluate("it => it.scrollTop"), "scrolled", until=lambda at: at == top
        )
        wanted = "/api/v1/outbound/matching/cancel?domain=reload.example"
        api.post(wanted).raise_for_status()
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


def test_a_tag_is_compared_without_case_as_mail_comes_and_is_tagged(
    relay: RelayProcess, browse: Browse
) -> None:
    """As the relay does: a list of Alpha shows what comes with alpha, and what is tagged ALPHA."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        tag = f"Alpha{uuid.uuid4().hex[:8]}"
        deliver(relay, address, f"X-Tags: {tag}\r\n".encode() + mail("the first", "t"))
        page = signed_in(visit, relay, f"mail/tag:{tag}")
        rows = page.locator("#messages li")
        expect(rows).to_have_count(1)
        expect(page.locator("#stream")).to_have_text("live")
        deliver(relay, address, f"X-Tags: {tag.lower()}\r\n".encode() + mail("the second", "t"))
        expect(rows).to_have_count(2)
        deliver(relay, address, mail("the third", "t"))
        ids = [one["id"] for one in api.get(f"/api/v1/mailboxes/{address}/messages").json()]
        path = f"/api/v1/mailboxes/{address}/messages/{ids[0]}"
        api.patch(path, json={"add_tags": [tag.upper()]}).raise_for_status()
        expect(rows).to_have_count(3)
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


@pytest.mark.parametrize("client", ["curl", "swaks", "Node"])
def test_the_lines_for_a_client_run_as_they_stand(
    relay: RelayProcess, browse: Browse, tmp_path: Path, client: str
) -> None:
    """What an empty inbox shows to copy brings the first mail, to an address with odd characters,
    too.  The lines for frameworks and for Go are tried in test_frameworks.py."""
    with browse() as visit, relay.http() as api:
        name = f"a/b%2f?{uuid.uuid4().hex}"
        address = api.post("/api/v1/mailboxes", json={"local_part": name}).json()["address"]
        page = signed_in(visit, relay, f"mail/{quote(address, safe='')}")
        hello = page.locator(".hello")
        clients = hello.get_by_role("group", name="Client").get_by_role("button")
        expect(clients).to_have_count(8)
        clients.get_by_text(client, exact=True).click()
        lines = hello.locator("pre").inner_text()
        if client == "Node":
            command = [program("node"), "first.mjs"]
            (tmp_path / "first.mjs").write_text(lines)
            (tmp_path / "node_modules").symlink_to(node_modules(CLIENTS))
        else:
            program(client)
            command = ["sh", "-c", lines]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        expect(row(page, "messages", "Hello")).to_be_visible()
        assert visit.errors == []


def test_unread_mail_is_counted_whole(relay: RelayProcess, browse: Browse) -> None:
    """However much there is: in the row of its inbox, and up to 999 in all and in the title."""
    with browse() as visit, relay.http() as api:
        api.post("/api/v1/messages/read", params={"q": "*"}).raise_for_status()
        address = api.post("/api/v1/mailboxes").json()["address"]
        other = api.post("/api/v1/mailboxes").json()["address"]
        fill(relay, address, 260)
        deliver(relay, other, mail("one more", "t"))
        page = signed_in(visit, relay, f"mail/{address}")
        badge = row(page, "inboxes", address).locator(".badge")
        everything = page.locator("#folders [data-key=all] .badge")
        expect(badge).to_have_text("260")
        expect(everything).to_have_text("261")
        expect(page).to_have_title(re.compile(r"^\(261\) "))
        icon = page.locator("link[rel=icon]")
        expect(icon).to_have_attribute("href", re.compile("circle"))
        letter(page, 1).click()
        expect(badge).to_have_text("259")
        expect(everything).to_have_text("260")
        fill(relay, address, 745)
        deliver(relay, address, *(mail(f"later {n}", "t") for n in range(5)))
        expect(everything).to_have_text("999+")
        expect(badge).to_have_text("999+")
        expect(row(page, "inboxes", other).locator(".badge")).to_have_text("1")
        visit.screenshot("unread")
        api.post("/api/v1/messages/read", params={"q": "*"}).raise_for_status()
        page.evaluate("import('/ui/badge.js').then((badge) => badge.look())")
        expect(icon).to_have_attribute("href", re.compile("^(?!.*circle)data:image/svg"))
        expect(page).to_have_title("Mail · Relay")
        for one in (address, other):
            api.delete(f"/api/v1/mailboxes/{one}?purge=true").raise_for_status()
        assert visit.errors == []


def test_every_tag_is_reached_in_the_rail(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """The first twenty stand there, and the others when they are asked for."""
    tags = [f"zz-tag-{n}" for n in range(10, 35)]
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        for some in (tags[:20], tags[20:]):  # a message has twenty at most
            said = f"X-Tags: {', '.join(some)}\r\n".encode()
            deliver(relay, address, said + mail(f"up to {some[-1]}", "t"))
        page = signed_in(visit, relay, "mail")
        link = page.locator("#folders").get_by_role("link", name=f"# {tags[-1]}")
        more = page.locator("#folders summary")
        expect(more).to_have_text("More tags")
        expect(link).to_be_hidden()
        more.click()
        expect(link).to_be_visible()
        visit.check("more-tags", axe)
        link.click()
        expect(page.get_by_role("heading", name=f"# {tags[-1]}")).to_be_visible()
        expect(link).to_have_attribute("aria-current", "page")
        expect(row(page, "messages", f"up to {tags[-1]}")).to_be_visible()
        expect(page.locator("#messages li")).to_have_count(1)
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


def test_a_search_offers_what_there_is_and_tags_say_what_is_unread(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Senders and recipients of the list; a tag's badge counts down as its mail is read."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        api.patch("/api/v1/messages", params={"q": "is:unread"}, json={"is_read": True})
        tagged = b"X-Tags: counted\r\n"
        deliver(relay, address, *(tagged + mail(f"counted {n}", "the text") for n in range(2)))
        page = signed_in(visit, relay, "mail/all")
        badge = page.locator("#folders [data-key='tag:counted'] .badge")
        expect(badge).to_have_text("2")
        page.get_by_label("Search", exact=True).fill(f"to:{address[:9]}")
        offered = page.locator(f"#search-terms option[value='to:{address}']")
        expect(offered).to_have_count(1)
        page.get_by_label("Search", exact=True).fill("frm:ann")
        expect(page.locator(".middle .none")).to_have_text(
            re.compile('^There is no operator "frm:"')
        )
        page.get_by_label("Search", exact=True).fill("is:new")
        expect(page.locator(".middle .none")).to_have_text(re.compile("^is: takes"))
        page.get_by_label("Search", exact=True).fill("")
        page.get_by_label("New inbox").fill("Spring Garden!")
        page.get_by_role("button", name="Create").click()
        expect(page.locator("#fault-local_part")).to_have_text(re.compile("^New inbox: it must"))
        row(page, "messages", "counted 0").get_by_role("link").click()
        expect(badge).to_have_text("1")
        # Of more unread mail than is looked at nobody knows how much is tagged.
        deliver(relay, address, *(mail(f"other {n}", "the text") for n in range(50)))
        everything = page.locator("#folders [data-key=all] .badge")
        expect(everything).to_have_text("51")
        expect(badge).to_be_hidden()
        # Of a mail that is text, the source is the whole of it.
        page.get_by_role("button", name="Source").click()
        source = page.locator("#message-source")
        expect(source.locator(".is-tagname").filter(has_text="Subject:")).to_have_count(1)
        expect(source).to_contain_text("the text")
        visit.check("source-of-text", axe)
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
        assert visit.errors == []


def test_a_phone_shows_whole_tags_or_none(relay: RelayProcess, browse: Browse) -> None:
    """Beside a code and a subject there may be no room for one, and for two where one is."""
    with browse("phone") as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        tags = b"X-Tags: shopapp, orders of today\r\n"
        deliver(relay, address, tags + mail("571904 is your login code", "Your code is 571904"))
        deliver(relay, address, tags + mail("Hi", "the text"))
        page = signed_in(visit, relay, f"mail/{address}")
        coded = row(page, "messages", "571904")
        expect(coded.locator(".chip")).to_have_text("571904")
        expect(coded.locator(".tag").first).to_be_hidden()
        plain = row(page, "messages", "the text").locator(".tags")
        expect(plain.locator(".tag").first).to_be_visible()
        cut = """tags => [...tags.children].map((tag) => tag.getBoundingClientRect()).filter(
            (tag, at, [first]) => tag.top === first.top
                && tag.right > tags.getBoundingClientRect().right + 0.5).length"""
        assert plain.evaluate(cut) == 0
        api.delete(f"/api/v1/mailboxes/{address}?purge=true").raise_for_status()
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
        load(page, of)
        expect(rows.last).to_contain_text("number 0.")
        assert rows.count() < 300
        expect(rows.last).to_have_attribute("aria-posinset", str(of))

        scroller.evaluate("(it, top) => it.scrollTo(0, top)", 1000 * ROW)
        seen = row(page, "messages", f"number {of - 1001}.")
        expect(seen).to_be_visible()
        before = seen.bounding_box()
        page.reload()  # it is loaded again up to there
        expect(seen).to_be_visible()
        eventually_sync(lambda: seen.bounding_box() == before, "it is where it was")
        expect(page.locator("#stream")).to_have_text("live")
        deliver(relay, address, mail("comes meanwhile", "t"))
        expect(seen).to_have_attribute("aria-posinset", "1002")
        assert seen.bounding_box() == before
        scroller.evaluate("it => it.scrollTo(0, 0)")
        expect(rows.first).to_contain_text("comes meanwhile")

        assert visit.errors == []


@pytest.mark.parametrize("many", [3, 60])
@pytest.mark.parametrize("looks", ["open", "chosen", "pointed at", "focused"])
def test_new_mail_moves_no_row_that_is_looked_at(
    relay: RelayProcess, browse: Browse, looks: str, many: int
) -> None:
    """At the top of a list too, and of one that fits the screen: each row stays where it is, and
    the page says how many came above, which a click shows.  What was deleted above moves none,
    either; and once nobody looks at a row, what came slides in by itself."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(relay, address, *(mail(f"letter {n}.", "t") for n in range(many)))
        page = signed_in(visit, relay, f"mail/{address}")
        rows, above = page.locator("#messages li"), page.locator("#above")
        expect(rows).to_have_count(many)
        expect(page.locator("#stream")).to_have_text("live")
        second = row(page, "messages", f"letter {many - 2}.")
        link = second.get_by_role("link")
        if looks == "open":
            link.click()
            expect(page.locator("#message-subject")).to_have_text(f"letter {many - 2}.")
        elif looks == "chosen":
            second.get_by_role("checkbox").check()
        elif looks == "focused":
            link.focus()
        if looks == "pointed at":
            second.hover()
        else:
            page.mouse.move(5, 5)
        before = second.bounding_box()
        deliver(relay, address, *(mail(f"comes {n}.", "t") for n in range(2)))
        expect(rows).to_have_count(many + 2)
        expect(above).to_have_text("↑ 2 new")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert second.bounding_box() == before
        assert not in_list(page, row(page, "messages", "comes 1."))
        _, hidden = api.get(f"/api/v1/mailboxes/{address}/messages?limit=2").json()
        api.delete(f"/api/v1/mailboxes/{address}/messages/{hidden['id']}").raise_for_status()
        expect(rows).to_have_count(many + 1)
        expect(above).to_have_text("↑ 1 new")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert second.bounding_box() == before
        if looks == "open":
            above.click()
        elif looks == "chosen":
            second.get_by_role("checkbox").uncheck()
            page.mouse.move(5, 5)
            page.locator(".middle h2").focus()
        elif looks == "focused":
            page.locator(".middle h2").focus()
        else:
            page.mouse.move(5, 5)
        expect(above).to_be_hidden()
        eventually_sync(lambda: in_list(page, row(page, "messages", "comes 1.")), "it is seen")
        deliver(relay, address, mail("the last.", "t"))
        expect(rows).to_have_count(many + 2)
        seen = looks != "open"
        eventually_sync(lambda: in_list(page, row(page, "messages", "the last.")) == seen, "seen")
        assert visit.console == []
        assert visit.errors == []


def in_list(page: Page, element: Locator) -> bool:
    """Whether a row is wholly within what is seen of the list."""
    boxes = [it.bounding_box() for it in (element, page.locator("#messages"))]
    inner, outer = boxes
    assert inner is not None
    assert outer is not None
    return outer["y"] <= inner["y"] + 0.5 <= outer["y"] + outer["height"] - inner["height"] + 1


def test_all_that_match_are_changed_in_one_call(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Loaded or not, of all mail and of one inbox, up to the newest that was seen; what is deleted
    so may be taken back.  Released they are one by one: what was refused is named, and may be tried
    again alone; a press stops it."""
    asked: list[tuple[str, str, str, str | None]] = []
    found: list[dict[str, object]] = [
        {"id": str(uuid.uuid4()), "mailbox": "a@b.example", "from_address": "c@d.example",
         "subject": f"number {number}", "received_at": f"2026-11-23T03:00:0{number}.5Z",
         "is_read": False, "has_attachments": False, "size": 1, "tags": [], "snippet": "",
         "otp": None}
        for number in (2, 1)
    ]  # fmt: skip
    released: list[str] = []
    late: list[Route] = []

    def answer(route: Route) -> None:
        url = urlsplit(route.request.url)
        query = parse_qs(url.query)
        if "cursor" in query:
            if query["q"][0].startswith("before:"):
                route.fulfill(json=[{**found[1], "id": "third", "subject": "number 0"}])
            else:
                route.abort()
        elif route.request.method == "GET":
            following = f"{url.path}?cursor=1&q={quote(query['q'][0])}"
            route.fulfill(json=found, headers={"Link": f'<{following}>; rel="next"'})
        else:
            asked.append((route.request.method, url.path, query["q"][0], route.request.post_data))
            route.fulfill(json={"count": 2})

    def release(route: Route) -> None:
        released.append(route.request.url.split("/")[-2])
        if len(released) == 1:
            problem = {"type": "/problems/foreign-sender", "detail": "not from you"}
            route.fulfill(status=403, json=problem)
        elif len(released) == 6:
            late.append(route)
        else:
            route.fulfill(status=202, json={})

    with browse() as visit, relay.http() as api:
        inbox = quote(api.post("/api/v1/mailboxes").json()["address"], safe="")
        visit.page.route("**/messages?*", answer)
        page = signed_in(visit, relay, f"mail/{inbox}?q=word")
        rows, chosen = page.locator("#messages li"), page.get_by_role("group", name="Chosen")

        def choose_all() -> None:
            expect(rows).to_have_count(2)
            page.keyboard.press("g")
            page.keyboard.press("x")
            chosen.get_by_role("button", name="All").click()
            expect(chosen).to_contain_text("All that match are chosen")

        def change(does: str) -> None:
            choose_all()
            chosen.get_by_role("button", name=does, exact=True).click()

        all_mail, of_inbox = "/api/v1/messages", f"/api/v1/mailboxes/{inbox}/messages"
        before = "before:2026-11-23T03:00:02.501Z word"
        change("Tag the chosen")
        asking = page.get_by_role("dialog", name="Tag all that match")
        asking.get_by_label("Tag").fill("shop")
        visit.check("tag-all", axe)
        asking.get_by_role("button", name="Tag").click()
        expect(chosen).to_be_hidden()
        change("Delete the chosen")
        with page.expect_response(lambda answer: answer.request.method == "DELETE"):
            visit.to("now")  # what is left does not wait
        visit.to("mail/all?q=word")
        change("Read")
        expect(chosen).to_be_hidden()
        change("Delete the chosen")
        assert asked == [
            ("PATCH", of_inbox, before, '{"add_tags":["shop"]}'),
            ("DELETE", of_inbox, before, None),
            ("PATCH", all_mail, before, '{"is_read":true}'),
        ]
        expect(rows).to_have_count(0)
        page.get_by_role("button", name="Undo").click()
        change("Delete the chosen")
        with page.expect_response(lambda answer: answer.request.method == "DELETE"):
            visit.to("now")
        assert asked[3:] == [("DELETE", all_mail, before, None)]

        visit.to("mail/all?q=word")
        change("Forward the chosen")  # this relay's mail stays here
        why = page.get_by_role("dialog", name="Forward this message")
        expect(why).to_contain_text("Nothing can be forwarded here")
        visit.check("release-nowhere", axe)
        why.get_by_role("button", name="Close").click()
        page.route("**/api/v1/info", lambda asked: asked.fulfill(json={"release": True}))
        page.route("**/release", release)
        sending = page.get_by_role("dialog", name="Forward 3 messages")

        def release_all() -> None:
            chosen.get_by_role("button", name="Forward the chosen").click()
            sending.get_by_label("To").fill("bob@b.example")
            visit.check("release-all", axe)
            sending.get_by_role("button", name="Forward").click()

        release_all()
        alert = sending.get_by_role("alert")
        expect(alert).to_contain_text("Queued: 2 of 3. number 2: not from you")
        visit.check("release-some", axe)
        sending.get_by_role("button", name="Forward").click()
        expect(page.locator("#toast")).to_contain_text("Queued.")
        ids = [str(found[0]["id"]), str(found[1]["id"]), "third"]
        assert released == [*ids, ids[0]]
        release_all()
        expect(sending).to_contain_text("1 of 3")
        sending.get_by_role("button", name="Stop").click()
        expect(sending).to_have_count(0)
        late[0].fulfill(status=202, json={})
        expect(page.locator("#toast")).to_contain_text("Queued: 2 of 3.")
        assert released[4:] == ids[:2]
        assert visit.errors == []


def test_who_is_not_signed_in_is_told_how(relay: RelayProcess, browse: Browse, axe: str) -> None:
    """The first visit names the command, and offers an inbox; so does an address that is not for
    who is here.  Neither says that there is nothing."""
    with browse("phone", "dark") as visit:
        page = visit.page
        page.goto(relay.run["http"])
        expect(page.get_by_text("relay open")).to_be_visible()
        expect(page.get_by_role("button", name="Create")).to_be_visible()
        expect(page.get_by_label("Minutes")).to_have_attribute("placeholder", "60")
        assert in_sight(page, page.get_by_role("button", name="Create"))
        expect(page.locator(".rail .none")).to_have_count(0)
        expect(page.locator(".rail")).to_contain_text("that your network address may have.")
        visit.check("first-visit", axe)
        for view in ("mail/all", "queue"):
            visit.to(view)
            expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
            panel = page.get_by_role("region", name="Sign in or make an inbox")
            expect(panel.locator("code")).to_have_text("relay open")
            expect(panel.get_by_role("button", name="Copy the command")).to_be_visible()
            expect(panel.get_by_label("Token")).to_be_visible()
            visit.check(f"deep-link-{view.partition('/')[0]}", axe)
            visit.check_width(f"deep-link-{view.partition('/')[0]}", "desktop", axe)
            panel.get_by_role("link", name="create an inbox").click()
            expect(page.get_by_role("button", name="Create")).to_be_visible()


def test_a_subject_keeps_its_room_beside_a_code_tags_and_a_paperclip(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """At every width; where several inboxes are listed a row says to whom it came; what can be
    done to a message is in sight."""
    word = f"w{uuid.uuid4().hex[:8]}"
    full = EmailMessage(policy.SMTP)
    full["From"], full["To"] = (
        "Shop of Everything <noreply@shop.example>",
        f"{word}@customer.example",
    )
    full["Subject"] = f"{word} your order of seven things was sent to you this very morning"
    full["X-Tags"] = "checkout, receipts, nightly-run"
    full.set_content("Your code is 482913.")
    full.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="a.pdf")
    with browse() as visit:
        deliver(relay, f"{word}@customer.example", full.as_bytes())
        page = signed_in(visit, relay, "mail/all")
        seen = row(page, "messages", word)
        expect(seen.locator(".to")).to_have_text(f"→ {word}@customer.example")
        for width in (1400, 1100, 820, 390):
            page.set_viewport_size({"width": width, "height": 800})
            visit.screenshot(f"full-row-{width}")
            subject = seen.locator(".subject").bounding_box()
            whole = seen.bounding_box()
            assert subject is not None
            assert whole is not None
            assert subject["width"] >= 0.4 * whole["width"], width
            code = seen.get_by_role("button", name="Copy the code").bounding_box()
            room = seen.locator(".marks").bounding_box()
            assert code is not None
            assert room is not None
            assert code["x"] + code["width"] <= room["x"] + room["width"] + 1, width
        seen.get_by_role("link").click()
        expect(page.locator("#message-subject")).to_contain_text(word)
        for width in (1400, 820, 390):
            page.set_viewport_size({"width": width, "height": 800})
            for name in ("Delete", "Download"):
                box = page.locator("#message").get_by_role("button", name=name).bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width, name
        tags = page.locator("#message-tags .tag")
        expect(tags).to_have_count(3)
        page.get_by_role("button", name="Remove the tag receipts").click()
        expect(tags).to_have_count(2)
        expect(seen.locator(".tag")).to_have_text(["checkout", "nightly-run"])
        visit.check("reader-tags", axe)
        page.goto(f"{page.url.partition('#')[0]}#/mail/{word}%40customer.example")
        expect(seen.locator(".to")).to_have_text("noreply@shop.example")
        assert visit.errors == []


def test_where_nothing_is_to_be_seen_the_page_says_why(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """On a phone, a relay without an inbox leads to how to send; what was sent by others is named
    as hidden; a new inbox says how long it lives."""
    theirs = {"id": str(uuid.uuid4()), "recipient": None, "subject": None, "status": "sent"}
    theirs["created_at"] = "2026-11-23T03:00:00Z"
    with browse("phone") as visit:
        visit.page.route("**/api/v1/mailboxes?*", lambda asked: asked.fulfill(json=[]))
        visit.page.route("**/api/v1/messages?*", lambda asked: asked.fulfill(json=[]))
        visit.page.route("**/api/v1/outbound?*", lambda asked: asked.fulfill(json=[theirs]))
        quota = {"mailboxes": 0, "max_mailboxes": None, "default_ttl_minutes": 2880}
        visit.page.route("**/api/v1/quota", lambda asked: asked.fulfill(json=quota))
        page = signed_in(visit, relay, "mail")
        expect(page.get_by_label("Minutes")).to_have_attribute("placeholder", "2880")
        expect(page.locator("#lives")).to_have_text("It lives for 2 days.")
        lead = page.locator(".rail").get_by_role("link", name="Send the first mail")
        expect(lead).to_be_visible()
        finds = page.get_by_role("searchbox", name="Find an inbox")
        finds.fill("nobody")
        expect(page.locator(".rail .none")).to_contain_text("No inbox matches.")
        expect(lead).to_be_hidden()
        finds.fill("")
        expect(lead).to_be_visible()
        visit.check("phone-fresh", axe)
        lead.click()
        expect(page.get_by_role("group", name="Client")).to_be_visible()
        visit.to("mail/sent")
        expect(page.locator("#messages li .from")).to_contain_text("another owner's")
        visit.page.route("**/api/v1/outbound?*", lambda asked: asked.fulfill(json=[]))
        page.reload()
        expect(page.locator(".empty")).to_contain_text("relay send --from")
        visit.check("nothing-sent", axe)
        visit.to("mail/all?q=nothing")
        expect(page.get_by_text("No message matches.")).to_be_visible()
        visit.check("no-match", axe)
        page.set_viewport_size({"width": 1400, "height": 900})
        expect(lead).to_be_hidden()
        assert visit.errors == []


def test_mail_that_comes_fast_is_shown_together(relay: RelayProcess, browse: Browse) -> None:
    """Not a thousand times one after the other: the page would stand still for most of a minute."""
    told: list[dict[str, object]] = [
        {"id": str(uuid.uuid4()), "mailbox": "a@b.example", "from_address": "c@d.example",
         "subject": f"flood {number}", "received_at": "2026-11-23T03:00:00Z", "is_read": True,
         "has_attachments": False, "size": 1, "tags": [], "snippet": "", "otp": None}
        for number in range(1000)
    ]  # fmt: skip
    events = "".join(f"event: new_message\ndata: {json.dumps(one)}\n\n" for one in told)
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:  # later ones are never answered
            route.fulfill(content_type="text/event-stream", body=events)

    with browse() as visit:
        visit.page.add_init_script(_HEIGHTS)
        visit.page.route("**/api/v1/messages/events", answer)
        page = signed_in(visit, relay, "mail/all")
        page.mouse.move(0, 0)  # the button to sign in was where a row is
        expect(row(page, "messages", "flood 999")).to_be_visible()
        assert page.evaluate("window.heights") < 20
        assert visit.errors == []


_HEIGHTS = """window.heights = 0;
new MutationObserver((changes) => {
    heights += changes.filter(({ target }) => target.matches("#messages > ul")).length;
}).observe(document, { subtree: true, attributeFilter: ["style"] });"""


def test_what_strangers_wrote_neither_freezes_the_page_nor_runs_in_a_shell(
    relay: RelayProcess, browse: Browse
) -> None:
    """A sender of thousands of blanks; letters of two directions; more pictures than anybody looks
    at; a link that reads as another; an address that is a shell's pipe, in lines to be copied."""
    with browse() as visit, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        blanks = "\r\n ".join(["=?utf-8?q?" + "_" * 45 + "?="] * 300)
        slow = f"From: {blanks} <a@b.example>\r\nSubject: blanks\r\n\r\nx\r\n"
        deliver(relay, address, slow.encode())
        page = signed_in(visit, relay, f"mail/{address}")
        row(page, "messages", "blanks").get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text("blanks")

        # In one piece, these took the browser more than a minute.
        both = "\r\n".join(["\u05d0b" * 50] * 2000)
        deliver(relay, address, mail("two directions", f"{both}\r\nthe end"))
        row(page, "messages", "two directions").get_by_role("link").click()
        text = page.locator("#message-text")
        expect(text).to_contain_text("the end")
        assert (text.text_content() or "").split() == [*both.split(), "the", "end"]

        # In one paragraph, these stood still for seconds, with all the tab.
        paragraph = "\u05d0b" * 25000
        deliver(relay, address, mail("one paragraph", None, f"<p>{paragraph}the end"))
        row(page, "messages", "one paragraph").get_by_role("link").click()
        expect(page.locator("#remote-images")).to_contain_text("it is shown apart")
        frame = page.locator("#message-html")
        assert frame.evaluate("it => it.contentDocument") is None, "it may have its own process"
        expect(frame).to_contain_class("apart")
        expect(page.frame_locator("#message-html").locator("p")).to_contain_text("the end")
        row(page, "messages", "two directions").get_by_role("link").click()
        expect(text).to_contain_text("the end")

        # Rules in rules, so deep that they ended the process of the page.
        rules = "a{\r\n" * 8000
        deliver(relay, address, mail("deep", None, f"<style>{rules}</style><p>the end"))
        row(page, "messages", "deep").get_by_role("link").click()
        expect(page.frame_locator("#message-html").locator("p")).to_contain_text("the end")

        many = EmailMessage(policy.SMTP)
        many["Subject"] = "many pictures"
        many.set_content("http://bank.example@elsewhere.example/verify\u202emoc\r\n")
        for number in range(40):
            many.add_attachment(PNG, "image", "png", filename=f"{number}.png")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        deliver(relay, address, many.as_bytes())
        row(page, "messages", "many pictures").get_by_role("link").click()
        files = page.locator("#message-attachments")
        expect(files.locator("li")).to_have_count(40)
        expect(files.locator("img")).to_have_count(12)
        row(page, "messages", "blanks").get_by_role("link").click()
        expect(page.locator("#message-subject")).to_have_text("blanks")
        assert sum("/attachments/" in url for url in asked) == 12
        page.go_back()
        link = page.locator("#message-link a")
        expect(link).to_have_text("http://elsewhere.example/verify%E2%80%AEmoc")

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
