"""A relay that is killed in the middle of a wait, and started again or not."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conftest import Run
from restarting import restartable
from untrusted import plain, untrusted

_WAITS = """
import { Relay } from "relay-client";

const relay = new Relay({ url: process.argv[2], token: "" });
const inbox = await relay.inbox();
console.log(inbox.address);
console.log((await inbox.wait({ subject: "Reset", timeout: 60_000 })).subject);
const other = inbox.wait({ subject: "Other", timeout: 12_000 });
await other.catch((error) => console.log(String(error)));
process.exit();
"""


def test_a_wait_outlives_a_relay_that_is_killed(clean: Path, tmp_path: Path) -> None:
    """The message comes from the relay that is started again; from none comes one clear error."""
    program = clean / "waits.mjs"
    program.write_text(_WAITS)
    with (
        restartable(tmp_path) as relay,
        subprocess.Popen(["node", program, relay.url], stdout=subprocess.PIPE, text=True) as node,
    ):
        assert node.stdout is not None
        try:
            address = node.stdout.readline().strip()
            relay.until_waiting()
            relay.kill()
            relay.start(address)
            assert node.stdout.readline() == "Reset\n"
            relay.until_waiting()
            relay.kill()
            said = node.stdout.readline()
            assert said.startswith(f"Unreachable: the relay does not answer GET {relay.url}/")
            assert node.wait(20) == 0
        finally:
            node.kill()


_ASKS = """
import { Relay } from "relay-client";

const began = performance.now();
const relay = new Relay({ url: process.argv[2], token: "x" });
await relay.info().catch((error) => console.log(String(error)));
if (performance.now() - began > 5_000) console.log("and it took long");
"""


def test_who_cannot_be_trusted_is_asked_once(run: Run, clean: Path, tmp_path: Path) -> None:
    """Or speaks no TLS: no second try would do better.  The error is one line."""
    program = clean / "asks.mjs"
    program.write_text(_ASKS)
    with untrusted(tmp_path) as (where, came):
        said = run("node", program, where).stdout
    code = "DEPTH_ZERO_SELF_SIGNED_CERT"
    assert said == f"Unreachable: no TLS connection to {where}: self-signed certificate ({code})\n"
    assert len(came) == 1
    with plain() as (where, came):
        said = run("node", program, where).stdout
    assert said.startswith(f"Unreachable: no TLS connection to {where}: ")
    assert said.count("\n") == len(came) == 1
