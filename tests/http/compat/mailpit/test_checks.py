"""Mailpit's checks of a mail's HTML and links: what Relay's own find, in Mailpit's JSON."""

from __future__ import annotations

import httpx

from relay.db.pool import Pool
from relay.http.compat.mailpit.checks import html_check
from relay.http.probes.links import Links
from relay.mailboxes.examination import examine
from relay.webhooks.post import Poster
from tests.http.conftest import LETTER as PLAIN
from tests.http.conftest import House, open_house

MESSAGE = "/compat/mailpit/api/v1/message"
HEAD = b"Subject: a\r\nContent-Type: text/html\r\n\r\n"
FLEX = HEAD + b"<div style='display:flex'><p>x</p></div>"


async def check(house: House, kind: str, raw: bytes) -> httpx.Response:
    """Check the mail that came last, as the administrator."""
    address, _ = await house.mailbox()
    await house.deliver(address, raw)
    return await house.client.get(f"{MESSAGE}/latest/{kind}", headers=house.admin)


async def test_html_that_clients_ignore_is_warned_of(house: House):
    """With who does, and the share of what is there; the mail is not marked read."""
    found = (await check(house, "html-check", FLEX)).json()
    (warning,) = found["Warnings"]
    assert [warning[name] for name in ("Slug", "Title", "Category", "URL")] == [
        *("css-display-flex", "display:flex", "css"),
        "https://www.caniemail.com/features/css-display-flex/",
    ]
    (result,) = warning["Results"]
    assert [result[name] for name in ("Name", "Family", "Platform", "Support")] == [
        *("Outlook for Windows", "Outlook", "windows", "no")
    ]
    assert warning["Score"] == {"Found": 1, "Supported": 90.91, "Partial": 0, "Unsupported": 9.09}
    total = found["Total"]
    # Two elements, an attribute, a property and a declaration, which one client of 11 ignores.
    assert (total["Nodes"], total["Supported"], total["Unsupported"]) == (5, 98.18, 1.82)
    assert total["Tests"] > 100
    assert found["Platforms"]["windows"] == ["Outlook"]
    listed = await house.client.get("/compat/mailpit/api/v1/messages", headers=house.admin)
    assert listed.json()["unread"] == 1


async def test_html_that_all_clients_show_is_supported(house: House):
    """Wholly; and a mail without HTML is a 400, as in Mailpit."""
    found = (await check(house, "html-check", HEAD + b"<p>x</p>")).json()
    assert (found["Warnings"], found["Total"]["Supported"]) == ([], 100)
    answer = await check(house, "html-check", PLAIN)
    assert (answer.status_code, answer.text) == (400, "The message does not contain HTML.")


def test_html_of_everything_that_is_ignored_is_told_in_whole_shares():
    """No share is below nothing or over all, whatever there is."""
    styles = "".join(f"<p style='{name}:{value}'>" for name in ("display", "gap", "filter", "inset")
                     for value in ("flex", "grid", "1vh", "calc(1px)", "blur(1px)"))  # fmt: skip
    found = html_check(examine(HEAD + styles.encode()))
    assert len(found["Warnings"]) > 3
    for one in (found["Total"], *(warning["Score"] for warning in found["Warnings"])):
        assert 0 <= one["Supported"] <= 100
        assert round(one["Supported"] + one["Unsupported"], 2) == 100


async def test_links_are_told_with_what_they_answer(database_url: str, pool: Pool):
    """Those that lead into this network are asked by nobody, and count as errors, as in Mailpit."""
    raw = PLAIN + b"https://127.0.0.1:1/x http://localhost:1/\r\n"
    async with open_house(database_url, pool, links=Links(Poster(timeout=5.0), most=1)) as house:
        found = (await check(house, "link-check?follow=true", raw)).json()
    assert found["Errors"] == 2
    assert [(one["URL"], one["StatusCode"]) for one in found["Links"]] == [
        ("https://127.0.0.1:1/x", 0),
        ("http://localhost:1/", 0),
    ]
    private, left_out = (one["Status"] for one in found["Links"])
    assert "127.0.0.1" in private or "public" in private
    assert left_out.startswith("not asked: ")


async def test_a_mail_that_is_gone_is_a_404(house: House):
    """Of both checks."""
    for kind in ("html-check", "link-check"):
        path = f"{MESSAGE}/00000000-0000-7000-8000-000000000000/{kind}"
        assert (await house.client.get(path, headers=house.admin)).status_code == 404
