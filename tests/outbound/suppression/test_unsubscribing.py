"""Links to unsubscribe by: made for one owner and one recipient, read by nobody else's word."""

from __future__ import annotations

import base64
import random
import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.access.owners import ADMINISTRATOR_ID, REPORTS_ID
from relay.lifecycle.tokens import Action, sign
from relay.outbound.composing.compose import compose
from relay.outbound.delivery.render import mail_of
from relay.outbound.queue.lanes import PRIORITIES
from relay.outbound.suppression.unsubscribing import MAX_TOKEN, Link, Unsubscribing
from tests.outbound.claims import claimed

BASE = "https://relay.example/below"
ONE, OTHER = b"1" * 32, b"2" * 32
OWNER, MESSAGE = UUID(int=2**127 + 5), UUID(int=2**126 + 7)
LINK = Link(OWNER, MESSAGE, "Ada@x.example")
BULK = PRIORITIES.index("bulk")
POST = b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def links(*keys: bytes, base: str = BASE) -> Unsubscribing:
    return Unsubscribing(base, lambda: keys)


def token(link: Link, *keys: bytes) -> str:
    before, found, after = links(*keys).url_of(link).partition("?token=")
    assert (before, found) == (f"{BASE}/unsubscribe", "?token=")
    return after


@given(
    st.uuids(),
    st.uuids(),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
)
def test_what_was_made_is_read(owner: UUID, message: UUID, address: str):
    """Whatever it says, in characters that a URL and a header may hold."""
    made = token(Link(owner, message, address), ONE)
    assert re.fullmatch(r"[A-Za-z0-9_-]{66,}", made)
    assert links(ONE).link_of(made) == Link(owner, message, address)


def test_the_longest_address_has_room():
    """254 octets; the field with the longest public address has less than the 998 of a line."""
    address = "a" * 64 + "@" + "b" * 185 + ".com"
    made = token(Link(OWNER, MESSAGE, address), ONE)
    assert len(made) <= MAX_TOKEN
    assert links(ONE).link_of(made) == Link(OWNER, MESSAGE, address)
    assert len(f"List-Unsubscribe: <{'x' * 400}/unsubscribe?token={made}>") < 998


def test_the_same_mail_has_the_same_link_and_no_other_has_it():
    """A retry repeats its bytes; owner, message and address each make another."""
    assert token(LINK, ONE) == token(LINK, ONE)
    others = [
        LINK._replace(owner=ADMINISTRATOR_ID),
        LINK._replace(message=UUID(int=1)),
        LINK._replace(address="ada@x.example"),
    ]
    assert len({token(link, ONE) for link in (LINK, *others)}) == 4


def test_a_link_tells_nothing_to_who_has_not_the_keys():
    """Neither the address nor an id stands in it, nor do links of one owner begin alike."""
    seen = token(LINK, ONE)
    raw = base64.urlsafe_b64decode(seen + "=" * (-len(seen) % 4))
    for said in (b"ada", b"x.example", OWNER.bytes, MESSAGE.bytes, OWNER.bytes[:4]):
        assert said not in raw.lower()
    neighbour = token(LINK._replace(address="bob@x.example"), ONE)
    assert neighbour[:8] != seen[:8]


def test_a_rotated_key_goes_on_reading_and_a_strange_one_never_does():
    """What is mailed today is clicked after the rotation."""
    made = token(LINK, ONE)
    assert links(OTHER, ONE).link_of(made) == LINK
    assert token(LINK, OTHER, ONE) == token(LINK, OTHER)
    assert links(OTHER).link_of(made) is None
    assert links().link_of(made) is None, "of no key at all"


def test_no_character_of_it_may_be_another():
    """Each changed, each left out, doubled, or two of them exchanged: not ours."""
    ours, made, rng = links(ONE), token(LINK, ONE), random.Random(1)
    for place, letter in enumerate(made):
        other = rng.choice([c for c in "ABCabc019-_" if c != letter])
        assert ours.link_of(made[:place] + other + made[place + 1 :]) is None
        assert ours.link_of(made[:place] + made[place + 1 :]) is None
        assert ours.link_of(made[:place] + letter + made[place:]) is None
        if place + 1 < len(made) and made[place + 1] != letter:
            assert ours.link_of(made[:place] + made[place:][:2][::-1] + made[place + 2 :]) is None
    for length in range(len(made)):
        assert ours.link_of(made[:length]) is None


def test_of_a_token_there_is_one_spelling():
    """Nor padding, nor spare bits, nor the other alphabet, nor what some decoders skip."""
    ours = links(ONE)
    for length in range(1, 5):  # each way that base64 ends
        made = token(LINK._replace(address="a" * length), ONE)
        others = {made + "=", made + "==", f" {made}", f"{made}\n", f"{made}\0", made + "A"}
        others |= {made.replace("-", "+").replace("_", "/")} - {made}
        others |= {made[:-1] + chr(ord(made[-1]) + step) for step in (-1, 1)}
        for other in others:
            assert ours.link_of(other) is None, other
        assert ours.link_of(made)


@pytest.mark.parametrize(
    "hostile",
    [
        *("", "a", "=" * 90, "A" * 86, "A" * MAX_TOKEN, "A" * 1_000_000, "é" * 90, "\ud800" * 90),
        *("../" * 30, "' OR 1=1 --" * 9, "<script>" * 12, "%00" * 30, "\x00" * 90, "A" * 66),
    ],
)
def test_everything_else_is_not_ours(hostile: str):
    """None, for whatever it is."""
    assert links(ONE, OTHER).link_of(hostile) is None


def test_what_is_signed_for_another_purpose_is_no_link():
    """A token of an account, with the very same key."""
    other = sign(ONE, Action.ACTIVATION, b"s" * 32, "00000")
    assert links(ONE).link_of(other) is None


def test_parts_of_two_links_make_no_third():
    """Whoever is mailed twice cuts and pastes in vain."""
    one = base64.urlsafe_b64decode(token(LINK._replace(address="ab@x.example"), ONE) + "==")
    two = base64.urlsafe_b64decode(token(LINK._replace(address="cd@x.example"), ONE) + "==")
    assert len(one) == len(two)
    for cut in range(1, len(one)):
        mixed = base64.urlsafe_b64encode(one[:cut] + two[cut:]).rstrip(b"=").decode()
        assert links(ONE).link_of(mixed) in (None, LINK._replace(address="ab@x.example"))


# What mail has -----------------------------------------------------------------------------------


def test_bulk_has_both_fields_in_front_and_nothing_else_changed():
    """However it is made: from a template, composed, whole."""
    raw = b"Received: by us\r\nFrom: a@x.example\r\n\r\n.\r\nList-Unsubscribe: in the body\r\n"
    for row in (
        claimed(priority=BULK, text_body="text", owner=OWNER),
        claimed(priority=BULK, html_body="<p>é</p>", headers={"List-Id": "<l.x>"}, owner=OWNER),
        claimed(priority=BULK, blob=raw, owner=OWNER),
    ):
        plain = mail_of(row)
        mail = links(ONE).mail(plain, row)
        url = links(ONE).url_of(Link(OWNER, row.id, "b@y.example"))
        assert mail.data == f"List-Unsubscribe: <{url}>\r\n".encode() + POST + plain.data
        assert (mail.sender, mail.recipients) == (plain.sender, plain.recipients)
        assert mail.wire()[-1] == b".\r\n"


def test_reports_of_tls_have_none():
    """They are bulk mail by their priority alone: nobody has subscribed to them."""
    row = claimed(priority=BULK, text_body="text", owner=REPORTS_ID)
    mail = mail_of(row)
    assert links(ONE).mail(mail, row) is mail


@pytest.mark.parametrize(
    "priority", [place for place, name in enumerate(PRIORITIES) if name != "bulk"]
)
def test_no_other_mail_has_them(priority: int):
    """High and normal mail is as it was."""
    row = claimed(priority=priority, text_body="text")
    mail = mail_of(row)
    assert links(ONE).mail(mail, row) is mail


def test_without_a_public_address_there_are_none_and_links_are_read():
    """The setting is off: bulk is as it was, and old links still lead somewhere."""
    row = claimed(priority=BULK, text_body="text")
    mail = mail_of(row)
    assert links(ONE, base="").mail(mail, row) is mail
    assert links(ONE, base="").link_of(token(LINK, ONE)) == LINK


@pytest.mark.parametrize(
    "field",
    [
        b"List-Unsubscribe: <mailto:no@shop.example>\r\n",
        b"LIST-UNSUBSCRIBE : <https://shop.example/u>\r\n",
        b"list-unsubscribe:\r\n\t<https://shop.example/u>\r\n",
        b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", b"From: a@x.example\r\n", b"X: a\n"])
def test_a_message_that_brings_its_own_keeps_it(field: bytes, before: bytes):
    """Whole: in any case, folded, with a space before the colon, first or last."""
    row = claimed(priority=BULK, blob=before + field + b"To: b@y.example\r\n\r\nbody\r\n")
    mail = mail_of(row)
    assert links(ONE).mail(mail, row) is mail


def test_a_composed_message_that_brings_its_own_keeps_it():
    """By the field `headers` of a send."""
    row = claimed(
        priority=BULK, text_body="x", headers={"list-unsubscribe": "<https://shop.example/u>"}
    )
    mail = compose(row.message, id="x", date=row.created_at)
    assert links(ONE).mail(mail, row) is mail


@pytest.mark.parametrize(
    "head",
    [
        b"Subject: hello\r\n List-Unsubscribe: folded\r\n",
        b"X-List-Unsubscribe: <https://shop.example/u>\r\n",
        b"List-Unsubscribed: no\r\n",
        b"Subject: List-Unsubscribe: <https://shop.example/u>\r\n",
        b"",
    ],
)
def test_what_only_looks_like_one_is_none(head: bytes):
    """Another field's value, another name, the body."""
    row = claimed(priority=BULK, blob=head + b"\r\nList-Unsubscribe: <https://a.example>\r\n\r\n")
    assert (
        links(ONE).mail(mail_of(row), row).data.startswith(b"List-Unsubscribe: <" + BASE.encode())
    )
