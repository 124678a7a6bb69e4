"""Signing what leaves (DKIM, RFC 6376; Ed25519: RFC 8463): the fields that go before a message.

`relay.checks.signatures` has the canonical forms, which a signer and a verifier share.

Promises
- A message is signed with every key of its author's domain, that of From: each makes a field of its
  own, relaxed/relaxed, over the whole body (no l=).
- From is signed once more than it is there, and so are the other fields that readers show, and
  those by which they unsubscribe: whoever adds one breaks the signature.
- The same message and the same keys give the same bytes: nothing tells the time (no t=, no x=).
- Only a message that all programs read alike is signed: one From with one address, every line of
  the header a field with its colon right behind its name, and no VT or FF there, which are white
  space to some.  What is signed is not changed.
- Linear in the message.

Fails: `unsigned` returns nothing where a message cannot be signed; `Unloadable` for what is no
private key.

RSA takes some tenths of a millisecond, several times what all the rest does: so `unsigned` makes
the fields but for what a key makes of their digests, and `sign` may be called elsewhere, in a
thread or in a process (`relay.outbound.signing.processes`).

Pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from relay.checks.author import author
from relay.checks.fields import Field, Oversize, split
from relay.checks.signatures import relaxed_body, relaxed_field, relaxed_fields
from relay.errors import PermanentFailure

RSA_BITS = 2048
ALGORITHMS = ("rsa-sha256", "ed25519-sha256")
"""What a= of a signature may be; a domain has a key of each."""

_OVERSIGNED = (
    *("from", "to", "cc", "subject", "date", "reply-to", "message-id"),
    "content-type",
)
"""Fields that readers show or that decide what they show: none may be added."""
_OVERSIGNED_IF_THERE = ("list-unsubscribe", "list-unsubscribe-post")
"""Fields of which none may be added beside one, for a button would obey it.  Where there is none, a
list that the mail goes through may add its own."""
_SIGNED = (
    *("mime-version", "content-transfer-encoding", "sender", "in-reply-to", "references"),
    *("list-id", "list-help", "list-subscribe", "list-owner", "list-post", "list-archive"),
    *("feedback-id", "auto-submitted"),
)
"""Fields that are signed as often as they are there."""
_SPACES = re.compile(rb"[\v\f]")
_FOLD_AT = 76
_HASH = SHA256()
_PADDING = PKCS1v15()

PrivateKey = RSAPrivateKey | Ed25519PrivateKey


class Unloadable(PermanentFailure):
    """What was stored as a private key is none."""


class Published(Protocol):
    """Where the public half of a key is published, `selector._domainkey.domain`, and its kind."""

    @property
    def domain(self) -> str:
        """The domain that it signs for."""

    @property
    def selector(self) -> str:
        """Its name there."""

    @property
    def algorithm(self) -> str:
        """One of `ALGORITHMS`."""


class Unsigned(NamedTuple):
    """A DKIM-Signature field but for what its key makes of the digest."""

    field: bytes
    digest: bytes

    def by(self, signature: bytes) -> bytes:
        """The field, signed."""
        text = base64.b64encode(signature)
        lines = [text[start : start + _FOLD_AT] for start in range(0, len(text), _FOLD_AT)]
        return self.field + b"\r\n\t".join([b"", *lines]) + b"\r\n"


K = TypeVar("K", bound=Published)


def generate(algorithm: str) -> PrivateKey:
    """Make a key for one of `ALGORITHMS`.  RSA takes tenths of a second."""
    if algorithm == "rsa-sha256":
        return generate_private_key(65537, RSA_BITS)
    return Ed25519PrivateKey.generate()


def dump(key: PrivateKey) -> str:
    """A private key as text, to be stored encrypted."""
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return base64.b64encode(der).decode()


def load(text: str) -> PrivateKey:
    """The private key that `dump` wrote."""
    try:
        # We made it and kept it encrypted: whether it is prime takes a tenth of a second to see.
        key = load_der_private_key(
            base64.b64decode(text), None, unsafe_skip_rsa_key_validation=True
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unloadable("a stored key is none") from error
    if not isinstance(key, RSAPrivateKey | Ed25519PrivateKey):
        raise Unloadable("a stored key is of another kind")
    return key


def record(key: PrivateKey) -> str:
    """What the domain is to publish as TXT (3.6.1): the strings of it joined."""
    if isinstance(key, RSAPrivateKey):
        kind = "rsa"
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    else:
        kind = "ed25519"
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"v=DKIM1; k={kind}; p={base64.b64encode(public).decode()}"


def author_domain(header: bytes) -> str:
    """The domain whose keys sign a message of this header; empty: it cannot be signed."""
    try:
        fields, _ = split(header)
    except Oversize:
        return ""
    return _author_domain(fields)


def unsigned(message: bytes, keys_of: Callable[[str], Sequence[K]]) -> list[tuple[K, Unsigned]]:
    """The DKIM-Signature fields that go in front of a message (its line ends CRLF), in their order:
    each with its key, and `by` what that makes of its digest (`sign`).

    `keys_of` gives the keys of a domain; what it raises passes.
    """
    try:
        fields, body = split(message)
    except Oversize:
        return []
    domain = _author_domain(fields)
    keys = keys_of(domain) if domain else ()
    if not keys:
        return []
    names = _names(fields)
    body_hash = base64.b64encode(hashlib.sha256(relaxed_body(body)).digest())
    signed = relaxed_fields(fields, names)
    return [(key, _unsigned(key, signed, names, body_hash)) for key in keys]


def sign(key: PrivateKey, digest: bytes) -> bytes:
    """What a key makes of a digest."""
    if isinstance(key, RSAPrivateKey):
        return key.sign(digest, _PADDING, Prehashed(_HASH))
    return key.sign(digest)


def _author_domain(fields: Sequence[Field]) -> str:
    if not all(map(_is_plain, fields)):
        return ""
    return author(fields).domain


def _is_plain(field: Field) -> bool:
    """Whether all programs read a field alike; at what is none, some end the header."""
    name = len(field.name)
    return bool(name) and field.raw[name : name + 1] == b":" and not _SPACES.search(field.raw)


def _names(fields: Sequence[Field]) -> tuple[str, ...]:
    """What h= names, each as often as it is signed."""
    there: dict[bytes, int] = {}
    for field in fields:
        there[field.name] = there.get(field.name, 0) + 1
    names: list[str] = []
    for name in _OVERSIGNED:
        names += [name] * (there.get(name.encode(), 0) + 1)
    for name in _OVERSIGNED_IF_THERE:
        if count := there.get(name.encode(), 0):
            names += [name] * (count + 1)
    for name in _SIGNED:
        names += [name] * there.get(name.encode(), 0)
    return tuple(names)


def _unsigned(key: Published, signed: bytes, names: tuple[str, ...], body_hash: bytes) -> Unsigned:
    field = b"%b\r\n\tbh=%b;\r\n\tb=" % (
        _beginning(key.domain, key.selector, key.algorithm, names),
        body_hash,
    )
    own = Field(b"dkim-signature", field)
    return Unsigned(field, hashlib.sha256(signed + relaxed_field(own)).digest())


@lru_cache(maxsize=256)
def _beginning(domain: str, selector: str, algorithm: str, names: Sequence[str]) -> bytes:
    """The field up to h=, on lines of `_FOLD_AT`; the mails of a domain share a few of them."""
    first, *others = names
    lines = ["DKIM-Signature: v=1;"]
    for word in (
        *(f"a={algorithm};", "c=relaxed/relaxed;", f"d={domain};", f"s={selector};"),
        *(f"h={first}", *(f":{name}" for name in others[:-1]), f":{others[-1]};"),
    ):
        gap = "" if word.startswith(":") else " "
        if len(lines[-1]) + len(gap) + len(word) <= _FOLD_AT:
            lines[-1] += gap + word
        else:
            lines.append(f"\t{word}")
    return "\r\n".join(lines).encode()
