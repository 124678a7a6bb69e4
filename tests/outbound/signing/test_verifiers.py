"""What is signed, beside three verifiers that others wrote: dkimpy, mailauth and opendkim.

Both signatures of odd mails are valid to each of them, and neither is once a bit of what is signed
is another; nor is one in which a bit is, wherever, which leaves the other valid.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import dkim
import pytest

from relay.checks.dkim import verify
from relay.checks.evidence import examine
from relay.outbound.signing.dkim import author_domain
from relay.smtp.client import Mail
from tests.checks.asking import answered, txt_of
from tests.checks.generated import cases
from tests.npm import node_modules
from tests.outbound.signing.test_dkim import LISTED, MAIL, canonical, signed, zone

BOTH, NEITHER = (True, True), (False, False)
COUNTS = [100, pytest.param(2000, marks=pytest.mark.soak)]


class Odd(NamedTuple):
    """A signed mail, the same with another bit, and the records that verify it."""

    good: bytes
    bad: bytes
    published: dict[str, str]


def odd_mails(count: int, seed: int = 1035) -> list[bytes]:
    """Generated mail as it goes on the wire, some of it signed by somebody else before.

    Folded and repeated fields, white space at ends, bodies that are empty or end without a line
    end, 8-bit text; and, of every eighth, long lines, many Received, or as many lines.
    """
    rng = random.Random(seed)
    mails = []
    for number, case in enumerate(cases(count, seed)):
        raw = case.raw
        if number % 8 == 3:
            raw = b"Received: from a by b;\r\n\tFri, 11 Jul 2003 21:00:37 -0700 \r\n" * 60 + raw
        elif number % 8 == 5:
            raw += bytes(rng.choice(b"ab \t\xe9=.") for _ in range(rng.choice((990, 998, 5000))))
        elif number % 8 == 7:
            raw += b"".join(
                rng.choice((b"a \r\n", b"\r\n", b" \r\n", b".\r\n")) for _ in range(900)
            )
        mails.append(Mail("a@b.example", ("c@d.example",), raw).data)
    return mails


def flipped(rng: random.Random, message: bytes) -> bytes:
    """The message with another bit in its body or its author that no relaxed form passes over."""
    author = re.search(rb"(?mi)^From\s*:(?:[^\r]|\r\n[ \t])*", message)
    body = message.index(b"\r\n\r\n") + 4
    assert author is not None
    while True:
        start, end = author.span() if rng.random() < 0.3 else (body, len(message))
        if start >= end or not message[start:end].strip():
            start, end = author.span()
        place = rng.randrange(start, end)
        if message[place] in b" \t\r\n":
            continue  # to mailauth a no-break space (0xA0) is white space, too
        other = bytearray(message)
        other[place] ^= 1 << rng.randrange(8)
        # Who reads lines by C sees another mail where there is a NUL, or one line end less.
        alike = all(other.count(ends) == message.count(ends) for ends in (b"\0", b"\r\n"))
        if alike and canonical(bytes(other)) != canonical(message):
            return bytes(other)


def odd(count: int) -> list[Odd]:
    """Signed mails."""
    rng = random.Random(5)
    found = []
    for mail in odd_mails(count):
        good = signed(mail)
        published = {name: value for (name, _), value in zone(author_domain(mail)).items()}
        found.append(Odd(good, flipped(rng, good), published))
    return found


class Tampered(NamedTuple):
    """A signed mail with another bit, what is valid of it still, and the records."""

    where: str
    raw: bytes
    valid: tuple[bool, bool]
    published: dict[str, str]


_OWN = re.compile(rb"DKIM-Signature:(?:[^\r]|\r\n[ \t])*\r\n")
_FIELD = re.compile(rb"(?m)^([!-9;-~]+)[ \t]*:((?:[^\r]|\r(?!\n)|\r\n[ \t])*)")
_SHOWN = frozenset(b"from to cc subject date reply-to message-id content-type mime-version".split())
"""Fields that must be signed, whatever h= says."""
_TAGS = ("v", "c", "d", "s", "h", "bh", "b")


def tampered(flips: int) -> list[Tampered]:
    """Mails of several kinds with so many flips in each signed field, in the body, and in each tag
    of each signature (but a=, by which signatures are told apart here)."""
    rng = random.Random(7)
    found = []
    for mail in (MAIL, LISTED + MAIL, *odd_mails(40)[1:40:8]):
        good = signed(mail)
        published = {name: value for (name, _), value in zone(author_domain(mail)).items()}
        first = _OWN.match(good)
        assert first is not None
        second = _OWN.match(good, first.end())
        assert second is not None
        names = _SHOWN | {*_tag(good, first, "h").split(b":")}
        end = good.index(b"\r\n\r\n")
        sites = [("body", end + 4, len(good), NEITHER)]
        for field in _FIELD.finditer(good, second.end(), end + 2):
            if field[1].lower() in names:
                sites.append((field[1].decode(), *field.span(2), NEITHER))
        for own, valid in ((first, (False, True)), (second, (True, False))):
            sites += [(f"{tag}=", *_span(good, own, tag), valid) for tag in _TAGS]
        for where, begin, stop, valid in sites:
            if good[begin:stop].strip():
                found += [
                    Tampered(where, _flipped_in(rng, good, begin, stop), valid, published)
                    for _ in range(flips)
                ]
    return found


def _span(message: bytes, own: re.Match[bytes], tag: str) -> tuple[int, int]:
    """Where the value of a tag of a signature stands."""
    found = re.compile(rb"[;:]\s*%b=([^;]*)" % tag.encode()).search(message, *own.span())
    assert found is not None
    return found.span(1)


def _tag(message: bytes, own: re.Match[bytes], tag: str) -> bytes:
    begin, end = _span(message, own, tag)
    return b"".join(message[begin:end].split())


def _flipped_in(rng: random.Random, message: bytes, begin: int, end: int) -> bytes:
    """The message with another bit between two places, that is no white space and makes none."""
    # The last digit of what is in base64 has bits that mean nothing.
    stop = begin + len(message[begin:end].rstrip(b"= \t\r\n")) - 1
    while True:
        place = rng.randint(begin, max(stop - 1, begin))
        other = bytearray(message)
        other[place] ^= 1 << rng.randrange(8)
        if message[place] in b" \t\r\n" or other[place] in b"\0\t\n\v\f\r \x85\xa0":
            continue
        return bytes(other)


FLIPS = [1, pytest.param(20, marks=pytest.mark.soak)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flips", FLIPS)
def test_dkimpy_and_ours_believe_no_flipped_bit(flips: int):
    """In no field that is signed, nor the body, nor the signatures; of these the other is valid."""
    logging.getLogger("dkimpy").setLevel(logging.CRITICAL)
    for one in tampered(flips):
        assert _valid_to_dkimpy(one.raw, one.published) == one.valid, one
        assert _valid_to_ours(one) == one.valid, one


def _valid_to_ours(one: Tampered) -> tuple[bool, bool]:
    records = {(name, "TXT"): value for name, value in one.published.items()}
    said: dict[str, bool] = {}
    for signature in examine(one.raw).signatures[:2]:
        result = answered(verify(signature, time.time()), records).result
        said.setdefault(signature.key_type, result == "pass")
    return said.get("rsa", False), said.get("ed25519", False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", COUNTS)
def test_dkimpy(count: int):
    """Both algorithms."""
    logging.getLogger("dkimpy").setLevel(logging.CRITICAL)
    for one in odd(count):
        assert _valid_to_dkimpy(one.good, one.published) == BOTH, one.good
        assert _valid_to_dkimpy(one.bad, one.published) == NEITHER, one.bad


def _valid_to_dkimpy(raw: bytes, published: dict[str, str]) -> tuple[bool, bool]:
    txt = txt_of(published)

    def valid(number: int) -> bool:
        try:
            verifier = dkim.DKIM(raw, logger=logging.getLogger("dkimpy"))
            return bool(verifier.verify(number, dnsfunc=txt))
        except (dkim.DKIMException, ValueError):  # what is in no base64, or no name
            return False

    algorithms = re.findall(
        rb"(?mi)^DKIM-Signature:.*?\ba=([a-z0-9-]+)", raw[: raw.index(b"\r\n\r\n")]
    )[:2]
    ours = {name: valid(number) for number, name in enumerate(algorithms)}
    return ours[b"rsa-sha256"], ours[b"ed25519-sha256"]


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", COUNTS)
def test_mailauth(count: int):
    """Both algorithms."""
    mails = odd(count)
    good = _by_mailauth([(one.good, one.published) for one in mails])
    bad = _by_mailauth([(one.bad, one.published) for one in mails])
    for one, valid, altered in zip(mails, good, bad, strict=True):
        assert valid == BOTH, one.good
        assert altered == NEITHER, one.bad


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flips", FLIPS)
def test_mailauth_believes_no_flipped_bit(flips: int):
    """As of dkimpy."""
    made = tampered(flips)
    found = _by_mailauth([(one.raw, one.published) for one in made])
    for one, valid in zip(made, found, strict=True):
        assert valid == one.valid, one


def _by_mailauth(messages: Sequence[tuple[bytes, dict[str, str]]]) -> list[tuple[bool, bool]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    here = Path(__file__).parents[2] / "checks" / "mailauth"
    lines = [
        json.dumps(
            {
                "raw": base64.b64encode(message).decode(),
                "zone": {f"{name}/TXT": [value] for name, value in published.items()},
                "ip": "192.0.2.1",
                "helo": "mail.example.com",
                "sender": "a@b.example",
            }
        )
        for message, published in messages
    ]
    finished = subprocess.run(
        [node, str(here / "verify.js")],
        input="\n".join(lines).encode() + b"\n",
        capture_output=True,
        env={"NODE_PATH": str(node_modules(here))},
        timeout=500,
        check=True,
    )
    found = []
    for line in finished.stdout.splitlines():
        # Ours come first; a signature of somebody else's may have a selector of the same name.
        said: dict[str, bool] = {}
        for one in json.loads(line)["dkim"]:
            said.setdefault(one["selector"], one["result"] == "pass")
        found.append((said.get("rsa", False), said.get("ed25519", False)))
    return found


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", COUNTS)
def test_opendkim(count: int, tmp_path: Path):
    """Both algorithms."""
    mails = odd(count)
    published = {name: value for one in mails for name, value in one.published.items()}
    (tmp_path / "conf").write_text(_CONFIG)
    (tmp_path / "zone").write_text("".join(f"{name} {key}\n" for name, key in published.items()))
    good = _by_opendkim(tmp_path, [one.good for one in mails])
    assert len(good) == len(mails)
    for one, valid in zip(mails, good, strict=True):
        assert valid == BOTH, one.good
    for one in mails:  # by itself: it ends at a header that is none any more
        assert _by_opendkim(tmp_path, [one.bad]) in ([NEITHER], []), one.bad


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flips", FLIPS)
def test_opendkim_believes_no_flipped_bit(flips: int, tmp_path: Path):
    """As of dkimpy; of a signature that is none it says nothing, nor of the other."""
    made = tampered(flips)
    published = {name: value for one in made for name, value in one.published.items()}
    (tmp_path / "conf").write_text(_CONFIG)
    (tmp_path / "zone").write_text("".join(f"{name} {key}\n" for name, key in published.items()))
    for one in made:
        assert _by_opendkim(tmp_path, [one.raw]) in ([one.valid], [NEITHER], []), one


_CONFIG = """
Mode v
Canonicalization relaxed/relaxed
TestDNSData file:zone
Syslog no
AlwaysAddARHeader yes
AuthservID test
On-Default accept
On-BadSignature accept
On-DNSError accept
On-KeyNotFound accept
On-NoSignature accept
"""


def _by_opendkim(folder: Path, messages: Sequence[bytes]) -> list[tuple[bool, bool]]:
    """What it writes into Authentication-Results of each message."""
    program = shutil.which("opendkim")
    if program is None:
        pytest.skip("opendkim is not installed")
    for number, message in enumerate(messages):
        (folder / str(number)).write_bytes(message)
    finished = subprocess.run(
        [program, "-x", "conf", "-v", "-v", "-t", ",".join(map(str, range(len(messages))))],
        cwd=folder,
        capture_output=True,
        timeout=500,
        check=False,
    )
    found = []
    said = finished.stdout.decode("utf-8", "replace")
    for block in said.split("hname='Authentication-Results' hvalue='test;")[1:]:
        valid: dict[str, bool] = {}
        for result, selector in re.findall(r"dkim=(\w+)[^;]*?header\.s=(\S+)", block):
            valid.setdefault(selector, result == "pass")
        found.append((valid.get("rsa", False), valid.get("ed25519", False)))
    return found
