"""What several tests of the pages do first: mail is sent, an inbox made, somebody signs in."""

from __future__ import annotations

import smtplib
from email import policy
from email.message import EmailMessage
from uuid import UUID

from playwright.sync_api import Locator, Page, expect

from relay.access.owners import ADMINISTRATOR_ID
from relay.outbound.suppression.unsubscribing import Link, Unsubscribing
from tests.browser.conftest import Visit
from tests.relay_process import RelayProcess

SENDER = "sender@client.example"


def deliver(relay: RelayProcess, address: str, *messages: bytes) -> None:
    """Send messages over SMTP, one after the other."""
    with smtplib.SMTP(*relay.smtp) as client:
        for message in messages:
            client.sendmail(SENDER, [address], message)


def mail(subject: str, text: str | None, html: str | None = None) -> bytes:
    """Return a message with text, HTML or both."""
    message = EmailMessage(policy.SMTP)
    message["From"], message["Subject"] = f"Ann Example <{SENDER}>", subject
    if text is not None:
        message.set_content(text)
        if html is not None:
            message.add_alternative(html, subtype="html")
    elif html is not None:
        message.set_content(html, subtype="html")
    return message.as_bytes()


def create_inbox(page: Page) -> str:
    """Create an inbox on the page, and return its address once mail for it is listened for."""
    address = page.locator("#address")
    before = address.inner_text() if address.count() else ""
    page.get_by_role("button", name="Create").click()
    expect(address).to_be_visible()
    expect(address).not_to_have_text(before)
    expect(page.locator("#stream")).to_have_text("live")
    return address.inner_text()


def sign_in(page: Page, token: str) -> None:
    """Sign in, with whatever token."""
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("main").get_by_role("button", name="Sign in").click()


def signed_in(visit: Visit, relay: RelayProcess, view: str = "now") -> Page:
    """Open a view as the administrator."""
    page = visit.page
    page.goto(f"{relay.run['http']}/#/signin")
    page.get_by_label("Token").fill(relay.run["admin_token"])
    page.get_by_role("main").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.goto(f"{relay.run['http']}/#/{view}")
    return page


def node(page: Page, name: str) -> Locator:
    """The row of an actor in the tree."""
    return page.locator("#tree tr").filter(has=page.get_by_role("gridcell", name=name, exact=True))


def commands(page: Page, name: str) -> Locator:
    """The menu of an actor's commands, opened."""
    node(page, name).get_by_role("button", name=f"Commands for {name}").click()
    return page.locator("#commands")


def row(page: Page, table: str, text: str) -> Locator:
    """The row of a table or list that holds a text."""
    return page.locator(f"#{table} :is(tbody tr, li)").filter(has_text=text)


def signing_key(relay: RelayProcess) -> bytes:
    """The key that the links of a relay's mail are signed with."""
    text = (relay.data_dir / "secret_key").read_text()
    return bytes.fromhex(text.partition(",")[0].strip())


def unsubscribing(relay: RelayProcess, message: str, to: str) -> str:
    """The path of the link in the administrator's bulk mail."""
    base = relay.run["http"]
    links = Unsubscribing(base, lambda: (signing_key(relay),))
    return links.url_of(Link(ADMINISTRATOR_ID, UUID(message), to)).removeprefix(base)
