"""Keys and certificates, the same in all worlds: OpenSSL's chance is its own.

`private_key` stands for the relay's DKIM keys, too.  Exchangers show either of two certificates
(`serving`): that of `OWN`, which the zone's TLSA records name (`tlsa`), or that of `ANOTHER`.

How many bytes pass is no matter of chance: signatures by RSA and Ed25519 have one length, and
session tickets, whose length has not, are not given out.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from functools import lru_cache
from typing import Any

OWN, ANOTHER = "rsa-sha256", "ed25519-sha256"

_P = int(
    "d537c1f2a1ae9cb929c379e6bec7a808449c2ef30698503e796c70aa44ea51fadcc7c20268f1265b443f3627acaf46"
    "095498a53fb3f423d9b2f011991c140c2780263108010e6333ca418b8b6bb2e7223839bd55d4dc3de25d8393d097c4"
    "61b466c36638da594824fc740cc4bebcb483e12510c56f44390276c686d23c227c21",
    16,
)
_Q = int(
    "befa8b55e3d30235d59a9f06b36e2ec15658620738ec35ecd669cd66dd432c314d442468966c551f42ef183c29e180"
    "766ea599aaef33f5fcd01034fb123c06fdc9bdfa7edf419eb498e80c30d13a747669ac53840210c91d3434b0f443cf"
    "524c25eecfdaeb6c986f274c50e41e314a5a1b18ce8bd11ca659c098fd98ff8b2db3",
    16,
)


@lru_cache
def private_key(algorithm: str) -> Any:
    """Return the key of this algorithm, the same in all worlds: OpenSSL's chance is its own."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if algorithm != "rsa-sha256":
        return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public, d = rsa.RSAPublicNumbers(65537, _P * _Q), pow(65537, -1, (_P - 1) * (_Q - 1))
    halves = rsa.rsa_crt_dmp1(d, _P), rsa.rsa_crt_dmq1(d, _Q), rsa.rsa_crt_iqmp(_P, _Q)
    return rsa.RSAPrivateNumbers(_P, _Q, d, *halves, public).private_key()


@lru_cache
def serving(algorithm: str, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return what a server shakes hands with, which has the key of this algorithm; `most`: the
    highest version of TLS that it speaks."""
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = private_key(algorithm)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "exchanger.example")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2036, 1, 1, tzinfo=UTC))
        .sign(key, SHA256() if algorithm == OWN else None)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = most
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    with tempfile.NamedTemporaryFile() as file:
        file.write(made.public_bytes(Encoding.PEM))
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        context.load_cert_chain(file.name)
    return context


@lru_cache
def tlsa() -> bytes:
    """Return the data of a TLSA record that names the key of `OWN`, whatever certificate it is in:
    3 1 1 (RFC 6698)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = private_key(OWN).public_key()
    shown = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return bytes((3, 1, 1)) + hashlib.sha256(shown).digest()
