"""DKIM: the vectors of its RFCs, what a signature covers, and what no key may do."""

from __future__ import annotations

import base64
import time
import tracemalloc
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.checks.dkim import Signature, verify
from relay.checks.fields import MAX_HEADER_BYTES, Oversize, split
from relay.checks.signatures import MAX_SIGNATURES, Prepared
from relay.checks.signatures import prepare as prepare_fields
from relay.dns.questions import FAILED, Answer
from tests.checks.asking import Zone, answered
from tests.checks.signing import ed25519_key, record, rsa_key, sign

HERE = Path(__file__).parent / "dkim"
NOW = 1_700_000_000.0
FOOTBALL = {
    ("brisbane._domainkey.football.example.com", "TXT"): "v=DKIM1; k=ed25519; "
    "p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
    ("test._domainkey.football.example.com", "TXT"): "v=DKIM1; k=rsa; "
    "p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQ"
    "iY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZ"
    "yVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB",
    ("brisbane._domainkey.example.com", "TXT"): "v=DKIM1; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQ"
    "KBgQDwIRP/UC3SBsEmGqZ9ZJW3/DkMoGeLnQg1fWn7/zYtIxN2SnFCjxOCKG9v3b4jYfcTNh5ijSsq631uBItLa7"
    "od+v/RtdC2UzJ1lWT947qR+Rcac2gbto/NMqJ0fzfVjH4OuKhitdY9tf6mcwGjaNBcWToIMmPSPDdQPNUYckcQ2Q"
    "IDAQAB",
}
MAIL = (
    b"From: Ann <ann@example.com>\r\n"
    b"To: bob@example.net,\r\n  carol@example.net\r\n"
    b"Subject:  Hello   there \r\n"
    b"Date: Fri, 11 Jul 2003 21:00:37 -0700\r\n"
    b"\r\n"
    b"One  line \r\n\r\nand\tanother.  \r\n\r\n\r\n"
)
FORMS = [("simple", "simple"), ("simple", "relaxed"), ("relaxed", "simple"), ("relaxed", "relaxed")]


def prepare(raw: bytes) -> tuple[Prepared, ...]:
    return prepare_fields(*split(raw))


def results(raw: bytes, zone: Zone) -> list[Signature]:
    return [answered(verify(one, NOW), zone) for one in prepare(raw)]


def outcome(raw: bytes, key_record: Answer | str | list[str]) -> Signature:
    (one,) = results(raw, {("s._domainkey.example.com", "TXT"): key_record})
    return one


@pytest.mark.parametrize(("name", "signatures"), [("rfc6376.eml", 1), ("rfc8463.eml", 2)])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_the_examples_of_the_rfcs(name, signatures, line_end):
    """RFC 6376, A.2, and RFC 8463, A.3, are what their keys signed, whatever ends their lines."""
    raw = (HERE / name).read_bytes().replace(b"\n", line_end)
    assert [one.result for one in results(raw, FOOTBALL)] == ["pass"] * signatures
    altered = raw.replace(b"hungry", b"hungrY")
    assert [one.result for one in results(altered, FOOTBALL)] == ["fail"] * signatures


@pytest.mark.parametrize(("header", "body"), FORMS)
@pytest.mark.parametrize("key", [rsa_key(), rsa_key(2048), ed25519_key()])
def test_what_is_altered(header, body, key):
    """White space counts where it is said to, and everything else does always."""
    raw = sign(MAIL, key, header=header, body=body)
    assert outcome(raw, record(key)).result == "pass"
    in_header = "pass" if header == "relaxed" else "fail"
    in_body = "pass" if body == "relaxed" else "fail"
    for old, new, wanted in (
        (b"Subject:  Hello   there ", b"Subject: Hello there", in_header),
        (b"Subject:", b"subject :", in_header),
        (b"net,\r\n  carol", b"net, carol", in_header),
        (b"Hello", b"hello", "fail"),
        (b"Subject:", b"X-Subject:", "fail"),
        (b"One  line ", b"One line", in_body),
        (b"and\tanother.  ", b"and another.", in_body),
        (b"\r\n\r\n\r\n", b"\r\n", "pass"),
        (b"One  line", b"Oneline", "fail"),
        (b"One  line", b"one  line", "fail"),
        (b"line \r\n\r\nand", b"line \r\n\r\n\r\nand", "fail"),
    ):
        assert old in raw
        assert outcome(raw.replace(old, new), record(key)).result == wanted, (old, new)


@pytest.mark.parametrize(
    "text", [b"", b"\r\n", b"\r\n\r\n\r\n", b" \t\r\n\r\n", b"x", b" ", b"a\r"]
)
@pytest.mark.parametrize("body", ["simple", "relaxed"])
def test_empty_and_unended_bodies(text, body):
    """A body of nothing, of empty lines, or without its last line end."""
    raw = sign(MAIL.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + text, rsa_key(), body=body)
    assert outcome(raw, record(rsa_key())).result == "pass"


def test_length():
    """What follows the length passes, and is told; a length beyond the body does not."""
    raw = sign(MAIL, rsa_key(), length=9)
    one = outcome(raw + b"more of it\r\n", record(rsa_key()))
    assert one.result == "pass"
    assert "bytes of the body are not signed" in one.detail
    assert outcome(raw.replace(b"One", b"Two"), record(rsa_key())).result == "fail"
    assert outcome(sign(MAIL, rsa_key(), length=999), record(rsa_key())).result == "permerror"
    assert outcome(sign(MAIL, rsa_key(), length=0), record(rsa_key())).result == "pass"


def test_names():
    """A field is taken from the bottom; a name more than there are fields forbids another one."""
    twice = b"Subject: older\r\n" + MAIL
    raw = sign(twice, rsa_key(), names=("from", "subject"))
    assert outcome(raw.replace(b"older", b"other"), record(rsa_key())).result == "pass"
    assert outcome(raw.replace(b"Hello", b"other"), record(rsa_key())).result == "fail"
    closed = sign(MAIL, rsa_key(), names=("From", "subject", "Subject", "x-none"))
    assert outcome(closed, record(rsa_key())).result == "pass"
    assert outcome(b"Subject: more\r\n" + closed, record(rsa_key())).result == "fail"
    assert outcome(b"X-None: a\r\n" + closed, record(rsa_key())).result == "fail"
    assert outcome(sign(MAIL, rsa_key(), names=("to",)), record(rsa_key())).result == "permerror"


def test_several_signatures():
    """Each counts for itself, one that covers another too, and no more than ten are looked at."""
    zone: Zone = {
        ("s._domainkey.example.com", "TXT"): record(rsa_key()),
        ("t._domainkey.example.net", "TXT"): record(ed25519_key()),
    }
    raw = sign(MAIL, rsa_key(), domain="Example.COM")
    raw = sign(
        *(raw, ed25519_key()),
        domain="example.net",
        selector="t",
        names=("from", "dkim-signature"),
    )
    assert [one.result for one in results(raw, zone)] == ["pass", "pass"]
    assert [one.domain for one in results(raw, zone)] == ["example.net", "example.com"]
    other = raw.replace(b"d=Example.COM", b"d=example.com")
    assert [one.result for one in results(other, zone)] == ["fail", "fail"]
    for _ in range(MAX_SIGNATURES):
        raw = sign(raw, rsa_key())
    assert len(prepare(raw)) == MAX_SIGNATURES


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("x=1700000001; ", "pass"),
        ("x=1699999999; ", "permerror"),
        ("t=1600000000; x=1600000000; ", "permerror"),
        ("t=1600000000; ", "pass"),
        ("t=soon; ", "permerror"),
        ("i=a@example.com; ", "pass"),
        ("i=@mail.Example.com; ", "pass"),
        ("i=a@badexample.com; ", "permerror"),
        ("i=a@example.com.net; ", "permerror"),
        ("i=example.com; ", "permerror"),
        ("q=dns/txt; ", "pass"),
        ("q=other:dns/txt; ", "pass"),
        ("q=other; ", "permerror"),
        ("v=1; ", "permerror"),
        ("unknown=1; z=From:a|To:b; ", "pass"),
        ("bad tag=1; ", "permerror"),
        ("b2=1; ", "pass"),
        ("", "pass"),
    ],
)
def test_tags(tags, wanted):
    """What the signature says of itself decides before any key is asked for."""
    assert outcome(sign(MAIL, rsa_key(), tags=tags), record(rsa_key())).result == wanted


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"v=1;", b"v=2;"),
        (b"v=1;", b""),
        (b"a=rsa-sha256", b"a=rsa-md5"),
        (b"c=relaxed/relaxed", b"c=nowsp"),
        (b"d=example.com", b"d=exa mple..com"),
        (b"d=example.com", b"d=stra\xc3\x9fe.example"),
        (b"d=example.com", b"d=\xff.example"),
        (b"s=s;", b"s=;"),
        (b"b=", b"b=*"),
        (b"h=", b"g="),
    ],
)
def test_malformed(old, new):
    """A malformed signature can never pass, and says why."""
    raw = sign(MAIL, rsa_key()).replace(old, new, 1)
    one = outcome(raw, record(rsa_key()))
    assert one.result == "permerror"
    assert one.detail


@pytest.mark.parametrize(
    ("key_record", "wanted"),
    [
        (record(rsa_key()).removeprefix("v=DKIM1; "), "pass"),
        (record(rsa_key(), "s=email:tlsrpt; "), "pass"),
        (record(rsa_key(), "s=tlsrpt; "), "permerror"),
        (record(rsa_key(), "h=sha1:sha256; "), "pass"),
        (record(rsa_key(), "h=sha1; "), "permerror"),
        (record(rsa_key(), "n=a note; x=; "), "pass"),
        (record(rsa_key(), "t=y; "), "pass"),
        (record(rsa_key(), "t=y:s; "), "pass"),
        (record(rsa_key()).replace("DKIM1", "DKIM2"), "permerror"),
        ("k=rsa; " + record(rsa_key()), "permerror"),
        ("v=DKIM1; k=rsa; p=", "permerror"),
        ("v=DKIM1; k=rsa; p=AAAA", "permerror"),
        ("v=DKIM1; k=rsa", "permerror"),
        ("v=DKIM1; k=rsa; p=*", "permerror"),
        ("some other text", "permerror"),
        (record(ed25519_key()), "permerror"),
        (record(rsa_key(2048)), "fail"),
        (record(rsa_key(2048), "t=y; "), "neutral"),
        (["some other text", record(rsa_key())], "pass"),
        ([], "permerror"),
        (FAILED, "temperror"),
    ],
    ids=lambda value: value if value in ("pass", "fail") else "key",  # keys are made anew each time
)
def test_keys(key_record, wanted):
    """A key record is for DKIM, for mail, for this kind of key, and not revoked."""
    assert outcome(sign(MAIL, rsa_key()), key_record).result == wanted


def test_a_key_not_for_subdomains():
    """With t=s, i= is d= itself."""
    strict = record(rsa_key(), "t=s; ")
    raw = sign(MAIL, rsa_key(), tags="i=a@mail.example.com; ")
    assert outcome(raw, record(rsa_key())).result == "pass"
    assert outcome(raw, strict).result == "permerror"
    assert outcome(sign(MAIL, rsa_key()), strict).result == "pass"


def test_weak_signatures():
    """rsa-sha1 and RSA keys under 1024 bits are not accepted, though they verify (RFC 8301)."""
    assert outcome(sign(MAIL, rsa_key(), sha1=True), record(rsa_key())).result == "permerror"
    numbers = generate_private_key(65537, 1024).public_key().public_numbers()
    one = outcome(sign(MAIL, rsa_key()), _small(numbers.n >> 256))
    assert (one.result, "768 bits" in one.detail) == ("permerror", True)


def _small(modulus: int) -> str:
    """A key record for this modulus, in DER by hand: the library makes no such key."""

    def der(tag: int, content: bytes) -> bytes:
        size = len(content)
        length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
        return bytes([tag]) + length + content

    number = (modulus | 1).to_bytes(modulus.bit_length() // 8 + 1, "big")
    inner = der(0x30, der(2, number) + der(2, b"\x01\x00\x01"))
    named = der(0x30, bytes.fromhex("06092a864886f70d010101") + b"\x05\x00")
    whole = der(0x30, named + der(3, b"\0" + inner))
    return f"p={base64.b64encode(whole).decode()}"


def test_a_key_as_rfc_6376_words_it():
    """RSAPublicKey alone is accepted, as SubjectPublicKeyInfo is, which everybody publishes."""
    der = rsa_key().public_key().public_bytes(Encoding.DER, PublicFormat.PKCS1)
    key_record = f"v=DKIM1; p={base64.b64encode(der).decode()}"
    assert outcome(sign(MAIL, rsa_key()), key_record).result == "pass"


def test_an_oversize_header():
    """It is not looked at."""
    with pytest.raises(Oversize):
        split(b"X: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n")
    with pytest.raises(Oversize):
        split(b"a" * (MAX_HEADER_BYTES + 1))
    assert results(b"X: a\r\n\r\n" + b"a" * MAX_HEADER_BYTES, {}) == []


@pytest.mark.parametrize(
    "hostile",
    [
        b" " * 3_000_000,
        b"\r\n" * 1_500_000,
        b" \r\n" * 1_000_000,
        b"\r" * 3_000_000,
        b"a " * 1_500_000,
    ],
)
def test_a_hostile_body(hostile):
    """Three megabytes under ten signatures, each of a length of its own, take linear time."""
    raw = MAIL.replace(b"One", b"One" + hostile)
    for body in ("simple", "relaxed"):
        raw = sign(raw, ed25519_key(), body=body)
    for length in range(MAX_SIGNATURES - 2):
        tags = b"v=1; a=rsa-sha256; d=example.com; s=s; h=from; bh=; b=; l=%d" % length
        raw = b"DKIM-Signature: " + tags + b"\r\n" + raw
    began = time.process_time()
    prepared = prepare(raw)
    assert time.process_time() - began < 5
    assert [one.body_matches for one in prepared] == [False] * (MAX_SIGNATURES - 2) + [True] * 2


def test_memory():
    """A body of very many runs of blanks takes a few copies of it, and no object a piece."""
    fields, body = split(sign(MAIL + b"a \t b \r\n" * 500_000, ed25519_key()))
    tracemalloc.start()
    try:
        prepare_fields(fields, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_a_hostile_header():
    """A signature that names very many fields, and has very many tags, takes linear time."""
    names = b":".join([b"from"] * 100_000)
    tags = b";".join(b"t%d=%d" % (n, n) for n in range(30_000))
    raw = b"DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s; bh=; b=; h=" + names
    began = time.process_time()
    assert prepare(raw + b"; " + tags + b"\r\n" + MAIL)[0].error == ""
    assert time.process_time() - began < 5


TAGS = st.sampled_from(
    [
        *(b"v=1;", b"a=rsa-sha256;", b"a=ed25519-sha256;", b"d=example.com;", b"s=s;", b"h=from;"),
        *(b"bh=;", b"b=AAAA;", b"b=", b"l=5;", b"x=9;", b"i=@x;", b"c=relaxed;", b"q=;", b"\xff"),
        *(b" ", b"\r\n ", b";", b"=", b"a", b"\0", b"\r\n", b":", b"From: a@b\r\n", b"\r\n\r\n"),
    ]
)


@settings(max_examples=300)
@given(
    st.lists(TAGS, max_size=20).map(b"".join),
    st.one_of(st.text(st.characters(max_codepoint=255)), st.just(record(rsa_key()))),
)
def test_never_raises(value, key_record):
    """Whatever signatures and key records hold, there is a result."""
    raw = b"DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s; " + value
    for one in results(raw, {("s._domainkey.example.com", "TXT"): key_record}):
        assert one.result in {"fail", "neutral", "permerror"}
        assert one.detail.isprintable()
