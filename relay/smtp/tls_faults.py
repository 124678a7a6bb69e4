"""Faults of the TLS of a server, as reports of TLS have them (RFC 8460, 4.3).

Pure.
"""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import NamedTuple


class TlsFault(StrEnum):
    """Why a session was not secured as it should have been."""

    STARTTLS = "starttls-not-supported"
    """STARTTLS is not offered, or refused."""
    HOST = "certificate-host-mismatch"
    EXPIRED = "certificate-expired"
    NOT_TRUSTED = "certificate-not-trusted"
    VALIDATION = "validation-failure"
    """Anything else."""


class Wrong(NamedTuple):
    """The fault of a certificate that a server shows; `text` is a clause."""

    fault: TlsFault
    text: str


_EXPIRED = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_HOST = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_NOT_TRUSTED = {2, 18, 19, 20, 21, 27}
# X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, …_DEPTH_ZERO_SELF_SIGNED_CERT,
# …_SELF_SIGNED_CERT_IN_CHAIN, …_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
# …_UNABLE_TO_VERIFY_LEAF_SIGNATURE, …_CERT_UNTRUSTED


def fault_of(error: ssl.SSLCertVerificationError) -> TlsFault:
    """Which fault OpenSSL has found with a certificate."""
    code = error.verify_code
    if code in _EXPIRED:
        return TlsFault.EXPIRED
    if code in _HOST:
        return TlsFault.HOST
    return TlsFault.NOT_TRUSTED if code in _NOT_TRUSTED else TlsFault.VALIDATION
