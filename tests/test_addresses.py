"""The one spelling of a mailbox's address."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.addresses import as_said, canonical


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("bob@relay.localhost", "bob@relay.localhost"),
        ("BOB@Relay.LocalHost", "bob@relay.localhost"),
        ('"bob"@x.example', "bob@x.example"),
        ('"b\\ob"@x.example', "bob@x.example"),
        ("bob+Tag@x.example", "bob+tag@x.example"),
        ("a..b@x.example", "a..b@x.example"),
        ("BÜCHER@BÜCHER.example", "bücher@xn--bcher-kva.example"),
        ("bu\u0308cher@x.example", "bücher@x.example"),
        ("bob@[127.0.0.1]", "bob@[127.0.0.1]"),
        ("Grüße@xn--bcher-kva.example", "grüße@xn--bcher-kva.example"),
        ("bob@ｂücher。example", "bob@xn--bcher-kva.example"),
        # Letters of which IDNA 2003 made others: the domain was somebody else's.
        ("bob@straße.example", "bob@xn--strae-oqa.example"),
        ("bob@STRAẞE.example", "bob@xn--strae-oqa.example"),
        ("bob@βόλος.example", "bob@xn--nxasmm1c.example"),
        ("bob@i❤.ws", "bob@xn--i-7iq.ws"),
        ('"A b"@x.example', '"a b"@x.example'),
        ('"\\a@b"@x.example', '"a@b"@x.example'),
        ('"a\\"\\\\b"@x.example', '"a\\"\\\\b"@x.example'),
        ('"bü cher"@BÜCHER.example', '"bü cher"@xn--bcher-kva.example'),
    ],
)
def test_spellings_of_one_mailbox_come_out_alike(address, expected):
    """Case, quotes that nothing needs and Unicode forms do not matter; a tag and dots do."""
    assert canonical(address) == expected


NO_ADDRESSES = [
    "",
    "bob",
    "@x.example",
    "bob@",
    '""@x.example',
    '"a"b"@x.example',
    '"a\\"@x.example',
    '"a<b"@x.example',
    '"a\nb"@x.example',
    "a b@x.example",
    "a@b@x.example",
]
NO_ADDRESSES += ["bob@x..", "bob@-x", "b\x00b@x", "b\u202eb@x", "bob@x y", "bob@\u2603\u3002"]
NO_ADDRESSES += ["bob@a\u200db.in", "bob@❤\u200d❤.ws", "bob@ü..x", "bob@.ü.x", "bob@אa.example"]
NO_ADDRESSES += ["bob@" + "❤" * 60 + ".ws", "bob@" + "ü" * 60 + ".ws", "bob@" + "ü." * 200 + "ws"]
NO_ADDRESSES += ["a" * 65 + "@x", "a@" + "b" * 253, "ü" * 33 + "@x.example"]
NO_ADDRESSES += ['"' + "a " * 32 + '"@x.example']


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_names_no_mailbox_is_refused(address):
    """Nothing with a control, a bare space, a second bare @, or beyond its length."""
    with pytest.raises(ValueError):
        canonical(address)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("BOB@X.example", "bob@x.example"),
        ("GRÜßE@BÜCHER.example", "grüße@bücher.example"),
        ("Grüße@XN--bcher-kva.example", "grüße@xn--bcher-kva.example"),
        ("a@straße.example", "a@straße.example"),
        ("a@xn--strae-oqa.STRAẞE.example", "a@xn--strae-oqa.straße.example"),
        ('"a  b"@bücher.example', '"a  b"@bücher.example'),
    ],
)
def test_a_domain_is_shown_as_it_was_said(given, said):
    """In letters or in A-labels, and otherwise in the one spelling: so both name one mailbox."""
    assert as_said(given) == said
    assert canonical(said) == canonical(given)


async def test_sql_has_the_letters_of_a_labels(pool):
    """What Python's own reading of RFC 3492 gives; what is no A-label stays as it is."""
    rng = random.Random(5)
    alphabets = ("abcdefgh-üöß", "привет", "bücher0123456789", "例えテスト-a", "\U0001f4a9❤x")
    letters = ["".join(rng.choices(each, k=rng.randint(1, 20))) for each in alphabets * 40]
    letters = [f"é{each}" for each in letters]
    given = [f"ü@{each.encode('punycode').decode()}.example" for each in letters]
    given = [each.replace("@", "@XN--" if number % 5 == 0 else "@xn--") for number, each in
             enumerate(given)]  # fmt: skip
    wanted = [f"ü@{each}.example" for each in letters]
    others = ["a@xn--", "a@xn--99999999999999.x", "a@xn--ü.x", '"a@xn--fa-hia"@x', "a@b.c", "",
              f"a@xn--{'z' * 59}", "a@xn--0ug", "@.xn--.", "a@xn--" + "9" * 200]  # fmt: skip
    rows = await pool.fetch(
        "SELECT relay.in_unicode(one) FROM unnest(%s::text[]) WITH ORDINALITY u (one, n)"
        " ORDER BY n",
        (given + others,),
    )
    found = [text for (text,) in rows]
    assert found[: len(given)] == wanted
    assert found[len(given) :] == [*others[:-3], "a@\u200c", *others[-2:]]


@given(
    st.from_regex(r"[A-Za-z0-9+_=-]{1,10}(\.[a-z!#$%&'*]{1,5}){0,2}", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9]{1,8}(-[a-z]{1,3})?(\.[a-z]{1,4}){0,2}", fullmatch=True),
)
def test_the_short_way_of_plain_addresses_gives_what_the_long_way_gives(local, domain):
    """In quotes, which the long way takes off, an address is the same."""
    assert canonical(f"{local}@{domain}") == canonical(f'"{local}"@{domain}')


_LOCALS = st.text(max_size=20) | st.text('ab "\\@+ü', max_size=8).map(lambda text: f'"{text}"')


@given(_LOCALS, st.text(max_size=20) | st.text("abß❤.xn-ü", max_size=12))
def test_canonical_is_idempotent(given_local, given_domain):
    """Its result is its own canonical spelling, fits the schema's checks, and is UTF-8."""
    try:
        address = canonical(f"{given_local}@{given_domain}")
    except ValueError:
        return
    assert canonical(address) == address
    local, _, domain = address.rpartition("@")
    assert domain.isascii()
    assert " " not in domain
    assert address.isprintable()
    if not (local.startswith('"') and local.endswith('"')):
        assert "@" not in local
        assert " " not in local
    assert canonical(as_said(f"{given_local}@{given_domain}")) == address
    assert len(address.encode()) <= 254
