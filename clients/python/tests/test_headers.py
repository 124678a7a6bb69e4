"""What goes along with a call: what the relay needs, and what a proxy has asked for."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Callable

import anyio
import pytest
from serving import fields_of, reply, serving

import relay_client
from relay_client import AsyncRelay, Relay, RelayError

Balancer = tuple[str, list[bytes]]


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    """Answer as a relay does that has no mail, behind a balancer that sets a cookie once."""
    calls = count()

    def answers() -> bytes:
        return reply("[]") if next(calls) else reply("[]", headers={"Set-Cookie": "node=2; Path=/"})

    with serving(lambda peer, _: peer.sendall(answers())) as served:
        yield served


def look(heard: list[bytes]) -> None:
    first, second, third = map(fields_of, heard)
    assert set(first) == {"host", "accept", "accept-encoding", "user-agent", "authorization"}
    assert first["accept-encoding"] == "identity"
    assert first["user-agent"] == f"relay-client/{relay_client.__version__}"
    assert second.pop("cookie") == third.pop("cookie") == "node=2"
    assert second == third == first


def test_a_cookie_goes_back_and_nothing_needless_goes_along(balancer: Balancer) -> None:
    """A balancer keeps a client at its node; what httpx would say besides costs each call."""
    url, heard = balancer
    with Relay(url, "rk_x") as relay:
        for _ in range(3):
            assert relay.mailbox("a@shop.example").messages() == []
    look(heard)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_asynchronous_client_sends_the_same(balancer: Balancer, backend: str) -> None:
    """On asyncio and on Trio."""
    url, heard = balancer

    async def read() -> None:
        async with AsyncRelay(url, "rk_x") as relay:
            for _ in range(3):
                assert await relay.mailbox("a@shop.example").messages() == []

    anyio.run(read, backend=backend)
    look(heard)


_EVIL = b"##[error]\x1b[2J\x1b]0;t\x07##vso[task.complete]"


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_what_is_logged_of_a_call_drives_nothing(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """Not the phrase of the status line, nor a header: live logs go to a terminal as they come."""
    said = reply("[]", headers={"X": "FIELD"}).replace(b" x\r", b" " + _EVIL + b"\r")
    said = said.replace(b"FIELD", _EVIL)
    with (
        caplog.at_level(level),
        serving(lambda peer, _: peer.sendall(said)) as (url, _),
        Relay(url, "rk_x") as relay,
    ):
        assert relay.mailbox("a@shop.example").messages() == []
    assert "\\u0023#[error]" in caplog.text
    assert f"GET {url}/api/v1/mailboxes/a@shop.example/messages" in caplog.text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]|##(\[|vso\[)", caplog.text)


_NO_PROXY = "a proxy of the environment has no URL that can be read"
_WRONG = {
    "http_proxy": ("http://ci:S3cr3t/tail@proxy.example:3128", _NO_PROXY),
    "all_proxy": ("socks4://ci:S3cr3t@proxy.example:3128", _NO_PROXY),
    "SSL_CERT_FILE": ("{}/S3cr3t", "the certificates of SSL_CERT_FILE cannot be read"),
    "SSLKEYLOGFILE": ("{}/no/S3cr3t", "the file of SSLKEYLOGFILE cannot be written"),
}


@pytest.mark.parametrize("variable", _WRONG)
@pytest.mark.parametrize("kind", [Relay, AsyncRelay])
def test_what_of_the_environment_cannot_be_used_is_said_without_its_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Callable[[str], Any], variable: str
) -> None:
    """Nor is it, or the token, in what the client's frames were called with."""
    value, said = _WRONG[variable]
    (tmp_path / "S3cr3t").touch()  # no certificate
    monkeypatch.setenv(variable, value.format(tmp_path))
    monkeypatch.setenv("RELAY_TOKEN", "rk_S3cr3t")
    with pytest.raises(RelayError, match=f"^{said}") as wrong:
        kind("http://relay.example")
    assert wrong.value.__context__ is None
    below = wrong.tb.tb_next
    shown = traceback.TracebackException(wrong.type, wrong.value, below, capture_locals=True)
    assert "in client" in "".join(shown.format())
    assert "S3cr3t" not in "".join(shown.format())


def test_the_package_says_the_version_that_it_is_installed_as() -> None:
    """It is read from no metadata, which a tree does not have; a wheel has nothing else."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    if project.exists():
        assert f'\nversion = "{relay_client.__version__}"\n' in project.read_text()
    else:
        assert version("relay-client") == relay_client.__version__
