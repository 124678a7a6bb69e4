"""Paths with addresses in them: every route reaches every mailbox, whatever its name is made of."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest
from quart.routing import QuartRule
from werkzeug.routing import Map

from relay.crypto import hash_token
from relay.http.paths import Rule, component, spelt
from tests.eventually import eventually
from tests.http.conftest import House
from tests.http.gate.test_gate import call, routes
from tests.http.resources.test_sign_in import opened, ticket

LETTER = (
    b"From: a@b.example\r\nSubject: x\r\nContent-Type: text/plain; name=a.txt\r\n"
    b"Content-Disposition: attachment; filename=a.txt\r\n\r\nx\r\n"
)
HOSTILE = "a/b%2fc?d#e+f&g=h'i`j{k|l}m~n^o!p$q*r.é世-@shop.example"
OTHERS = (
    "a/b@shop.example",
    "a%2fb@shop.example",  # which is not the one before
    "a%252fb@shop.example",
    "/@shop.example",
    "a//b/@shop.example",
    "%@shop.example",
    "100%25@shop.example",
    "..@shop.example",
    "../wait@shop.example",
    "a+b@shop.example",
    "a?q=1@shop.example",
    "#@shop.example",
    "messages@shop.example",
    "wait@shop.example",
    "x/messages/wait@shop.example",
    "jürgen@shop.example",
)


async def make(house: House, address: str) -> str:
    """Make a mailbox of that very address, with a message; the message's id."""
    await house.pool.execute(
        "INSERT INTO relay.mailboxes (address, owner_type, expires_at)"
        " VALUES (%s, 'capture', now() + interval '1 hour')",
        (address,),
    )
    return str(await house.deliver(address, LETTER))


@pytest.mark.parametrize("address", [HOSTILE, "../messages/wait@shop.example"])
async def test_every_route_reaches_every_mailbox(house: House, address: str):
    """All of the application's own table, each of its calls, and deleting last of all."""
    message = await make(house, address)
    wanted = [route for route in routes(house) if "<address>" in route.rule]
    wanted.sort(key=lambda route: (route.method == "DELETE", -len(route.rule)))
    assert len(wanted) > 15
    for route in wanted:
        rule = route.rule.replace("<message_id>", message)
        where = f"{route.method} {route.rule}"
        query = {"timeout": "0"} if rule.endswith("/wait") else None
        # Its values may be wrong: a call that is let in to the mailbox is none that finds nothing.
        asked = replace(route, rule=rule)
        answer = await call(house, asked, component(address), house.admin, query)
        assert answer.status_code != 404, where
    assert (await house.client.get(path(address), headers=house.admin)).status_code == 404


def path(address: str, *more: str) -> str:
    """The path of a mailbox, or of something in it."""
    return "/".join(["/api/v1/mailboxes", component(address), *more])


async def test_no_two_addresses_have_one_path(house: House):
    """Each call answers for the very mailbox, beside others whose names are much alike."""
    messages = {address: await make(house, address) for address in OTHERS}
    for address, message in messages.items():
        shown = await house.client.get(path(address), headers=house.admin)
        assert shown.json()["address"] == address
        found = await house.client.get(path(address, "messages"), headers=house.admin)
        assert [one["id"] for one in found.json()] == [message], address
        # Other spellings of the same path, and of the same address.
        for spelling in (
            quote(address, safe="@"),
            "".join(f"%{byte:02x}" for byte in address.encode()),
            component(address.replace("@shop", "@SHOP")),
        ):
            answer = await house.client.get(
                f"/api/v1/mailboxes/{spelling}/messages/{message}", headers=house.admin
            )
            assert answer.status_code == 200, spelling


async def test_what_names_no_mailbox_is_not_found(house: House):
    """Quotes that are needed, bytes that are no text, slashes that were not encoded: a 404 each."""
    await make(house, "a/b@shop.example")
    for odd in (
        component('"a b"@shop.example'),
        "a/b@shop.example",
        "a%2Fb@shop.example%2Fmessages",
        "%ff%fe@shop.example",
        "%00@shop.example",
        "%0d%0aX:y@shop.example",
        "%@shop.example%",
        "%zz@shop.example",
        "..%2F..%2Fkeys",
    ):
        for method, tail in (("GET", ""), ("GET", "/messages"), ("DELETE", "")):
            where = f"/api/v1/mailboxes/{odd}{tail}"
            answer = await house.client.request(method, where, headers=house.admin)
            assert answer.status_code == 404, where
    quoted = component('"a/b"@shop.example')
    answer = await house.client.get(f"/api/v1/mailboxes/{quoted}", headers=house.admin)
    assert answer.json()["address"] == "a/b@shop.example"
    # The pages' own files are known by name, and lead nowhere else.
    for odd in ("..%2Fapp.js", "%2e%2e%2fpages.py", "%2Fapp.js"):
        assert (await house.client.get(f"/ui/{odd}")).status_code == 404


async def test_entries_are_removed_whatever_their_address_is_made_of(house: House):
    """Senders and suppressions, by their addresses."""
    for list_, more in (("suppressions", {}), ("senders", {"upstream": "loop:"})):
        for address in ("a/b@shop.example", "a?b#c%2f@shop.example"):
            body = {"address": address, **more}
            made = await house.client.post(f"/api/v1/{list_}", json=body, headers=house.admin)
            assert made.status_code in {200, 201}, made.text
            entry = f"/api/v1/{list_}/{component(address)}"
            assert (await house.client.delete(entry, headers=house.admin)).status_code == 204


async def test_a_page_session_of_such_a_mailbox_opens_it(house: House):
    """Cookie, page key and tickets; the next page of a list is spelt as the cookie's path is."""
    address = "a/b%2f?c@relay.localhost"
    made = await house.client.post(
        "/api/v1/mailboxes", json={"local_part": "a/b%2f?c"}, headers=house.admin
    )
    assert made.json()["address"] == address
    token = {"X-Session-Token": "rs_" + "t" * 40}
    await house.pool.execute(
        "UPDATE relay.mailboxes SET token_hash = %s WHERE address = %s",
        (hash_token(token["X-Session-Token"]), address),
    )
    message = str(await house.deliver(address, LETTER))
    await house.deliver(address, LETTER)
    page = await opened(house, path(address).removeprefix("/api/v1/mailboxes/"), token)
    list_ = await house.client.get(path(address, "messages?limit=1"), headers=page)
    assert list_.headers["Link"].startswith(f"<{path(address, 'messages')}?limit=1&")
    url = await ticket(house, page, path(address, "messages", message, "raw"))
    cookie = {"Cookie": page["Cookie"]}
    assert (await house.client.get(url, headers=cookie)).content == LETTER
    other = url.replace("%2F", "%252F", 1)
    assert (await house.client.get(other, headers=cookie)).status_code == 404


async def test_no_part_of_an_address_is_logged(
    house: House, capfd: pytest.CaptureFixture[str]
) -> None:
    """What stands before a slash in an address looks like a word of ours, and is none."""
    await house.client.get(path("smith/jones@shop.example", "messages"), headers=house.admin)
    said: list[str] = []

    async def logged() -> str:
        said.extend(capfd.readouterr())
        return "".join(said)

    # The line is written when the answer is on its way.
    await eventually(logged, "the call is logged", until=lambda text: "http.request" in text)
    assert "smith" not in "".join(said)


def test_one_spelling():
    """That of encodeURIComponent, whatever was sent; paths that differ stay apart."""
    assert component("a/b@x.é'(1)*~!_-.") == "a%2Fb%40x.%C3%A9'(1)*~!_-."
    assert spelt("/a%2fb@c/%41/~") == "/a%2Fb%40c/A/~"
    assert spelt("/a%252fb@c") == "/a%252fb%40c"
    assert spelt("/%ff") == "/%EF%BF%BD"
    plain = "/api/v1/mailboxes/x/messages"
    assert spelt(plain) == plain
    for path_ in ("/a%2fb@c", "/%zz%", "/" + "%2F" * 9):
        assert spelt(spelt(path_)) == spelt(path_)


def test_a_rule_builds_the_path_that_the_framework_would() -> None:
    """It is compiled when a path is asked for, and not at the start; it says the same."""

    def built(rule: type[QuartRule]) -> list[str]:
        paths = Map([rule("/a/<name>/b", endpoint="b"), rule("/c", endpoint="c")])
        given = {"name": "x/y@shop.example", "more": "1"}
        adapter = paths.bind("relay.example")
        return [
            adapter.build("b", given),
            adapter.build("b", given, append_unknown=False),
            adapter.build("c", {"q": "ä"}),
        ]

    assert built(Rule) == built(QuartRule)
    assert built(Rule)[2] == "/c?q=%C3%A4"
