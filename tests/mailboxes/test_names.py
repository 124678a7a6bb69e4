"""Which local parts are the administrator's alone."""

import unicodedata

import pytest

from relay.mailboxes.names import ANONYMOUS, ROLES, Names, random_local_part

NAMES = Names(["relay.localhost", "B.example"], ["letters@relay.localhost", "x@c.example"])

_ASKED = """postmaster hostmaster webmaster admin administrator abuse security root noreply no-reply
    mailer-daemon ssladmin sslmaster ssladministrator support info letters"""


@pytest.mark.parametrize("name", _ASKED.split())
def test_role_names_are_reserved_in_every_spelling(name: str):
    """Case, signs, a plus part, full width, accents: all one name."""
    wide = "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in name)
    accented = unicodedata.normalize("NFC", name[0] + name[1] + "\u0301" + name[2:])
    split = ".".join(name)
    for spelling in (
        name, name.upper(), f"{name}+x", f"+{name}", f".{name}", f"{name}.", split, wide, accented,
        name.replace("-", ""), name.replace("-", "_"), f'"{name}"',
    ):  # fmt: skip
        assert NAMES.reserves(spelling), spelling
        assert NAMES.reserves_address(f"{spelling}@Relay.Localhost"), spelling
        for dot in ".\u3002\uff0e\uff61":
            assert NAMES.reserves_address(f"{spelling}@b{dot}example{dot}"), spelling
        assert not NAMES.reserves_address(f"{spelling}@elsewhere.example"), spelling


@pytest.mark.parametrize(
    "name",
    ["аdmin", "admіn", "АDMIN", "роstmaster", "rооt", "ѕесuritу", "ɑbuse", "ꮪupport", "infο"],
)
def test_names_that_look_like_a_role_name_are_reserved(name: str):
    """Letters of other scripts are taken for those that they look like."""
    assert not name.isascii()
    assert NAMES.reserves(name)


@pytest.mark.parametrize(
    "name",
    [
        "ađmin",
        "suᵽport",
        "røøt",
        "pøstmaster",
        "secuɍity",
        "aƀuse",
        "infø",
        "rooŧ",
        "nøreply",
        "maiłer-daemon",
        "ɦostmaster",
        "ƚetters",
        "suрpoɍŧ",
    ],
)
def test_letters_with_a_stroke_make_no_other_name(name: str):
    """A bar, a stroke or a hook through a letter hides no role name."""
    assert not name.isascii()
    assert NAMES.reserves(name)


@pytest.mark.parametrize("filler", ["\u115f", "\u1160", "\u3164", "\uffa0"])
def test_what_is_not_shown_makes_no_other_name(filler: str):
    """Hangul fillers are letters that no font shows."""
    for name in (f"ad{filler}min", f"{filler}root", f"postmaster{filler}"):
        assert NAMES.reserves(name)
        assert NAMES.reserves_address(f"{name}@relay.localhost")


@pytest.mark.parametrize(
    "name",
    [
        "ada",
        "adm1n",
        "rooted",
        "postmaster-of-ghent",
        "information",
        "shop",
        "x",
        "мама",
        "鈴木",
        "søren",
        "한글",
        "",
    ],
)
def test_other_names_are_anybodys(name: str):
    """What only begins like a role name, or is a word of another script, is free."""
    assert not NAMES.reserves(name)


def test_no_random_name_is_reserved():
    """What the relay makes by itself it never refuses."""
    for _ in range(1000):
        name = random_local_part()
        assert ANONYMOUS.fullmatch(name)
        assert not NAMES.reserves(name)


def test_every_role_is_spelled_as_it_is_folded():
    """A role with a sign or a capital in it would match nothing."""
    for role in ROLES:
        assert role.isascii()
        assert role.isalpha()
        assert role == role.lower()
