"""The pages that account mail links to, in a real browser: they work under their own policy."""

from __future__ import annotations

import psycopg
import pytest
from playwright.sync_api import expect

from relay.lifecycle.tokens import Action, sign
from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import signing_key, unsubscribing
from tests.http.resources.test_unsubscribe_pages import english
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


def made(relay: RelayProcess, login: str, *, active: bool) -> tuple[str, str]:
    """Make an account, with a recovery if it is active; return its link's token and its code."""
    with psycopg.connect(relay.run["database_url"], autocommit=True) as sql:
        sql.execute(
            "INSERT INTO relay.accounts (email, login, status) VALUES (%s, %s, %s)",
            (f"{login}@relay.localhost", login, "active" if active else "provisioned"),
        )
        if active:
            sql.execute(
                "SELECT relay.recover_account(id) FROM relay.accounts WHERE login = %s", (login,)
            )
        row = sql.execute(
            "SELECT t.action, t.secret, t.code FROM relay.tokens t"
            " JOIN relay.accounts a ON a.id = t.account WHERE a.login = %s",
            (login,),
        ).fetchone()
    assert row is not None
    return sign(signing_key(relay), Action[row[0].upper()], row[1], row[2]), row[2]


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_an_account_is_activated_by_one_click(
    relay: RelayProcess, browse: Browse, axe: str, size: str
) -> None:
    """Opened and clicked; once more, and the page says so and offers another mail."""
    token, _ = made(relay, f"browser-activates-{size}", active=False)
    with browse(size=size) as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/activate?token={token}")
        visit.check("activate", axe)
        page.get_by_role("button", name="Activate").click()
        expect(page.get_by_role("heading", name="Your account is active")).to_be_visible()
        visit.check("activated", axe)
        assert "token" not in page.url
        page.goto(f"{relay.run['http']}/activate?token={token}")
        expect(page.get_by_role("alert")).to_contain_text("no longer valid")
        visit.check("activate-refused", axe)
        page.get_by_role("button", name="Mail me a new link").click()
        expect(page.get_by_role("heading", name="A new mail")).to_be_visible()
        visit.check("activate-resent", axe)
        # The browser notes the status of the page that refuses; nothing else is amiss.
        assert [said for said in visit.console if "status of 400" not in said] == []
        assert visit.errors == []
        assert visit.foreign(relay.run["http"]) == []


def test_a_recovery_takes_its_code_after_a_wrong_one(
    relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """The browser itself refuses what is no code; the page lets try again."""
    token, code = made(relay, "browser-recovers", active=True)
    with browse(size="phone", scheme="dark") as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/recover?token={token}")
        visit.check("recover", axe)
        field = page.get_by_label("Code")
        expect(field).to_be_focused()
        field.fill("12a")
        page.get_by_role("button", name="Continue").click()
        assert page.url.endswith(token)
        field.fill(f"{(int(code) + 1) % 100_000:05}")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("alert")).to_contain_text("That did not work")
        visit.check("recover-refused", axe)
        page.get_by_label("Code").fill(code)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("heading", name="It is you")).to_be_visible()
        visit.check("recovered", axe)
        assert [said for said in visit.console if "status of 400" not in said] == []


def test_who_reads_german_recovers_in_german(relay: RelayProcess, browse: Browse) -> None:
    """The form, the refusal of a wrong code, the offer of another mail, and the end."""
    token, code = made(relay, "browser-deutsch", active=True)
    with browse(locale="de-DE") as visit:
        page = visit.page
        page.goto(f"{relay.run['http']}/recover?token={token}")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        expect(page.get_by_role("heading")).to_have_text("Konto wiederherstellen")
        assert english(page.content()) == []
        page.get_by_label("Code").fill(f"{(int(code) + 1) % 100_000:05}")
        page.get_by_role("button", name="Weiter").click()
        expect(page.get_by_role("alert")).to_contain_text("Das hat nicht geklappt")
        assert english(page.content()) == []
        page.get_by_label("Code").fill(code)
        page.get_by_role("button", name="Weiter").click()
        expect(page.get_by_role("heading")).to_have_text("Sie sind es")
        assert english(page.content()) == []
        page.goto(f"{relay.run['http']}/activate?token={token}")
        expect(page.get_by_role("alert")).to_contain_text("Dieser Link gilt nicht mehr")
        assert english(page.content()) == []
        page.get_by_role("button", name="Neuen Link zusenden").click()
        expect(page.get_by_role("heading")).to_have_text("Eine neue Mail")
        assert english(page.content()) == []
        assert visit.errors == []


@pytest.mark.parametrize(
    ("locale", "button", "done"),
    [
        ("en-GB", "Unsubscribe", "You are unsubscribed"),
        ("de-DE", "Abmelden", "Sie sind abgemeldet"),
    ],
)
def test_bulk_mail_is_ended_by_one_click(
    relay: RelayProcess, browse: Browse, axe: str, locale: str, button: str, done: str
) -> None:
    """The page says whose mail to whom is meant, in the browser's language, and ends it."""
    to = f"{locale}@customer.example".lower()
    letter = {"from": "news@relay.localhost", "to": [to], "subject": "s", "text": "t",
              "priority": "bulk"}  # fmt: skip
    with browse(locale=locale) as visit, relay.http() as api:
        sent = api.post("/api/v1/messages/send", json=letter).raise_for_status().json()
        page = visit.page
        path = unsubscribing(relay, sent["messages"][0]["id"], to)
        page.goto(f"{relay.run['http']}{path}")
        expect(page.locator("dd")).to_have_text(["news@relay.localhost", to])
        visit.check(f"unsubscribe-{locale}", axe)
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(done)
        assert [one["address"] for one in api.get("/api/v1/suppressions").json()].count(to) == 1
        assert visit.console == []
        assert visit.errors == []
