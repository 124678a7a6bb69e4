"""The command on a terminal."""

from __future__ import annotations

import os
import pty
import smtplib
import subprocess
from pathlib import Path

import pytest
from relay_client import Relay


@pytest.mark.parametrize("command", ["text", "raw"])
def test_mail_drives_no_terminal(relay: Relay, clean: Path, command: str) -> None:
    """What would is spelt there; a pipe gets it as it is."""
    with relay.inbox() as inbox:
        host, _, port = str(relay.info().smtp).rpartition(":")
        with smtplib.SMTP(host, int(port)) as smtp:
            smtp.sendmail("a@shop.example", [inbox.address], "Subject: Hello\n\na\x1b[2Jb")
        inbox.wait()
        words = ["node", "node_modules/relay-client/dist/esm/cli.js", command, inbox.address]
        env = {**os.environ, "RELAY_URL": relay.url, "RELAY_TOKEN": str(relay.token)}
        piped = subprocess.run(
            words, cwd=clean, env=env, capture_output=True, check=True, timeout=60
        )
        assert b"a\x1b[2Jb" in piped.stdout
        ours, theirs = pty.openpty()
        try:
            subprocess.run(words, cwd=clean, env=env, stdout=theirs, check=True, timeout=60)
            shown = os.read(ours, 65536)
        finally:
            os.close(ours)
            os.close(theirs)
        assert rb"a\u001b[2Jb" in shown
        assert b"\x1b" not in shown
