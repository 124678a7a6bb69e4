"""What moved in the last hours, as charts begin with it."""

from relay.history import History
from tests.http.conftest import House


async def test_the_last_hours_are_shown_to_the_administrator_alone(house: House) -> None:
    """Minute by minute, the oldest first; no more than a day, and to nobody else."""
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
    reader = await house.key("read", "send")
    assert (await house.client.get("/api/v1/history", headers=reader)).status_code == 403
