"""Every metric moves: what an operator watches is not a number that nothing ever changes."""

from __future__ import annotations

import operator
import poplib
import re
import smtplib
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import trio

from relay.db.pool import Pool
from relay.devices.client import Pusher, Receiver
from relay.devices.noise import KeyPair
from relay.settings import parse_endpoint
from tests.docs.pages import ROOT
from tests.docs.tables import scrape
from tests.eventually import eventually_sync
from tests.faults.outbound import started
from tests.outbound.sink import HangUp, Session, running_sink
from tests.relay_process import RelayProcess

ELSEWHERE = {
    "relay_connections_turned_away": "more peers than places: tests/faults/test_crowds.py",
    "relay_devices_store_waiting": "calls that wait for milliseconds: tests/actors/test_devices.py",
    "relay_outbound_policy_unmet": "domains with a policy: tests/outbound/mx/test_sts.py",
    "relay_tls_reports": "days that are over: tests/outbound/reporting/test_tls_reports.py",
    "relay_outbound_dane": "a DNS that validates: tests/outbound/mx/test_dane.py",
    "relay_outbound_dane_lookups": "domains that are signed: tests/outbound/mx/test_dane.py",
    "relay_outbound_sts_fetches": "domains with a policy: tests/outbound/mx/test_sts.py",
    "relay_outbound_unrecordable": "what the database refuses: tests/actors/test_sender.py",
    "relay_returns": "mail to a bounce domain: tests/returns/test_returning.py",
    "relay_storage_floor_bytes": "a setting, while the disk has its size: tests/test_storage.py",
    "relay_storage_refused": "a full disk: tests/faults/test_disk_space.py",
    "relay_tls_handshakes": "a certificate: tests/smtp/test_starttls.py",
    "relay_tls_handshakes_delayed": "one network's many: tests/ports/test_handshakes.py",
    "relay_writer_failed_messages": "mail that cannot be stored: tests/actors/test_writer.py",
}
"""What truly needs a fault that another test makes."""

_SMTP, _CONSUMED = "tests/smtp/test_server.py::", "tests/lifecycle/test_consumption.py::"
_WHY = f"{_SMTP}test_why_recipients_were_refused_is_logged_and_counted_without_them"

OUTCOMES: dict[tuple[str, str], dict[str, str]] = {
    ("relay_outbound_outcomes_total", "cause"): {
        "delivered": "",
        "deferred": "",
        "rejected": "",
        "refused": "",
        "uncertain": "",
        "exhausted": "tests/actors/test_sender.py::test_after_the_last_attempt_it_has_failed",
        "released": "tests/actors/test_sender.py::"
        "test_draining_finishes_what_has_begun_and_gives_back_the_rest",
    },
    ("relay_smtp_recipients_refused_total", "why"): {
        "unknown": "",
        "expired": _WHY,
        "over_quota": _WHY,
        "filter": "tests/actors/test_filter.py::"
        "test_a_filter_decides_at_every_step_and_alters_nothing",
    },
    ("relay_smtp_messages_total", "outcome"): {
        "accepted": "",
        "rejected": f"{_SMTP}test_sizes",
        "deferred": f"{_SMTP}test_an_internal_error_is_a_451_without_its_text",
    },
    ("relay_submission_messages_total", "outcome"): {
        "accepted": "",
        "rejected": "tests/actors/test_submission.py::"
        "test_what_cannot_be_a_message_is_refused_and_the_session_goes_on",
        "deferred": "tests/actors/test_submission.py::"
        "test_without_a_database_nothing_is_said_to_be_queued",
    },
    ("relay_pop3_sessions_total", "outcome"): {
        "served": "",
        "refused": "tests/actors/test_pop3.py::test_a_connection_too_many_is_told_so",
    },
    ("relay_pop3_sign_ins_total", "outcome"): {"right": "", "wrong": ""},
    ("relay_password_checks_total", "outcome"): {
        "right": "",
        "wrong": "",
        "limited": "tests/access/test_password_checks.py::"
        "test_who_waits_too_long_is_told_to_come_again",
    },
    ("relay_pop3_messages_sent_total", "command"): {"retr": "", "top": ""},
    ("relay_smtp_sessions_total", "outcome"): {
        "served": "",
        "refused": f"{_SMTP}test_connection_caps",
    },
    ("relay_tokens_consumed_total", "outcome"): {
        "signature": "",
        "consumed": "tests/http/resources/test_tokens.py::test_the_counters_name_nobody",
        "remembered": "tests/http/resources/test_tokens.py::test_the_counters_name_nobody",
        "guesses": f"{_CONSUMED}test_codes_cannot_be_tried_out",
        "state": f"{_CONSUMED}test_a_suspended_account_uses_nothing_up",
    },
    ("relay_collector_batches_total", "reason"): {
        "drain": "",
        "limit": "tests/actors/test_collector.py::test_the_documents_timing",
        "timeout": "tests/actors/test_collector.py::test_the_documents_timing",
    },
}
"""Metric and label that say what became of things → each outcome, and the test that brings it
about where it takes more than this one does (a full mailbox, a limit, a person's guesses)."""

_FAMILY = re.compile(r"^# TYPE (relay_\w+) ", re.MULTILINE)


def families(page: str) -> dict[str, tuple[str, ...]]:
    """Each metric of the relay, and the lines that it has now."""
    parts = _FAMILY.split(page)[1:]
    return {
        name.removesuffix("_total"): tuple(
            line for line in text.splitlines() if not line.startswith("#")
        )
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def outcomes(page: str, name: str, label: str) -> dict[str, float]:
    """What became of things so far, by this label."""
    lines = re.findall(rf'^{name}{{[^}}]*\b{label}="(\w+)"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return {value: float(count) for value, count in lines}


class Watch:
    """What has moved so far."""

    def __init__(self, relay: RelayProcess) -> None:
        self._relay = relay
        self._first = families(scrape(relay))
        self.moved: set[str] = set()

    @property
    def all(self) -> set[str]:
        """Every metric there is."""
        return set(self._first)

    def look(self) -> None:
        """Note what differs from the beginning."""
        for name, lines in families(scrape(self._relay)).items():
            if lines != self._first.setdefault(name, ()):
                self.moved.add(name)

    def until(self, *names: str) -> None:
        """Wait until these have moved."""

        def missing() -> set[str]:
            self.look()
            return set(names) - self.moved

        eventually_sync(
            missing, "all of them move", until=lambda names: not names, within=40.0, every=0.05
        )


class Drive:
    """One relay, driven through all its systems from outside."""

    def __init__(self, relay: RelayProcess, dsn: str, fence: Callable[[str], None]) -> None:
        self.relay = relay
        self.watch = Watch(relay)
        self.http = relay.http()
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.fence = fence

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A call as the administrator."""
        return self.http.request(method, f"/api/v1{path}", **options)

    def send(self, to: str, **more: Any) -> str:
        """Queue a message; its id."""
        body = {"from": "a@example.org", "to": [to], "subject": "s", "text": "t"} | more
        answer = self.call("POST", "/messages/send", json=body).raise_for_status()
        return str(answer.json()["messages"][0]["id"])

    def mail_in(self) -> None:
        """Mail arrives while somebody waits for it, and a mailbox ends."""
        address = self.relay.create_mailbox()
        with self.http.stream("GET", f"/api/v1/mailboxes/{address}/events"):
            self.watch.until("relay_http_streams")
        with smtplib.SMTP(*self.relay.smtp) as session:
            self.watch.until("relay_smtp_sessions_open")
            session.sendmail("a@example.org", [address], b"Subject: s\r\n\r\ntext\r\n")
            session.mail("a@example.org")
            session.rcpt(f"no.{address}")
            session.rcpt(address)
            session.docmd("DATA")
            session.send(b"x" * 70 + b"\r\n")
            self.watch.until("relay_smtp_buffered_bytes")
            session.send(b"\r\n.\r\n")
            session.getreply()
        host, _, port = self.relay.run["submission"].rpartition(":")
        with smtplib.SMTP(host, int(port)) as session:
            self.watch.until("relay_submission_sessions_open")
            session.login("any", self.relay.run["admin_token"])
            session.sendmail(
                "a@example.org", ["b@submitted.example"], b"Subject: s\r\n\r\nx\r\n",
                rcpt_options=["NOTIFY=SUCCESS"],
            )  # fmt: skip
            session.mail("a@example.org")
            session.rcpt("b@submitted.example")
            session.docmd("DATA")
            session.send(b"x" * 70 + b"\r\n")
            self.watch.until("relay_submission_buffered_bytes")
            session.send(b"\r\n.\r\n")
            session.getreply()
        with smtplib.LMTP(self.relay.run["lmtp"]) as session:
            self.watch.until("relay_lmtp_sessions_open")
            session.ehlo()
            session.mail("a@example.org")
            session.rcpt(address)
            session.docmd("DATA")
            session.send(b"x" * 70 + b"\r\n")
            self.watch.until("relay_lmtp_buffered_bytes")
            session.send(b"\r\n.\r\n")
            session.getreply()
        self.mail_fetched(address)
        self.watch.until("relay_messages_summarised", "relay_writer_batch_rows")
        self.sql.execute("UPDATE relay.mailboxes SET expires_at = now() - interval '1 hour'")
        self.watch.until("relay_mailboxes_expired")
        self.relay.create_mailbox()
        self.call("POST", "/ingest/sns", content=b"{}")
        self.call("POST", "/ingest/notifications", content=b"{}")
        with socket.create_connection(self.relay.smtp):
            pass
        anonymous = self.relay.http(Accept="application/json")
        with anonymous:
            while anonymous.post("/api/v1/mailboxes").status_code != 429:
                pass

    def mail_fetched(self, address: str) -> None:
        """Somebody mistypes a token, and then reads and deletes by POP3 what is in a mailbox."""
        host, _, port = self.relay.run["pop3"].rpartition(":")
        session = poplib.POP3(host, int(port), timeout=20)
        with pytest.raises(poplib.error_proto):
            session.user(address)
            session.pass_("wrong")
        session.user(address)
        session.pass_(self.relay.run["admin_token"])
        self.watch.until("relay_pop3_sessions_open", "relay_pop3_buffered_bytes")
        session.retr(1)
        session.top(1, 0)
        session.dele(1)
        session.quit()

    def devices(self) -> None:
        """A blob goes through, one finds no room, one expires."""
        device = KeyPair.generate()
        run = self.relay.run
        key = bytes.fromhex(run["devices_key"])
        with Pusher(parse_endpoint(run["devices_push"]), key, 15) as pusher:
            pusher.push(device.public, b"blob")
        path = f"/devices/{device.public.hex()}/blobs"
        for _ in range(2):
            self.call("POST", path, content=b"x" * 60_000)
        self.watch.until("relay_devices_blobs", "relay_devices_oldest_seconds")
        with Receiver(parse_endpoint(run["devices_receive"]), device, key, 15) as receiver:
            blob = receiver.receive(15)
            receiver.acknowledge(blob.id)  # type: ignore[union-attr]  # nothing was missed
            receiver.settle(15)
            self.watch.until("relay_devices_sessions")
        self.call("POST", path, content=b"short", params={"ttl": "1s"})

    def accounts(self) -> None:
        """A letter is sent, one cannot be, and somebody tries a forged token."""
        self.call("POST", "/supervision/collector/pause")
        self.call("POST", "/accounts", json={"email": "ada@ok.example", "login": "ada"})
        self.sql.execute(
            "INSERT INTO relay.suppressions (address, reason) VALUES ('no@ok.example', 'asked')"
        )
        self.call("POST", "/accounts", json={"email": "no@ok.example", "login": "no"})
        self.watch.until("relay_tokens_waiting", "relay_mailboxes_live")
        self.call("POST", "/supervision/collector/resume")
        self.call("POST", "/tokens/consume", json={"token": "x" * 86})
        self.watch.until("relay_collector_batches", "relay_collector_budget_letters")

    def mail_out(self) -> None:
        """Mail is delivered, refused, cancelled, lost and doubted."""
        self.call(
            "POST",
            "/webhooks",
            json={"url": "http://127.0.0.1:1/", "events": ["message.delivered"]},
        ).raise_for_status()
        self.call("POST", "/queue/pause")
        self.send("suppressed@ok.example")
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        self.send("expires@ok.example", not_after=soon.isoformat())
        self.sql.execute(
            "INSERT INTO relay.suppressions (address, reason)"
            " VALUES ('suppressed@ok.example', 'asked')"
        )
        lost, quarantined, doubted = (
            self.send(f"{name}@lost.example") for name in ("lost", "quarantined", "doubted")
        )
        leased = "UPDATE relay.outbound_due SET node = gen_random_uuid(), token = token + 1"
        gone = "claimed_at = now() - interval '1 hour', run_at = now()"
        self.sql.execute(
            f"{leased}, {gone}, held_until = now() - interval '1 minute' WHERE id = %s", (doubted,)
        )
        self.watch.until("relay_queue_messages", "relay_queue_due")
        self.call("POST", "/supervision/reaper/restart")
        self.watch.until("relay_outbound_reaped")
        # Met by a claim before the reaper would.
        self.sql.execute(f"{leased}, {gone} WHERE id = %s", (lost,))
        self.sql.execute(f"{leased}, {gone}, losses = 9 WHERE id = %s", (quarantined,))
        self.call("POST", "/queue/resume")
        self.call("POST", "/dkim", json={"domain": "signed.example"}).raise_for_status()
        self.send("signed@ok.example", **{"from": "a@signed.example"})
        looping = {"address": "loops@example.org", "upstream": "loop:"}
        self.call("POST", "/senders", json=looping).raise_for_status()
        self.send(self.relay.create_mailbox(), **{"from": looping["address"]})
        for name in ("ok", "unknown", "busy", "refused", "rejected"):
            self.send(f"{name}@{name}.example")
        self.send("uncertain@unknown.example", unknown_outcome="hold")
        self.fence(self.send("fenced@fenced.example"))
        self.watch.until(
            "relay_outbound_suppressed",
            "relay_outbound_expired",
            "relay_outbound_lost_leases",
            "relay_outbound_quarantined",
            "relay_outbound_unknown",
            "relay_outbound_pauses",
            "relay_outbound_fenced",
            "relay_loop_messages",
            "relay_webhook_posts",
        )
        self.sql.execute(
            "INSERT INTO relay.outbound_rates (key, rate, burst) SELECT 'route:' || %s, 1, 1",
            (self.relay.env["RELAY_OUTBOUND__UPSTREAM"],),
        )
        self.call("POST", "/supervision/claimer/restart")  # it looks for rates at once
        for number in range(20):
            self.send(f"u{number}@rate{number}.example")
        self.watch.until("relay_outbound_over_rate")

    def program(self) -> None:
        """An actor is paused with letters in its box."""
        self.call("POST", "/supervision/ticker/pause")
        self.relay.create_mailbox()
        self.watch.until("relay_actor_mailbox_depth", "relay_actor_restarts")

    def outcomes(self) -> None:
        """Wait until each outcome that can be had here has been; there is none beyond the list."""
        for (name, label), wanted in OUTCOMES.items():
            eventually_sync(
                partial(self._missing, name, label, wanted),
                f"each {label} of {name} comes about",
                until=operator.not_,
                within=40.0,
                every=0.05,
            )

    def _missing(self, name: str, label: str, wanted: Mapping[str, Any]) -> set[str]:
        """Outcomes that can be had here and have not been."""
        found = outcomes(scrape(self.relay), name, label)
        assert found.keys() <= wanted.keys(), name
        here = {value for value, elsewhere in wanted.items() if not elsewhere}
        return {value for value in here if not found.get(value)}

    def close(self) -> None:
        """Hang up."""
        self.http.close()
        self.sql.close()


@pytest.mark.timeout(150)
async def test_every_metric_moves(tmp_path: Path, pool: Pool, database_url: str):
    """One relay goes through all systems; what does not move is a fault that others make."""
    at_the_dot, fenced = trio.Event(), trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        about = line if verb == "RCPT" else " ".join(session.recipients)
        if verb == "RCPT" and "@busy." in line:
            return b"421 4.7.0 too many\r\n"
        if verb == "RCPT" and "@refused." in line:
            return b"550 5.1.1 nobody\r\n"
        if verb == "dot" and "@rejected." in about:
            return b"554 5.7.1 no\r\n"
        if verb == "dot" and "@unknown." in about:
            raise HangUp
        if verb == "dot" and "@fenced." in about:
            at_the_dot.set()
            await fenced.wait()
        return None

    async def fence_off(message: str) -> None:
        await at_the_dot.wait()
        await pool.execute(
            "UPDATE relay.outbound_due SET token = token + 1 WHERE id = %s", (message,)
        )

    def fence(message: str) -> None:
        trio.from_thread.run(fence_off, message)
        drive.watch.until("relay_outbound_held")
        # Restarted, the sender ends what is on the wire first; so long it does not run.
        restart = threading.Thread(target=drive.call, args=("POST", "/supervision/sender/restart"))
        restart.start()
        drive.watch.until("relay_actor_running")
        trio.from_thread.run_sync(fenced.set)
        restart.join(30)

    async with running_sink(script) as sink:
        relay = RelayProcess(
            tmp_path / "data",
            env={
                "RELAY_DATABASE__URL": database_url,
                "RELAY_OUTBOUND__UPSTREAM": sink.url,
                "RELAY_OUTBOUND__RETRY_UNIT": "0.2",
                "RELAY_OUTBOUND__LEASE_TIMEOUT": "60",
                "RELAY_POP3__BIND": "127.0.0.1:0",
                "RELAY_SMTP__LMTP": str(tmp_path / "lmtp"),
                "RELAY_EXPIRY__RETENTION": "0",
                "RELAY_HTTP__ANONYMOUS_RATE": "1",
                "RELAY_COLLECTOR__MONTHLY_BUDGET": "100",
                "RELAY_COLLECTOR__PRICE_PER_THOUSAND": "0.1",
                "RELAY_DEVICES__REAP_EVERY": "1s",
                "RELAY_DEVICES__MAX_BYTES": "100k",
                "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",
            },
        )
        async with started(relay):
            drive = await trio.to_thread.run_sync(
                partial(Drive, relay, database_url, fence), abandon_on_cancel=True
            )
            for part in (
                drive.mail_in, drive.devices, drive.accounts, drive.mail_out, drive.program,
            ):  # fmt: skip
                await trio.to_thread.run_sync(part)
            wanted: Collection[str] = drive.watch.all - ELSEWHERE.keys()
            await trio.to_thread.run_sync(drive.watch.until, *wanted)
            await trio.to_thread.run_sync(drive.outcomes)
            await trio.to_thread.run_sync(drive.close)
            stale = ELSEWHERE.keys() - drive.watch.all
    assert not stale, "there is no such metric"


def test_what_other_tests_bring_about_names_them():
    """Whoever is excused here points at a test that is there."""
    for wanted in OUTCOMES.values():
        for elsewhere in filter(None, wanted.values()):
            file, name = elsewhere.split("::")
            assert re.search(
                rf"^\s*(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE
            )
