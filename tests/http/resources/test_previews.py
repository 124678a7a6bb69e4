"""A message's HTML as it is shown, and its pictures: what can be loaded, by whom, for how long."""

from __future__ import annotations

import base64
import html
import re
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from relay.http.previews import picture_links
from relay.http.previews.pictures import kind_of
from relay.http.resources import previews
from relay.mailboxes.effort import MOST_TURNS
from relay.mailboxes.pictures import placed
from tests.http.conftest import House
from tests.http.resources.test_messages import BASE, MIXED

BEGINS = '<meta name="referrer" content="no-referrer"><base target="_blank">'
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def related(markup: str, *parts: tuple[str, str, bytes]) -> bytes:
    """A message of HTML and the parts (Content-ID, type, bytes) that it shows."""
    made = (
        b"Subject: pictures\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: multipart/related; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/html\r\n\r\n" + markup.encode() + b"\r\n"
    )
    for content_id, kind, content in parts:
        made += (
            f"--b\r\nContent-Type: {kind}\r\nContent-ID: <{content_id}>\r\n"
            "Content-Transfer-Encoding: base64\r\n\r\n"
        ).encode() + base64.b64encode(content) + b"\r\n"  # fmt: skip
    return made + b"--b--\r\n"


def addresses(page: str) -> list[str]:
    """The addresses of pictures on a page that lead to the relay."""
    return [html.unescape(one) for one in re.findall(r'src="(/[^"]*)"', page)]


async def test_the_preview_can_do_nothing(house: House):
    """The policy forbids scripts and loads; text is escaped."""
    address, token = await house.mailbox()
    wanted = await house.deliver(address, MIXED)
    url = f"{BASE}/{address}/messages/{wanted}/html"
    response = await house.client.get(url, headers=token)
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script" not in policy
    assert "allow-" not in policy
    assert f"img-src data: 127.0.0.1:{house.port}/api/v1/pictures/;" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.text.startswith(BEGINS), "a link would lead the frame away"
    framed = await house.client.get(url, params={"framed": "true"}, headers=token)
    allowed = framed.headers["Content-Security-Policy"]
    assert allowed == policy.replace("sandbox;", "sandbox allow-same-origin;"), "and no script"
    head = b"Content-Type: text/html\r\n\r\n"
    strict = await house.deliver(address, head + b" <!DOCTYPE html><base target=_self><p>x</p>\r\n")
    page = await house.client.get(f"{BASE}/{address}/messages/{strict}/html", headers=token)
    assert page.text.startswith(f" <!DOCTYPE html>{BEGINS}<p>x</p>")
    deep = await house.deliver(address, head + b"<style>" + b"a{\r\n" * 6000 + b"</style><p>x")
    page = await house.client.get(f"{BASE}/{address}/messages/{deep}/html", headers=token)
    assert "style-src 'none'" in page.headers["Content-Security-Policy"], "a browser would end"
    assert "style-src 'unsafe-inline'" in policy
    plain = await house.deliver(address, b"Subject: x\r\n\r\n<script>\r\n")
    text = await house.client.get(f"{BASE}/{address}/messages/{plain}/html", headers=token)
    assert "&lt;script&gt;" in text.text


async def test_a_part_is_shown_if_it_is_a_picture(house: House):
    """By its Content-ID, as the picture that its bytes are, by whoever has its address."""
    address, token = await house.mailbox()
    markup = "<img src=cid:one@x><img src=cid:page@x><img src=cid:svg@x><img src=cid:none@x>"
    wanted = await house.deliver(
        address,
        related(
            markup,
            ("one@x", "application/octet-stream", PNG),
            ("page@x", "image/png", b"<html><script>"),
            ("svg@x", "image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ),
    )
    page = await house.client.get(f"{BASE}/{address}/messages/{wanted}/html", headers=token)
    one, html_, svg = addresses(page.text)
    assert page.text.count("data-blocked") == 1, "what is not there"
    picture = await house.client.get(one)
    assert picture.content == PNG
    assert picture.headers["Content-Type"] == "image/png"
    assert picture.headers["X-Content-Type-Options"] == "nosniff"
    assert picture.headers["Content-Security-Policy"].startswith("sandbox;")
    for no_picture in (html_, svg):
        assert (await house.client.get(no_picture)).status_code == 404


async def test_an_address_opens_one_picture_of_one_message_for_a_while(house: House):
    """Not another index, message or mailbox; not later; not after the message."""
    signing, now = house.keyring.signing, time.time()
    address, token = await house.mailbox()
    wanted = await house.deliver(address, related("<p>x</p>", ("a@x", "image/png", PNG)))
    (mailbox,) = await house.pool.fetch_row(  # type: ignore[misc]  # it is there
        "SELECT mailbox_id FROM relay.messages WHERE id = %s", (wanted,)
    )
    good = picture_links.link(signing, now, mailbox, wanted, 0)
    assert (await house.client.get(good)).status_code == 200
    other = await house.deliver(address, related("<p>x</p>", ("a@x", "image/png", PNG)))
    bad = [
        good[:-1] + "1",
        good.replace(str(wanted), str(other)),
        good.replace(str(mailbox), str(wanted)),
        good.replace(".", ".A", 1),
        good.rpartition("/")[0] + "?url=0",
        picture_links.link(signing, now - picture_links.LASTS - 1, mailbox, wanted, 0),
        picture_links.link(signing, now + 100, mailbox, wanted, 0),
        picture_links.link([b"k" * 32], now, mailbox, wanted, 0),
    ]
    for each in bad:
        assert (await house.client.get(each)).status_code == 404, each
    (await house.client.delete(f"{BASE}/{address}/messages/{wanted}", headers=token))
    assert (await house.client.get(good)).status_code == 404


async def test_remote_pictures_are_the_browsers_once_asked_for(house: House):
    """Before, none has an address; then each has its own, under a policy that lets the browser
    fetch it, saying nothing of where, and without cookies.  None leads back to the relay."""
    address, token = await house.mailbox()
    theirs = ("http://localhost:1/a.png", "https://shop.example/b.png?c&d", "//shop.example/e.png")
    ours = [
        f"http://{host}:{house.port}/api/v1/overview"
        for host in ("127.0.0.1", "LOCALHOST.", "127.1", "0x7f000001", "0", "[::1]", "a.localhost")
    ] + ["/api/v1/overview", "overview", f"http://a@127.0.0.1:{house.port}/"]
    markup = "".join(f'<img src="{html.escape(url)}">' for url in (*theirs, *ours, theirs[0]))
    url = f"{BASE}/{address}/messages/{await house.deliver(address, related(markup))}/html"
    blocked = await house.client.get(url, params={"framed": "true"}, headers=token)
    assert 'name="relay-blocked" content="3"' in blocked.text
    assert blocked.text.count("data-blocked src=") == 4
    assert "shop.example" not in blocked.text
    assert " http" not in blocked.headers["Content-Security-Policy"]
    loaded = await house.client.get(url, params={"images": "loaded"}, headers=token)
    sources = [html.unescape(one) for one in re.findall(r'src="([^"]*)"', loaded.text)]
    assert sources == [*theirs, theirs[0]]
    assert "img-src data: http: https: 127.0.0.1" in loaded.headers["Content-Security-Policy"]
    assert loaded.headers["Referrer-Policy"] == "no-referrer"
    assert '<meta name="referrer" content="no-referrer">' in loaded.text
    assert loaded.headers["Cross-Origin-Embedder-Policy"] == "credentialless"


async def test_a_page_that_takes_a_browser_long_shares_no_origin(house: House):
    """Framed, it is as it is alone: a browser may lay it out in a process of its own."""
    address, token = await house.mailbox()
    turned = "\u05d0b" * MOST_TURNS
    for text, shares in ((turned, True), (f"{turned}\u05d0", False)):
        markup = "<p>" + text.encode("ascii", "xmlcharrefreplace").decode()
        wanted = await house.deliver(address, related(markup))
        url = f"{BASE}/{address}/messages/{wanted}/html"
        page = await house.client.get(url, params={"framed": "true"}, headers=token)
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("sandbox allow-same-origin;" if shares else "sandbox;")


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("http://relay.example/x", True), ("https://RELAY.example./x", True),
        ("//relay.example/x", True), ("http://relay.example:81/x", False),
        ("http://127.0.0.2:8080/", True), ("http://[::ffff:7f00:1]:8080/", True),
        ("http://0:8080/", True), ("http://192.0.2.1:8080/", True),
        ("http://192.0.2.2:8080/", False), ("http://localhost:8081/", False),
        ("http://shop.example/", False),
        ("http://x:99999/", True), ("http://[::1/", True),
    ],
)  # fmt: skip
def test_its_own_addresses_are_known_in_any_spelling(url: str, ours: bool) -> None:
    """By its public names, and at its port by any name of this machine."""
    own = previews.Own(["relay.example", "relay.example:443"], ("192.0.2.1", 8080))
    assert own.is_at(url) is ours


async def test_a_long_message_is_made_ready_beside_the_loop(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    """Whoever wrote it, nobody else waits for what is done with each of its tags."""
    threads: list[threading.Thread] = []

    def spied(*arguments: Any, **options: Any) -> tuple[str, int]:
        threads.append(threading.current_thread())
        return placed(*arguments, **options)

    monkeypatch.setattr(previews, "placed", spied)
    address, token = await house.mailbox()
    for size in (10, 10_000):
        wanted = await house.deliver(address, related("<img src=cid:a>\r\n" * size))
        url = f"{BASE}/{address}/messages/{wanted}/html"
        assert (await house.client.get(url, headers=token)).text.count("data-blocked") == size
    short, long = threads
    assert short is threading.current_thread()
    assert long is not short


@pytest.mark.parametrize(
    ("begins", "kind"),
    [
        (PNG, "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"\0\0\0\x1cftypavif", "image/avif"),
        (b"<svg>", None), (b"<html>", None), (b"", None), (b"RIFF\0\0\0\0WAVE", None),
        (b"%PDF-1.7", None), (b"MIME-Version: 1.0", None),
    ],
)  # fmt: skip
def test_a_picture_is_what_begins_as_one(begins: bytes, kind: str | None) -> None:
    """Whatever it is called."""
    assert kind_of(begins) == kind


def test_former_signing_keys_go_on_verifying() -> None:
    """Those of an hour ago do, by which somebody reads."""
    ids = UUID(int=1), UUID(int=2)
    seal = picture_links.link([b"old"], 100.0, *ids, 3).split("/")[4]
    assert picture_links.opens(seal, [b"new", b"old"], 100.0, *ids, 3)
    assert not picture_links.opens(seal, [b"new"], 100.0, *ids, 3)
