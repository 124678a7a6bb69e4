"""Accounts over HTTP: made, shown, suspended, mailed, by their owner alone."""

from datetime import UTC, datetime

from relay.lifecycle.letters import Letters
from relay.lifecycle.token_mailer import TokenMailer
from tests.http.conftest import House
from tests.lifecycle.people import insert, tokens

BASE = "/api/v1/accounts"
ADA = {"email": "ada@example.org", "login": "ada"}


async def test_an_account_is_made_with_its_activation(house: House):
    """201 with the account as it is shown later, and a token that is to be mailed."""
    made = await house.client.post(BASE, json=ADA, headers=house.admin)
    assert made.status_code == 201
    account = made.json()
    assert account == ADA | {
        "id": account["id"],
        "status": "provisioned",
        "created_at": account["created_at"],
        "status_changed_at": None,
        "activated_at": None,
        "suspended_at": None,
        "unsuspended_at": None,
    }
    assert abs((datetime.now(UTC) - datetime.fromisoformat(account["created_at"])).seconds) < 60
    assert account["created_at"].endswith("Z")
    (token,) = await tokens(house.pool, int(account["id"]))
    assert token["action"] == "activation"
    shown = await house.client.get(f"{BASE}/{account['id']}", headers=house.admin)
    assert shown.json() == account | {"letters": []}
    for secret in (token["code"], token["secret"][2:]):
        assert secret not in made.text


async def test_what_is_taken_is_a_conflict_that_names_the_field(house: House):
    """Email and login are each unique, whoever asks."""
    await house.client.post(BASE, json=ADA, headers=house.admin)
    for key in (house.admin, await house.key("accounts")):
        for changed, field in (({"login": "other"}, "email"), ({"email": "o@x.org"}, "login")):
            answer = await house.client.post(BASE, json=ADA | changed, headers=key)
            assert answer.status_code == 409
            assert answer.json()["type"] == f"/problems/{field}-taken"
            assert "ada" not in answer.text.lower()


async def test_what_cannot_be_mailed_is_refused(house: House):
    """422 that names the field and repeats nothing."""
    for changed in (
        {"email": "nobody"}, {"email": "a,b@example.org"}, {"email": "a@example.org\r\nBcc: b@x.y"},
        {"email": ""}, {"email": "Ada <ada@example.org>"}, {"email": "x" * 2000}, {"email": None},
        {"login": "a,b"}, {"login": "a\nb"}, {"login": ""}, {"login": "\x00"}, {"login": "x" * 255},
        {"login": 7}, {"extra": "x"}, {"email": "\U0001f600" * 80 + "@example.org"},
    ):  # fmt: skip
        answer = await house.client.post(BASE, json=ADA | changed, headers=house.admin)
        assert answer.status_code == 422, changed
        assert answer.json()["errors"][0].startswith(next(iter(changed))), changed
    raw = await house.client.post(
        BASE, content=b'{"email": "a@example.org", "login": "\\ud800"}', headers=house.admin
    )
    assert raw.status_code == 422
    assert (await house.client.get(BASE, headers=house.admin)).json() == []


async def test_another_keys_account_is_not_there(house: House):
    """404 for every call on it; the administrator finds it, and what SQL made."""
    mine, theirs = await house.key("accounts"), await house.key("accounts")
    account = (await house.client.post(BASE, json=ADA, headers=mine)).json()["id"]
    (by_sql,) = await insert(house.pool)
    calls = [("GET", ""), *(("POST", f"/{verb}") for verb in ("recover", "resend", "suspend"))]
    calls.append(("POST", "/unsuspend"))
    for method, path in calls:
        for number in (account, str(by_sql)):
            answer = await house.client.request(method, f"{BASE}/{number}{path}", headers=theirs)
            assert answer.status_code == 404
            assert answer.json()["type"] == "/problems/account-not-found"
    assert (await house.client.get(BASE, headers=theirs)).json() == []
    assert [a["id"] for a in (await house.client.get(BASE, headers=mine)).json()] == [account]
    everybodys = (await house.client.get(BASE, headers=house.admin)).json()
    assert [each["id"] for each in everybodys] == [str(by_sql), account]
    assert (await house.client.get(f"{BASE}/{by_sql}", headers=house.admin)).status_code == 200
    assert len(await tokens(house.pool, int(account))) == 1


async def test_an_id_that_is_none_is_not_there(house: House):
    """Whatever is written where the number goes."""
    for text in ("0", "-1", "1.0", "x", "9" * 19, "9" * 40, "%00", "1%0A", "٣", "1e3", "+1", " 1"):
        answer = await house.client.get(f"{BASE}/{text}", headers=house.admin)
        assert answer.status_code == 404, text


async def test_the_list_has_pages(house: House):
    """Newest first, the next one in the Link header."""
    await insert(house.pool, 5)
    first = await house.client.get(BASE, params={"limit": 3}, headers=house.admin)
    link = first.headers["Link"]
    second = await house.client.get(
        link[link.index("<") + 1 : link.index(">")], headers=house.admin
    )
    ids = [int(each["id"]) for each in first.json() + second.json()]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 5
    assert "Link" not in second.headers
    wrong = await house.client.get(BASE, params={"cursor": "x"}, headers=house.admin)
    assert wrong.status_code == 422


async def test_suspended_and_unsuspended_by_its_owner(house: House):
    """Each answers with the account as it is now; asked again, nothing changes."""
    key = await house.key("accounts")
    path = f"{BASE}/{(await house.client.post(BASE, json=ADA, headers=key)).json()['id']}"
    for verb, status in (("suspend", "suspended"), ("unsuspend", "provisioned")):
        first = await house.client.post(f"{path}/{verb}", headers=key)
        assert first.status_code == 200
        assert first.json()["status"] == status
        assert first.json()[f"{verb}ed_at"] is not None
        again = await house.client.post(f"{path}/{verb}", headers=key)
        assert again.json() == first.json()


async def test_a_recovery_is_for_active_accounts_a_resend_for_provisioned_ones(house: House):
    """202, else 409; at most five of a kind in 15 minutes, then 429."""
    key = await house.key("accounts")
    account = (await house.client.post(BASE, json=ADA, headers=key)).json()["id"]
    refused = await house.client.post(f"{BASE}/{account}/recover", headers=key)
    assert refused.status_code == 409
    assert refused.json()["type"] == "/problems/wrong-status"
    assert (await house.client.post(f"{BASE}/{account}/resend", headers=key)).status_code == 202
    await house.pool.execute(
        "UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s", (account,)
    )
    assert (await house.client.post(f"{BASE}/{account}/resend", headers=key)).status_code == 409
    for _ in range(5):
        accepted = await house.client.post(f"{BASE}/{account}/recover", headers=key)
        assert accepted.status_code == 202
        assert accepted.json()["status"] == "active"
    limited = await house.client.post(f"{BASE}/{account}/recover", headers=key)
    assert limited.status_code == 429
    assert int(limited.headers["Retry-After"]) > 0


async def test_a_key_needs_the_scope_accounts(house: House):
    """Who may send learns of no account, not even that an email is taken."""
    assert (await house.client.get(BASE)).status_code == 401
    made = await house.client.post(BASE, json=ADA, headers=house.admin)
    sender = await house.key("read", "send")
    for path in (BASE, f"{BASE}/{made.json()['id']}"):
        assert (await house.client.get(path, headers=sender)).status_code == 403
    for body in (ADA, ADA | {"email": "new@example.org", "login": "new"}):
        answer = await house.client.post(BASE, json=body, headers=sender)
        assert answer.status_code == 403
        assert answer.json()["type"] == "/problems/missing-scope"


async def test_an_account_shows_the_mails_that_it_got(house: House):
    """Its letters with their ids in the queue and what became of them; other mail is not there."""
    key = await house.key("accounts")
    account = (await house.client.post(BASE, json=ADA, headers=key)).json()["id"]
    path = f"{BASE}/{account}"
    assert (await house.client.get(path, headers=key)).json()["letters"] == []
    letters = Letters(sender="no-reply@relay.localhost", base="http://relay.localhost")
    await TokenMailer(house.pool, letters, 10, 5.0).mail_batch(bytes(32))
    await house.pool.execute("SELECT relay.send('a@x.org', %s, 'Hi', 'text')", (ADA["email"],))
    (letter,) = (await house.client.get(path, headers=key)).json()["letters"]
    assert (letter["action"], letter["status"]) == ("activation", "queued")
    queued = f"/api/v1/outbound/{letter['message_id']}"
    assert (await house.client.get(queued, headers=house.admin)).json()["recipient"] == ADA["email"]
