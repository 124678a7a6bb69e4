"""Using tokens over HTTP, and on the pages that a mail links to."""

import hmac
import json
import re
import secrets
from base64 import b64decode, urlsafe_b64encode
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
import trio
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.datadir import DataDir
from relay.db.pool import Pool
from relay.http.mailed.pages import POLICY
from relay.keyring import Keyring
from relay.lifecycle.consumption import FREE_GUESSES
from relay.lifecycle.tokens import Action, sign
from relay.webhooks.kinds import KINDS
from relay.webhooks.signing import secret_of
from relay.webhooks.store import Webhooks
from tests.http.conftest import House, open_house
from tests.lifecycle.people import account, insert, tokens

CONSUME = "/api/v1/tokens/consume"


class Form(HTMLParser):
    """The one form of a page: where it goes and what it holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.attributes |= set(given)
        if tag == "form":
            assert self.action is None
            assert given["method"] == "post"
            self.action = given.get("action") or ""
        elif tag == "input":
            self.fields[given["name"] or ""] = given.get("value") or ""


async def activation(house: House) -> tuple[int, str]:
    """Make an account by SQL; its id and what its mail links to."""
    (number,) = await insert(house.pool)
    token, _ = await newest(house, number)
    return number, token


async def recovery(house: House) -> tuple[int, str, str]:
    """Make an active account with a recovery; its id, the token and the code."""
    (number,) = await insert(house.pool, status="active")
    await house.pool.execute("SELECT relay.recover_account(%s)", (number,))
    return (number, *await newest(house, number))


async def newest(house: House, number: int) -> tuple[str, str]:
    """Return the newest token of an account, signed, and its code."""
    token = (await tokens(house.pool, number))[-1]
    secret = bytes.fromhex(token["secret"].removeprefix("\\x"))
    action = Action[token["action"].upper()]
    return sign(house.keyring.signing[0], action, secret, token["code"]), token["code"]


async def consume(house: House, **values: Any) -> httpx.Response:
    """Use a token, without any credential."""
    return await house.client.post(CONSUME, json=values)


def wrong(code: str) -> str:
    """Return another code."""
    return f"{(int(code) + 1) % 100_000:05}"


async def test_an_activation_is_used_once(house: House):
    """200 with whose it was, then 400; the account is active."""
    number, token = await activation(house)
    used = await consume(house, token=token, code="whatever\x00")
    assert used.status_code == 200
    login = (await account(house.pool, number))["login"]
    assert used.json() == {
        "action": "activation", "account": str(number), "login": login, "status": "active",
    }  # fmt: skip
    assert (await account(house.pool, number))["status"] == "active"
    assert (await consume(house, token=token)).status_code == 400


async def test_a_recovery_needs_its_code(house: House):
    """Missing or wrong, it does not consume the token."""
    _, token, code = await recovery(house)
    for values in ({}, {"code": None}, {"code": wrong(code)}, {"code": ""}, {"code": "x" * 99}):
        assert (await consume(house, token=token, **values)).status_code == 400
    used = await consume(house, token=token, code=code)
    assert used.status_code == 200
    assert used.json()["action"] == "password_recovery"
    assert (await consume(house, token=token, code=code)).status_code == 400


async def test_twenty_at_once_one_200(house: House):
    """The others get the one refusal."""
    _, token = await activation(house)
    answers: list[httpx.Response] = []

    async def one() -> None:
        answers.append(await consume(house, token=token))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert sorted(each.status_code for each in answers) == [200] + [400] * 19
    assert len({each.content for each in answers if each.status_code == 400}) == 1


async def test_every_refusal_is_the_same(house: House):
    """Byte for byte, headers included: used, expired, forged, unknown, suspended, malformed, code
    missing or wrong, guessed too often, remembered by this process or not."""
    _, used = await activation(house)
    await consume(house, token=used)
    used_elsewhere_by, used_elsewhere = await activation(house)
    expired_by, expired = await activation(house)
    suspended_by, suspended = await activation(house)
    _, needs_code, code = await recovery(house)
    for sql, number in (
        ("UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s", used_elsewhere_by),
        ("UPDATE relay.tokens SET expires_at = 1 WHERE account = %s", expired_by),
        ("UPDATE relay.accounts SET status = 'suspended' WHERE id = %s", suspended_by),
    ):
        await house.pool.execute(sql, (number,))
    secret, key = secrets.token_bytes(32), house.keyring.signing[0]
    answers = [
        await consume(house, **values)
        for values in (
            {"token": used},
            {"token": used_elsewhere},
            {"token": expired},
            {"token": suspended},
            {"token": needs_code},
            *[{"token": needs_code, "code": wrong(code)}] * (FREE_GUESSES + 1),
            {"token": needs_code, "code": code},  # right, but after too many wrong ones
            {"token": sign(key, Action.ACTIVATION, secret, "1" * 5)},
            {"token": sign(key, Action.PASSWORD_RECOVERY, secret, "11111"), "code": "11111"},
            {"token": sign(bytes(32), Action.ACTIVATION, secret, "1" * 5)},
            {"token": ""},
            {"token": "x"},
            {"token": "=" * 86},
            {"token": "\x00" * 86, "code": "\x00"},
            {"token": "x" * 60_000},
        )
    ]
    surrogates = b'{"token": "\\ud800", "code": "\\udfff"}'
    answers.append(await house.client.post(CONSUME, content=surrogates))
    assert {each.status_code for each in answers} == {400}
    seen = {
        (each.content, tuple(sorted(each.headers.items() - {("date", each.headers["date"])})))
        for each in answers
    }
    assert len(seen) == 1
    assert answers[0].json() == {
        "type": "/problems/token-refused",
        "title": "Token refused",
        "status": 400,
        "detail": "This token, or its code, cannot be used.",
    }


async def test_what_cannot_be_read_says_so(house: House):
    """Not an object, not JSON, no token, a number for a code: the caller's mistakes."""
    for content, status in (
        (b"", 400), (b"[]", 400), (b"{", 400), (b"{}", 422), (b'{"token": 1}', 422),
        (b'{"token": "x", "code": 12345}', 422), (b'{"token": "x", "more": 1}', 422),
        (b'{"token": "' + b"x" * 70_000 + b'"}', 413),
    ):  # fmt: skip
        answer = await house.client.post(CONSUME, content=content)
        assert answer.status_code == status, content[:40]
        assert answer.headers["content-type"] == "application/problem+json"


async def test_former_keys_go_on_verifying(house: House, database_url: str, pool: Pool):
    """A mail that was sent before a rotation still works."""
    _, token = await activation(house)
    (former,) = house.keyring.signing
    both = f"{bytes(range(32)).hex()},{former.hex()}"
    rotated = Keyring(DataDir(Path("none")), both, Fernet.generate_key().decode())
    async with open_house(database_url, pool, keyring=rotated) as later:
        assert (await consume(later, token=token)).status_code == 200
        _, signed_anew = await activation(later)
        assert (await consume(later, token=signed_anew)).status_code == 200


@pytest.mark.parametrize("action", list(Action))
async def test_opening_the_link_changes_nothing_and_its_form_uses_the_token(house, action):
    """GET, any number of times, then POST as the form says; then the page that refuses."""
    if action is Action.ACTIVATION:
        (number, token), code = await activation(house), ""
    else:
        number, token, code = await recovery(house)
    for _ in range(3):
        page = await house.client.get(action.path, params={"token": token})
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert (await tokens(house.pool, number))[-1]["consumed_at"] is None
    form = Form(page.text)
    assert form.fields["token"] == token
    assert ("code" in form.fields) is (action is Action.PASSWORD_RECOVERY)
    values = form.fields | ({"code": f" {code} "} if code else {})
    target = httpx.URL(page.url).join(form.action or "")
    origin = {"Origin": f"http://127.0.0.1:{house.port}"}
    if code:
        again = await house.client.post(target, data=values | {"code": wrong(code)}, headers=origin)
        assert again.status_code == 400
        assert Form(again.text).fields["token"] == token  # to try once more
    done = await house.client.post(target, data=values, headers=origin)
    assert done.status_code == 200
    assert "<form" not in done.text
    assert (await tokens(house.pool, number))[-1]["consumed_at"] is not None
    refused = await house.client.post(target, data=values, headers=origin)
    unknown = await house.client.post(target, data=values | {"token": "A" * 86}, headers=origin)
    assert refused.status_code == unknown.status_code == 400
    assert refused.text.replace(token, "") == unknown.text.replace("A" * 86, "")


async def test_a_post_to_the_link_itself_will_do(house: House):
    """Whoever does not read the form posts to what the mail says."""
    _, token = await activation(house)
    _, recovering, code = await recovery(house)
    for path, given, data in (
        ("/activate", token, None), ("/recover", recovering, {"code": code}),
    ):  # fmt: skip
        done = await house.client.post(path, params={"token": given}, data=data)
        assert done.status_code == 200


async def test_a_page_takes_only_its_own_kind(house: House):
    """A recovery is not used up by the activation's form, nor the reverse."""
    number, token = await activation(house)
    known, recovering, code = await recovery(house)
    for path, values in (
        ("/recover", {"token": token, "code": "12345"}),
        ("/activate", {"token": recovering, "code": code}),
    ):
        assert (await house.client.post(path, data=values)).status_code == 400
    for owner in (number, known):
        assert (await tokens(house.pool, owner))[-1]["consumed_at"] is None


async def test_the_pages_let_nothing_in_and_nothing_out(house: House):
    """No script, no style but ours, no other origin, no referrer; markup comes back as nothing."""
    hostile = '"><script>alert(1)</script>'
    _, token = await activation(house)
    _, recovering, _ = await recovery(house)
    for path, good in (("/activate", token), ("/recover", recovering)):
        assert (await house.client.get(path, params={"token": good})).status_code == 200
        for page in (
            await house.client.get(path),
            await house.client.get(path, params={"token": hostile}),
            await house.client.post(path, data={"token": hostile, "code": hostile}),
            await house.client.post(path, content=b"\xff\x00=&" * 100),
            await house.client.post(path, data={f"f{n}": "x" for n in range(100)}),
        ):
            assert page.status_code in {200, 400}
            assert hostile not in page.text
            form = Form(page.text)
            assert form.fields.get("token", "") == ""
            assert not {"script", "style", "iframe", "img"} & set(form.tags)
            assert not {name for name in form.attributes if name.startswith("on")} | (
                {"style"} & form.attributes
            )
            assert page.headers["content-security-policy"] == POLICY
            assert "unsafe" not in POLICY
            # no-referrer would make the browser's own form say `Origin: null`.
            assert page.headers["referrer-policy"] == "same-origin"
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-content-type-options"] == "nosniff"
            (style,) = re.findall(r'<link rel="stylesheet" href="([^"]+)">', page.text)
            assert (await house.client.get(httpx.URL(page.url).join(style))).status_code == 200
        foreign = {"Origin": "https://evil.example"}
        answer = await house.client.post(path, data={"token": "x"}, headers=foreign)
        assert answer.status_code == 403
        large = await house.client.post(path, content=b"token=" + b"x" * 5000)
        assert large.status_code == 413


@pytest.mark.parametrize("action", list(Action))
async def test_a_dead_link_says_so_when_it_is_opened(house: House, action: Action):
    """Used, expired, suspended, forged and unknown: 400 at once, one page, nothing consumed."""
    make = activation if action is Action.ACTIVATION else recovery
    made = [await make(house) for _ in range(4)]
    dead = [(number, token) for number, token, *_ in made[:3]]
    for sql, (number, _) in zip(
        (
            "UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s",
            "UPDATE relay.tokens SET expires_at = 1 WHERE account = %s",
            "UPDATE relay.accounts SET status = 'suspended' WHERE id = %s",
        ),
        dead,
        strict=True,
    ):
        await house.pool.execute(sql, (number,))
    secret = secrets.token_bytes(32)
    unknown = [sign(key, action, secret, "11111") for key in (house.keyring.signing[0], bytes(32))]
    other = "/recover" if action is Action.ACTIVATION else "/activate"
    pages = [
        await house.client.get(action.path, params={"token": token})
        for token in (*(token for _, token in dead), *unknown, "", "x", "A" * 86, "é" * 86)
    ]
    assert {page.status_code for page in pages} == {400}
    assert len({page.content for page in pages}) == 1
    assert "no longer valid" in pages[0].text
    assert Form(pages[0].text).fields == {}
    good = made[3][1]
    assert (await house.client.get(action.path, params={"token": good})).status_code == 200
    assert (await house.client.get(other, params={"token": good})).status_code == 400
    assert (await tokens(house.pool, made[3][0]))[-1]["consumed_at"] is None


async def test_a_dead_link_gets_another_mail(house: House):
    """The account of a link that was one of ours gets a token more; the page tells nobody."""
    number, token = await activation(house)
    known, recovering, _ = await recovery(house)
    await house.pool.execute("UPDATE relay.tokens SET expires_at = expires_at - 1000")
    old, forgotten = await activation(house)
    await house.pool.execute("UPDATE relay.tokens SET expires_at = 1 WHERE account = %s", (old,))
    pages = [
        (path, await house.client.post(path, params={"token": given}, data={"resend": "yes"}))
        for path, given in (
            ("/activate", token),
            ("/recover", recovering),
            ("/activate", forgotten),  # too long ago
            ("/activate", recovering),
            ("/activate", "A" * 86),
            ("/recover", "A" * 86),
            ("/recover", ""),
        )
    ]
    assert {page.status_code for _, page in pages} == {200}
    assert len({(path, page.content) for path, page in pages}) == 2, "one a path, whatever the link"
    assert "not active yet" in pages[0][1].text
    made = {each: len(await tokens(house.pool, each)) for each in (number, known, old)}
    assert made == {number: 2, known: 2, old: 1}
    fresh, _ = await newest(house, number)
    assert (await house.client.get("/activate", params={"token": fresh})).status_code == 200


async def test_asking_again_and_again_mails_five(house: House):
    """Whoever has an old link cannot bury a person in mail, and is not told that it failed."""
    number, token = await activation(house)
    await house.pool.execute("UPDATE relay.tokens SET expires_at = expires_at - 1000")
    for _ in range(8):
        page = await house.client.post("/activate", data={"token": token, "resend": "yes"})
        assert page.status_code == 200
    assert len(await tokens(house.pool, number)) == 5


RETURN = "https://shop.example/welcome?from=mail"


async def test_the_pages_lead_back_to_the_product(database_url: str, pool: Pool):
    """An activation by a link, a recovery by itself, with a proof keyed by the webhook's secret."""
    async with open_house(database_url, pool, return_url=RETURN) as house:
        number, token = await activation(house)
        done = await house.client.post("/activate", data={"token": token})
        assert done.status_code == 200
        assert "form-action 'self' https://shop.example;" in done.headers["content-security-policy"]
        (link,) = re.findall(r'<a href="([^"]+)"', done.text)
        known, recovering, code = await recovery(house)
        moved = await house.client.post("/recover", data={"token": recovering, "code": code})
        assert moved.status_code == 303
        for target, account_id, action in (
            (unescape(link), number, "activation"),
            (moved.headers["location"], known, "password_recovery"),
        ):
            parts = urlsplit(target)
            query = dict(parse_qsl(parts.query))
            assert target.startswith("https://shop.example/welcome?from=mail&")
            assert (query["action"], query["account"]) == (action, str(account_id))
            secret = b64decode(
                secret_of(house.keyring.signing[0], ADMINISTRATOR_ID).removeprefix("whsec_")
            )
            said = f"{action}.{account_id}.{query['at']}".encode()
            proof = urlsafe_b64encode(hmac.digest(secret, said, "sha256")).rstrip(b"=").decode()
            assert query["signature"] == proof


async def test_what_happens_to_an_account_is_told_to_its_owner(house: House):
    """account.activated and account.recovered, to the owner's webhooks and nobody else's."""
    key, other = await house.key("accounts", "send"), await house.key("accounts", "send")
    for by, name in ((key, "mine"), (other, "other"), (house.admin, "admin")):
        events = ["account.activated"] if name == "other" else list(KINDS)
        values: dict[str, Any] = {"url": f"https://{name}.example/", "events": events}
        made = await house.client.post("/api/v1/webhooks", json=values, headers=by)
        assert made.status_code == 201, made.text
    values = {"email": "ada@example.org", "login": "ada"}
    made = await house.client.post("/api/v1/accounts", json=values, headers=key)
    mine = int(made.json()["id"])
    token, _ = await newest(house, mine)
    await consume(house, token=token)
    await house.pool.execute("SELECT relay.recover_account(%s)", (mine,))
    token, code = await newest(house, mine)
    await consume(house, token=token, code=code)
    number, token = await activation(house)  # made by SQL: the administrator's
    await consume(house, token=token)
    webhooks = Webhooks(house.pool)
    told = []
    for event in (await webhooks.claim(10, 30.0, {}))[0]:
        body = json.loads(await webhooks.body(event) or b"null")
        told.append((event.url, body["type"], body["data"]["id"], body["data"]["login"]))
    login = (await account(house.pool, number))["login"]
    assert sorted(told) == [
        ("https://admin.example/", "account.activated", str(number), login),
        ("https://mine.example/", "account.activated", str(mine), "ada"),
        ("https://mine.example/", "account.recovered", str(mine), "ada"),
    ]


async def test_the_counters_name_nobody(house: House):
    """What became of tokens, by a closed set of outcomes."""
    _, token = await activation(house)
    await consume(house, token=token)
    await consume(house, token=token)
    await consume(house, token="x")
    metrics = (await house.client.get("/metrics")).text
    for outcome in ("consumed", "remembered", "signature"):
        assert f'relay_tokens_consumed_total{{outcome="{outcome}"}}' in metrics
    assert token not in metrics
