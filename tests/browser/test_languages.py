"""What a reader of another language sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from uuid import UUID

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import create_inbox, deliver, mail, row, signed_in
from tests.http.test_ui import DESCRIBED, PARTS, UI, table
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


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """One without other tests' mail, which may read like a text of the page."""
    with RelayProcess(tmp_path_factory.mktemp("relay") / "data") as process:
        yield process


def no_english(page: Page, where: str) -> None:
    """Nothing that is seen now is a text of the table in English, and not in German."""
    assert english_in(*page.evaluate(_SEEN)) == [], where


def english_in(*seen: str) -> list[str]:
    """Which of these texts are of the table in English, and not in German."""
    words = table(UI / "strings.de.js")
    for path in PARTS:
        words |= table(path)
    english, german = any_of(words), any_of(words.values())
    texts = (text.strip() for text in seen)
    return [text for text in texts if english.fullmatch(text) and not german.fullmatch(text)]


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
        expect(page.get_by_role("link", name="Anmelden")).to_be_visible()
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


_CALL = """async ([method, path, body]) => {
    const { send } = await import("/ui/calls.js");
    return send(method, path, body ?? undefined).then(() => "", (error) => error.message);
}"""
_MANY = """async (count) => {
    const { get } = await import("/ui/calls.js");
    const all = await Promise.allSettled(Array.from({ length: count }, () => get("quota")));
    return [...new Set(all.flatMap(({ reason }) => (reason ? [reason.message] : [])))];
}"""


def test_what_is_refused_is_said_in_german(relay: RelayProcess, browse: Browse) -> None:
    """By the forms of the views, and by the calls that they make, whatever is wrong with them."""
    with browse(locale="de-DE") as visit, relay.http() as api:
        page = visit.page
        address = api.post("/api/v1/mailboxes", json={"local_part": "vergeben"}).json()["address"]
        own = address.partition("@")[2]
        letter = {"from": address, "to": [address], "subject": "S", "text": "t"}
        sent = api.post("/api/v1/messages/send", json=letter).json()["messages"][0]["id"]
        api.post("/api/v1/accounts", json={"email": address, "login": "ada"}).raise_for_status()
        account = api.get("/api/v1/accounts").json()[0]["id"]
        api.post(f"/api/v1/accounts/{account}/suspend").raise_for_status()
        german_sign_in(page, relay, "falsch")
        expect(page.locator("main .problem:not([hidden])")).to_have_text(
            "Das Token ist unbekannt oder widerrufen."
        )
        german_sign_in(page, relay, relay.run["admin_token"])
        expect(page.get_by_role("button", name="Abmelden")).to_be_visible()

        visit.to("mail")
        name = page.locator("#create").get_by_role("textbox")
        for given, said in (
            ("vergeben", "Dieser Name ist vergeben."),
            ("a@b", "local_part ist, was vor dem @ steht, ohne dieses."),
            ("a b", "Neues Postfach: Leer- und Steuerzeichen sind nicht erlaubt."),
        ):
            name.fill(given)
            page.locator("#create").get_by_role("button").click()
            expect(page.locator("section.rail .problem").first).to_have_text(said)
            no_english(page, given)

        box, nobody = f"mailboxes/{address}", UUID(int=0)
        wrong: list[tuple[object, ...]] = []
        for method, path, body, said in (
            ("GET", "messages?q=foo:bar", None, """q: den Operator "foo:" gibt es nicht, nur """),
            ("GET", "messages?q=before:x", None, "q: nach before: kommt ein Tag (2026-11-01) oder"),
            ("GET", "messages?q=from:", None, "q: nach from: fehlt ein Wert, gleich hinter dem"),
            ("GET", "messages?q=larger:x", None, "q: nach larger: kommen Bytes oder eine Zahl mit"),
            ("GET", "messages?limit=x", None, "limit: Eine ganze Zahl wird erwartet, und dieser"),
            ("GET", "messages?limit=0", None, "limit: Erlaubt ist mindestens 1."),
            ("GET", "messages?limt=5", None, "Den Query-Parameter 'limt' gibt es hier nicht; viel"),
            ("GET", "messages?limit=5&limit=6", None, "Der Query-Parameter 'limit' ist mehr als "),
            ("GET", "messages?cursor=x", None, "der cursor stammt nicht von hier."),
            ("GET", f"{box}/messages/{nobody}", None, "Diese Nachricht gibt es in diesem Post"),
            ("GET", "mailboxes/niemand@relay.localhost", None, "Dieses Postfach gibt es nicht, es"),
            ("GET", "nirgends", None, "Unter dieser Adresse ist nichts."),
            ("DELETE", "overview", None, "Diese Adresse nimmt diese Methode nicht an."),
            ("GET", "domains/-/check", None, "domain: kein Domainname."),
            ("GET", f"outbound/{address}", None, "Diese Nachricht gibt es nicht, oder sie gehört"),
            ("POST", f"outbound/{sent}/cancel", None, "Eine Nachricht mit dem Status „gesendet“ "),
            ("DELETE", "senders/a@b.example", None, "Unter den eigenen ist kein Absender mit"),
            ("POST", "mailboxes", {"ttl_minutes": -1}, "ttl_minutes: Erlaubt ist nur mehr als 0."),
            ("POST", "mailboxes", {"ttl_minute": 1}, "ttl_minute: dieses Feld gibt es nicht; vie"),
            ("POST", "mailboxes", {"domain": "a.b"}, f"domain muss eine von diesen sein: {own}."),
            ("POST", "messages/send", {**letter, "to": "x"}, "to[0]: keine Adresse (local-part@do"),
            ("POST", "messages/send", {**letter, "priority": "x"}, "priority: muss eines von dies"),
            ("POST", "messages/send", {"from": address}, "to: muss angegeben sein."),
            ("POST", "messages/send", {**letter, "subject": "x" * 3000}, "subject: die Länge darf"),
            ("POST", "messages/send", {**letter, "send_at": "x"}, "send_at: ein Zeitpunkt wird wi"),
            ("POST", "webhooks", {"url": "ftp://a"}, "url: muss mit https:// oder http:// und ei"),
            ("POST", "keys", {"owner": "a", "scopes": ["x"]}, "Dafür ist noch einmal das Token nö"),
            ("POST", "accounts", {"email": address, "login": "b"}, "Ein anderes Konto hat densel"),
            ("POST", f"accounts/{account}/recover", None, f"Konto {account} ist gesperrt und müss"),
            ("POST", "dkim", {"domain": "a..b"}, "domain: kein Domainname."),
            ("POST", "supervision/niemand/pause", None, "Es gibt keinen Akteur und keine Gruppe"),
            ("POST", "supervision/writer/sweep", None, "writer versteht 'sweep' nicht: es gibt do"),
            ("PUT", "chaos", {}, "RELAY_SMTP__CHAOS=true setzen und das Relay neu starten."),
        ):
            found = page.evaluate(_CALL, [method, path, body])
            if not found.startswith(said) or english_in(found):
                wrong.append((method, path, body, found))
        assert wrong == []

        # A key may less, and calls less often.
        with psycopg.connect(relay.run["database_url"], autocommit=True) as sql:
            sql.execute(
                "INSERT INTO relay.plans"
                " (name, default_ttl_minutes, max_ttl_minutes, calls_per_second)"
                " VALUES ('slow', 60, 60, 1)"
            )
        wanted = {"owner": "wenig", "scopes": ["read"], "plan": "slow"}
        token = api.post("/api/v1/keys", json=wanted).json()["token"]
        page.get_by_role("button", name="Abmelden").click()
        expect(page.get_by_role("link", name="Anmelden")).to_be_visible()
        german_sign_in(page, relay, token)
        expect(page.get_by_role("button", name="Abmelden")).to_be_visible()
        found = page.evaluate(_CALL, ["POST", "messages/send", letter])
        assert found == "Dieser Aufruf braucht einen Schlüssel mit dem Recht 'send'."
        found = page.evaluate(_MANY, 100)
        assert found == ["Es wird öfter aufgerufen als erlaubt; siehe Retry-After."]
        assert visit.errors == []


def german_sign_in(page: Page, relay: RelayProcess, token: str) -> None:
    """Sign in, with whatever token."""
    page.goto(f"{relay.run['http']}/#/signin")
    page.get_by_label("Token").fill(token)
    page.get_by_role("main").get_by_role("button", name="Anmelden").click()


_SPOKEN = """async ([parts, texts]) => {
    const { learn, spoken } = await import("/ui/strings.js");
    await Promise.all(parts.map(learn));
    return texts.map(spoken);
}"""
_VALUES = ["alpha", "beta", "gamma", "delta", "epsilon"]


def test_no_sentence_is_taken_for_another(relay: RelayProcess, browse: Browse) -> None:
    """Whatever stands in its places, each is said by its own, with all of the parts learnt."""
    parts = [path for path in PARTS if path.name.split(".")[2] not in DESCRIBED]
    wanted = {}
    for path in parts:
        for text, other in table(path).items():
            wanted[filled(text)] = filled(other)
    with browse(locale="de-DE") as visit:
        visit.page.goto(relay.run["http"])
        names = [path.name.split(".")[2] for path in parts]
        said = visit.page.evaluate(_SPOKEN, [names, list(wanted)])
        found = dict(zip(wanted, said, strict=True))
        wrong = {text: (found[text], one) for text, one in wanted.items() if found[text] != one}
        assert wrong == {}


def filled(text: str) -> str:
    """A text with a value in each of its places."""
    return re.sub(r"\{(\d)\}", lambda place: _VALUES[int(place[1])], text)


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
