"""Certificates for tests."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

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
