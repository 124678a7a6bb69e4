"""Which refused recipients are remembered."""

from __future__ import annotations

from relay.smtp.refused import LONGEST_ADDRESS, LONGEST_REPLY, RefusedRecipients


def test_the_newest_come_first_and_one_address_once() -> None:
    """With the last reply to it, and how often there was one."""
    now = 0.0
    refused = RefusedRecipients(lambda: now)
    refused.note("a@x.example", "unknown", "550 5.1.1 No")
    now = 5.0
    refused.note("b@x.example", "over_quota", "452 4.2.2 Full")
    now = 7.0
    refused.note("a@x.example", "expired", "550-5.1.1 No\r\n550 5.1.1 more")
    assert refused.since(0.0) == [
        ("a@x.example", "expired", "550-5.1.1 No 550 5.1.1 more", 0.0, 2, None),
        ("b@x.example", "over_quota", "452 4.2.2 Full", 2.0, 1, None),
    ]
    assert [one.address for one in refused.since(7.0)] == ["a@x.example"]


def test_each_sender_is_remembered_apart() -> None:
    """One who names what another has named before hides nothing from that one."""
    refused = RefusedRecipients(lambda: 0.0)
    for login in ("one", "other", "one", None):
        refused.note("a@x.example", "unknown", "550", login)
    found = [(one.login, one.times) for one in refused.since(0.0)]
    assert found == [(None, 1), ("one", 2), ("other", 1)]


def test_an_hour_later_nothing_is_known() -> None:
    """Whatever is asked for; and it is forgotten with the next that is refused."""
    now = 0.0
    refused = RefusedRecipients(lambda: now)
    refused.note("a@x.example", "unknown", "550")
    refused.note("b@x.example", "unknown", "550")
    now = RefusedRecipients.KEPT + 1
    assert refused.since(0.0) == []
    refused.note("c@x.example", "unknown", "550")
    assert len(refused) == 1


def test_strangers_cannot_make_it_grow() -> None:
    """By many addresses, nor by long ones."""
    refused = RefusedRecipients(lambda: 0.0)
    for number in range(RefusedRecipients.MOST + 10):
        refused.note(f"{number:04}" + "x" * 1000, "unknown", "550 " * 1000)
    assert len(refused) == RefusedRecipients.MOST
    newest, *_, oldest = refused.since(0.0)
    assert newest.address.startswith(f"{RefusedRecipients.MOST + 9:04}")
    assert oldest.address.startswith("0010")
    assert len(newest.address) == LONGEST_ADDRESS
    assert len(newest.reply) == LONGEST_REPLY
