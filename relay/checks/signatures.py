"""The signatures of a message, as far as the message itself tells (DKIM, RFC 6376).

The first half of DKIM; `relay.checks.dkim` has the other.  A hostile message is long, so this runs
where it may be killed, in the parser, and imports nothing that takes long to load.

Promises
- Linear in the message (runs of blanks take its logarithm besides): a body is canonicalised at
  most twice, hashed at most `MAX_SIGNATURES` times, and no more signatures than that are looked at.
  It takes memory for four copies of the body at most.
- It never raises for what a message holds: what is wrong with a signature is its `error`.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from relay.addresses import a_labels
from relay.checks.details import quoted
from relay.checks.fields import Field
from relay.checks.tags import Tags, Unusable, decoded, items, number, parse, text, unusable
from relay.dns.questions import is_name

MAX_SIGNATURES = 10
"""Signatures of a message that are looked at, from the top."""


class Prepared(NamedTuple):
    """One signature, as far as the message tells; plain values, to be sent between processes."""

    domain: str = ""
    """d=, as A-labels in small letters."""
    selector: str = ""
    identity: str = ""
    """The domain of i=."""
    key_type: str = ""
    """rsa or ed25519."""
    signature: bytes = b""
    digest: bytes = b""
    """SHA-256 of the header as it was signed."""
    body_matches: bool = False
    unsigned: int = 0
    """Bytes of the canonical body that l= leaves out."""
    expires: int | None = None
    """Seconds since 1970."""
    error: str = ""
    """Why it cannot be verified, whatever the key."""


def prepare(fields: Sequence[Field], body: bytes) -> tuple[Prepared, ...]:
    """Read the signatures of a message (`fields.split`), the first `MAX_SIGNATURES` of them."""
    signed = [place for place, field in enumerate(fields) if field.name == b"dkim-signature"]
    bodies = _Bodies(body)
    return tuple(_prepare(fields, place, bodies) for place in signed[:MAX_SIGNATURES])


def _prepare(fields: Sequence[Field], place: int, bodies: _Bodies) -> Prepared:
    known = Prepared()
    try:
        said = parse(fields[place].value)
        known = Prepared(
            domain=_domain(text(said, "d"), "d="), selector=_domain(text(said, "s"), "s=")
        )
        return _read(known, said, fields, place, bodies)
    except Unusable as error:
        return known._replace(error=str(error))


def _read(
    known: Prepared, said: Tags, fields: Sequence[Field], place: int, bodies: _Bodies
) -> Prepared:
    if text(said, "v") != "1":
        unusable("its version (v=) is not 1")
    algorithm = text(said, "a").lower()
    if algorithm == "rsa-sha1":
        unusable("rsa-sha1 is no longer accepted (RFC 8301)")
    if algorithm not in {"rsa-sha256", "ed25519-sha256"}:
        unusable(f"its algorithm {quoted(algorithm)} is not known")
    if "dns/txt" not in items(text(said, "q", "dns/txt").lower()):
        unusable("its key is not in the DNS (q=)")
    names = items(text(said, "h").lower())
    if "from" not in names:
        unusable("it does not sign From")
    header_form, _, body_form = text(said, "c", "simple/simple").lower().partition("/")
    body_form = body_form or "simple"
    if not {header_form, body_form} <= {"simple", "relaxed"}:
        unusable("its canonicalization (c=) is not known")
    issued, expires = number(said, "t"), number(said, "x")
    if issued is not None and expires is not None and expires <= issued:
        unusable("it expires (x=) before it was made (t=)")
    body_hash, unsigned = bodies.digest(body_form, number(said, "l"))
    return known._replace(
        identity=_identity(text(said, "i", f"@{known.domain}"), known.domain),
        key_type=algorithm.partition("-")[0],
        signature=decoded(said, "b"),
        digest=header_digest(fields, place, names, relaxed=header_form == "relaxed"),
        body_matches=body_hash == decoded(said, "bh"),
        unsigned=unsigned,
        expires=expires,
    )


class _Bodies:
    """The body of one message in both canonical forms, each made once and when asked for."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._forms: dict[str, bytes] = {}
        self._digests: dict[tuple[str, int], bytes] = {}

    def digest(self, form: str, length: int | None) -> tuple[bytes, int]:
        """SHA-256 of the first `length` bytes (None: all), and how many follow them."""
        if form not in self._forms:
            relaxed = form == "relaxed"
            self._forms[form] = relaxed_body(self._body) if relaxed else simple_body(self._body)
        body = self._forms[form]
        if length is None:
            length = len(body)
        elif length > len(body):
            unusable(f"it signs {length} bytes of a body (l=) that has {len(body)}")
        if (form, length) not in self._digests:
            self._digests[form, length] = hashlib.sha256(memoryview(body)[:length]).digest()
        return self._digests[form, length], len(body) - length


def simple_body(body: bytes) -> bytes:
    """Canonicalise a body (with CRLF line ends) as RFC 6376, 3.4.3 has it."""
    end = len(body)
    while body.endswith(b"\r\n", 0, end):
        end -= 2
    return body[:end] + b"\r\n"


def relaxed_body(body: bytes) -> bytes:
    """The same by 3.4.4: white space at the ends of lines does not count, nor how much there is."""
    body = _single_blanks(body).replace(b" \r\n", b"\r\n").removesuffix(b" ")
    end = len(body)
    while body.endswith(b"\r\n", 0, end):
        end -= 2
    return body[:end] + b"\r\n" if end else b""


def _single_blanks(text: bytes) -> bytes:
    """Each run of blanks and tabs as one blank.

    By halves: a pattern's substitution makes an object of every piece, a gigabyte of 25 MB.
    """
    text = text.replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text


def relaxed_field(field: Field) -> bytes:
    """Canonicalise a header field by 3.4.2, without its CRLF."""
    value = _single_blanks(field.value.replace(b"\r\n", b"")).strip(b" ")
    return field.name + b":" + value


def header_digest(
    fields: Sequence[Field], place: int, names: Iterable[str], *, relaxed: bool
) -> bytes:
    """SHA-256 of the fields that h= names, each name taken from the bottom up, and the signature.

    A name that is used up, or was never there, signs that no such field may be added.
    """
    form = relaxed_field if relaxed else _as_it_is
    own = fields[place]
    signed = _fields_signed((*fields[:place], *fields[place + 1 :]), names, form)
    return hashlib.sha256(signed + form(own._replace(raw=_without_signature(own.raw)))).digest()


def relaxed_fields(fields: Sequence[Field], names: Iterable[str]) -> bytes:
    """What `header_digest` hashes in front of the signature itself, relaxed."""
    return _fields_signed(fields, names, relaxed_field)


def _fields_signed(
    fields: Iterable[Field], names: Iterable[str], form: Callable[[Field], bytes]
) -> bytes:
    left: dict[bytes, list[Field]] = {}
    for field in fields:
        if field.name:
            left.setdefault(field.name, []).append(field)
    return b"".join(
        form(found.pop()) + b"\r\n"
        for name in names
        if (found := left.get(name.encode("utf-8", "surrogateescape")))
    )


def _as_it_is(field: Field) -> bytes:
    return field.raw


def _without_signature(raw: bytes) -> bytes:
    """The field with nothing between `b=` and the next semicolon."""
    name, colon, value = raw.partition(b":")
    parts = value.split(b";")
    for at, part in enumerate(parts):
        tag, equals, _ = part.partition(b"=")
        if equals and tag.strip(b" \t\r\n") == b"b":
            parts[at] = tag + equals
    return name + colon + b";".join(parts)


def _domain(name: str, what: str) -> str:
    if not name.isascii():
        try:
            name = a_labels(name)
        except ValueError as error:
            unusable(f"{what} {error}")
    if not is_name(name) or not name.isprintable() or " " in name:
        unusable(f"{what} is no domain name")
    return name.lower()


def _identity(address: str, domain: str) -> str:
    identity = _domain(address.rpartition("@")[2], "i=")
    if "@" not in address or (identity != domain and not identity.endswith(f".{domain}")):
        unusable("it signs for somebody (i=) outside its domain (d=)")
    return identity
