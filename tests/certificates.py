"""Certificates for tests."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from relay.self_signed import self_signed


def write(folder: Path, *, days: float = 30.0) -> tuple[str, str]:
    """Put a new certificate for localhost and its key into a folder, and say where."""
    cert, key = self_signed(["localhost", "127.0.0.1"], days=days)
    (folder / "key.pem").write_bytes(key)
    (folder / "cert.pem").write_bytes(cert)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def serial(cert: str) -> int:
    """The serial number of a certificate in a file."""
    return x509.load_pem_x509_certificate(Path(cert).read_bytes()).serial_number


class Authority:
    """An authority of a test's own."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        self._certificate = self._signed(self._name, self._key, [], days=30.0)

    def trusting(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Have a client's context trust it."""
        context.load_verify_locations(cadata=_pem(self._certificate).decode())
        return context

    def server(
        self, folder: Path, names: Sequence[str], *, days: float = 30.0, subject: str = "a server"
    ) -> ssl.SSLContext:
        """What a server has that it vouches for, by these dNSNames; `days` below 0: had vouched."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        certificate = self._signed(name, key, names, days=days)
        pem = folder / f"{certificate.serial_number}.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pem.write_bytes(_pem(certificate) + private)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        return context

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: Sequence[str],
        *,
        days: float,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        ours, theirs = self._key.public_key(), key.public_key()
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(ours)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(theirs)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=key is self._key, path_length=None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(theirs), False)
            .add_extension(above, False)
        )
        if names:
            each = [x509.DNSName(one) for one in names]
            made = made.add_extension(x509.SubjectAlternativeName(each), False)
        return made.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
