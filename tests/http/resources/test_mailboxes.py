"""Making, listing, showing and ending mailboxes over HTTP."""

from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from pydantic import TypeAdapter, ValidationError

from relay.db.pool import Pool
from relay.http.problems.details import invalid
from relay.ids import new_id
from relay.mailboxes import capture
from relay.mailboxes.records import Mailbox
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Credential
from relay.smtp.refused import RefusedRecipients
from tests.http.conftest import LETTER, House, open_house

BASE = "/api/v1/mailboxes"


def minutes_left(made: dict[str, str]) -> float:
    """The minutes from now to `expires_at`."""
    return (datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)).total_seconds() / 60


async def test_anybody_may_make_a_mailbox_and_gets_its_token_once(house: House):
    """An anonymous mailbox is of plan free, lives an hour and is opened by its token."""
    response = await house.client.post(BASE)
    made = response.json()
    assert response.status_code == 201
    assert made["plan"] == "free"
    assert made["address"].endswith("@relay.localhost")
    assert 59 < minutes_left(made) <= 60
    assert made["expires_at"].endswith("Z")
    shown = await house.client.get(
        f"{BASE}/{made['address']}", headers={"X-Session-Token": made["session_token"]}
    )
    assert shown.status_code == 200
    assert shown.json()["owner_type"] == "anonymous"
    assert shown.json()["message_count"] == 0
    assert "session_token" not in shown.json()


@pytest.mark.parametrize("how", ["query", "json"])
async def test_values_come_from_the_query_or_from_json(house: House, how: str):
    """The same values are taken from either place."""
    values = {"ttl_minutes": 5, "local_part": "Someone", "domain": "relay.localhost"}
    sent: dict[str, Any] = {"params": values} if how == "query" else {"json": values}
    made = (await house.client.post(BASE, **sent)).json()
    assert made["address"] == "someone@relay.localhost"
    assert 4 < minutes_left(made) <= 5


async def test_the_time_to_live_is_cut_to_the_plan(house: House):
    """More minutes than the plan allows give what it allows."""
    assert minutes_left((await house.client.post(f"{BASE}?ttl_minutes=9999")).json()) <= 60
    made = (
        await house.client.post(f"{BASE}?ttl_minutes=9999", headers=await house.key("read"))
    ).json()
    assert made["plan"] == "pro"
    assert made["session_token"] is None
    assert 1439 < minutes_left(made) <= 1440


async def test_a_taken_local_part_is_a_conflict(house: House):
    """The second who asks for a name is told so, in any case of letters."""
    await house.mailbox(local_part="taken")
    response = await house.client.post(BASE, json={"local_part": "TAKEN"})
    assert response.status_code == 409
    assert response.json()["type"] == "/problems/address-taken"


async def test_live_mailboxes_are_limited_by_plan(house: House):
    """An owner's, and without a credential an address's; 429 until one has gone."""
    await house.pool.execute(
        "UPDATE relay.plans SET max_mailboxes = 2 WHERE name IN ('free', 'pro')"
    )
    key, other = await house.key("read", "send"), await house.key("read", "send")
    address, token = await house.mailbox()
    for credential in ({}, key, other):
        made = [await house.client.post(BASE, headers=credential) for _ in range(2)]
        last = made[-1] if credential else made[0]
        assert last.status_code == 201
        full = await house.client.post(BASE, headers=credential)
        assert full.status_code == 429
        assert full.json()["type"] == "/problems/quota"
        assert int(full.headers["Retry-After"]) > 0
        shown = (await house.client.get("/api/v1/quota", headers=credential)).json()
        assert (shown["mailboxes"], shown["max_mailboxes"]) == (2, 2)
    assert (await house.client.delete(f"{BASE}/{address}", headers=token)).status_code == 204
    assert (await house.client.post(BASE)).status_code == 201
    await house.pool.execute("UPDATE relay.mailboxes SET expires_at = now()")
    assert (await house.client.post(BASE, headers=key)).status_code == 201
    for _ in range(4):
        assert (await house.client.post(BASE, headers=house.admin)).status_code == 201
    shown = (await house.client.get("/api/v1/quota", headers=house.admin)).json()
    assert shown["max_mailboxes"] is shown["max_messages"] is shown["max_bytes"] is None
    assert (shown["default_ttl_minutes"], shown["max_ttl_minutes"]) == (10080, 10080)
    # Whose they are is known by a hash that the database alone cannot turn back.
    assert await house.pool.fetch_value(
        "SELECT count(DISTINCT source) FROM relay.mailboxes WHERE source <> '127.0.0.1'"
    ) == 1  # fmt: skip


async def test_the_quota_says_how_long_a_mailbox_lives(house: House):
    """As the plan says it: that is what one lives that is made without a word about it."""
    await house.pool.execute(
        "UPDATE relay.plans SET default_ttl_minutes = 45, max_ttl_minutes = 90 WHERE name = 'free'"
    )
    shown = (await house.client.get("/api/v1/quota")).json()
    assert (shown["default_ttl_minutes"], shown["max_ttl_minutes"]) == (45, 90)
    assert shown["smtp"] is None  # not served here


async def test_a_mailbox_shows_what_it_holds_and_may_hold(house: House):
    """Alone and in the list; the administrator's own may hold anything."""
    address, token = await house.mailbox()
    await house.deliver(address)
    await house.deliver(address)
    shown = (await house.client.get(f"{BASE}/{address}", headers=token)).json()
    assert (shown["message_count"], shown["max_messages"]) == (2, 100_000)
    assert (shown["bytes"], shown["max_bytes"]) == (2 * len(LETTER), 1 << 30)
    assert shown["unread_count"] == 2
    (listed,) = (await house.client.get(BASE, headers=house.admin)).json()
    assert listed == shown
    for headers, unread in ((house.admin, 2), ({}, None), (token, None)):
        got = (await house.client.get("/api/v1/quota", headers=headers)).json()
        assert got["unread"] == unread, headers
    (_, newest) = (await house.client.get(f"{BASE}/{address}/messages", headers=token)).json()
    await house.client.get(f"{BASE}/{address}/messages/{newest['id']}", headers=token)
    (listed,) = (await house.client.get(BASE, headers=house.admin)).json()
    assert (listed["message_count"], listed["unread_count"]) == (2, 1)
    assert (await house.client.get("/api/v1/quota", headers=house.admin)).json()["unread"] == 1
    made = (await house.client.post(BASE, headers=house.admin)).json()["address"]
    own = (await house.client.get(f"{BASE}/{made}", headers=house.admin)).json()
    assert own["message_count"] == own["bytes"] == 0
    assert own["max_messages"] is own["max_bytes"] is None


@pytest.mark.parametrize(
    "name", ["admin", "PostMaster", "no-reply", "ssladmin+x", "no.reply", "ａｄｍｉｎ", "аdmin"]
)
async def test_role_names_are_the_administrators_alone(house: House, name: str):
    """With admin@ a stranger would be given a certificate for the domain: 403 without the token."""
    key = await house.key("read", "send", "admin")
    for headers in ({}, key):
        response = await house.client.post(BASE, json={"local_part": name}, headers=headers)
        assert response.status_code == 403, response.text
        assert response.json()["type"] == "/problems/reserved-name"
    response = await house.client.post(BASE, json={"local_part": name}, headers=house.admin)
    assert response.status_code == 201


@pytest.mark.parametrize("name", ["jürgen", "мама", "o'neil", "a!b", "a%b", "a=b"])
async def test_anonymous_local_parts_are_plain_ascii(house: House, name: str):
    """Letters, digits and . _ + - without a credential; a key may have what mail can carry."""
    response = await house.client.post(BASE, json={"local_part": name})
    assert response.status_code == 422
    assert "local_part" in response.json()["detail"]
    response = await house.client.post(BASE, json={"local_part": name}, headers=await house.key())
    assert response.status_code == 201
    plain = await house.client.post(BASE, json={"local_part": f"a.B_c+d-{len(name.encode())}"})
    assert plain.status_code in (201, 409)


@pytest.mark.parametrize(
    "values",
    [
        {"ttl_minutes": 0},
        {"ttl_minutes": -1},
        {"ttl_minutes": "many"},
        {"ttl_minutes": float("1e400")},
        {"local_part": ""},
        {"local_part": "a b"},
        {"local_part": "a@b"},
        {"local_part": "a/b"},
        {"local_part": "x" * 65},
        {"local_part": "nul\x00"},
        {"domain": "elsewhere.example"},
        {"domain": "nul\x00"},
        {"webhook_url": "ftp://x"},
        {"webhook_url": "http://\ud800"},
        {"misspelt": 1},
        {"local_part": {"an": "object"}},
    ],
)
async def test_values_that_cannot_be_are_named_in_a_422(house: House, values: dict[str, Any]):
    """Each fault is one sentence that names the field."""
    import json

    response = await house.client.post(
        BASE, content=json.dumps(values), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422, response.text
    problem = response.json()
    assert problem["status"] == 422
    assert next(iter(values)) in problem["detail"]


async def test_a_body_that_is_no_json_object_is_a_400_or_415(house: House):
    """Broken JSON, an array, and another media type are refused by kind."""
    for content, kind, status in (
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 50_000, "application/json", 400),
        (b"a=b", "application/x-www-form-urlencoded", 415),
    ):
        response = await house.client.post(BASE, content=content, headers={"Content-Type": kind})
        assert response.status_code == status
        assert response.headers["Content-Type"] == "application/problem+json"


async def test_a_list_shows_the_callers_own_mailboxes_page_by_page(house: House):
    """A key sees its mailboxes, newest first, and the next page through the Link header."""
    key, other = await house.key("read"), await house.key("read")
    made = [(await house.client.post(BASE, headers=key)).json()["address"] for _ in range(5)]
    await house.client.post(BASE, headers=other)
    await house.mailbox()
    seen: list[str] = []
    url: str | None = f"{BASE}?limit=2"
    pages = 0
    while url:
        response = await house.client.get(url, headers=key)
        seen += [item["address"] for item in response.json()]
        url = response.links.get("next", {}).get("url")
        pages += 1
    assert seen == made[::-1]
    assert pages == 3
    everybody = await house.client.get(f"{BASE}?limit=500", headers=house.admin)
    assert len(everybody.json()) == 7


async def test_a_deleted_mailbox_is_gone_for_its_owner_too(house: House):
    """DELETE is a 204 once, then the 404 of a mailbox that never was."""
    address, token = await house.mailbox()
    assert (await house.client.delete(f"{BASE}/{address}", headers=token)).status_code == 204
    again = await house.client.delete(f"{BASE}/{address}", headers=token)
    never = await house.client.get(f"{BASE}/never@relay.localhost", headers=token)
    assert again.status_code == never.status_code == 404
    assert again.content == never.content


@pytest.mark.parametrize("whose", ["anonymous", "key", "administrator"])
async def test_a_deleted_mailbox_can_be_purged_by_whoever_had_it(house: House, whose: str):
    """Deleting keeps the rows for a while; a purge takes them then, too, and frees the address."""
    _, stranger = await house.keys.create("other", ["read", "send"])
    holders = {"administrator": house.admin}
    _, token = await house.keys.create("ci", ["read", "send"])
    holders["key"] = {"Authorization": f"Bearer {token}"}
    maker = {} if whose == "anonymous" else holders["key"]
    made = await house.client.post(BASE, json={"local_part": "again"}, headers=maker)
    holders["anonymous"] = {"X-Session-Token": made.json()["session_token"] or ""}
    path = f"{BASE}/{made.json()['address']}"
    await house.deliver(made.json()["address"])
    assert (await house.client.delete(path, headers=holders[whose])).status_code == 204
    for headers in ({}, {"Authorization": f"Bearer {stranger}"}):
        refused = await house.client.delete(f"{path}?purge=true", headers=headers)
        assert refused.status_code == 404
    for query in ("", "?purge=false", "?purge=nonsense"):
        again = await house.client.delete(path + query, headers=holders[whose])
        assert again.status_code == 404
    purged = await house.client.delete(f"{path}?purge=1", headers=holders[whose])
    assert purged.status_code == 204
    assert await house.pool.fetch_value("SELECT count(*) FROM relay.messages") == 0
    twice = await house.client.delete(f"{path}?purge=true", headers=holders[whose])
    assert twice.status_code == 404
    assert (await house.client.post(BASE, json={"local_part": "again"})).status_code == 201


async def test_an_expired_mailbox_is_gone_from_that_instant(house: House):
    """No ticker runs here: the time alone ends it."""
    address, token = await house.mailbox()
    await house.expire(address)
    for credential in (token, house.admin):
        assert (await house.client.get(f"{BASE}/{address}", headers=credential)).status_code == 404
        purged = await house.client.delete(f"{BASE}/{address}?purge=true", headers=credential)
        assert purged.status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"local_part": "a b"}, "local_part: it must have no blank and no control character."),
        ({"local_prt": "a"}, "local_prt: there is no such field; did you mean local_part?"),
        ({"zzzzzz": 1}, "zzzzzz: there is no such field."),
    ],
)
async def test_faults_are_said_in_plain_words(house: House, body: dict[str, object], said: str):
    """Not in those of the library that finds them; a misspelt field has its nearest named."""
    answer = await house.client.post("/api/v1/mailboxes", json=body)
    assert (answer.status_code, answer.json()["detail"]) == (422, said)


def test_a_list_is_called_a_list():
    """Of what the library calls a tuple."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(tuple[str, ...]).validate_python("a@b")
    assert "it must be a list" in invalid(caught.value, "body").detail


async def refused_of(
    house: House, address: str, headers: dict[str, str], **query: str
) -> list[str]:
    """The refused recipients that the holder of a mailbox is shown."""
    path = f"/api/v1/mailboxes/{address}/refused"
    answer = await house.client.get(path, headers=headers, params=query)
    assert answer.status_code == 200, answer.text
    return [one["address"] for one in answer.json()]


async def test_refused_recipients_are_shown_to_whom_they_concern(house: House) -> None:
    """A slip of one's own address and what one had; to the administrator all; to nobody else."""
    mine, others = await house.key("read"), await house.key("read", "send")
    made = [
        (await house.client.post("/api/v1/mailboxes", headers=key)).json()["address"]
        for key in (mine, mine, others)
    ]
    over = made[1]
    await house.expire(over)
    anonymous, session = await house.mailbox()
    slips = {address: address.replace("@", "x@") for address in (made[0], made[2], anonymous)}
    for address in (*slips.values(), over, "nobody@relay.localhost"):
        house.refused.note(address, "unknown", "550 5.1.1 No such mailbox here")
    assert await refused_of(house, made[0], mine) == [over, slips[made[0]]]
    assert await refused_of(house, made[2], others) == [slips[made[2]]]
    assert await refused_of(house, anonymous, session) == [slips[anonymous]]
    assert len(await refused_of(house, anonymous, house.admin)) == 5
    answer = await house.client.get(f"/api/v1/mailboxes/{made[0]}/refused", headers=others)
    assert answer.status_code == 404
    # A mailbox at the slip: from then on it is somebody's.
    local_part = slips[made[0]].partition("@")[0]
    new = {"local_part": local_part}
    assert (
        await house.client.post("/api/v1/mailboxes", headers=others, json=new)
    ).status_code == 201
    assert await refused_of(house, made[0], mine) == [over]


async def test_refused_recipients_are_narrowed_by_who_signed_in(house: House) -> None:
    """To what that one named and what is nearly the mailbox's address, of whom one may hear."""
    key = await house.key("read")
    made = await house.client.post(BASE, headers=key, json={"local_part": "anna-x"})
    address = made.json()["address"]
    over = (await house.client.post(BASE, headers=key)).json()["address"]
    await house.expire(over)
    noted = (
        ("anne-x@relay.localhost", None), ("anna-x@relay.example", None), (address, "theirs"),
        (over, "mine"), (over, "theirs"), ("nobody@relay.localhost", "mine"),
        ("nobody@relay.localhost", None), ("others@relay.localhost", "theirs"),
    )  # fmt: skip
    for one, login in noted:
        house.refused.note(one, "unknown", "550 5.1.1 No such mailbox here", login)
    near = [address, "anne-x@relay.localhost"]
    assert len(await refused_of(house, address, house.admin)) == len(noted)
    for headers, login, told in (
        (house.admin, "mine", ["nobody@relay.localhost", over, *near]),
        (house.admin, "", near),
        (key, "mine", [over, address]),
        (key, "", [address]),
    ):
        assert await refused_of(house, address, headers, login=login) == told
    for number in range(100):  # as many as a list has
        house.refused.note(f"others{number}@relay.localhost", "unknown", "550", "theirs")
    assert await refused_of(house, address, house.admin, login="") == near


async def captured(house: House, address: str, login: str | None = None) -> None:
    """A message to another's domain."""
    recipient = [(new_id(), address)]
    mail = capture.Captured(recipient, "shop@shop.example", LETTER, login, [address])
    assert len((await capture.store(house.pool, [mail], 3600.0))[0]) == 1


async def test_captured_mail_that_an_inbox_missed_is_shown_to_the_administrator(house: House):
    """What went to its name elsewhere, and what its login sent; since it was made, newest first.
    Where there is none of that, what nobody's login sent, which is said."""
    name = "lorih-pajos-rivah"
    await captured(house, f"{name}@before.example", "mine")
    await captured(house, "ops@shop.example", "mine")
    key = await house.key("read")
    new = await house.client.post(BASE, headers=key, json={"local_part": name})
    address = new.json()["address"]
    anonymous, session = await house.mailbox()
    for login in ("mine", "mine", "another", None):
        await captured(house, "ops@shop.example", login)
    await captured(house, f"{name}@relay.example")
    await captured(house, f"x{name}@relay.example", "another")

    async def told(of: str, headers: dict[str, str], **query: str) -> list[tuple[str, int]]:
        path = f"{BASE}/{of}/captured"
        answer = await house.client.get(path, headers=headers, params=query)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert len({one["attributed"] for one in found}) < 2
        return [(one["address"], one["count"] * (1 if one["attributed"] else -1)) for one in found]

    its_name = (f"{name}@relay.example", 1)
    assert await told(address, house.admin) == [its_name]
    assert await told(address, house.admin, login="mine") == [its_name, ("ops@shop.example", 2)]
    assert await told(anonymous, house.admin, login="theirs") == [
        (its_name[0], -1), ("ops@shop.example", -1)
    ]  # fmt: skip
    assert await told(its_name[0], house.admin) == []  # it is that mailbox itself, made last
    assert await told(anonymous, house.admin, login="mine") == [("ops@shop.example", 2)]
    assert await told(address, key, login="mine") == []
    assert await told(anonymous, session, login="mine") == []
    assert (await house.client.get(f"{BASE}/{address}/captured")).status_code == 404
    await house.expire(its_name[0])
    assert await told(address, house.admin) == [("ops@shop.example", -1)]
    await captured(house, "ops@shop.example")
    assert await told(address, house.admin, login="theirs") == [("ops@shop.example", -2)]
    assert await told(address, key, login="theirs") == []


class Clock:
    """Trio's, which a test sets ahead."""

    ahead = 0.0

    def __call__(self) -> float:
        return trio.current_time() + self.ahead


async def test_a_refused_recipient_says_why_and_when(database_url: str, pool: Pool) -> None:
    """Since the mailbox was made, and how often."""
    clock = Clock()
    refused = RefusedRecipients(clock)
    async with open_house(database_url, pool, refused=refused) as house:
        clock.ahead = -60.0
        refused.note("before@relay.localhost", "unknown", "550")
        clock.ahead = 0.0
        address, session = await house.mailbox()
        for _ in range(2):
            refused.note(address, "over_quota", "452 4.2.2 Mailbox full, try again later", "shop")
        answer = await house.client.get(f"/api/v1/mailboxes/{address}/refused", headers=house.admin)
        (one,) = answer.json()
        at = datetime.fromisoformat(one.pop("at"))
        assert abs((at - datetime.now(UTC)).total_seconds()) < 60
        assert one == {
            "address": address,
            "why": "over_quota",
            "reply": "452 4.2.2 Mailbox full, try again later",
            "count": 2,
            "login": "shop",
        }
        assert await refused_of(house, address, session) == [address]


async def test_what_was_refused_first_is_shown_however_late_the_database_answers(
    database_url: str, pool: Pool
) -> None:
    """The mailbox was younger when it was looked up than the refusal is when it is shown."""
    clock = Clock()

    class Late(Store):
        async def find(
            self, address: str, credential: Credential, *, deleted: bool = False
        ) -> Mailbox | None:
            found = await super().find(address, credential, deleted=deleted)
            clock.ahead += 60.0
            return found

    refused, store = RefusedRecipients(clock), Late(pool, ["relay.localhost"])
    async with open_house(database_url, pool, refused=refused, store=store) as house:
        address, session = await house.mailbox()
        refused.note(address, "over_quota", "452 4.2.2 Mailbox full, try again later")
        assert await refused_of(house, address, session) == [address]
