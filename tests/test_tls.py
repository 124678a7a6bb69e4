"""The certificate of the relay's ports: what is taken up, and what is refused."""

from __future__ import annotations

import ssl

import pytest
import structlog.testing

from relay.errors import ConfigError
from relay.self_signed import self_signed
from relay.tls import Certificate, server_context
from tests.certificates import write


def test_what_is_offered(tmp_path):
    """TLS 1.2 at least, neither renegotiation nor compression."""
    context = server_context(*write(tmp_path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


def test_a_bad_certificate_changes_nothing_and_is_said_once(tmp_path):
    """What is being written is left alone; what is no good is refused; what is good is taken."""
    certificate = Certificate.load(*write(tmp_path))
    context = certificate.context
    (tmp_path / "cert.pem").write_bytes(b"not yet whole")
    with structlog.testing.capture_logs() as lines:
        certificate.look(0.0)
        assert lines == []
        for second in range(1, 4):
            certificate.look(second)
    assert [line["event"] for line in lines] == ["tls.certificate_refused"]
    assert certificate.context is context
    (tmp_path / "cert.pem").unlink()
    with structlog.testing.capture_logs() as lines:
        for second in range(4, 7):
            certificate.look(second)
    assert [line["event"] for line in lines] == ["tls.certificate_refused"]
    assert "No such file" in lines[0]["reason"]
    write(tmp_path)
    for second in range(7, 9):
        certificate.look(second)
    assert certificate.context is not context


def test_ports_that_share_a_certificate_look_once_a_second(tmp_path):
    """However many ask: a file that is being written has a second to stay as it is."""
    certificate = Certificate.load(*write(tmp_path))
    (tmp_path / "cert.pem").write_bytes(b"not yet whole")
    with structlog.testing.capture_logs() as lines:
        for now in (0.0, 0.1, 0.9):
            certificate.look(now)
        assert lines == []
        certificate.look(1.0)
    assert [line["event"] for line in lines] == ["tls.certificate_refused"]


def test_what_is_wrong_at_the_start_is_said(tmp_path):
    """A sentence for each: no file, another's key, no PEM, a key with a password."""
    cert, key = write(tmp_path)
    with pytest.raises(ConfigError, match=r"nowhere\.pem cannot be read \(No such file"):
        Certificate.load(cert, str(tmp_path / "nowhere.pem"))
    other = self_signed(["localhost"])[1]
    (tmp_path / "other.pem").write_bytes(other)
    with pytest.raises(ConfigError, match="the key is not that of the certificate"):
        Certificate.load(cert, str(tmp_path / "other.pem"))
    (tmp_path / "none.pem").write_bytes(b"")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        Certificate.load(str(tmp_path / "none.pem"), key)
