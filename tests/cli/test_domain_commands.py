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
        "RELAY_OUTBOUND__BOUNCE_DOMAIN": "returns.shop.example",
        "RELAY_SMTP__DOMAINS": "mx.shop.example,shop.example",
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
        box = ("--local-part", "postmaster", "--domain", "shop.example")
        assert (await run("mailbox", "create", *box)).returncode == 0
        made = json.loads((await run("dkim", "create", "shop.example")).stdout)
        failed = await run("domain", "check", "shop.example")
        assert failed.returncode == 1
        wrong = "MX, MX of returns.shop.example, SPF of returns.shop.example, DKIM, DMARC, PTR."
        assert f"Missing or wrong at shop.example: {wrong}" in failed.stderr.decode()
        required, _, advised = failed.stdout.decode().partition("\n; advised\n")
        assert "\n; required\nshop.example. IN MX 10 mx.shop.example.\nreturns." in required
        assert 'shop.example. IN TXT "v=spf1' in advised  # which receivers do not look up
        assert "_smtp._tls.shop.example. IN TXT" in advised
        assert "; instead of what is there\n9.9.9.9.in-addr.arpa. IN PTR mx." in required

        as_json = await run("domain", "check", "shop.example", "--json")
        assert as_json.returncode == 1
        wanted = {(one["record"], one["name"]): one for one in json.loads(as_json.stdout)}
        spf = wanted["SPF", "returns.shop.example"]
        assert spf["wanted"] == f"v=spf1 ip4:{PUBLIC} ~all"
        assert wanted["PTR", "9.9.9.9.in-addr.arpa"]["wanted"] == "mx.shop.example."
        for name in ("shop.example", "returns.shop.example"):
            zone[name, "MX"] = [wanted["MX", name]["wanted"]]
        for one in (spf, wanted["DMARC", "_dmarc.shop.example"]):
            zone[one["name"], "TXT"] = [f'"{one["wanted"]}"']
        for key in made["records"]:
            value = key["value"]
            zone[key["name"], "TXT"] = [f'"{value[:200]}" "{value[200:]}"']
        zone["9.9.9.9.in-addr.arpa", "PTR"] = ["mx.shop.example."]
        good = await run("domain", "check", "shop.example")
        assert good.returncode == 0, good.stdout.decode() + good.stderr.decode()
        assert b"_mta-sts.shop.example" in good.stdout  # as advice
        # What is printed for the zone is published, all of it, and nothing is wrong then.
        lines = [line.split(" IN TXT ") for line in good.stdout.decode().splitlines()]
        printed = {line[0].rstrip("."): line[1] for line in lines if len(line) == 2}
        assert sorted(printed) == ["_smtp._tls.shop.example", "shop.example"]
        zone.update({(name, "TXT"): [record] for name, record in printed.items()})
        assert (await run("domain", "check", "shop.example")).returncode == 0

        zone["_smtp._tls.shop.example", "TXT"] = ['"v=TLSRPTv1; rua=nowhere"']
        broken = await run("domain", "check", "shop.example")
        assert broken.returncode == 1
        assert b"Missing or wrong at shop.example: TLS-RPT." in broken.stderr
        del zone["_smtp._tls.shop.example", "TXT"]

        names.failing.add(("shop.example", "MX"))
        unsure = await run("domain", "check", "shop.example")
        assert unsure.returncode == 69
        assert b"Nobody can say all about shop.example: MX." in unsure.stderr
        assert b"IN MX" not in unsure.stdout  # beside what is there it might be one too many
    finally:
        await trio.to_thread.run_sync(relay.stop)
