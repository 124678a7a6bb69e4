"""The operator's own aiosmtpd handler, run as the ingest filter."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from relay.errors import ConfigError
from relay.smtp.filtering import FilterClass, load
from supervisor import Exited
from tests.smtp.service import serving

pytestmark = pytest.mark.filterwarnings(
    # trio-asyncio reads asyncio's policy, which later Pythons deprecate.
    "ignore::DeprecationWarning:trio_asyncio"
)


class Handler:
    """Refuses what its rules name, asynchronously, as a spam filter would."""

    def __init__(self) -> None:
        self.hosts: list[str] = []

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        """Refuse one name."""
        session.host_name = hostname
        await asyncio.sleep(0.001)
        return ["550 5.7.1 not you"] if hostname == "evil.example" else responses

    async def handle_MAIL(self, server, session, envelope, address, options):
        """Misbehave in the way the sender asks for."""
        envelope.mail_from = "somebody@else.example"
        envelope.mail_options.extend(options)
        match address:
            case "raise@b.example":
                raise RuntimeError("secret")
            case "exit@b.example":
                sys.exit(3)
            case "hang@b.example":
                await asyncio.sleep(3600)
            case "stubborn@b.example":
                for _ in range(4):
                    try:
                        await asyncio.sleep(1)
                    except asyncio.CancelledError:
                        continue
            case "inject@b.example":
                return "550 no\r\n250 yes"
            case "nothing@b.example":
                return None
            case "defer@b.example":
                return "450 come back"
        return "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):
        """Refuse one recipient."""
        if address.startswith("refused"):
            return "550 not that one"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        """Refuse by content, and try to change it."""
        assert session.peer[0] == "127.0.0.1"
        if b"SPAM" in envelope.content:
            return f"554 5.7.1 spam for {len(envelope.rcpt_tos)} from {session.host_name}"
        envelope.content = b"changed"
        return "250 2.0.0 fine"


FILTER = FilterClass("tests:Handler", Handler, frozenset({"EHLO", "MAIL", "RCPT", "DATA"}))


async def test_a_filter_decides_at_every_step_and_alters_nothing(pool):
    """Refusals of EHLO, MAIL, RCPT and DATA are passed on with an enhanced code; what is stored
    is what the client sent."""
    with trio.fail_after(20):
        async with serving(pool, filter_=FILTER) as service:
            bob = await service.mailbox()
            refused = await service.mailbox("refused@relay.localhost")
            async with service.raw_client() as client:
                await client.reply()
                assert await client.ask("EHLO evil.example") == "550 5.7.1 not you"
                assert (await client.ask("MAIL FROM:<a@b.example>"))[:9] == "503 5.5.1"
            async with service.client() as client:
                assert await client.ask("MAIL FROM:<defer@b.example>") == "450 4.2.0 come back"
                assert (await client.ask("MAIL FROM:<a@b.example> BODY=8BITMIME"))[:3] == "250"
                assert await client.ask(f"RCPT TO:<{refused}>") == "550 5.7.1 not that one"
                assert (await client.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
                assert (await client.ask("DATA"))[:3] == "354"
                assert await client.ask("SPAM\r\n.") == "554 5.7.1 spam for 1 from client.example"
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            assert await service.stored() == [(bob, "a@b.example", b"x\r\n")]


@pytest.mark.parametrize("way", ["raise", "exit", "hang", "inject", "nothing", "stubborn"])
async def test_a_filter_that_fails_is_a_451_and_the_relay_lives(pool, way):
    """A hook that raises, exits, hangs, will not be cancelled or returns no SMTP reply costs its
    transaction a 451 without the cause; the session goes on."""
    with trio.fail_after(20):
        async with serving(pool, filter_=FILTER, filter_timeout=0.1) as service:
            bob = await service.mailbox()
            async with service.client() as client:
                reply = await client.ask(f"MAIL FROM:<{way}@b.example>")
                assert reply == "451 4.3.0 Try again later"
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"


async def test_too_many_stuck_hooks_start_the_filter_anew(pool):
    """Hooks that ignore their cancellation end the actor, and another takes its place."""
    with trio.fail_after(30):
        async with (
            serving(pool, filter_=FILTER, filter_timeout=0.05, filter_stuck=1) as service,
            service.client() as client,
        ):
            with service.supervisor.subscribe() as events:
                assert (await client.ask("MAIL FROM:<stubborn@b.example>"))[:3] == "451"
                async for event in events:
                    if event.name == "filter" and isinstance(event, Exited):
                        assert "ignore their cancellation" in repr(event)
                        break
            assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"


BROKEN = {
    "missing:X": "cannot be imported",
    "relay_test_filter:Missing": "has no class",
    "relay_test_filter:Empty": "none of the hooks",
    "relay_test_filter:Sync": "must be an async method",
    "relay_test_raises:X": "ZeroDivisionError",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_filter_that_cannot_be_loaded_is_a_configuration_error(name, tmp_path, monkeypatch):
    """One sentence says what is wrong with the setting."""
    (tmp_path / "relay_test_filter.py").write_text(
        textwrap.dedent("""
        class Empty:
            pass
        class Sync:
            def handle_DATA(self, server, session, envelope):
                return "250 OK"
        """)
    )
    (tmp_path / "relay_test_raises.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=BROKEN[name]) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_filter_is_found_in_the_working_directory(tmp_path, monkeypatch):
    """An operator's module beside the data directory needs no PYTHONPATH."""
    (tmp_path / "relay_found_filter.py").write_text(
        "class Found:\n    async def handle_DATA(self, server, session, envelope):\n"
        "        return '250 OK'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path) != Path.cwd()])
    found = load("relay_found_filter:Found")
    assert (found.name, found.hooks) == ("relay_found_filter:Found", frozenset({"DATA"}))


async def test_a_handler_that_cannot_be_built_ends_the_start(pool):
    """Its constructor's error is a configuration error at the first start."""

    class NeedsArguments(Handler):
        def __init__(self, what: str) -> None:
            raise AssertionError

    broken = FilterClass("tests:NeedsArguments", NeedsArguments, FILTER.hooks)
    with (
        trio.fail_after(20),
        pytest.RaisesGroup(
            pytest.RaisesExc(ConfigError, match="cannot be built"),
            allow_unwrapped=True,
            flatten_subgroups=True,
        ),
    ):
        async with serving(pool, filter_=broken):
            await trio.sleep_forever()
