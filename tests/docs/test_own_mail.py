"""The trial of direct delivery, as docs/own-mail.md has it; a DNS of the tests' for dnsmasq."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import trio

from tests.cli.command import cli
from tests.dns.server import DnsServer
from tests.docs.pages import DOCS, blocks
from tests.relay_process import RelayProcess

PAGE = DOCS / "own-mail.md"


def shown(heading: str) -> list[str]:
    """The commands of a section that stand behind a dollar sign."""
    return [
        line[2:]
        for block in blocks(PAGE.read_text())
        if block.heading == heading
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]


def settings(command: str) -> dict[str, str]:
    """What a command sets in front of itself."""
    words = (word.partition("=") for word in shlex.split(command))
    return {name: value for name, _, value in words if re.fullmatch(r"RELAY_\w+", name)}


async def test_the_trial_delivers_directly(tmp_path: Path, nursery: trio.Nursery) -> None:
    """With the settings that are shown, but for ports, a mail gets from one relay to the other by
    MX, and is read there by the command that is shown."""
    receive, send, *commands = shown("First, on your machine")
    names: DnsServer = await nursery.start(
        DnsServer(
            {
                ("customer.example", "MX"): ["10 mx.customer.example."],
                ("mx.customer.example", "A"): ["127.0.0.1"],
            }
        ).run
    )
    receiving, sending = settings(receive), settings(send)
    del receiving["RELAY_SMTP__BIND"], receiving["RELAY_HTTP__BIND"]
    receiver = RelayProcess(tmp_path / "receiver", env=receiving)
    await trio.to_thread.run_sync(receiver.start)
    sending["RELAY_OUTBOUND__MX_PORT"] = receiver.run["smtp"].rpartition(":")[2]
    sending["RELAY_DNS__SERVERS"] = json.dumps([f"127.0.0.1:{names.address[1]}"])
    sender = RelayProcess(tmp_path / "sender", env=sending)
    try:
        await trio.to_thread.run_sync(sender.start)
        said = ""
        for command in commands:
            words = shlex.split(command)[1:]
            done = await trio.to_thread.run_sync(partial(cli, *words, cwd=tmp_path))
            assert done.returncode == 0, done.stderr
            said = done.stdout.decode()
        assert len(commands) == 2
        assert "subject:  Hello" in said
        assert "from:     shop@shop.example" in said
    finally:
        await trio.to_thread.run_sync(sender.stop)
        await trio.to_thread.run_sync(receiver.stop)


def test_the_settings_that_are_shown_start() -> None:
    """`relay config check` has nothing against them."""
    (block,) = (one for one in blocks(PAGE.read_text()) if one.heading == "The settings")
    done = cli("config", "check", env=settings(" ".join(block.text.split())))
    assert done.returncode == 0, done.stderr
