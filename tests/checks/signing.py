"""A signer of mail, apart from the checks: RFC 6376 once more, short and slow, and able to lie."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Form = Literal["simple", "relaxed"]


@cache
def rsa_key(bits: int = 1024) -> RSAPrivateKey:
    """One key of a size for all tests: making it takes longer than what it signs."""
    return generate_private_key(65537, bits)


@cache
def ed25519_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def record(key: RSAPrivateKey | Ed25519PrivateKey, more: str = "") -> str:
    """The TXT record of a key."""
    if isinstance(key, RSAPrivateKey):
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        kind = "rsa"
    else:
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        kind = "ed25519"
    return f"v=DKIM1; k={kind}; {more}p={base64.b64encode(public).decode()}"


def sign(
    message: bytes,
    key: RSAPrivateKey | Ed25519PrivateKey,
    *,
    domain: str = "example.com",
    selector: str = "s",
    header: Form = "relaxed",
    body: Form = "relaxed",
    names: Sequence[str] = ("from", "to", "subject", "date"),
    length: int | None = None,
    tags: str = "",
    fold: str = "\r\n\t",
    sha1: bool = False,
) -> bytes:
    """The message with a DKIM-Signature on top; `tags` (`x=1; `) stand before `h=`."""
    head, _, text = message.partition(b"\r\n\r\n")
    fields = re.split(rb"\r\n(?![ \t])", head)
    canonical = _body(text, body)
    count = len(canonical) if length is None else length
    made = hashlib.sha1 if sha1 else hashlib.sha256
    bh = base64.b64encode(made(canonical[:count]).digest()).decode()
    kind = "ed25519" if isinstance(key, Ed25519PrivateKey) else "rsa"
    said = "" if length is None else f"l={length}; "
    value = (
        f" v=1; a={kind}-{'sha1' if sha1 else 'sha256'}; c={header}/{body}; d={domain};{fold}"
        f"s={selector}; {said}{tags}h={(' :' + fold).join(names)};{fold}bh={bh};{fold}b="
    )
    own = b"DKIM-Signature:" + value.encode()
    signed, left = b"", list(fields)
    for name in names:
        for field in reversed(left):
            if field.partition(b":")[0].strip().lower() == name.lower().encode():
                left.remove(field)
                signed += _field(field, header) + b"\r\n"
                break
    signed += _field(own, header)
    if isinstance(key, RSAPrivateKey):
        signature = key.sign(signed, PKCS1v15(), SHA1() if sha1 else SHA256())
    else:
        signature = key.sign(hashlib.sha256(signed).digest())
    encoded = base64.b64encode(signature).decode()
    folded = fold.join(encoded[at : at + 60] for at in range(0, len(encoded), 60))
    return own + folded.encode() + b"\r\n" + message


def _field(field: bytes, form: Form) -> bytes:
    if form == "simple":
        return field
    name, _, value = field.partition(b":")
    value = re.sub(rb"[ \t]+", b" ", re.sub(rb"\r\n", b"", value))
    return name.strip().lower() + b":" + value.strip()


def _body(text: bytes, form: Form) -> bytes:
    lines = text.split(b"\r\n")
    if form == "relaxed":
        lines = [re.sub(rb"[ \t]+", b" ", line).rstrip(b" ") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        return b"" if form == "relaxed" else b"\r\n"
    return b"\r\n".join(lines) + b"\r\n"
