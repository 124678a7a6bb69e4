"""`relay dkim` against running relays: what it prints, and that what it made signs at once."""

from __future__ import annotations

import json
import smtplib
import subprocess
import time
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import trio

from relay.checks.dkim import verify
from relay.checks.evidence import examine
from tests.checks.asking import answered
from tests.cli.command import cli
from tests.dns.server import DnsServer
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


def zone(records: list[dict[str, str]]) -> dict[tuple[str, str], str]:
    return {(one["name"], one["type"]): one["value"] for one in records}


def results(raw: bytes, published: dict[tuple[str, str], str]) -> list[str]:
    return [answered(verify(one, time.time()), published).result for one in examine(raw).signatures]


async def test_rotation_says_which_keys_nobody_can_verify(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """With --published nothing is rotated to keys that the DNS does not have, or of which it does
    not say; without, that is said and done; what is published is rotated to without a word."""
    published: dict[tuple[str, str], list[str]] = {}
    names: DnsServer = await nursery.start(DnsServer(published, negative=0).run)
    env = {"RELAY_DNS__SERVERS": json.dumps([f"127.0.0.1:{names.address[1]}"])}
    relay = RelayProcess(tmp_path / "relay", env=env)
    await trio.to_thread.run_sync(relay.start)
    try:

        async def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
            command = partial(cli, "dkim", *arguments, "--data-dir", relay.data_dir)
            return await trio.to_thread.run_sync(command)

        await run("create", "shop.example", "--selector", "s1")
        none = await run("rotate", "shop.example", "--published")
        assert none.returncode == 1
        assert b"there are no standby keys: new ones sign" in none.stderr
        standby = json.loads((await run("create", "shop.example", "--selector", "s2")).stdout)
        first, second = (one["name"] for one in standby["records"])
        refused = await run("rotate", "shop.example", "--published")
        assert refused.returncode == 1
        assert f"{first}: there is no record of the standby key".encode() in refused.stderr
        for record in standby["records"]:
            value = record["value"]
            published[record["name"], "TXT"] = [f'"{value[:200]}" "{value[200:]}"']
        names.failing.add((second, "TXT"))
        unknown = await run("rotate", "shop.example", "--published")
        assert unknown.returncode == 1
        assert f"relay: {second}: the DNS gave no answer".encode() in unknown.stderr
        assert first.encode() not in unknown.stderr
        names.failing.clear()
        done = await run("rotate", "shop.example", "--published")
        assert (done.returncode, done.stderr) == (0, b"")
        await run("create", "shop.example", "--selector", "s3")
        said = await run("rotate", "shop.example")
        assert said.returncode == 0
        assert b"s3._domainkey.shop.example: there is no record of the standby key" in said.stderr
        assert b"mail counts as unsigned until they are there" in said.stderr
    finally:
        await trio.to_thread.run_sync(relay.stop)


def received(relay: RelayProcess, box: str, subject: str) -> bytes:
    """The bytes of the message with this subject, once it is there."""
    headers = {"Authorization": f"Bearer {relay.run['admin_token']}"}
    base = f"{relay.run['http']}/api/v1/mailboxes/{box}/messages"

    def found() -> list[str]:
        listed = httpx.get(base, headers=headers).json()
        return [one["id"] for one in listed if one["subject"] == subject]

    (one,) = eventually_sync(found, f"{subject} is there")
    return httpx.get(f"{base}/{one}/raw", headers=headers).content


def test_keys_are_made_used_rotated_and_removed(tmp_path: Path, database_url: str) -> None:
    """Two nodes on one database: mail is signed at once here, a moment later there."""
    env = {"RELAY_DATABASE__URL": database_url, "RELAY_ENCRYPTION_KEYS": KEY}
    env["RELAY_DNS__SERVERS"] = '["127.0.0.1:9"]'  # nobody is there
    with (
        RelayProcess(tmp_path / "one", env=env) as one,
        RelayProcess(tmp_path / "two", env=env) as two,
    ):

        def run(*arguments: str, code: int = 0) -> str:
            done = cli("dkim", *arguments, "--data-dir", one.data_dir)
            assert done.returncode == code, done.stderr
            return done.stdout.decode()

        numbers = count()
        box = cli("mailbox", "create", "--data-dir", one.data_dir).stdout.decode().strip()
        made = json.loads(run("create", "shop.example", "--selector", "s1"))
        assert made["domain"] == "shop.example"
        published = zone(made["records"])
        assert len(published) == 2
        letter = ("--from", "Shop <me@shop.example>", "--to", box, "--text", "t")
        sent = cli("send", *letter, "--subject", "one", "--data-dir", one.data_dir)
        assert sent.returncode == 0, sent.stderr
        assert results(received(one, box, "one"), published) == ["pass", "pass"]

        host, port = two.run["submission"].rsplit(":", 1)

        def submitted() -> bytes:
            """What comes of mail that the other node has; it hears of keys a moment later."""
            subject = f"two {next(numbers)}"
            with smtplib.SMTP(host, int(port)) as client:
                client.login("me", two.run["admin_token"])
                mail = f"From: me@shop.example\r\nSubject: {subject}\r\n\r\nby the other\r\n"
                client.sendmail("bounce@other.example", [box], mail)
            return received(two, box, subject)

        def is_signed(raw: bytes) -> bool:
            return results(raw, published) == ["pass", "pass"]

        eventually_sync(submitted, "the other node signs", until=is_signed)

        assert "s1 (active), s1-ed25519 (active)" in run("list")
        published |= zone(json.loads(run("rotate", "shop.example"))["records"])
        assert len(published) == 4
        shown = run("show", "shop.example")
        for name, kind in published:
            assert name in shown, kind
        assert shown.count("active") == 2
        assert shown.count("retired:") == 2
        keys = json.loads(run("show", "shop.example", "--json"))["keys"]
        assert zone(keys) == published
        sent = cli("send", *letter, "--subject", "three", "--data-dir", one.data_dir)
        assert is_signed(received(one, box, "three"))
        by_the_new = eventually_sync(
            submitted, "the other node signs anew", until=lambda raw: b"s=s1;" not in raw
        )
        assert is_signed(by_the_new)
        assert results(received(one, box, "one"), published) == ["pass", "pass"]

        checked = cli("domain", "check", "shop.example", "--data-dir", one.data_dir)
        assert checked.returncode == 69, checked.stderr  # no DNS answers
        text = checked.stdout.decode()
        for name, _ in published:  # of the keys that sign
            assert (name in text) == (not name.startswith("s1")), name
        assert " IN " not in text  # nobody answers, so nobody knows what is to be published
        as_json = cli("domain", "check", "shop.example", "--json", "--data-dir", one.data_dir)
        assert {entry["ok"] for entry in json.loads(as_json.stdout)} == {None}

        run("remove", "shop.example", "--selector", "s1")
        assert "s1" not in run("list")
        run("remove", "shop.example")
        run("remove", "shop.example", code=1)
        run("show", "shop.example", code=1)
        run("create", "no domain", code=1)


KEY = "cw_0x689RpI-jtRR7oE8h_eQsKImvJapLeSbXpwF4e4="
"""An encryption key that both nodes have."""
