"""`relay account` against a running relay: what it prints, and the codes it ends with."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.command import cli
from tests.relay_process import RelayProcess


def run(relay: RelayProcess, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return cli("account", *arguments, "--data-dir", relay.data_dir)


def text(relay: RelayProcess, *arguments: str) -> str:
    done = run(relay, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def document(relay: RelayProcess, *arguments: str) -> Any:
    return json.loads(text(relay, *arguments, "--json"))


def test_an_account_is_made_shown_listed_suspended_and_mailed(relay: RelayProcess) -> None:
    """create prints the id; the others take it; what does not fit its status ends with 1."""
    made = text(relay, "create", "cli-ada@relay.localhost", "--login", "cli-ada").strip()
    assert document(relay, "show", made)["status"] == "provisioned"
    assert "cli-ada@relay.localhost" in text(relay, "show", made)
    assert made in [item["id"] for item in document(relay, "list")]
    assert "cli-ada" in text(relay, "list")
    assert document(relay, "resend", made)["id"] == made
    assert text(relay, "resend", made).startswith("Activation mailed to cli-ada@relay.localhost\n")
    assert "suspended" in text(relay, "suspend", made)
    assert document(relay, "unsuspend", made)["status"] == "provisioned"
    refused = run(relay, "recover", made)
    assert refused.returncode == 1
    assert b"must be active" in refused.stderr
    again = run(relay, "create", "cli-ada@relay.localhost", "--login", "other")
    assert again.returncode == 1
    assert b"has this email" in again.stderr
    assert run(relay, "show", "0").returncode == 1
