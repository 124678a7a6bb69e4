"""The program from outside: signals, exit codes, what it publishes, several on one database."""

import contextlib
import json
import os
import signal
import smtplib
import socket
import ssl
import stat
import traceback
from pathlib import Path

import httpx
import psycopg
import pytest
import structlog
from cryptography import x509
from cryptography.fernet import Fernet

from relay.app import log_blocked
from supervisor import LoopBlocked
from tests.certificates import serial, write
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


def logged(relay: RelayProcess, event: str) -> list[dict[str, object]]:
    """The lines of the log with this event."""
    lines = relay.log_file.read_text().splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in parsed if line["event"] == event]


def greeted(relay: RelayProcess) -> smtplib.SMTP:
    """An SMTP session that has said EHLO."""
    client = smtplib.SMTP(*relay.smtp, timeout=20)
    client.ehlo("test.example")
    return client


def test_what_is_published_is_private_and_goes_with_a_clean_stop(tmp_path):
    """relay.json has mode 0600 and the entries of docs/operation.md; SIGTERM removes it, exit 0."""
    relay = RelayProcess(tmp_path / "var", env={"RELAY_SERVICE_HOST": "10.0.0.1"}, first_start=True)
    relay.start()
    assert stat.S_IMODE(relay.run_file.stat().st_mode) == 0o600
    ports = {"http", "smtp", "submission", "devices_push", "devices_receive"}
    secret = {"database_url", "admin_token"}
    others = {"bound", "smtp_processes", "devices_key", "settings"}
    assert set(relay.run) == {"pid", *ports, *others, *secret}
    assert relay.run["bound"] == {name: [relay.run[name]] for name in ("smtp", "submission")}
    assert relay.run["pid"] == relay.pid
    with psycopg.connect(relay.run["database_url"]) as database:
        assert database.execute("SELECT count(*) FROM relay.mailboxes").fetchone() == (0,)
    assert [line["smtp"] for line in logged(relay, "relay.ready")] == [relay.run["smtp"]]
    ignored = [line["names"] for line in logged(relay, "relay.ignored_variables")]
    assert ignored == [["RELAY_SERVICE_HOST"]]
    assert relay.stop() == 0
    assert not relay.run_file.exists()
    for line in relay.log_file.read_text().splitlines():
        assert {"timestamp", "level", "event", "actor"} <= set(json.loads(line))


def test_an_administrators_token_may_last(tmp_path):
    """A suite written for Mailpit is told it once: from start to start it opens captured mail, as
    Bearer, as a password, and in a URL; without the setting each start has another."""
    token = "suite-and-CI-know-this-one-for-good.0"
    relay = RelayProcess(tmp_path / "var", env={"RELAY_ADMIN_TOKEN": token})
    for start in (1, 2):
        relay.start()
        with greeted(relay) as client:
            client.sendmail("a@shop.example", "ada@customer.example", b"Subject: a\r\n\r\nb\r\n")
        rest = "/compat/mailpit/api/v1/messages"
        in_url = relay.run["http"].replace("//", f"//any:{token}@") + rest
        answers = [
            httpx.get(in_url, trust_env=False),
            httpx.get(relay.run["http"] + rest, auth=("any", token), trust_env=False),
            httpx.get(
                relay.run["http"] + rest,
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
            ),
        ]
        assert [answer.json()["total"] for answer in answers] == [start] * 3
        assert httpx.get(relay.run["http"] + rest, trust_env=False).status_code == 401
        assert relay.run["admin_token"] == token
        assert relay.run["settings"]["admin_token"] == "***"
        relay.stop()
    del relay.env["RELAY_ADMIN_TOKEN"]
    with relay:
        assert relay.run["admin_token"].startswith("ra_")


def test_no_child_of_a_relay_is_told_its_secrets(tmp_path):
    """Neither the database nor the parser inherits keys, URLs or what other programs were given."""
    secrets = {
        "RELAY_SECRET_KEY": "ab" * 32,
        "RELAY_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "RELAY_DEVICES__KEY": "cd" * 32,
        "RELAY_ADMIN_TOKEN": "0123456789abcdef" * 4,
        "RELAY_HTTP__METRICS_TOKEN": "12" * 32,
        "RELAY_TOKEN": "rk_0123456789abcdef",
        "RELAY_OUTBOUND__UPSTREAM": "smtps://shop:geheim@127.0.0.1:9",
        "SHOP_API_KEY": "hunter2",
    }
    with RelayProcess(tmp_path / "var", env=secrets, forked=False) as relay:
        with greeted(relay) as client:
            client.sendmail("a@shop.example", relay.create_mailbox(), b"Subject: a\r\n\r\nb\r\n")
        eventually_sync(
            lambda: [line for line, _ in _descendants(relay.pid)],
            "it has a parser",
            until=lambda lines: any(b"relay.mailboxes.worker" in line for line in lines),
        )
        family = _descendants(relay.pid)
    assert any(b"postgres" in command for command, _ in family)
    for command, environment in family:
        assert b"PATH=" in environment or b"postgres: " in command, command
        for name, value in secrets.items():
            assert f"{name}=".encode() not in environment, command
            assert value.encode() not in environment, command


def _descendants(pid: int) -> list[tuple[bytes, bytes]]:
    """Return command line and environment of each process below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    family = [pid]
    for parent in family:
        family += [child for child, its in parents.items() if its == parent]
    found = []
    for child in family[1:]:
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{child}")
            found.append(((place / "cmdline").read_bytes(), (place / "environ").read_bytes()))
    return found


def test_a_message_that_is_arriving_at_sigterm_may_finish(tmp_path):
    """The drain waits for a DATA in progress: 250, stored, exit 0."""
    relay = RelayProcess(tmp_path / "var")
    relay.start()
    address = relay.create_mailbox()
    client, idle = greeted(relay), greeted(relay)
    client.mail("a@example.org")
    client.rcpt(address)
    assert client.docmd("DATA")[0] == 354
    client.send(b"Subject: slow\r\n\r\nfirst half\r\n")
    assert relay.process is not None
    relay.process.send_signal(signal.SIGTERM)
    assert idle.getreply()[0] == 421  # it is ending, and waits for what comes
    assert relay.process.poll() is None
    client.send(b"second half\r\n.\r\n")
    assert client.getreply()[0] == 250
    client.close()
    idle.close()
    assert relay.process.wait(20) == 0
    relay.start()
    with relay.http() as http:
        entries = http.get(f"/api/v1/mailboxes/{address}/messages").json()
        assert len(entries) == 1
        raw = http.get(f"/api/v1/mailboxes/{address}/messages/{entries[0]['id']}/raw").content
    assert raw == b"Subject: slow\r\n\r\nfirst half\r\nsecond half\r\n"
    assert relay.stop() == 0


def test_an_idle_session_does_not_delay_the_stop(tmp_path):
    """At SIGTERM an idle session is told 421 and the relay ends well before its drain limit."""
    relay = RelayProcess(tmp_path / "var")
    relay.start()
    with socket.create_connection(relay.smtp, timeout=20) as session:
        assert session.recv(500).startswith(b"220 ")
        assert relay.process is not None
        relay.process.send_signal(signal.SIGTERM)
        assert session.recv(500).startswith(b"421 4.3.2 ")
        assert relay.process.wait(10) == 0


def test_a_second_signal_cuts_the_drain_short(tmp_path):
    """A sender that stalls in DATA holds the first stop up, not the second; exit 0 all the same."""
    relay = RelayProcess(tmp_path / "var")
    relay.start()
    address = relay.create_mailbox()
    client, idle = greeted(relay), greeted(relay)
    client.mail("a@example.org")
    client.rcpt(address)
    client.docmd("DATA")
    client.send(b"never ends")
    assert relay.process is not None
    relay.process.send_signal(signal.SIGTERM)
    assert idle.getreply()[0] == 421
    assert relay.process.poll() is None, "the first signal waits for the message"
    relay.process.send_signal(signal.SIGINT)
    assert relay.process.wait(10) == 0
    client.close()
    idle.close()


def test_sighup_reads_the_log_level_again(tmp_path):
    """A changed configuration file is applied without a restart; a broken one is refused."""
    config = tmp_path / "relay.toml"
    config.write_text('[log]\nlevel = "warning"\n')
    relay = RelayProcess(tmp_path / "var", arguments=("--config", str(config)))
    with relay:
        assert relay.process is not None
        assert not logged(relay, "relay.ready"), "info is not logged yet"
        config.write_text('[log]\nlevel = "debug"\n')
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(lambda: logged(relay, "relay.reloaded"), "the level is read")
        config.write_text('[log]\nlevel = "loud"\n')
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(lambda: logged(relay, "relay.reload_refused"), "it is refused")
        assert relay.process.poll() is None


def test_a_new_certificate_is_taken_up_by_itself_and_on_sighup_at_once(tmp_path):
    """The next session is shown it, and be it the first; one that is no good is refused, and the
    old one serves on."""
    cert, key = write(tmp_path)
    relay = RelayProcess(
        tmp_path / "var", env={"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key}
    )

    def shown() -> int:
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        with greeted(relay) as client:
            client.starttls(context=anyone)
            assert isinstance(client.sock, ssl.SSLSocket)
            der = client.sock.getpeercert(binary_form=True)
            assert der is not None
            return x509.load_der_x509_certificate(der).serial_number

    with relay:
        assert relay.process is not None
        write(tmp_path)
        eventually_sync(lambda: logged(relay, "tls.certificate_loaded"), "nobody need come for it")
        assert shown() == serial(cert)
        write(tmp_path)
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(shown, "it is shown", until=lambda found: found == serial(cert))
        good = serial(cert)
        Path(cert).write_bytes(b"")
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(lambda: logged(relay, "tls.certificate_refused"), "it is refused")
        assert shown() == good


def test_a_bad_certificate_at_the_start_is_a_configuration_error(tmp_path):
    """Exit 78 and a sentence, before anything is touched; so is half of the two settings."""
    cert, key = write(tmp_path)
    Path(cert).write_bytes(b"")
    for env in (
        {"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key},
        {"RELAY_SMTP__TLS_CERT": cert},
    ):
        relay = RelayProcess(tmp_path / "var", env=env)
        assert relay.spawn().wait(30) == 78
        assert "relay: RELAY_SMTP__TLS_CERT" in relay.log_tail()
        assert "Traceback" not in relay.log_tail()


def test_traffic_rules_are_read_at_the_start_and_on_sighup(tmp_path):
    """A fault at the start ends it with 78 and the line; on SIGHUP the rules of before stay."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[default]\nconections = 4\n")
    env = {"RELAY_OUTBOUND__SHAPING": str(rules)}
    relay = RelayProcess(tmp_path / "var", env=env)
    assert relay.spawn().wait(30) == 78
    said = [line for line in relay.log_tail().splitlines() if line.startswith("relay: ")]
    assert said == [
        f"relay: The traffic rules {rules}, line 2: default.conections: there is no such key; did "
        "you mean connections?"
    ]
    rules.write_text("[default]\nconnections = 4\n")
    with RelayProcess(tmp_path / "var", env=env) as relay:
        assert relay.process is not None
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(lambda: logged(relay, "shaping.loaded"), "they are read")
        rules.write_text("[default]\nconnections = 0\n")
        relay.process.send_signal(signal.SIGHUP)
        eventually_sync(lambda: logged(relay, "shaping.refused"), "they are refused")
        assert relay.process.poll() is None


def test_a_newer_schema_is_refused_in_one_sentence(tmp_path, database_url):
    """An older program does not touch a database that a newer one has migrated: exit 78."""
    with psycopg.connect(database_url, autocommit=True) as database:
        database.execute(
            "INSERT INTO relay.schema_migrations (number, name, checksum) VALUES (9999, 'x', 'y')"
        )
    relay = RelayProcess(tmp_path / "var", env={"RELAY_DATABASE__URL": database_url})
    assert relay.spawn().wait(30) == 78
    assert [line for line in relay.log_tail().splitlines() if line.startswith("relay: ")]
    assert "Traceback" not in relay.log_tail()


def test_a_start_after_kill_stops_the_orphaned_server_and_goes_on(tmp_path):
    """kill -9 leaves PostgreSQL behind; the next start deals with it and the mail is there."""
    relay = RelayProcess(tmp_path / "var")
    relay.start()
    address = relay.create_mailbox()
    with greeted(relay) as client:
        client.sendmail("a@example.org", [address], b"Subject: kept\r\n\r\nx\r\n")
    relay.kill()
    assert relay.run_file.exists(), "a killed relay cannot tidy up"
    relay.start()
    with relay.http() as http:
        assert len(http.get(f"/api/v1/mailboxes/{address}/messages").json()) == 1
    assert relay.stop() == 0


def test_an_actor_restarted_or_paused_by_hand_keeps_its_port(tmp_path):
    """Ingest paused answers 421 4.3.2 on the same port; restarted, it takes mail there again."""
    with RelayProcess(tmp_path / "var") as relay, relay.http() as http:
        address = relay.create_mailbox()
        open_session = greeted(relay)
        assert http.post("/api/v1/supervision/ingest/pause").status_code < 300
        with socket.create_connection(relay.smtp, timeout=20) as refused:
            assert refused.recv(500).startswith(b"421 4.3.2 ")
        open_session.sendmail("a@example.org", [address], b"Subject: open\r\n\r\nx\r\n")
        open_session.quit()
        assert http.post("/api/v1/supervision/ingest/resume").status_code < 300
        with greeted(relay) as client:
            client.sendmail("a@example.org", [address], b"Subject: resumed\r\n\r\nx\r\n")
        assert http.post("/api/v1/supervision/ingest/restart").status_code < 300

        def restarted() -> bool:
            groups = http.get("/api/v1/supervision").json()["children"]
            actors = [actor for group in groups for actor in group["children"]]
            found = [actor for actor in actors if actor["name"] == "ingest"]
            return (found[0]["state"], found[0]["restarts"]) == ("running", 1)

        eventually_sync(restarted, "it is restarted")
        with greeted(relay) as client:
            client.sendmail("a@example.org", [address], b"Subject: restarted\r\n\r\nx\r\n")
        assert len(http.get(f"/api/v1/mailboxes/{address}/messages").json()) == 3


def test_two_relays_share_a_database_and_a_port(tmp_path, database_url):
    """Mail taken by one is read through the other; a wait on one hears of mail to the other."""
    env = {"RELAY_DATABASE__URL": database_url, "RELAY_SMTP__SHARE_PORT": "true"}
    with RelayProcess(tmp_path / "one", env=env) as one:
        shared = {**env, "RELAY_SMTP__BIND": one.run["smtp"]}
        with RelayProcess(tmp_path / "two", env=shared) as two, two.http() as http:
            assert one.run["smtp"] == two.run["smtp"]
            address = one.create_mailbox()
            for number in range(20):
                with greeted(one) as client:
                    body = f"Subject: n{number}\r\n\r\nx\r\n".encode()
                    client.sendmail("a@example.org", [address], body)
            answer = http.get(
                f"/api/v1/mailboxes/{address}/messages/wait",
                params={"subject": "n19", "timeout": 20},
            )
            assert answer.status_code == 200
            both = [logged(relay, "writer.stored") for relay in (one, two)]
            assert all(both), "the kernel spreads connections over both"
            leaders = [logged(relay, "ticker.leads") for relay in (one, two)]
            assert [bool(lines) for lines in leaders].count(True) == 1


def test_without_sharing_a_port_in_use_is_refused(tmp_path):
    """78, one sentence on stderr, and the relay that has the port is unhurt."""
    with RelayProcess(tmp_path / "one") as one:
        for setting, entry in (
            ("RELAY_SMTP__BIND", "smtp"),
            ("RELAY_SUBMISSION__BIND", "submission"),
            ("RELAY_DEVICES__PUSH_BIND", "devices_push"),
            ("RELAY_DEVICES__RECEIVE_BIND", "devices_receive"),
        ):
            other = RelayProcess(tmp_path / entry, env={setting: one.run[entry]})
            assert other.spawn().wait(30) == 78
            assert setting in other.log_tail()
            assert "Traceback" not in other.log_tail()
        with one.http() as http:
            assert http.get("/readyz").status_code == 200


def test_a_port_that_nobody_set_may_be_another_programs(tmp_path):
    """Submission came later than those who run several relays: a free port is taken, and said."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # else somebody else's has it
            stack.enter_context(socket.create_server(("127.0.0.1", 2587)))
        relay = RelayProcess(tmp_path / "data")
        del relay.env["RELAY_SUBMISSION__BIND"]
        with relay:
            assert not relay.run["submission"].endswith(":2587")
            (line,) = logged(relay, "relay.port_taken")
            assert (line["setting"], line["address"]) == (
                "RELAY_SUBMISSION__BIND", "127.0.0.1:2587",
            )  # fmt: skip
    off = RelayProcess(tmp_path / "off", env={"RELAY_SUBMISSION__BIND": ""})
    with off:
        assert "submission" not in off.run


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_it_runs_as_root_in_a_home_that_nobody_else_may_enter(tmp_path):
    """The embedded server runs below a 0700 directory of root's, whose mode is not changed."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with RelayProcess(home / "deep" / "var") as relay:
        assert relay.create_mailbox()
    assert stat.S_IMODE(Path(home).stat().st_mode) == 0o700


@pytest.mark.parametrize(("seconds", "level"), [(0.2, "warning"), (1.0, "error")])
def test_a_short_pause_of_the_loop_is_a_line_and_a_long_one_a_stack(
    seconds: float, level: str
) -> None:
    """Below a second a warning with the innermost frames, from there on an error with them all."""
    stack = "".join(traceback.format_stack())
    with structlog.testing.capture_logs() as lines:
        log_blocked(LoopBlocked(1.0, "writer", "the task", stack, seconds))
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("loop.blocked", level)
    if level == "error":
        assert line["stack"] == stack
        return
    assert line["where"].startswith(
        "test_a_short_pause_of_the_loop_is_a_line_and_a_long_one_a_stack"
    )
    assert "\n" not in line["where"]
    assert line["where"].count(" < ") == 2
    assert "stack" not in line
