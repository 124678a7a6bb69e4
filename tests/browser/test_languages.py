"""What a reader of another language sees."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import create_inbox, deliver, mail, row, signed_in
from tests.http.test_ui import PARTS, UI, table
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)

# What is said in a language of its own (log lines, what settings mean) has an attribute for it.
_SEEN = """() => {
    const own = (element) => !element.checkVisibility() || element.closest("[lang]:not(html)");
    const seen = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (text.data.trim() && !own(text.parentElement)) seen.add(text.data);
    }
    for (const element of document.querySelectorAll("*")) {
        const names = ["aria-label", "aria-description", "title", "placeholder", "data-head"];
        for (const name of names) {
            if (element.hasAttribute(name) && !own(element)) seen.add(element.getAttribute(name));
        }
    }
    return [...seen, document.title];
}"""


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """What matches each of the page's texts, with whatever in its places."""
    parts = [re.sub(r"\\\{\d\\\}", ".+", re.escape(text.strip())) for text in texts]
    return re.compile("|".join(parts), re.DOTALL)


def no_english(page: Page, where: str) -> None:
    """Nothing that is seen now is a text of the table in English, and not in German."""
    words = table(UI / "strings.de.js")
    for path in PARTS:
        words |= table(path)
    english, german = any_of(words), any_of(words.values())
    seen = [text.strip() for text in page.evaluate(_SEEN)]
    found = [text for text in seen if english.fullmatch(text) and not german.fullmatch(text)]
    assert found == [], where


def test_a_german_browser_is_spoken_to_in_german(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Each view, and its dates and numbers; nothing of the table is left in English."""
    with browse(locale="de-DE") as visit, relay.http() as api:
        page = visit.page
        page.goto(relay.run["http"])
        expect(page.get_by_role("link", name="Anmelden")).to_be_visible()
        expect(page.locator("html")).to_have_attribute("lang", "de")
        no_english(page, "signed out")
        visit.to("signin")
        expect(page.get_by_role("heading", level=1)).to_have_text("Anmelden")
        no_english(page, "sign in")
        # What only some views show is loaded by those.
        assert [url for url in visit.requests if "/ui/strings.de." in url] == [
            f"{relay.run['http']}/ui/strings.de.js"
        ]
        page.get_by_label("Token").fill(relay.run["admin_token"])
        page.get_by_role("main").get_by_role("button", name="Anmelden").click()
        expect(page.get_by_role("button", name="Abmelden")).to_be_visible()
        address = api.post("/api/v1/mailboxes").json()["address"]
        deliver(
            relay, address, mail("Guten Tag", "Code: 482913", "<p>Code: 482913</p><video></video>")
        )
        letter = {"from": f"a@{address.partition('@')[2]}", "to": ["niemand@relay.localhost"]}
        sent = api.post("/api/v1/messages/send", json={**letter, "subject": "S", "text": "t"})
        outbound = sent.json()["messages"][0]["id"]
        account = {"email": address, "login": f"de-{address[:8]}"}
        api.post("/api/v1/accounts", json=account).raise_for_status()
        for view, shown in (
            ("now", "#tree td"),
            (f"mail/{address}", "#messages li"),
            (f"queue/{outbound}", "#story dd"),
            ("queue/overview", "#queue-state:not(:empty)"),
            ("queue/failures", "#failures li"),
            ("accounts", "#accounts td.status"),
            ("devices", "#device-counts:not(:empty)"),
            ("domains", "#domains td"),
            ("keys", "#make-key"),
            ("settings", "#settings td"),
            ("logs", "#lines li"),
        ):
            visit.to(view)
            expect(page.locator(shown).first).to_be_visible()
            no_english(page, view)
            if view == "settings":
                means = row(page, "settings", "RELAY_HTTP__BIND").locator("td").last
                expect(means).to_contain_text("weil jeder, der diesen Port erreicht")
                expect(means).to_have_attribute("lang", "de")
        visit.to("mail/nobody@relay.localhost")
        expect(page.get_by_text("Dieses Postfach gibt es nicht").first).to_be_visible()
        no_english(page, "a refusal")
        visit.to(f"mail/{address}")
        page.get_by_role("link", name="Guten Tag").click()
        expect(page.locator("#message-code")).to_contain_text("482913")
        no_english(page, "message")
        visit.check("message-german", axe)
        page.get_by_role("button", name="Prüfungen").click()
        mend = page.locator("#message-checks .findings")
        expect(mend).to_contain_text("Message-ID fehlt: Filter trauen der Nachricht weniger")
        expect(mend).to_contain_text(re.compile("<video>.*: wird ignoriert von .+"))
        expect(mend.locator("[lang=en]")).to_have_count(0)
        reasons = page.locator("#message-checks dd")
        expect(reasons.nth(0)).to_contain_text("die Mail kam von dieser Maschine")
        expect(reasons.nth(1)).to_contain_text("die Nachricht hat keine DKIM-Signatur")
        expect(reasons.locator("span[lang=en]")).to_have_count(0)
        expect(page.locator("#message-checks .score")).to_contain_text(re.compile(r"\d,\d von 10"))
        no_english(page, "checks")
        visit.check("checks-german", axe)
        page.keyboard.press("Control+k")
        expect(page.get_by_role("listbox")).to_be_visible()
        no_english(page, "palette")
        page.goto(f"{relay.run['http']}/docs")
        expect(page.get_by_role("heading", level=1)).to_have_text("API-Referenz")
        expect(page.get_by_role("heading", name="Ein Postfach anlegen")).to_be_visible()
        no_english(page, "docs")
        waits = page.locator("#waitForMessage")
        waits.locator("summary").click()
        expect(waits.locator("summary")).to_contain_text("Auf eine Nachricht warten")
        expect(waits).to_contain_text("Ein Schlüssel braucht das Recht read.")
        expect(waits).to_contain_text("keine kam rechtzeitig")
        no_english(page, "a call")
        page.goto(f"{relay.run['http']}/problems/quota")
        expect(page.get_by_role("heading", level=1)).to_have_text("Kontingent ausgeschöpft")
        expect(page.get_by_role("main")).to_contain_text("so viele aktive Postfächer")
        expect(page.get_by_role("link", name="Ein Postfach anlegen")).to_be_visible()
        no_english(page, "a problem")
        assert any(url.endswith("/ui/strings.de.js") for url in visit.requests)
        assert any(url.endswith("/ui/spoken.js") for url in visit.requests)
        assert visit.errors == []


def test_a_reader_chooses_a_language(relay: RelayProcess, browse: Browse) -> None:
    """In the palette and on the page; it stays through a reload, and English needs no table."""
    with browse() as visit:
        page = signed_in(visit, relay, "settings")
        expect(row(page, "settings", "RELAY_SMTP__BIND")).to_contain_text("environment")
        assert not any("strings.de" in url or "spoken" in url for url in visit.requests)
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").last.fill("Deutsch")
        page.keyboard.press("Enter")
        title = page.get_by_role("heading", level=1)
        expect(title).to_have_text("Einstellungen")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        page.reload()
        expect(title).to_have_text("Einstellungen")
        page.get_by_label("Sprache").select_option("en")
        expect(title).to_have_text("Settings")
        page.get_by_label("Language").select_option("")
        expect(title).to_have_text("Settings")
        assert page.evaluate("localStorage.getItem('relay.language')") is None
        assert visit.errors == []


def test_a_table_that_does_not_come_is_missed_and_not_the_page(
    relay: RelayProcess, browse: Browse
) -> None:
    """The page speaks English then, and says so to readers of screens."""
    with browse(locale="de-DE") as visit:
        visit.page.route("**/strings.de.js", lambda route: route.abort())
        visit.page.goto(relay.run["http"])
        assert create_inbox(visit.page)
        expect(visit.page.locator("html")).to_have_attribute("lang", "en")
