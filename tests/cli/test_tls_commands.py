"""`relay tls`: a certificate that works as it stands."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509

from relay.ports.certificate import server_context
from relay.settings import load
from tests.cli.command import cli


@pytest.mark.parametrize("named", [True, False])
def test_a_certificate_for_development(tmp_path: Path, named: bool) -> None:
    """Two files that belong together, the key for nobody else's eyes, and the settings to set."""
    where = tmp_path / "made" if named else tmp_path / "var" / "tls"
    options: list[str | Path] = ["--out", where] if named else []
    env = {"RELAY_SMTP__DOMAINS": '["mail.example", "other.example"]'}
    done = cli("tls", "self-signed", *options, "--data-dir", tmp_path / "var", env=env)
    assert done.returncode == 0, done.stderr
    environ = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    settings = load(environ=environ).smtp
    assert settings.certificate == (str(where / "cert.pem"), str(where / "key.pem"))
    server_context(*settings.certificate)
    assert stat.S_IMODE((where / "key.pem").stat().st_mode) == 0o600
    made = x509.load_pem_x509_certificate((where / "cert.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        *("localhost", "mail.example", "other.example"),
        *("127.0.0.1", "::1"),
    ]


def test_only_what_was_made_so_is_replaced(tmp_path: Path) -> None:
    """It is made anew; beside anything else, one sentence and exit code 1."""
    arguments = ("tls", "self-signed", "--out", tmp_path, "--data-dir", tmp_path)
    assert cli(*arguments).returncode == 0
    before = (tmp_path / "cert.pem").read_bytes()
    again = cli(*arguments, "--json")
    assert again.returncode == 0
    assert set(json.loads(again.stdout)) == {"names", "days", "settings"}
    assert (tmp_path / "cert.pem").read_bytes() != before
    (tmp_path / "cert.pem").unlink()
    key = (tmp_path / "key.pem").read_bytes()
    refused = cli(*arguments)
    assert refused.returncode == 1
    assert b"not self-signed" in refused.stderr
    assert (tmp_path / "key.pem").read_bytes() == key
