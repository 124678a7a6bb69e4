"""The certificate of the relay's ports: what is taken up, and what is refused."""

from __future__ import annotations

import contextlib
import re
import shutil
import ssl
import struct
import subprocess
import warnings
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from relay.errors import ConfigError
from relay.ports.certificate import LOOK_EVERY, Certificate, server_context
from relay.self_signed import self_signed
from tests.certificates import write


def test_what_is_offered(tmp_path):
    """TLS 1.2 at least, neither renegotiation nor compression."""
    context = server_context(*write(tmp_path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


SOUND = re.compile(r"(?:ECDHE|DHE)-(?:RSA|ECDSA)-(?:AES\d+-GCM-SHA\d+|CHACHA20-POLY1305)")
"""Suites with a key for each session, which whoever gets the certificate's key cannot open, and
without the paddings of CBC."""
BROKEN = re.compile(r"NULL|EXP|RC[24]|DES|MD5|SHA$|PSK|SRP|ADH|AECDH|DSS|SEED|IDEA|ARIA|CAMELLIA")


def shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[str, str | None] | None:
    """Shake hands in memory: version and suite that were chosen, or None where nothing suits."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
    chosen = ends[1].cipher()
    assert ends[0].compression() is None
    assert chosen is not None
    return str(ends[1].version()), chosen[0]


def a_client(version: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
    """One that takes anything, of one version."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.options &= ~ssl.OP_NO_COMPRESSION
    client.set_ciphers(ciphers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old versions
        client.minimum_version = client.maximum_version = version
    return client


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_every_suite_that_a_client_could_ask_for(tmp_path, kind):
    """Each by itself: those that are taken are sound, and some are; nothing below TLS 1.2."""
    cert, key = write(tmp_path) if kind == "ec" else rsa(tmp_path)
    server = server_context(cert, key)
    everything = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
    known = a_client(ssl.TLSVersion.TLSv1_2, everything).get_ciphers()
    names = [each["name"] for each in known if not each["name"].startswith("TLS_")]
    assert len(names) > 50, "this OpenSSL knows too few to tell"
    taken = []
    for name in names:
        client = a_client(ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0")
        if shaken(client, server) is not None:
            taken.append(name)
    assert len(taken) >= 3
    assert [name for name in taken if not SOUND.fullmatch(name) or BROKEN.search(name)] == []
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        assert shaken(a_client(old, everything), server) is None
    found = shaken(a_client(ssl.TLSVersion.TLSv1_3, everything), server)
    assert found is not None
    assert found[0] == "TLSv1.3"


HANDSHAKE, ALERT, SERVER_HELLO = 0x16, 0x15, 2


@pytest.mark.parametrize(
    ("version", "spoken"), [(0x300, False), (0x301, False), (0x302, False), (0x303, True)]
)
def test_hellos_of_versions_that_no_client_here_speaks(tmp_path, version, spoken):
    """From SSLv3 on, written by hand: an alert, but to TLS 1.2, which the same hello gets."""
    cert, key = rsa(tmp_path)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = server_context(cert, key).wrap_bio(received, sent, server_side=True)
    received.write(hello(version))
    with contextlib.suppress(ssl.SSLError):  # which wanting to read more is, too
        end.do_handshake()
    answer = sent.read()
    assert answer[0] == (HANDSHAKE if spoken else ALERT)
    if spoken:
        assert (answer[5], answer[9:11]) == (SERVER_HELLO, b"\x03\x03")


def hello(version: int) -> bytes:
    """A ClientHello that asks for one version, with suites and curves of all times."""
    suites = bytes.fromhex("c02fc02bc014c013003500390033002f000a0005")
    extensions = bytes.fromhex(
        "000a0006000400170018"  # the curves P-256 and P-384
        "000b00020100"  # points, not compressed
        "000d000a0008040108040403 0201"  # RSA and ECDSA with SHA-256, PSS, RSA with SHA-1
    )
    body = struct.pack(">H32xBH", version, 0, len(suites)) + suites + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    body = b"\x01" + len(body).to_bytes(3, "big") + body
    return struct.pack(">BHH", HANDSHAKE, min(version, 0x301), len(body)) + body


def rsa(folder: Path) -> tuple[str, str]:
    """A certificate with an RSA key, which more suites can use than one of elliptic curves."""
    cert, key = str(folder / "rsa.pem"), str(folder / "rsa.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-days", "1", "-out", cert, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_a_bad_certificate_changes_nothing_and_is_said_once(tmp_path):
    """What is being written is left alone; what is no good is refused; what is good is taken."""
    certificate = Certificate.load(*write(tmp_path))
    context = certificate.context
    (tmp_path / "cert.pem").write_bytes(b"not yet whole")
    with structlog.testing.capture_logs() as lines:
        certificate.look()
        assert lines == []
        for _ in range(3):
            certificate.look()
    assert [line["event"] for line in lines] == ["tls.certificate_refused"]
    assert certificate.context is context
    (tmp_path / "cert.pem").unlink()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            certificate.look()
    assert [line["event"] for line in lines] == ["tls.certificate_refused"]
    assert "No such file" in lines[0]["reason"]
    write(tmp_path)
    for _ in range(2):
        certificate.look()
    assert certificate.context is not context


async def test_a_new_certificate_is_taken_up_by_itself(tmp_path, autojump_clock):
    """Whether or not anybody comes, once both files have stayed as they are for a look."""
    certificate = Certificate.load(*write(tmp_path))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.watch)
        await trio.sleep(100.5)
        before = certificate.context
        write(tmp_path)
        await trio.sleep(LOOK_EVERY)
        assert certificate.context is before, "they may be being written"
        await trio.sleep(LOOK_EVERY)
        assert certificate.context is not before
        nursery.cancel_scope.cancel()


async def test_who_shows_the_same_files_hears_that_they_are_read_again(tmp_path):
    """Each time, whether they are good or not; what a look finds is everybody's own business."""
    certificate = Certificate.load(*write(tmp_path))
    heard: list[int] = []

    async def listen() -> None:
        while True:
            await certificate.reload_asked()
            heard.append(len(heard))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        certificate.reload()
        await trio.testing.wait_all_tasks_blocked()
        (tmp_path / "cert.pem").write_bytes(b"")
        certificate.reload()
        await trio.testing.wait_all_tasks_blocked()
        write(tmp_path)
        certificate.look()
        certificate.look()
        await trio.testing.wait_all_tasks_blocked()
        assert heard == [0, 1]
        nursery.cancel_scope.cancel()


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
