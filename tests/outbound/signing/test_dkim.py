"""Signatures of what leaves: valid to our verifier and to others', and for nothing else."""

import base64
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from relay.checks.dkim import verify
from relay.checks.evidence import examine
from relay.outbound.signing.dkim import (
    ALGORITHMS,
    RSA_BITS,
    PrivateKey,
    Unloadable,
    author_domain,
    dump,
    generate,
    load,
    record,
    sign,
    unsigned,
)
from tests.checks.asking import answered

MAIL = (
    b"From: Shop <shop@shop.example>\r\nTo: ada@example.org\r\nSubject: Your order\r\n"
    b"Date: Mon, 23 Nov 2026 05:00:00 +0000\r\nMessage-ID: <1@shop.example>\r\n"
    b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"It is on its way.  \r\n\r\n7 EUR\t now.\r\n"
)


class Signatory(NamedTuple):
    """A key, and where its public half is published."""

    domain: str
    selector: str
    algorithm: str
    key: PrivateKey


def signatures(message: bytes, keys_of: Callable[[str], Sequence[Signatory]]) -> bytes:
    """The fields that go in front of a message, or nothing."""
    return b"".join(
        field.by(sign(signatory.key, field.digest))
        for signatory, field in unsigned(message, keys_of)
    )


@cache
def keys(domain: str) -> tuple[Signatory, ...]:
    """Both keys, as if they were the domain's."""
    return tuple(
        Signatory(domain, algorithm.partition("-")[0], algorithm, made())
        for algorithm, made in zip(ALGORITHMS, (_rsa, _ed25519), strict=True)
    )


@cache
def _rsa():
    return generate(ALGORITHMS[0])


@cache
def _ed25519():
    return generate(ALGORITHMS[1])


def zone(domain: str) -> dict[tuple[str, str], str]:
    return {(f"{one.selector}._domainkey.{domain}", "TXT"): record(one.key) for one in keys(domain)}


def signed(message: bytes) -> bytes:
    return signatures(message, keys) + message


def results(message: bytes, domain: str = "shop.example") -> list[str]:
    """What our own verifier says of the first two signatures."""
    found = examine(message).signatures[:2]
    return [answered(verify(one, time.time()), zone(domain)).result for one in found]


def test_both_keys_sign():
    """RSA on top; relaxed/relaxed, the whole body, From once more than it is there."""
    message = signed(MAIL)
    assert results(message) == ["pass", "pass"]
    _, first, second = message.split(b"DKIM-Signature: ")
    for field, algorithm in ((first, b"rsa-sha256"), (second, b"ed25519-sha256")):
        tags = dict(
            tag.strip().split(b"=", 1)
            for tag in b"".join(field.partition(b"From:")[0].split()).split(b";")
        )
        assert (tags[b"a"], tags[b"c"], tags[b"d"]) == (
            algorithm,
            b"relaxed/relaxed",
            b"shop.example",
        )
        names = tags[b"h"].split(b":")
        assert names.count(b"from") == 2
        assert names.count(b"subject") == 2
        assert names.count(b"cc") == 1, "there is none, and none may be added"
        assert not {b"l", b"t", b"x"} & set(tags)
    assert all(len(line) <= 78 for line in message.split(b"\r\n"))
    assert signed(MAIL) == message, "a retry repeats it exactly"


LISTED = (
    b"List-Unsubscribe: <https://relay.example/unsubscribe?token=a>\r\n"
    b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
)


def test_fields_to_unsubscribe_by_are_covered_and_none_may_be_added():
    """RFC 8058, 4; above or below, a second one breaks both signatures, and so does a change."""
    message = signed(LISTED + MAIL)
    assert results(message) == ["pass", "pass"]
    names = b"".join(message.partition(b"h=")[2].partition(b";")[0].split()).split(b":")
    assert names.count(b"list-unsubscribe") == names.count(b"list-unsubscribe-post") == 2
    evil = LISTED.replace(b"relay", b"evil")
    head, _, rest = message.partition(LISTED)
    for changed in (
        *(evil + message, head + evil + LISTED + rest, head + LISTED + evil + rest),
        *(head + evil + rest, head + rest, head + LISTED[LISTED.index(b"\n") + 1 :] + rest),
    ):
        assert results(changed) == ["fail", "fail"]
    # A list that mail without them goes through adds its own.
    assert results(LISTED + signed(MAIL)) == ["pass", "pass"]


def test_a_key_is_stored_and_published():
    """What was dumped is the same key; garbage is none."""
    for algorithm, one in zip(ALGORITHMS, keys("shop.example"), strict=True):
        again = load(dump(one.key))
        assert record(again) == record(one.key)
        assert f" k={algorithm.partition('-')[0]};" in record(again)
    assert _rsa().key_size == RSA_BITS
    for garbage in ("", "AAAA", "!", base64.b64encode(bytes(64)).decode()):
        with pytest.raises(Unloadable):
            load(garbage)


@pytest.mark.parametrize(
    ("header", "domain"),
    [
        (b"From: a@shop.example\r\n", "shop.example"),
        (b"from: A <a@SHOP.example>\r\n", "shop.example"),
        (b"from : A <a@shop.example>\r\n", ""),
        (b"From: a@shop.example\r\nSubject : x\r\n", ""),
        (b"From: a@shop.example\r\nX-Any\t: x\r\n", ""),
        (b"From: a@shop.example\r\nSubject: x\v\r\n", ""),
        (b"From: a@shop.example\r\nX-Any: a\r\n\f b\r\n", ""),
        (b"From: a@news.shop.example\r\n", "news.shop.example"),
        (b'From: "x@y.example" <a@shop.example>\r\n', "shop.example"),
        ("From: ä@münchen.example\r\n".encode(), "xn--mnchen-3ya.example"),
        (b"From: a@shop.example, b@shop.example\r\n", ""),
        (b"From: a@shop.example\r\nFrom: b@shop.example\r\n", ""),
        (b"Subject: x\r\n", ""),
        (b"From:\r\n", ""),
        (b"From: a@shop.example\r\nno field\r\n", ""),
        (b"", ""),
    ],
)
def test_the_author_is_whom_all_readers_see(header: bytes, domain: str):
    """One From with one address in a header of fields; what is anything else is not signed."""
    assert author_domain(header + b"\r\n") == domain
    made = signatures(header + b"\r\nbody\r\n", keys)
    assert bool(made) == bool(domain)


def test_no_keys_no_signature():
    """Nor does a domain's key sign for another, or for a subdomain."""
    only = {"shop.example": keys("shop.example")}
    for sender in (b"a@other.example", b"a@news.shop.example", b"a@shop.example.org"):
        message = MAIL.replace(b"shop@shop.example", sender)
        assert signatures(message, lambda domain: only.get(domain, ())) == b""


def test_whoever_adds_a_shown_field_breaks_it():
    """Another From, Subject, To … on top, or at the end of the header."""
    message = signed(MAIL)
    names = ("From", "Subject", "To", "Cc", "Reply-To", "Date", "Content-Type", "Message-ID")
    for name in names:
        added = f"{name}: x@other.example\r\n".encode()
        assert results(added + message) == ["fail", "fail"], name
        end = message.index(b"\r\n\r\n") + 2
        assert results(message[:end] + added + message[end:]) == ["fail", "fail"], name
    assert results(b"Received: by somebody\r\nX-Spam: no\r\n" + message) == ["pass", "pass"]


def test_a_flipped_bit_never_verifies():
    """Of what is signed, and of the signatures; white space that does not count is not signed."""
    rng = random.Random(8)
    message = signed(MAIL)
    first, second = (message.index(b"DKIM-Signature", start) for start in (0, 1))
    header = message.index(b"From:")
    broken = 0
    for place in range(len(message)):
        flipped = bytearray(message)
        flipped[place] ^= 1 << rng.randrange(8)
        now = results(bytes(flipped))
        if place >= header:  # both sign it
            changed = canonical(message[header:]) != canonical(bytes(flipped[header:]))
            assert "pass" not in now or not changed, place
            broken += "pass" not in now
        else:
            valid = examine(bytes(flipped)).signatures
            own = 0 if place < second else 1
            whole = len(valid) == 2 and valid[own].domain == "shop.example"
            if whole and now[own] == "pass":
                assert canonical(message[first:header]) == canonical(
                    bytes(flipped[first:header])
                ), place
            broken += not (whole and now[own] == "pass")
    assert broken > len(message) * 0.95


def canonical(text: bytes) -> bytes:
    """Without case of names and white space: no more than what relaxed forms pass over."""
    return b"".join(text.split()).lower()
