"""Would the world take this mail: the whole program, a DNS of the test, and clients by a proxy."""

from __future__ import annotations

import json
import smtplib
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.dns.server import DnsServer
from tests.relay_process import RelayProcess

PROXY = "127.0.0.2"
ZONE = {
    ("example.com", "TXT"): ['"v=spf1 ip4:192.0.2.1 -all exp=why.example.com"'],
    ("why.example.com", "TXT"): ['"%{c} is not ours"'],
    ("mx.example.com", "TXT"): ['"v=spf1 ip4:192.0.2.7 -all"'],
    ("void.example", "TXT"): ['"v=spf1 a:1.void.example a:2.void.example a:3.void.example ?all"'],
    ("_dmarc.example.com", "TXT"): ['"v=DMARC1; p=reject"'],
}
MAIL = b"From: ann@example.com\r\nSubject: a\r\n\r\nHello.\r\n"


@pytest.fixture
async def names(nursery: trio.Nursery) -> DnsServer:
    server: DnsServer = await nursery.start(DnsServer(dict(ZONE)).run)
    return server


class _ByProxy(smtplib.SMTP):
    """A client for which a proxy has opened the connection."""

    def __init__(self, named: str) -> None:
        super().__init__(timeout=30, local_hostname="mx.example.com")
        self._named = named

    def _get_socket(self, host: str, port: int, timeout: Any) -> socket.socket:
        made = socket.create_connection((host, port), timeout, (PROXY, 0))
        made.sendall(f"PROXY TCP4 {self._named} 10.0.0.1 1 25\r\n".encode())
        return made


def _deliver(relay: RelayProcess, client: str, sender: str, address: str) -> None:
    with _ByProxy(client) as session:
        session.connect(*relay.smtp)
        session.sendmail(sender, address, MAIL)


async def test_spf_is_asked_about_mail_of_the_world(names: DnsServer, tmp_path: Path):
    """About the client that the proxy names, and the reverse-path or its HELO."""
    env = {
        "RELAY_DNS__SERVERS": json.dumps([f"127.0.0.1:{names.address[1]}"]),
        "RELAY_SMTP__TRUSTED_PROXIES": json.dumps([PROXY]),
    }
    await trio.to_thread.run_sync(_check, RelayProcess(tmp_path / "data", env=env))
    assert names.asked["3.void.example", "A"] == 1


def _check(relay: RelayProcess) -> None:
    with relay, relay.http() as http:
        address = relay.create_mailbox()
        path = f"/api/v1/mailboxes/{address}/messages"

        def checked(client: str, sender: str) -> Any:
            _deliver(relay, client, sender, address)
            (newest,) = http.get(path, params={"limit": 1}).json()
            return http.get(f"{path}/{newest['id']}/checks").json()

        def results(said: Any) -> tuple[str, str]:
            return said["spf"]["result"], said["dmarc"]["result"]

        assert results(checked("192.0.2.1", "ann@example.com")) == ("pass", "pass")
        said = checked("192.0.2.9", "ann@example.com")
        assert results(said) == ("fail", "fail")
        assert "example.com says: 192.0.2.9 is not ours" in said["spf"]["detail"]
        # The null sender: by HELO, which is aligned with From.
        assert results(checked("192.0.2.7", "")) == ("pass", "pass")
        said = checked("192.0.2.1", "ann@void.example")
        assert said["spf"]["result"] == "permerror"
        assert "more than 2 terms ask for what does not exist" in said["spf"]["detail"]
        assert results(checked("127.0.0.1", "ann@example.com")) == ("none", "fail")
