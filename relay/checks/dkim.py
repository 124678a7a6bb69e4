"""DKIM (RFC 6376, with 8301 and 8463): who signed a message, and is it still what they signed?

The second half: `relay.checks.signatures` read the message and made of each signature a few
numbers.  `verify` asks the DNS for the key of one and checks it, for which the message is not
needed: at most a few tenths of a millisecond, since keys are bounded, and so it runs in the relay,
beside the resolver.

Promises
- It never raises for what a key record holds.
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

from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from relay.checks.details import in_one_line, quoted
from relay.checks.signatures import Prepared
from relay.checks.tags import Unusable, decoded, items, parse, text, unusable
from relay.dns.questions import Asking, Question, Status, is_name

MIN_BITS, MAX_BITS = 1024, 8192
"""Of an RSA key: what RFC 8301 demands, and what a check is not to cost more than."""
_MAX_EXPONENT_BITS = 64
_MAX_RECORDS = 4  # under one selector, where there should be one


class Signature(NamedTuple):
    """What came of one signature: see the module for `result`."""

    result: str
    domain: str
    selector: str
    detail: str


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
    except Unusable as error:
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
    said = parse(record.encode("latin-1", "replace"))
    if "v" in said and (next(iter(said)) != "v" or text(said, "v") != "DKIM1"):
        unusable("it is no key of DKIM (v=)")
    if "sha256" not in items(text(said, "h", "sha256").lower()):
        unusable("it is not for SHA-256 (h=)")
    if not {"*", "email"} & set(items(text(said, "s", "*").lower())):
        unusable("it is not for mail (s=)")
    key_type = text(said, "k", "rsa").lower()
    if key_type != prepared.key_type:
        unusable(f"it is for {quoted(key_type)}, not {prepared.key_type}")
    flags = items(text(said, "t", "").lower())
    if "s" in flags and prepared.identity != prepared.domain:
        unusable("it is not for subdomains (t=s)")
    public = decoded(said, "p")
    if not public:
        unusable("it was revoked")
    return "y" in flags, _public_key(key_type, public)


def _public_key(key_type: str, public: bytes) -> RSAPublicKey | Ed25519PublicKey:
    try:
        if key_type == "ed25519":
            return Ed25519PublicKey.from_public_bytes(public)
        key = load_der_public_key(public)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        unusable("it is malformed (p=)")
    if not isinstance(key, RSAPublicKey):
        unusable("it is not RSA (p=)")
    if not MIN_BITS <= key.key_size <= MAX_BITS:
        unusable(f"an RSA key of {key.key_size} bits is not accepted (RFC 8301)")
    if key.public_numbers().e.bit_length() > _MAX_EXPONENT_BITS:
        unusable("its exponent is too large")
    return key
