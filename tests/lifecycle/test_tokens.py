"""Signed tokens: the bytes of docs/tokens.md, and nothing but them."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.lifecycle.tokens import Action, sign, verify
from tests.lifecycle import checker

KEY = bytes.fromhex("cafebabe" * 8)  # of SIGNED_ELSEWHERE
SECRET = bytes(range(32))

# What another program signed with that key: action, token, code.
SIGNED_ELSEWHERE = [
    "1,gVRNesi-opSvs3ntPfr9DzSn_JwbOD04VVIurQSCOFzzd3BOM3WBDL3SOtDjMxKLd6csSn8_p9hemXHIUxIjPg,78092",
    "1,--DTy5LsbDeLP_AweXIPSjL3_avQMT5cH_bRxPy1uxQLVhXKaw7Oxd7NYkcJ6MZmnnqWqTcBPHA5z7bqunXEAA,25778",
    "1,ryooWewe3OTxIGF1Gjl5Vvl8BsXoqWVbCAt1t6J--_KX1SM4DbyCes4yn75OWVe60G4MMZdv4byRh1wy-Clvxw,78202",
    "1,4pmew2o2EOAZBDHWvJBcixJftpRCb8uyXZhzN12EOcrLBmzc4ic9avwd9dla09pIiKIoqW5iIwMfoXLEM3_LGw,38806",
    "1,ANLMa-1y37VLCDqK0wnfEFhUVzHsWpaNGV2ttI8m3o6_lbbYOKmp3hP7Q8H8ZQRNMPAj4xsSqC26nesfVZLgzQ,89897",
]
# What it signed with a key that nobody knows.
SIGNED_WITH_ANOTHER_KEY = [
    "0WEKrnjY_sTEqogrR6qsp7r7Vg4SQ_0iM_1La5hHp5p31nbkrHUBS0Cz9T24iBDCk6CFqO7tJTihpsOVuHYgLg",
    "BfQXx31qfY2IJFTtzAp21IdeW0dDIxUT1Ejf3tYJDukNsfaxxOfldwL-lEfVy4SEkZ_v18rf-EWsvWXH5qgvIg",
    "jxrR5p72UWTQ8JiU2DrqjZ-K8L4t8i454S9NtPkVn4-1-bin3ediP0zHMDQU2J_iIyzH4XmNtzpXZhjV0n5xcA",
    "zwhCIthd12DqpQSGB57S9Ky-OXV_8H0e8aHOv_kWoggIuAZ2sc-aQVpIoQ-M--PjwVfdIIxiXkv_WjRjGI57zA",
]

actions = st.sampled_from(list(Action))
codes = st.integers(0, 99_999).map("{:05}".format)
keys = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize("line", SIGNED_ELSEWHERE)
def test_what_another_program_signed_is_valid_and_is_signed_alike(line: str):
    """Byte for byte: their key and their secret give their token."""
    number, token, code = line.split(",")
    raw = checker.decode(token)
    assert verify([KEY], token) == (Action(int(number)), raw[:32])
    assert sign(KEY, Action(int(number)), raw[:32], code) == token


@pytest.mark.parametrize("token", SIGNED_WITH_ANOTHER_KEY)
def test_what_the_documents_show_decodes_to_64_bytes(token: str):
    """The form is the same where the key is unknown."""
    assert len(checker.decode(token)) == 64
    assert checker.encode(checker.decode(token)) == token


@given(actions, keys, keys, codes)
def test_a_checker_written_from_the_specification_accepts_ours(action, key, secret, code):
    """And the other way round."""
    token = sign(key, action, secret, code)
    assert len(token) == 86
    wanted = "activate" if action is Action.ACTIVATION else "recover"
    assert checker.accepts(key, token, code) == wanted
    assert verify([key], token, code) == (action, secret)


@pytest.mark.parametrize("action", list(Action))
def test_every_single_flipped_bit_is_refused(action: Action):
    """512 bits of the token, 256 of the key, and the four spare bits of the spelling."""
    token = sign(KEY, action, SECRET, "06435")
    raw = checker.decode(token)
    for bit in range(512):
        forged = bytearray(raw)
        forged[bit // 8] ^= 1 << bit % 8
        spelled = checker.encode(bytes(forged))
        assert checker.accepts(KEY, spelled, "06435") is None
        assert verify([KEY], spelled, "06435") is None
    for bit in range(256):
        key = bytearray(KEY)
        key[bit // 8] ^= 1 << bit % 8
        assert verify([bytes(key)], token, "06435") is None
    last = checker.ALPHABET.index(token[-1])
    for spare in range(1, 16):
        assert verify([KEY], token[:-1] + checker.ALPHABET[last | spare], "06435") is None


def test_a_recovery_needs_its_code_and_an_activation_none():
    """A link that leaks recovers nothing; 99,999 wrong codes are 99,999 refusals."""
    recovery = sign(KEY, Action.PASSWORD_RECOVERY, SECRET, "00042")
    good = [code for code in map("{:05}".format, range(100_000)) if verify([KEY], recovery, code)]
    assert good == ["00042"]
    for wrong in (None, "", "42", " 00042", "00042\n", "000420", "0004２", "-----", "é", "\ud800"):
        assert verify([KEY], recovery, wrong) is None
    activation = sign(KEY, Action.ACTIVATION, SECRET, "00042")
    for any_code in (None, "00042", "99999", "nonsense"):
        assert verify([KEY], activation, any_code) == (Action.ACTIVATION, SECRET)


def test_the_two_actions_are_never_taken_for_each_other():
    """Neither message is the beginning of the other's, so no signature is good for both."""
    for action in Action:
        verified = verify([KEY], sign(KEY, action, SECRET, "12345"), "12345")
        assert verified is not None
        assert verified.action is action


def test_the_first_key_signs_and_all_verify():
    """Rotation: what a former key signed is good for as long as the key is kept."""
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    before, after = (sign(key, Action.ACTIVATION, SECRET, "1" * 5) for key in (old, new))
    assert before != after
    for token in (before, after):
        assert verify([new, old], token) == (Action.ACTIVATION, SECRET)
    assert verify([new], before) is None
    assert verify([], before) is None


@given(st.text(max_size=100) | st.binary(max_size=70).map(lambda raw: raw.decode("latin-1")))
def test_anything_else_is_refused_and_raises_nothing(text: str):
    """Malformed is forged."""
    assert verify([KEY], text, text) is None


@pytest.mark.parametrize("changed", ["{}=", "{}==", " {}", "{}\n", "{}A", "{}\x00"])
def test_a_token_has_one_spelling(changed: str):
    """No padding, no white space, nothing before or behind."""
    assert verify([KEY], changed.format(sign(KEY, Action.ACTIVATION, SECRET, "11111"))) is None


def test_standard_base64_is_another_alphabet():
    """`+` and `/` are no spelling of `-` and `_`."""
    token = SIGNED_ELSEWHERE[1].split(",")[1]
    assert verify([KEY], token.replace("-", "+").replace("_", "/")) is None
