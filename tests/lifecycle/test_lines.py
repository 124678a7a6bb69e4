"""The batch line."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.lifecycle.lines import FIELDS, Printer, RawToken, faults
from relay.lifecycle.tokens import Action, sign

KEY = bytes.fromhex("cafebabe" * 8)

# A line as the interface shows it; whatever key signed it, its form is what counts.
DOCUMENTED = (
    "2,john.doe123@fakemail.test,johndoe,0WEKrnjY_sTEqogrR6qsp7r7Vg4SQ_0iM_1La5hHp5p31nbkrHUBS0Cz9"
    "T24iBDCk6CFqO7tJTihpsOVuHYgLg,35866,1,jane.smith456@notreal.example,janesmith,BfQXx31qfY2IJFTt"
    "zAp21IdeW0dDIxUT1Ejf3tYJDukNsfaxxOfldwL-lEfVy4SEkZ_v18rf-EWsvWXH5qgvIg,24735,1,emma.jones789@m"
    "adeup.mail,emmajones,jxrR5p72UWTQ8JiU2DrqjZ-K8L4t8i454S9NtPkVn4-1-bin3ediP0zHMDQU2J_iIyzH4XmNt"
    "zpXZhjV0n5xcA,25416\n"
)


def decoded(token: str) -> tuple[bytes, bytes]:
    """Secret and signature of a token."""
    raw = base64.urlsafe_b64decode(token + "==")
    assert len(raw) == 64
    return raw[:32], raw[32:]


def raw(action: int, email: str, login: str, secret: bytes, code: str) -> RawToken:
    """A row as the server sends it."""
    return RawToken(action, email.encode(), login.encode(), secret, code.encode())


def test_the_documented_line():
    """Made again from its own fields, it differs in nothing but the signatures of another key."""
    fields = DOCUMENTED.rstrip("\n").split(",")
    rows = [
        raw(
            int(fields[at]),
            fields[at + 1],
            fields[at + 2],
            decoded(fields[at + 3])[0],
            fields[at + 4],
        )
        for at in range(0, len(fields), FIELDS)
    ]
    made = Printer(KEY).line(rows).decode()
    ours = made.rstrip("\n").split(",")
    for at in range(0, len(fields), FIELDS):
        assert decoded(ours[at + 3])[0] == decoded(fields[at + 3])[0]
        fields[at + 3] = ours[at + 3]
    assert made == ",".join(fields) + "\n"


def test_tokens_are_signed_as_the_specification_says():
    """Activation signs path and secret, recovery the code too; 86 characters."""
    secret = bytes(range(32))
    rows = [
        raw(1, "a@b.example", "a", secret, "00042"),
        raw(2, "b@b.example", "b", secret, "00042"),
    ]
    fields = Printer(KEY).line(rows).decode().rstrip("\n").split(",")
    for at, message in ((3, b"/activate" + secret), (8, b"/recover" + secret + b"00042")):
        assert len(fields[at]) == 86
        assert decoded(fields[at]) == (secret, hmac.digest(KEY, message, hashlib.sha256))
    assert fields[4] == fields[9] == "00042"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Action)),
            st.binary(min_size=32, max_size=32),
            st.from_regex(r"[0-9]{5}", fullmatch=True),
        ),
        max_size=20,
    )
)
def test_a_batch_is_signed_as_one_by_one(tokens):
    """The fast way gives what `tokens.sign` gives."""
    rows = [raw(action, "a@b.example", "a", secret, code) for action, secret, code in tokens]
    fields = Printer(KEY).line(rows).decode().rstrip("\n").split(",")
    assert fields[3::5] == [sign(KEY, action, secret, code) for action, secret, code in tokens]


def test_an_empty_batch_is_no_line():
    """Not even an empty one."""
    assert Printer(KEY).line([]) == b""


@pytest.mark.parametrize("bad", ["a,b", "a\rb", "a\nb", "a\0b", ",", "\n"])
def test_what_would_break_a_line_is_named(bad):
    """In either field; the reason names the field and not its value."""
    good = raw(1, "a@b.example", "login", bytes(32), "00000")
    rows = [
        good,
        good._replace(email=bad.encode() + b"@b.example"),
        good._replace(login=bad.encode()),
    ]
    found = faults(rows)
    assert set(found) == {1, 2}
    assert "email" in found[1]
    assert "login" in found[2]
    assert faults([good, good]) == {}


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=5))
def test_a_line_has_five_fields_a_row(pairs):
    """Whatever passed the check, one line feed ends the line and commas separate five fields."""
    rows = [raw(1, email, login, bytes(32), "00042") for email, login in pairs]
    bad = faults(rows)
    kept = [row for place, row in enumerate(rows) if place not in bad]
    made = Printer(KEY).line(kept)
    if kept:
        assert made.count(b"\n") == 1
        assert made.endswith(b"\n")
        fields = made[:-1].split(b",")
        assert len(fields) == FIELDS * len(kept)
        assert list(zip(fields[1::5], fields[2::5], strict=True)) == [
            (row.email, row.login) for row in kept
        ]
