"""Using tokens over HTTP, and on the pages that a mail links to."""

import re
import secrets
from functools import partial
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
import trio

from relay.http.lifecycle_pages import POLICY
from relay.http.tokens import STEP, evenly
from relay.lifecycle.consumption import FREE_GUESSES
from relay.lifecycle.tokens import Action, sign
from tests.http.conftest import House
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
            self.action = given["action"]
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
    """Missing or wrong burns nothing."""
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
        "type": "urn:relay:problem:token-refused",
        "title": "Token refused",
        "status": 400,
        "detail": "This token, or its code, cannot be used.",
    }


async def test_refusals_leave_at_the_same_time(autojump_clock):
    """Whatever took how long within a step; what succeeds is not held up."""

    async def refuse(after: float) -> None:
        await trio.sleep(after)

    for seconds, wanted in ((0.0, 1), (0.001, 1), (0.049, 1), (0.051, 2), (0.12, 3)):
        began = trio.current_time()
        assert await evenly(partial(refuse, seconds)) is None
        assert trio.current_time() - began == pytest.approx(wanted * STEP)


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


async def test_former_keys_go_on_verifying(house: House):
    """A mail that was sent before a rotation still works."""
    _, token = await activation(house)
    ring = house.keyring._signing
    house.keyring._signing = (bytes(range(32)), *ring)
    try:
        assert (await consume(house, token=token)).status_code == 200
        _, signed_anew = await activation(house)
        assert (await consume(house, token=signed_anew)).status_code == 200
    finally:
        house.keyring._signing = ring


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
    for path in ("/activate", "/recover"):
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
