"""The settings over HTTP: read only, masked, the administrator's."""

from relay.settings import known_names
from tests.http.conftest import House


async def test_the_settings_are_shown_with_what_they_mean(house: House):
    """Each with its variable, its value and default, and where it comes from."""
    found = (await house.client.get("/api/v1/settings", headers=house.admin)).json()
    assert [each["name"] for each in found] == known_names()
    bind = next(each for each in found if each["name"] == "smtp.bind")
    assert bind["variable"] == "RELAY_SMTP__BIND"
    assert (bind["value"], bind["default"], bind["source"]) == (
        "127.0.0.1:2525",
        "127.0.0.1:2525",
        "default",
    )
    assert "loopback" in bind["meaning"]


async def test_the_settings_are_for_the_administrator(house: House):
    """They tell how the relay is reached and by what: no other key sees them."""
    for headers, status in ((await house.key("read", "send", "accounts"), 403), ({}, 401)):
        answer = await house.client.get("/api/v1/settings", headers=headers)
        assert answer.status_code == status
