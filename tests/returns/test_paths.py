"""Return paths: made for each message, read by nobody else's word."""

from __future__ import annotations

from relay.addresses import MAX_LOCAL_BYTES, canonical
from relay.ids import new_id
from relay.returns.paths import ReturnPaths, Tokens, derived

ONE, OTHER = derived((b"1" * 32,)), derived((b"2" * 32,))


def paths(*keys: bytes) -> ReturnPaths:
    return ReturnPaths("returns.example", lambda: keys)


def test_what_was_made_is_read_however_it_is_written():
    """Servers lower-case local parts, people shout; the address is one that SMTP carries."""
    ours, message = paths(*ONE), new_id()
    path = ours.path_of(message)
    assert len(path.partition("@")[0].encode()) <= MAX_LOCAL_BYTES
    assert canonical(path) == path
    for written in (path, path.upper(), path.title(), canonical(path.upper())):
        assert ours.message_of(written) == message
        assert ours.takes(canonical(written))


def test_a_rotated_key_goes_on_verifying_and_a_strange_one_never_does():
    """What leaves today comes back after the rotation."""
    message = new_id()
    path = paths(*ONE).path_of(message)
    assert paths(*OTHER, *ONE).message_of(path) == message
    assert paths(*OTHER, *ONE).path_of(message) == paths(*OTHER).path_of(message)
    assert paths(*OTHER).message_of(path) is None


def test_no_bit_of_it_may_be_another():
    """Each character changed: not ours."""
    ours = paths(*ONE)
    path = ours.path_of(new_id())
    local, _, domain = path.partition("@")
    for place in range(2, len(local)):
        for letter in "a7":
            if letter != local[place]:
                forged = f"{local[:place]}{letter}{local[place + 1 :]}@{domain}"
                assert ours.message_of(forged) is None


def test_everything_else_is_not_ours():
    """Other domains, other forms, none at all."""
    ours = paths(*ONE)
    path = ours.path_of(new_id())
    local = path.partition("@")[0]
    for other in (
        *(f"{local}@other.example", f"{local}@sub.returns.example", local, "", "@", "b-@x"),
        *("b-@returns.example", f"{local}a@returns.example", f"{local[:-1]}@returns.example"),
        *(f"c{local[1:]}@returns.example", f"b-{'a' * 48}@returns.example", f"ü{path}"),
        *(f"b-{'1' * 48}@returns.example", "postmaster@returns.example"),
    ):
        assert ours.message_of(other) is None, other
        assert not ours.takes(other)
    assert ours.takes("fbl@returns.example")
    assert ours.is_complaints("fbl@returns.example")
    assert not ours.is_complaints(path)
    assert ours.covers("x@returns.example")
    assert not ours.covers("x@xreturns.example")


def test_a_token_names_its_message_and_no_other_does():
    """It is that of the return path; a character changed, more or fewer, and it is nobody's."""
    message = new_id()
    ours = Tokens(lambda: (*OTHER, *ONE))
    token = Tokens(lambda: ONE).token_of(message)
    assert paths(*ONE).path_of(message) == f"b-{token}@returns.example"
    assert ours.message_of(token) == ours.message_of(token.upper()) == message
    assert Tokens(lambda: OTHER).message_of(token) is None
    for place in range(len(token)):
        other = "a" if token[place] != "a" else "7"
        assert ours.message_of(token[:place] + other + token[place + 1 :]) is None
    for other in ("", token[1:], f"{token}a", f"b-{token}", f" {token}", "é" * 48, "1" * 48):
        assert ours.message_of(other) is None
