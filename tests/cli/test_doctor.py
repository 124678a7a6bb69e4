"""`relay doctor`: each of the likeliest mistakes is found, and the advice names the remedy.

The ten: a wrong setting, a port in use (`test_running_relay`), a data directory that is open,
in memory or unusable, a database that is away, old or newer (`test_database_commands`), a pooler
without a direct URL, a server that forgets, keys that do not fit, mail that goes nowhere, a public
address without a name, and a queue or an actor that somebody paused and forgot.
"""

from __future__ import annotations

import json
import os
import smtplib
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import trio
from cryptography.fernet import Fernet
from psycopg.conninfo import make_conninfo

from relay.cli.doctor import examine
from relay.cli.doctor.database import (
    check_database,
    check_heard,
    check_keeps_what_it_is_given,
    check_passwords,
    check_room,
)
from relay.cli.doctor.findings import Check, Finding, Patient
from relay.cli.doctor.machine import (
    check_bounces,
    check_capture,
    check_certificate,
    check_data_directory,
    check_disk_space,
    check_file_system,
    check_letters,
    check_lmtp,
    check_pop3,
    check_ports,
    check_submission,
)
from relay.cli.doctor.replication import Facts, inspect, judge
from relay.cli.doctor.running import (
    check_actors,
    check_queue,
    check_relay,
    check_upstream,
    notices,
)
from relay.crypto import Vault
from relay.datadir import SECRETS, DataDir
from relay.db.connection import connect
from relay.settings import load
from tests.certificates import write
from tests.cli.command import cli
from tests.db.bouncer import Bouncer
from tests.db.cluster import Cluster, binaries
from tests.dns.server import DnsServer
from tests.relay_process import RelayProcess


def patient(path: Path, run: dict[str, Any] | None = None, /, **settings: str) -> Patient:
    """Return what the doctor would look at, with these environment variables."""
    return Patient(DataDir(path), load(environ=settings), "", run)


def only(check: Check, of: Patient) -> Finding:
    (finding,) = check(of)
    return finding


@pytest.mark.parametrize(
    ("days", "state", "says"),
    [(30, "ok", "ends on"), (5, "warn", "ends on"), (-0.002, "FAIL", "ended on")],
)
def test_a_certificate_that_ends_soon_is_warned_of(
    tmp_path: Path, days: float, state: str, says: str
) -> None:
    """Two weeks before, and when it has ended."""
    cert, key = write(tmp_path, days=days)
    os.chmod(key, 0o600)
    of = patient(tmp_path, None, RELAY_SMTP__TLS_CERT=cert, RELAY_SMTP__TLS_KEY=key)
    found = only(check_certificate, of)
    assert (found.state, says in found.found) == (state, True)
    os.chmod(key, 0o644)
    assert [one.state for one in check_certificate(of)] == [state, "warn"]
    Path(cert).write_bytes(b"")
    assert only(check_certificate, of).state == "FAIL"
    assert list(check_certificate(patient(tmp_path))) == []


@pytest.mark.parametrize("name", SECRETS)
def test_a_key_that_others_can_read_is_found(tmp_path: Path, name: str) -> None:
    """Each of those that the data directory keeps; in mode 0600 none is worth a word."""
    of = patient(tmp_path)
    of.data.path.mkdir(mode=0o700, exist_ok=True)
    of.data.path.chmod(0o700)
    key = of.data.path / name
    key.write_text("00" * 32)
    key.chmod(0o600)
    assert only(check_data_directory, of).state == "ok"
    key.chmod(0o640)
    _, found = check_data_directory(of)
    assert (found.check, found.state) == (name, "FAIL")
    assert found.advice == f"chmod 600 {key}"


def test_a_certificate_without_a_name_of_ours_is_warned_of(tmp_path: Path) -> None:
    """Who verifies it would refuse it; and a key that is another's is found."""
    cert, key = write(tmp_path)
    os.chmod(key, 0o600)
    own = {"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key}
    finding = only(check_certificate, patient(tmp_path, **own))
    assert "for localhost, 127.0.0.1, ends" in finding.found
    domains = {"RELAY_SMTP__DOMAINS": '["shop.example"]'}
    first, second = check_certificate(patient(tmp_path, None, **own, **domains))
    assert (first.state, second.state) == ("ok", "warn")
    assert "none that belongs to shop.example" in second.found
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other")[1]
    mixed = patient(tmp_path, RELAY_SMTP__TLS_CERT=cert, RELAY_SMTP__TLS_KEY=other)
    assert only(check_certificate, mixed).state == "FAIL"


@pytest.mark.parametrize(
    ("settings", "state", "says"),
    [
        ({}, "ok", "on: any address at 127.0.0.1:2525"),
        ({"RELAY_SMTP__CAPTURE": "off"}, "ok", "off (RELAY_SMTP__CAPTURE=off)"),
        ({"RELAY_SMTP__BIND": "0.0.0.0:2525"}, "ok", "off, for others than this machine"),
        (
            {"RELAY_SMTP__TRUSTED_PROXIES": "127.0.0.1"},
            "ok",
            "off, for behind RELAY_SMTP__TRUSTED_PROXIES may be anybody (RELAY_SMTP__CAPTURE=auto)",
        ),
        (
            {"RELAY_SMTP__BIND": "0.0.0.0:2525", "RELAY_SMTP__CAPTURE": "on"},
            "warn",
            "AUTH takes anything, in clear too",
        ),
    ],
)
def test_what_is_captured_is_said(
    settings: dict[str, str], state: str, says: str, tmp_path: Path
) -> None:
    """On, off and why; a warning where others than this machine reach it."""
    finding = only(check_capture, patient(tmp_path, **settings))
    assert finding.state == state
    assert says in finding.found


def test_a_relay_is_judged_by_what_it_is_bound_to(tmp_path: Path) -> None:
    """Who listens for everybody is reached as 127.0.0.1 from here, which says nothing of others."""
    everybody = {port: [f"0.0.0.0:{n}"] for port, n in (("smtp", 25), ("submission", 587))}
    here = {"smtp": "127.0.0.1:25", "submission": "127.0.0.1:587"}
    runs = patient(tmp_path, {**here, "bound": everybody}, RELAY_SMTP__CAPTURE="on")
    found = only(check_capture, runs)
    assert (found.state, "0.0.0.0:25" in found.found) == ("warn", True)
    found = only(check_submission, runs)
    assert (found.state, "only this machine may sign in" in found.found) == ("warn", True)
    runs = patient(tmp_path, {**here, "bound": everybody})
    assert "off, for others than this machine" in only(check_capture, runs).found
    alone = {"smtp": ["127.0.0.1:25"]}
    assert "never leaves" in only(check_capture, patient(tmp_path, {"bound": alone})).found


def test_where_programs_may_submit_is_said(tmp_path: Path) -> None:
    """Off; in clear for this machine; beyond it a certificate is wanted, or nobody signs in."""

    def found(**settings: str) -> tuple[str, str]:
        finding = only(check_submission, patient(tmp_path, **settings))
        return finding.state, finding.found

    assert found(RELAY_SUBMISSION__BIND="") == ("ok", "off")
    assert found() == ("ok", "127.0.0.1:2587 in clear, with a key that has the scope send")
    state, said = found(RELAY_SUBMISSION__BIND="0.0.0.0:2587")
    assert state == "warn"
    assert "only this machine may sign in" in said
    cert, key = write(tmp_path)
    own = {"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key}
    state, said = found(
        RELAY_SUBMISSION__BIND="0.0.0.0:2587", RELAY_SUBMISSION__TLS_BIND="0.0.0.0:2465", **own
    )
    assert state == "ok"
    assert "0.0.0.0:2587 in clear or by STARTTLS, 0.0.0.0:2465 in TLS" in said


def test_a_relay_that_runs_is_judged_by_its_own_settings(tmp_path: Path) -> None:
    """This shell's variables count for nothing but a row that names where they differ."""
    path = tmp_path / "node"
    with RelayProcess(
        path, env={"RELAY_SMTP__CAPTURE": "off", "RELAY_SECRET_KEY": "7" * 64}
    ) as node:
        assert "7" * 64 not in node.run_file.read_text()

        def rows(**env: str) -> dict[str, Any]:
            done = cli("doctor", "--json", "--data-dir", node.data_dir, env=env)
            return {row["check"]: row for row in json.loads(done.stdout)}

        found = rows()
        assert found["capture"]["found"] == "off (RELAY_SMTP__CAPTURE=off)"
        assert found["submission"]["found"].startswith(node.run["bound"]["submission"][0])
        assert found["settings"]["state"] == "ok"
        found = rows(RELAY_SMTP__CAPTURE="on", RELAY_LOG__LEVEL="debug")
        assert found["capture"]["found"] == "off (RELAY_SMTP__CAPTURE=off)"
        assert found["settings"]["state"] == "warn"
        assert "RELAY_SMTP__CAPTURE, RELAY_LOG__LEVEL" in found["settings"]["found"]
        found = rows(RELAY_SMTP__CAPTURE="often")
        assert found["settings"]["state"] == "FAIL"
        assert found["capture"]["found"] == "off (RELAY_SMTP__CAPTURE=off)"


def test_a_data_directory_in_memory_is_warned_of(tmp_path: Path) -> None:
    """What a reboot forgets is no place for mail."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is not mounted")
    found = only(check_file_system, patient(Path("/dev/shm/relay-doctor")))
    assert (found.state, "in memory" in found.found) == ("warn", True)
    assert "RELAY_DATA_DIR" in found.advice
    assert only(check_file_system, patient(Path("/proc"))).state == "ok"


def test_little_disk_space_is_found_before_mail_is_refused(tmp_path: Path) -> None:
    """Below the floor of free space it fails, below twice as much it warns."""
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    for floor, state in ((free // 4, "ok"), (free * 3 // 4, "warn"), (2 * free, "FAIL")):
        found = only(check_disk_space, patient(tmp_path, RELAY_STORAGE__MIN_FREE=str(floor)))
        assert (found.state, "mail is refused" in found.found) == (state, True)
        assert ("RELAY_STORAGE__MIN_FREE" in found.advice) is (state != "ok")
    assert only(check_disk_space, patient(tmp_path, RELAY_STORAGE__MIN_FREE="0")).state == "ok"


def test_letters_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    """A template that cannot be read; links to this machine in mail for the world."""
    assert only(check_letters, patient(tmp_path)).state == "ok"
    world = {"RELAY_OUTBOUND__UPSTREAM": "smtps://mail.example.org"}
    found = only(check_letters, patient(tmp_path, **world))
    assert (found.state, "RELAY_HTTP__PUBLIC_URL" in found.advice) == ("warn", True)
    world["RELAY_HTTP__PUBLIC_URL"] = "https://shop.example"
    assert only(check_letters, patient(tmp_path, **world)).state == "ok"
    (tmp_path / "recovery.txt").write_text("{{ link }}")
    found = only(check_letters, patient(tmp_path, RELAY_COLLECTOR__TEMPLATES=str(tmp_path)))
    assert (found.state, "its code" in found.found) == ("FAIL", True)


def test_every_port_is_looked_at(tmp_path: Path) -> None:
    """A device port that is taken is found like the others, and its setting named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = {
            finding.check: finding
            for finding in check_ports(
                patient(
                    tmp_path,
                    RELAY_HTTP__BIND="127.0.0.1:0",
                    RELAY_SMTP__BIND="127.0.0.1:0",
                    RELAY_DEVICES__PUSH_BIND=f"127.0.0.1:{port}",
                    RELAY_DEVICES__RECEIVE_BIND="127.0.0.1:0",
                )
            )
        }
    assert list(found) == ["http port", "smtp port", "push port", "receive port"]
    assert [f.state for f in found.values()] == ["ok", "ok", "FAIL", "ok"]
    assert "RELAY_DEVICES__PUSH_BIND" in found["push port"].advice


def test_the_socket_of_lmtp_needs_a_directory(tmp_path: Path) -> None:
    """Said only where there is to be one."""
    assert list(check_lmtp(patient(tmp_path))) == []
    path = str(tmp_path / "lmtp")
    assert only(check_lmtp, patient(tmp_path, RELAY_SMTP__LMTP=path)).state == "ok"
    held = only(check_lmtp, patient(tmp_path, {"lmtp": path}, RELAY_SMTP__LMTP=path))
    assert held.found == f"{path}, held by this relay"
    found = only(check_lmtp, patient(tmp_path, RELAY_SMTP__LMTP=str(tmp_path / "none" / "lmtp")))
    assert (found.state, "RELAY_SMTP__LMTP" in found.advice) == ("FAIL", True)


def test_pop3_beyond_this_machine_needs_a_certificate(tmp_path: Path) -> None:
    """Without one nobody can sign in from elsewhere."""
    assert list(check_pop3(patient(tmp_path))) == []
    assert only(check_pop3, patient(tmp_path, RELAY_POP3__BIND="127.0.0.1:2110")).state == "ok"
    wide = {"RELAY_POP3__BIND": "0.0.0.0:2110"}
    found = only(check_pop3, patient(tmp_path, **wide))
    assert (found.state, "RELAY_SMTP__TLS_CERT" in found.advice) == ("warn", True)
    cert, key = write(tmp_path)
    wide |= {"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key}
    assert only(check_pop3, patient(tmp_path, **wide)).state == "ok"


async def test_a_pooler_that_loses_wake_ups_is_found(
    database_url: str,
) -> None:
    """Where LISTEN hears nothing (here another database's), the direct URL is named."""
    other = make_conninfo(database_url, dbname="postgres")
    async with await connect(database_url, autocommit=True) as mouth:
        async with await connect(database_url, autocommit=True) as ear:
            assert (await check_heard(mouth, ear)).state == "ok"
        async with await connect(other, autocommit=True) as ear:
            deaf = await check_heard(mouth, ear, within=0.3)
    assert deaf.state == "warn"
    assert "RELAY_DATABASE__DIRECT_URL" in deaf.advice


def test_a_pooler_that_loses_prepared_statements_is_found(
    database_url: str, tmp_path: Path
) -> None:
    """Behind PgBouncer in transaction mode the doctor names the setting, and with it mail is
    accepted."""
    with Bouncer(database_url) as bouncer:
        settings = {
            "RELAY_DATABASE__URL": bouncer.dsn,
            "RELAY_DATABASE__DIRECT_URL": database_url,
        }

        def findings(**more: str) -> dict[str, Finding]:
            return {f.check: f for f in check_database(patient(tmp_path, None, **settings, **more))}

        found = findings()["prepared statements"]
        assert (found.state, "451" in found.found) == ("FAIL", True)
        assert "RELAY_DATABASE__PREPARE=false" in found.advice
        settings["RELAY_DATABASE__PREPARE"] = "false"
        assert {f.state for c, f in findings().items() if c != "durability"} == {"ok"}
        with RelayProcess(tmp_path / "node", env=settings) as relay:
            address = relay.create_mailbox()
            for _ in range(8):
                with smtplib.SMTP(*relay.smtp) as client:
                    client.sendmail("a@shop.example", address, b"Subject: a\r\n\r\nb\r\n")
            with relay.http() as http:
                listed = http.get(f"/api/v1/mailboxes/{address}/messages").json()
        assert len(listed) == 8
    direct = patient(tmp_path, None, RELAY_DATABASE__URL=database_url)
    found = {f.check: f for f in check_database(direct)}["prepared statements"]
    assert (found.state, found.found) == ("ok", "they are kept")


async def test_a_server_that_forgets_is_found(database_url: str, tmp_path: Path) -> None:
    """Commits that are not waited for are warned of; so is a server without room."""
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(database_url, autocommit=True) as sql:
        (fsync,) = sql.execute("SHOW fsync").fetchone() or ("",)
        sql.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with await connect(database_url, autocommit=True) as connection:
        found = await check_keeps_what_it_is_given(connection)
        if fsync == "on":
            assert (found.state, "synchronous_commit" in found.found) == ("warn", True)
        else:  # the tests' own server, for speed
            assert (found.state, "fsync" in found.found) == ("FAIL", True)
        assert (await check_room(connection, patient(tmp_path))).state == "ok"
        crowded = patient(tmp_path, RELAY_DATABASE__POOL_SIZE="200")
        assert (await check_room(connection, crowded)).state == "warn"


SAFE = Facts("on", "*", "notice", senders=1, waited_for=1, slots=1, managed=False)


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        (SAFE, "ok", "commits wait for a standby"),
        (replace(SAFE, commit="remote_apply", waited_for=None), "ok", "wait for a standby"),
        (replace(SAFE, names="ANY 1 (a, b)", managed=True), "ok", "synchronous_mode_strict"),
        (replace(SAFE, managed=True), "ok", "commits wait for a standby (on)"),
        (replace(SAFE, commit="off"), "warn", "nothing waits"),
        (replace(SAFE, commit="local"), "warn", "no commit waits"),
        (replace(SAFE, commit="remote_write"), "warn", "in memory only"),
        (replace(SAFE, level="error"), "warn", "client_min_messages"),
        (replace(SAFE, senders=0, waited_for=0), "warn", "mail gets 451"),
        (replace(SAFE, waited_for=0), "warn", "mail gets 451"),
        (replace(SAFE, names=""), "warn", "synchronous_standby_names is empty"),
        (replace(SAFE, names="", senders=0, managed=True), "warn", "Patroni's synchronous_mode"),
        (replace(SAFE, names="", senders=0, slots=0), "ok", "no standby"),
    ],
)
def test_what_a_standby_promises_is_judged(facts: Facts, state: str, said: str) -> None:
    """Each mode that loses what was answered 250 is warned of, and what cannot be known is said."""
    finding = judge(facts)
    assert (finding.state, said in finding.found) == (state, True), finding
    assert bool(finding.advice) == (state == "warn")


def test_a_standby_that_was_not_promoted_is_said(tmp_path: Path) -> None:
    """Alone in the URL, and beside a primary that is gone; what to do stands beside it."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    standby = Cluster(bin_dir)
    try:
        (standby.data / "standby.signal").touch()
        standby.start()
        found = only(check_database, patient(tmp_path, None, RELAY_DATABASE__URL=standby.dsn()))
        assert (found.state, "a standby, not promoted" in found.found) == ("FAIL", True)
        assert "promote" in found.advice
        both = make_conninfo(standby.dsn(), host=f"/gone,{standby.directory}")
        found = only(check_database, patient(tmp_path, None, RELAY_DATABASE__URL=both))
        assert found.state == "FAIL"
        assert found.found.startswith("no host takes writes: /gone: ")
        assert found.found.endswith(f"; {standby.directory}: a standby, not promoted (read-only)")
        assert "promote" in found.advice
    finally:
        standby.remove()


def test_a_relay_that_is_not_ready_is_one_row(tmp_path: Path) -> None:
    """Though it answers nothing else either."""
    run = {"http": "http://127.0.0.1:9", "pid": os.getpid(), "admin_token": "x"}
    data = DataDir(tmp_path)
    data.prepare()
    try:
        data.write_run(run)
        assert only(check_relay, patient(tmp_path, run)).state == "FAIL"
    finally:
        data.release()


async def test_a_server_without_a_standby_is_no_fault(database_url: str) -> None:
    """What it says of itself is asked by any role that may connect."""
    async with await connect(database_url, autocommit=True) as connection:
        await connection.execute("SET ROLE pg_read_all_data")
        found = await inspect(connection)
    assert (found.state, "no standby" in found.found) == ("ok", True)


async def test_keys_that_do_not_fit_are_found(database_url: str, tmp_path: Path) -> None:
    """A node with keys of its own cannot read the passwords that another sealed."""
    account, theirs, ours = uuid4(), Fernet.generate_key().decode(), Fernet.generate_key().decode()
    node = tmp_path / "node"
    node.mkdir()
    async with await connect(database_url, autocommit=True) as connection:

        async def keys(**settings: str) -> Finding:
            return await check_passwords(connection, patient(node, None, **settings))

        assert (await keys()).state == "ok"
        await connection.execute(
            "INSERT INTO relay.senders (id, address, upstream, username, password)"
            " VALUES (%s, 'a@example.org', 'smtps://mail.example:465', 'u', %s)",
            [account, Vault((theirs,)).seal(account, "geheim")],
        )
        assert (await keys()).state == "FAIL", "no keys at all"
        (node / "encryption_keys").write_text(f"{theirs}\n")
        assert (await keys()).found == "1 stored secrets can be read"
        (node / "encryption_keys").write_text(f"{ours}\n")
        other = await keys()
        assert (other.state, "RELAY_ENCRYPTION_KEYS" in other.advice) == ("FAIL", True)
        assert (await keys(RELAY_ENCRYPTION_KEYS=f"{ours},{theirs}")).state == "ok"


class Server(threading.Thread):
    """A mail server that greets, knows neither TLS nor passwords, and says goodbye."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                session, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError), session, session.makefile("rwb") as wire:
                wire.write(b"220 here\r\n")
                wire.flush()
                for line in wire:
                    wire.write(
                        b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n"
                    )
                    wire.flush()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    found.start()
    yield found
    found.close()


def test_mail_that_goes_nowhere_is_found(server: Server, tmp_path: Path) -> None:
    """loop: with a domain of the world is warned of; an upstream must answer as it is named."""

    def upstream(url: str, **more: str) -> Finding:
        settings = {"RELAY_OUTBOUND__UPSTREAM": url, **more}
        return only(check_upstream, patient(tmp_path, None, **settings))

    assert upstream("loop:").state == "ok"
    kept = upstream("loop:", RELAY_SMTP__DOMAINS='["shop.example"]')
    assert (kept.state, "shop.example" in kept.found) == ("warn", True)
    assert upstream(f"smtp://{server.address}").state == "ok"
    gone = upstream("smtp://127.0.0.1:1")
    assert (gone.state, "refused" in gone.found) == ("FAIL", True)
    plain = upstream(f"smtp+starttls://u:geheim@{server.address}")
    assert plain.state == "FAIL"
    assert "STARTTLS" in plain.found
    assert "geheim" not in plain.found
    assert "password" in upstream(f"smtp://u:geheim@{server.address}").found
    assert upstream(f"smtps://{server.address}").state == "FAIL"


async def test_direct_mail_without_a_resolver_that_validates_is_found(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Whoever delivers directly is told that there is no DANE before any mail is delivered."""
    names: DnsServer = await nursery.start(DnsServer({("", "NS"): ["a.root."]}).run)
    settings = {
        "RELAY_OUTBOUND__UPSTREAM": "mx:",
        "RELAY_DNS__SERVERS": f'["127.0.0.1:{names.address[1]}"]',
    }

    async def dane() -> Finding:
        def look() -> Finding:
            return list(check_upstream(patient(tmp_path, None, **settings)))[-1]

        return await trio.to_thread.run_sync(look)

    assert ((found := await dane()).check, found.state) == ("dane", "warn")
    assert "does not validate" in found.found
    assert "unbound" in found.advice
    names.signed = ("",)
    assert (await dane()).state == "ok"


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "warn"),
        ({"RELAY_SMTP__BIND": "0.0.0.0:25"}, "ok"),
        ({"RELAY_SMTP__LMTP": "/run/relay/lmtp"}, "ok"),
        ({"RELAY_SMTP__TRUSTED_PROXIES": "127.0.0.1"}, "ok"),
        ({"RELAY_INGEST__SNS_TOPICS": "arn:aws:sns:eu-west-1:1:t"}, "ok"),
    ],
)
def test_bounces_that_cannot_arrive_are_warned_of(
    tmp_path: Path, more: dict[str, str], state: str
) -> None:
    """With a bounce domain, and SMTP for this machine alone; without one nothing is said."""
    domain = {"RELAY_OUTBOUND__BOUNCE_DOMAIN": "returns.shop.example"}
    found = only(check_bounces, patient(tmp_path, None, **domain, **more))
    assert (found.check, found.state) == ("bounces", state)
    assert ("relay domain check returns.shop.example" in found.advice) is (state == "warn")
    assert list(check_bounces(patient(tmp_path, None, **more))) == []


def test_what_somebody_paused_is_found(relay: RelayProcess) -> None:
    """A paused queue, a paused actor and a group are warned of in a relay that runs well."""
    with relay.http() as api:
        try:
            api.post("/api/v1/queue/pause").raise_for_status()
            api.post("/api/v1/supervision/ticker/pause").raise_for_status()
            api.post("/api/v1/supervision/lifecycle/pause").raise_for_status()
            done = cli("doctor", "--json", "--data-dir", relay.data_dir, env=relay.env)
        finally:
            api.post("/api/v1/supervision/ticker/resume").raise_for_status()
            api.post("/api/v1/supervision/lifecycle/resume").raise_for_status()
            api.post("/api/v1/queue/resume").raise_for_status()
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["queue"]["advice"] == "relay queue resume"
    assert found["actors"]["found"] == "paused: ticker, lifecycle"  # not each actor in it
    assert {f["check"] for f in found.values() if f["state"] == "warn"} >= {"queue", "actors"}


QUEUE = {"paused": False, "queued": 3, "due": 3, "held": 0, "oldest_due_seconds": None}


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({}, "ok", "none late"),
        ({"paused": True}, "warn", "paused, with 3"),
        ({"oldest_due_seconds": 1200.0}, "warn", "20 min"),
        ({"held": 2}, "warn", "2 messages are held"),
    ],
)
def test_a_queue_that_stands_still_is_found(changes: dict[str, Any], state: str, said: str) -> None:
    """Paused, late and held mail each have their sentence."""
    found = check_queue({**QUEUE, **changes})
    assert found.state == state
    assert said in found.found
    assert (found.advice == "") == (state == "ok")


def test_what_the_running_relay_holds_back_is_warned_of() -> None:
    """Its own settings count, whatever those of the shell say."""
    assert list(notices({"status": "ready"})) == []
    (found,) = notices({"status": "ready", "notices": ["new mail is refused"]})
    assert (found.state, found.found) == ("warn", "new mail is refused")


def test_an_actor_that_fails_again_and_again_is_found() -> None:
    """Many restarts are more than an outage."""
    leaf = {"name": "sender", "state": "running", "restarts": 12, "children": []}
    tree = {"name": "relay", "state": "running", "restarts": 0, "children": [leaf]}
    found = check_actors(tree)
    assert (found.state, "--actor sender" in found.advice) == ("warn", True)
    assert check_actors({**tree, "children": []}).state == "ok"


def test_a_check_that_breaks_is_a_finding(tmp_path: Path) -> None:
    """One check that cannot be made is a FAIL with its name, and the others go on."""

    def _strange_check(_: Patient) -> Iterator[Finding]:
        raise ZeroDivisionError("division by zero")
        yield

    found = list(examine(patient(tmp_path), (_strange_check, check_file_system)))
    assert [f.check for f in found] == ["strange check", "file system"]
    assert found[0].state == "FAIL"


def test_what_is_wrong_has_advice(tmp_path: Path) -> None:
    """Whatever is not ok says what to do about it."""
    url = make_conninfo("postgresql://nobody@127.0.0.1:1/x", connect_timeout=1)
    done = cli("doctor", "--json", "--data-dir", tmp_path, env={"RELAY_DATABASE__URL": url})
    assert done.returncode == 1
    for finding in json.loads(done.stdout):
        assert finding["advice"] or finding["state"] == "ok", finding
