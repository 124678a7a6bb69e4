"""After its time a mailbox accepts nothing and shows nothing, whoever is asleep."""

import smtplib
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.relay_process import RelayProcess


@pytest.fixture
def relay(tmp_path):
    """A relay whose ticker is paused, so that no flag is ever flipped."""
    with RelayProcess(tmp_path / "var") as relay, relay.http() as client:
        assert client.post("/api/v1/supervision/ticker/pause").status_code < 300
        yield relay


def test_not_one_message_is_accepted_after_expiry_with_the_ticker_stopped(relay):
    """One session sends without pause across the instant of expires_at."""
    address = relay.create_mailbox()
    with psycopg.connect(relay.run["database_url"], autocommit=True) as database:
        row = database.execute(
            "UPDATE relay.mailboxes SET expires_at = clock_timestamp() + interval '700 ms'"
            " WHERE address = %s RETURNING expires_at",
            (address,),
        ).fetchone()
        assert row is not None
        expires_at = row[0]
        accepted, refused = 0, 0
        with smtplib.SMTP(*relay.smtp) as client:
            # Half a second past it, or until one was refused on a machine that is busy.
            while datetime.now(UTC) < expires_at + timedelta(seconds=20 if not refused else 0.5):
                begun = datetime.now(UTC)
                try:
                    client.sendmail("a@example.org", [address], b"Subject: x\r\n\r\nx\r\n")
                except smtplib.SMTPRecipientsRefused as error:
                    assert error.recipients[address][0] == 550
                    assert error.recipients[address][1].startswith(b"5.1.1 ")
                    refused += 1
                    time.sleep(0.01)  # a hundred refusals in a row end a session
                except smtplib.SMTPDataError as error:
                    assert (error.smtp_code, error.smtp_error[:6]) == (550, b"5.1.1 ")
                    refused += 1
                else:
                    assert begun < expires_at, "accepted a message that began after expiry"
                    accepted += 1
        assert accepted
        assert refused
        late = database.execute(
            "SELECT count(*) FROM relay.messages m JOIN relay.mailboxes b ON b.id = m.mailbox_id"
            " WHERE m.received_at >= b.expires_at"
        ).fetchone()
        assert late == (0,)
        flag = database.execute(
            "SELECT is_active FROM relay.mailboxes WHERE address = %s", (address,)
        ).fetchone()
        assert flag == (True,), "the ticker was meant to be asleep"
    with relay.http() as http:
        for path in ("", "/messages", "/messages/wait?timeout=30", "/events"):
            began = time.monotonic()
            assert http.get(f"/api/v1/mailboxes/{address}{path}").status_code == 404
            assert time.monotonic() - began < 20, "a 404 must not wait"
