"""The API reference in a real browser: programs to copy, calls to try, problems explained."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import relay as product
from relay.http.resources.pages import served
from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import signed_in
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


def opened(page: Page, name: str) -> None:
    """Open a call, and wait until it is described."""
    page.locator(f"#{name} > summary").click()
    expect(page.locator(f"#{name} .snippet-code")).to_be_visible()


def tried(page: Page, name: str) -> str:
    """Try a call, and return what it answered."""
    page.locator(f"#{name}").get_by_role("button", name="Try it").click()
    told = page.locator(f"#{name} [role=status]")
    expect(told.locator("p")).to_be_visible()
    return told.inner_text()


def test_a_call_is_found_tried_and_pasted(relay: RelayProcess, browse: Browse) -> None:
    """An inbox that is made on the page is the one of the programs after it; what is copied runs in
    a shell; what is sent comes."""
    with browse() as visit:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = signed_in(visit, relay)
        page.goto(f"{relay.run['http']}/docs#createMailbox")
        expect(page.locator("#createMailbox .call")).to_be_visible()
        made = tried(page, "createMailbox")
        assert made.startswith("201")
        address = made.partition('"address": "')[2].partition('"')[0]
        opened(page, "sendMessage")
        assert tried(page, "sendMessage").startswith("202")
        page.get_by_label("Find a call").fill("wait for a message")
        expect(page.locator("#sendMessage")).to_be_hidden()
        opened(page, "waitForMessage")
        assert "482913" in tried(page, "waitForMessage")
        page.locator("#waitForMessage").get_by_role("button", name="Copy the program").click()
        program = page.evaluate("navigator.clipboard.readText()")
        assert f"{relay.run['http']}/api/v1/mailboxes/{address}/messages/wait" in program
        pasted = subprocess.run(
            ["sh", "-c", program], env={"RELAY_TOKEN": relay.run["admin_token"], "no_proxy": "*"},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "482913" in pasted.stdout
        assert visit.errors == []


def test_every_call_is_described(relay: RelayProcess, browse: Browse) -> None:
    """Opened all at once, each call shows what it takes and answers, a program in each of three
    languages, and an example; and nothing that was asked for on the way was refused."""
    with browse() as visit:
        page = signed_in(visit, relay)
        page.goto(f"{relay.run['http']}/docs")
        expect(page.locator("details").first).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        calls = page.locator("details .call")
        expect(calls).to_have_count(page.locator("details").count())
        languages = page.get_by_role("group", name="Language").all_inner_texts()
        assert {tuple(one.split()) for one in languages} == {("curl", "Python", "JavaScript")}
        assert len(languages) == calls.count()
        assert calls.evaluate_all("all => all.every((one) => one.querySelector('pre').textContent)")
        assert visit.console == []
        assert visit.errors == []


def test_a_refusal_links_to_what_it_means(relay: RelayProcess, browse: Browse) -> None:
    """The answer to a call that is tried leads to the page of its problem, and that one back."""
    with browse() as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/docs#getMailbox")
        expect(page.locator("#getMailbox .call")).to_be_visible()
        assert tried(page, "getMailbox").startswith("404")
        page.get_by_role("link", name="What this means").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Mailbox not found")
        page.get_by_role("link", name="End a mailbox").click()
        expect(page.locator("#deleteMailbox .call")).to_be_visible()


def test_styles_say_the_same_as_in_the_tree(relay: RelayProcess, browse: Browse) -> None:
    """A browser reads the same rules from what is served as from the files that people read, but
    for blanks in the values of custom properties."""
    read = """text => {
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(text);
        return [...sheet.cssRules].map(rule => rule.cssText.replace(/, /g, ","));
    }"""
    with browse() as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/docs")
        for path in (Path(product.__file__).parent / "http" / "ui").glob("*.css"):
            rules = page.evaluate(read, path.read_text("utf-8"))
            assert len(rules) > 10
            assert page.evaluate(read, served(path).decode()) == rules


def test_no_button_stands_over_a_program(relay: RelayProcess, browse: Browse) -> None:
    """On a phone the button that copies is above the lines, which have the whole width."""
    with browse("phone") as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/docs#waitForMessage")
        block = page.locator("#waitForMessage .snippet-code").first
        program, copies = (
            block.locator("pre").bounding_box(),
            block.locator("button").bounding_box(),
        )
        whole = block.bounding_box()
        assert program is not None
        assert copies is not None
        assert whole is not None
        assert copies["y"] + copies["height"] <= program["y"]
        assert program["width"] >= whole["width"] - 3
