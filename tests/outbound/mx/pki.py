"""Certificates of any kind, good and bad, for what is held against TLSA records."""

from __future__ import annotations

import datetime
import hashlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    private: Key

    @property
    def der(self) -> bytes:
        """The certificate's bytes."""
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def key(self) -> bytes:
        """The bytes of its SubjectPublicKeyInfo."""
        public = self.certificate.public_key()
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def record(self, usage: int, selector: int, matching: int) -> str:
        """The TLSA record that means it."""
        data = self.key if selector else self.der
        if matching:
            data = (hashlib.sha512 if matching == 2 else hashlib.sha256)(data).digest()
        return f"{usage} {selector} {matching} {data.hex()}"


def issue(
    name: str,
    by: Issued | None = None,
    *extensions: tuple[x509.ExtensionType, bool],
    names: Sequence[str] = (),
    ca: bool | None = None,
    path_length: int | None = None,
    days: float = 30.0,
    key: Key | None = None,
) -> Issued:
    """A certificate for a common name and these dNSNames, signed `by` another or by itself.

    `ca`: None has it say nothing of that; `days` below 0: it has expired.
    """
    private = key or ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    if ca is not None:
        made = made.add_extension(x509.BasicConstraints(ca, path_length), True)
    if names:
        made = made.add_extension(
            x509.SubjectAlternativeName(list(map(x509.DNSName, names))), False
        )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    signer = private if by is None else by.private
    hashed = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Issued(made.sign(signer, hashed), private)


def written(folder: Path, chain: Sequence[Issued]) -> Path:
    """The file of the first one's key, and of these certificates."""
    own = chain[0]
    pem = folder / f"{own.certificate.serial_number}.pem"
    private = own.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = [one.certificate.public_bytes(Encoding.PEM) for one in chain]
    pem.write_bytes(private + b"".join(shown))
    return pem


def serving(folder: Path, chain: Sequence[Issued]) -> ssl.SSLContext:
    """What a server has that shows these, its own first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(written(folder, chain))
    return context
