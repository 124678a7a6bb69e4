"""DKIM (RFC 6376, with 8301 and 8463): who signed a message, and is it still what they signed?

In two halves, since they belong to two processes.  `prepare` reads the message and makes of each
signature a few numbers (`Prepared`): what was hashed, whether the body still has its hash.  A
hostile message is long, so this runs where it may be killed, in the parser.  `verify` asks the DNS
for the key of one and checks it, for which the message is not needed: at most a few tenths of a
millisecond, since keys are bounded, and so it runs in the relay, beside the resolver.

Promises
- `prepare` is linear in the message: a body is canonicalised at most twice, hashed at most
  `MAX_SIGNATURES` times, and no more signatures than that are looked at.
- Neither raises for what a message or a key record holds.
- Never `pass` for what RFC 8301 forbids: rsa-sha1, and RSA keys under 1024 bits.

How it ends, of each signature (the words are those of RFC 8601):

    pass        the key that the domain publishes made it, over what the message still is
    fail        the message or the signature is not what was signed
    neutral     the same, and the domain says that it only tests DKIM (t=y)
    permerror   signature or key cannot be used: malformed, expired, revoked, too weak, not there
    temperror   the DNS gave no answer

A signature with l= covers the beginning of a body only; that it passes is told together with how
many bytes it says nothing about.

Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from relay.addresses import a_labels
from relay.checks.details import in_one_line, quoted
from relay.checks.fields import Field
from relay.dns.questions import Asking, Question, Status, is_name

MAX_SIGNATURES = 10
"""Signatures of a message that are looked at, from the top."""
MIN_BITS, MAX_BITS = 1024, 8192
"""Of an RSA key: what RFC 8301 demands, and what a check is not to cost more than."""
_MAX_EXPONENT_BITS = 64
_MAX_RECORDS = 4  # under one selector, where there should be one

_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9_]*")
_WHITE = re.compile(rb"[ \t\r\n]+")
_BLANKS = re.compile(rb"[ \t]+")
_NUMBER = re.compile(r"[0-9]{1,76}", re.ASCII)


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


class Signature(NamedTuple):
    """What came of one signature: see the module for `result`."""

    result: str
    domain: str
    selector: str
    detail: str


class _Unusable(Exception):
    """A signature or a key record is not one that can be used; the text says why."""


def _unusable(detail: str) -> NoReturn:
    raise _Unusable(detail)


# ------------------------------------------------------------------ from the message


def prepare(fields: Sequence[Field], body: bytes) -> tuple[Prepared, ...]:
    """Read the signatures of a message (`fields.split`), the first `MAX_SIGNATURES` of them."""
    signed = [number for number, field in enumerate(fields) if field.name == b"dkim-signature"]
    bodies = _Bodies(body)
    return tuple(_prepare(fields, number, bodies) for number in signed[:MAX_SIGNATURES])


def _prepare(fields: Sequence[Field], number: int, bodies: _Bodies) -> Prepared:
    known = Prepared()
    try:
        tags = _tags(fields[number].value)
        known = Prepared(
            domain=_domain(_text(tags, "d"), "d="), selector=_domain(_text(tags, "s"), "s=")
        )
        return _read(known, tags, fields, number, bodies)
    except _Unusable as error:
        return known._replace(error=str(error))


def _read(
    known: Prepared, tags: dict[str, bytes], fields: Sequence[Field], number: int, bodies: _Bodies
) -> Prepared:
    if _text(tags, "v") != "1":
        _unusable("its version (v=) is not 1")
    algorithm = _text(tags, "a").lower()
    if algorithm == "rsa-sha1":
        _unusable("rsa-sha1 is no longer accepted (RFC 8301)")
    if algorithm not in {"rsa-sha256", "ed25519-sha256"}:
        _unusable(f"its algorithm {quoted(algorithm)} is not known")
    if "dns/txt" not in _list(_text(tags, "q", "dns/txt").lower()):
        _unusable("its key is not in the DNS (q=)")
    names = _list(_text(tags, "h").lower())
    if "from" not in names:
        _unusable("it does not sign From")
    header_form, _, body_form = _text(tags, "c", "simple/simple").lower().partition("/")
    body_form = body_form or "simple"
    if not {header_form, body_form} <= {"simple", "relaxed"}:
        _unusable("its canonicalization (c=) is not known")
    issued, expires = _number(tags, "t"), _number(tags, "x")
    if issued is not None and expires is not None and expires <= issued:
        _unusable("it expires (x=) before it was made (t=)")
    body_hash, unsigned = bodies.digest(body_form, _number(tags, "l"))
    return known._replace(
        identity=_identity(_text(tags, "i", f"@{known.domain}"), known.domain),
        key_type=algorithm.partition("-")[0],
        signature=_decoded(tags, "b"),
        digest=_header_digest(fields, number, names, relaxed=header_form == "relaxed"),
        body_matches=body_hash == _decoded(tags, "bh"),
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
            _unusable(f"it signs {length} bytes of a body (l=) that has {len(body)}")
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
    # Runs first, then the single blank left of one: a pattern for both would be quadratic.
    body = _BLANKS.sub(b" ", body).replace(b" \r\n", b"\r\n").removesuffix(b" ")
    end = len(body)
    while body.endswith(b"\r\n", 0, end):
        end -= 2
    return body[:end] + b"\r\n" if end else b""


def relaxed_field(field: Field) -> bytes:
    """Canonicalise a header field by 3.4.2, without its CRLF."""
    value = _BLANKS.sub(b" ", field.value.replace(b"\r\n", b"")).strip(b" ")
    return field.name + b":" + value


def _header_digest(
    fields: Sequence[Field], number: int, names: Iterable[str], *, relaxed: bool
) -> bytes:
    """SHA-256 of the fields that h= names, each name taken from the bottom up, and the signature.

    A name that is used up, or was never there, signs that no such field may be added.
    """
    left: dict[bytes, list[Field]] = {}
    for place, field in enumerate(fields):
        if field.name and place != number:
            left.setdefault(field.name, []).append(field)
    form = relaxed_field if relaxed else _as_it_is
    digest = hashlib.sha256()
    for name in names:
        if found := left.get(name.encode("utf-8", "surrogateescape")):
            digest.update(form(found.pop()) + b"\r\n")
    own = fields[number]
    digest.update(form(own._replace(raw=_without_signature(own.raw))))
    return digest.digest()


def _as_it_is(field: Field) -> bytes:
    return field.raw


def _without_signature(raw: bytes) -> bytes:
    """The field with nothing between `b=` and the next semicolon."""
    name, colon, value = raw.partition(b":")
    parts = value.split(b";")
    for number, part in enumerate(parts):
        tag, equals, _ = part.partition(b"=")
        if equals and _WHITE.sub(b"", tag) == b"b":
            parts[number] = tag + equals
    return name + colon + b";".join(parts)


# ------------------------------------------------------------------------------ tags


def _tags(value: bytes) -> dict[str, bytes]:
    """Parse a tag list (3.2), values without the white space around them."""
    tags: dict[str, bytes] = {}
    parts = value.split(b";")
    if not parts[-1].strip(b" \t\r\n"):
        parts.pop()
    for part in parts:
        name, equals, text = part.partition(b"=")
        name = name.strip(b" \t\r\n")
        if not equals or not _NAME.fullmatch(name):
            _unusable("it is no list of tags")
        key = name.decode()
        if key in tags:
            _unusable(f"it has the tag {quoted(key)} twice")
        tags[key] = text.strip(b" \t\r\n")
    return tags


def _text(tags: dict[str, bytes], name: str, default: str | None = None) -> str:
    """The value of a tag without any white space."""
    value = tags.get(name)
    if value is None:
        if default is None:
            _unusable(f"the tag {name}= is missing")
        return default
    return _WHITE.sub(b"", value).decode("utf-8", "surrogateescape")


def _list(text: str) -> list[str]:
    return text.split(":")


def _number(tags: dict[str, bytes], name: str) -> int | None:
    if name not in tags:
        return None
    text = _text(tags, name)
    if not _NUMBER.fullmatch(text):
        _unusable(f"{name}= is no number")
    return int(text)


def _decoded(tags: dict[str, bytes], name: str) -> bytes:
    text = _text(tags, name)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        _unusable(f"{name}= is not base64")


def _domain(text: str, what: str) -> str:
    if not text.isascii():
        try:
            text = a_labels(text)
        except ValueError as error:
            _unusable(f"{what} {error}")
    if not is_name(text) or not text.isprintable() or " " in text:
        _unusable(f"{what} is no domain name")
    return text.lower()


def _identity(text: str, domain: str) -> str:
    identity = _domain(text.rpartition("@")[2], "i=")
    if "@" not in text or (identity != domain and not identity.endswith(f".{domain}")):
        _unusable("it signs for somebody (i=) outside its domain (d=)")
    return identity


# ----------------------------------------------------------------------- with its key


def verify(prepared: Prepared, at: float) -> Asking[Signature]:
    """Ask for the key and verify; `at`: when the message came, in seconds since 1970."""
    domain, selector = prepared.domain, prepared.selector

    def result(result: str, detail: str) -> Signature:
        return Signature(result, domain, selector, in_one_line(detail))

    if prepared.error:
        return result("permerror", prepared.error)
    if prepared.expires is not None and at > prepared.expires:
        return result("permerror", "it had expired (x=) when the message came")
    name = f"{selector}._domainkey.{domain}"
    if not is_name(name):
        return result("permerror", f"{quoted(name)} is no domain name")
    answer = yield Question(name, "TXT")
    if answer.status is Status.FAILED:
        return result("temperror", f"the key at {name}: {answer.detail}")
    if not answer.records:
        return result("permerror", f"there is no key at {name}")
    results = [_verify_with(prepared, record, name) for record in answer.records[:_MAX_RECORDS]]
    best = next((found for found in results if found[0] == "pass"), results[0])
    return result(*best)


def _verify_with(prepared: Prepared, record: str, name: str) -> tuple[str, str]:
    try:
        testing, key = _key(prepared, record)
    except _Unusable as error:
        return "permerror", f"the key at {name}: {error}"
    fault = ""
    if not prepared.body_matches:
        fault = "the body is not what was signed"
    else:
        try:
            if isinstance(key, RSAPublicKey):
                key.verify(prepared.signature, prepared.digest, PKCS1v15(), Prehashed(SHA256()))
            else:
                key.verify(prepared.signature, prepared.digest)
        except InvalidSignature:
            fault = "the header is not what was signed, or another key signed it"
    if fault:
        return ("neutral", f"{fault}; the domain tests DKIM") if testing else ("fail", fault)
    said = f"signed by {prepared.domain} with the key {prepared.selector} ({_kind(key)})"
    if prepared.unsigned:
        said += f"; the last {prepared.unsigned} bytes of the body are not signed (l=)"
    if testing:
        said += "; the domain tests DKIM"
    return "pass", said


def _kind(key: RSAPublicKey | Ed25519PublicKey) -> str:
    return f"RSA, {key.key_size} bits" if isinstance(key, RSAPublicKey) else "Ed25519"


def _key(prepared: Prepared, record: str) -> tuple[bool, RSAPublicKey | Ed25519PublicKey]:
    """Read a key record (3.6.1): whether the domain tests DKIM, and the key."""
    tags = _tags(record.encode("latin-1", "replace"))
    if "v" in tags and (next(iter(tags)) != "v" or _text(tags, "v") != "DKIM1"):
        _unusable("it is no key of DKIM (v=)")
    if "sha256" not in _list(_text(tags, "h", "sha256").lower()):
        _unusable("it is not for SHA-256 (h=)")
    if not {"*", "email"} & set(_list(_text(tags, "s", "*").lower())):
        _unusable("it is not for mail (s=)")
    key_type = _text(tags, "k", "rsa").lower()
    if key_type != prepared.key_type:
        _unusable(f"it is for {quoted(key_type)}, not {prepared.key_type}")
    flags = _list(_text(tags, "t", "").lower())
    if "s" in flags and prepared.identity != prepared.domain:
        _unusable("it is not for subdomains (t=s)")
    public = _decoded(tags, "p")
    if not public:
        _unusable("it was revoked")
    return "y" in flags, _public_key(key_type, public)


def _public_key(key_type: str, public: bytes) -> RSAPublicKey | Ed25519PublicKey:
    try:
        if key_type == "ed25519":
            return Ed25519PublicKey.from_public_bytes(public)
        key = load_der_public_key(public)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        _unusable("it is malformed (p=)")
    if not isinstance(key, RSAPublicKey):
        _unusable("it is not RSA (p=)")
    if not MIN_BITS <= key.key_size <= MAX_BITS:
        _unusable(f"an RSA key of {key.key_size} bits is not accepted (RFC 8301)")
    if key.public_numbers().e.bit_length() > _MAX_EXPONENT_BITS:
        _unusable("its exponent is too large")
    return key
