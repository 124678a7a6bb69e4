"""`relay domain check` against a running relay and a DNS on loopback: what its exit code says."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import trio

from tests.cli.command import cli
from tests.dns.server import DnsServer
from tests.relay_process import RelayProcess

PUBLIC = "9.9.9.9"
"""An address of the internet's, named as a source; nothing is sent from it."""


async def test_the_exit_code_says_whether_mail_can_leave(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """1 while a record is missing that mail leaves badly without, the address's own name among
    them; 0 once what was wanted is published, without MTA-STS and TLS-RPT, which count where they
    are wrong; 69 if the DNS fails."""
    zone: dict[tuple[str, str], list[str]] = {
        ("mx.shop.example", "A"): [PUBLIC],
        ("9.9.9.9.in-addr.arpa", "PTR"): ["elsewhere.example."],
    }
    names: DnsServer = await nursery.start(DnsServer(zone, negative=0).run)
    env = {
        "RELAY_DNS__SERVERS": json.dumps([f"127.0.0.1:{names.address[1]}"]),
        "RELAY_OUTBOUND__UPSTREAM": "mx:",
        "RELAY_OUTBOUND__SOURCES": json.dumps(
            [{"name": "out", "ehlo": "mx.shop.example", "addresses": [PUBLIC]}]
        ),
    }
    relay = RelayProcess(tmp_path / "relay", env=env)
    await trio.to_thread.run_sync(relay.start)
    try:

        async def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
            command = partial(cli, *arguments, "--data-dir", relay.data_dir)
            return await trio.to_thread.run_sync(command)

        local = await run("domain", "check", "relay.localhost")
        assert local.returncode == 0
        assert b"not public" in local.stdout
        assert b"MX" not in local.stdout
        made = json.loads((await run("dkim", "create", "shop.example")).stdout)
        failed = await run("domain", "check", "shop.example")
        assert failed.returncode == 1
        assert b"Missing or wrong at shop.example: MX, SPF, DKIM, DMARC, PTR." in failed.stderr

        as_json = await run("domain", "check", "shop.example", "--json")
        assert as_json.returncode == 1
        wanted = {one["record"]: one for one in json.loads(as_json.stdout)}
        assert wanted["SPF"]["wanted"] == f"v=spf1 ip4:{PUBLIC} ~all"
        assert wanted["PTR"]["wanted"] == "mx.shop.example."
        zone["shop.example", "MX"] = ["10 mx.shop.example."]
        for record in ("SPF", "DMARC"):
            zone[wanted[record]["name"], "TXT"] = [f'"{wanted[record]["wanted"]}"']
        for key in made["records"]:
            value = key["value"]
            zone[key["name"], "TXT"] = [f'"{value[:200]}" "{value[200:]}"']
        zone["9.9.9.9.in-addr.arpa", "PTR"] = ["mx.shop.example."]
        good = await run("domain", "check", "shop.example")
        assert good.returncode == 0, good.stdout.decode() + good.stderr.decode()
        assert b"_mta-sts.shop.example" in good.stdout  # as advice

        zone["_smtp._tls.shop.example", "TXT"] = ['"v=TLSRPTv1; rua=nowhere"']
        broken = await run("domain", "check", "shop.example")
        assert broken.returncode == 1
        assert b"Missing or wrong at shop.example: TLS-RPT." in broken.stderr
        del zone["_smtp._tls.shop.example", "TXT"]

        names.failing.add(("shop.example", "MX"))
        unsure = await run("domain", "check", "shop.example")
        assert unsure.returncode == 69
        assert b"The DNS did not say all about shop.example: MX." in unsure.stderr
    finally:
        await trio.to_thread.run_sync(relay.stop)
