"""A primary that freezes: mail is accepted again soon after its standby was promoted, and stays
with the new one when the old one thaws."""

from __future__ import annotations

import signal
import smtplib
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.db.cluster import TwoHosts
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

LETTER = b"Subject: a\r\n\r\nb\r\n"


def accepted(relay: RelayProcess, address: str) -> bool:
    """Whether one mail was answered 250, by a sender of little patience."""
    try:
        with smtplib.SMTP(*relay.smtp, timeout=3) as client:
            client.sendmail("a@shop.example", address, LETTER)
    except (OSError, smtplib.SMTPException):
        return False
    return True


def stored(pair: TwoHosts, name: str) -> int:
    server = getattr(pair, name)
    with psycopg.connect(make_conninfo(pair.dsn, host=str(server.directory))) as sql:
        row = sql.execute("SELECT count(*) FROM relay.messages").fetchone()
    assert row is not None
    return int(row[0])


def test_mail_goes_to_the_server_that_was_promoted(tmp_path: Path) -> None:
    """Frozen: no 250.  Promoted: 250 again.  Thawed, first in the URL and taking writes: the old
    one gets none of it, and the sessions that its connections served lose nothing.  Meanwhile
    `/readyz` answers, and names the store and its server once."""
    pair = TwoHosts(18)
    env = {"RELAY_DATABASE__URL": pair.dsn, "RELAY_DEVICES__STORE": "postgres"}
    try:
        with RelayProcess(tmp_path / "node", env=env) as relay:
            address = relay.create_mailbox()
            assert all(accepted(relay, address) for _ in range(5))
            eventually_sync(lambda: stored(pair, "new"), "both have them", until=lambda n: n >= 5)
            pair.old.signal_all(signal.SIGSTOP)
            assert not accepted(relay, address)
            with relay.http() as http:
                answer = http.get("/readyz", timeout=5)
            assert answer.status_code == 503
            detail = answer.json()["detail"]
            assert detail.startswith("Not ready: PostgreSQL does not answer (")
            assert str(pair.old.directory) in detail
            assert "device" not in detail
            pair.new.promote()
            promoted_at = time.monotonic()
            eventually_sync(lambda: accepted(relay, address), "mail is answered 250 again")
            print(f"250 again {time.monotonic() - promoted_at:.1f} s after the promotion")
            found = stored(pair, "new")
            pair.old.signal_all(signal.SIGCONT)
            assert all(accepted(relay, address) for _ in range(20))
            assert stored(pair, "new") == found + 20
            assert stored(pair, "old") == 5
            with relay.http() as http:
                assert http.get("/readyz").status_code == 200
    finally:
        pair.remove()
