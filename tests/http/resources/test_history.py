"""What moved in the last hours, as charts begin with it."""

from relay.history import History
from tests.http.conftest import House


async def test_the_last_hours_of_all_are_shown_to_the_administrator(house: House) -> None:
    """Minute by minute, the oldest first; no more than a day, and to nobody who may not send."""
    await house.pool.execute(
        """
        INSERT INTO relay.history
        SELECT date_trunc('minute', now()) - make_interval(mins => ago), ago, 2, 3, 4, 5, 6.5
        FROM unnest(ARRAY[1, 50, 70]) ago
        """
    )
    await History(house.pool).record()
    shown = await house.client.get("/api/v1/history?hours=1", headers=house.admin)
    first, second, *_ = minutes = shown.json()
    assert len(minutes) == 3
    assert second.pop("at") > first.pop("at")
    assert first == {
        "received": 50, "sent": 2, "failed": 3, "bounced": 4, "waiting": 5,
        "oldest_due_seconds": 6.5,
    }  # fmt: skip
    assert minutes[-1]["oldest_due_seconds"] is None
    assert len((await house.client.get("/api/v1/history", headers=house.admin)).json()) == 4
    for hours in ("0", "25", "x"):
        refused = await house.client.get(f"/api/v1/history?hours={hours}", headers=house.admin)
        assert refused.status_code == 422, hours
    reader = await house.key("read")
    assert (await house.client.get("/api/v1/history", headers=reader)).status_code == 403


async def test_the_holder_of_a_key_sees_what_became_of_their_own_mail(house: House) -> None:
    """In each minute of these hours, nothing too; of nobody else's, nothing that is not kept."""
    shop = await house.key("send")
    _, token = await house.keys.create("other", ("send",), "pro")
    other = {"Authorization": f"Bearer {token}"}
    letter = {
        "from": "a@relay.localhost",
        "to": ["x@customer.example"],
        "subject": "s",
        "text": "t",
    }
    ids = [
        (await house.client.post("/api/v1/messages/send", json=letter, headers=headers)).json()[
            "messages"
        ][0]["id"]
        for headers in (shop, shop, shop, other)
    ]
    await house.pool.execute(
        """
        WITH done AS (DELETE FROM relay.outbound_due WHERE id = ANY (%(ids)s) RETURNING id, token)
        INSERT INTO relay.outbound_log (id, token, attempt, status, finished_at)
        SELECT d.id, d.token, 1, o.status, now() - make_interval(mins => o.ago)
        FROM done d
        JOIN unnest(%(ids)s::uuid[], ARRAY['sent', 'bounced', 'sent', 'sent'], ARRAY[5, 5, 9, 5])
             o (id, status, ago) USING (id)
        """,
        {"ids": ids},
    )
    shown = await house.client.get("/api/v1/history?hours=1", headers=shop)
    minutes = shown.json()
    assert len(minutes) in (61, 62)  # the minute at either end is cut
    assert minutes == sorted(minutes, key=lambda one: one["at"])
    moved = [one for one in minutes if one["sent"] or one["bounced"] or one["failed"]]
    assert [(one["sent"], one["failed"], one["bounced"]) for one in moved] == [
        (1, 0, 0), (1, 0, 1),
    ]  # fmt: skip
    unknown = ("received", "waiting", "oldest_due_seconds")
    assert {one[name] for one in minutes for name in unknown} == {None}
