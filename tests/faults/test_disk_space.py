"""A disk that fills up under a running relay: what is new is put off, all else goes on.

The relay has a small file system of its own (a tmpfs in a mount namespace), which the test fills
and empties.
"""

from __future__ import annotations

import os
import shutil
import smtplib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from relay.devices.client import Delivery, Pusher, Receiver, RefusedByRelay
from relay.devices.noise import KeyPair
from relay.devices.wire import Reason
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

DISK, FLOOR = "400m", "100m"
LETTER = "Subject: Hello\r\n\r\nYour code is 482913.\r\n"


class Island(RelayProcess):
    """A relay whose data directory is a file system of its own."""

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it in a mount namespace where a tmpfs hides the data directory."""
        self.data_dir.mkdir(exist_ok=True)
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
                    'mount -t tmpfs -o size=$1,mode=700 none "$2" && shift && '
                    'dir=$1 && shift && exec "$@" --data-dir "$dir"',
                    *("sh", DISK, str(self.data_dir)),
                    *(sys.executable, "-m", "relay", "up"),
                ],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    @property
    def inside(self) -> Path:
        """The data directory, seen from here."""
        return Path(f"/proc/{self.pid}/root{self.data_dir}")

    @property
    def run_file(self) -> Path:
        """Where the relay publishes how to reach it."""
        return self.data_dir if self.process is None else self.inside / "run" / "relay.json"

    def fill(self) -> None:
        """Leave half of the floor free."""
        disk = os.statvfs(self.inside)
        free = disk.f_bavail * disk.f_frsize
        with open(self.inside / "filler", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - (50 << 20))

    def send_by_sql(self, recipient: str, subject: str) -> str:
        """Queue a message in a transaction of one's own; its id."""
        dsn = conninfo_to_dict(self.run["database_url"])
        socket_dir = Path(str(dsn["host"]))
        if socket_dir.is_relative_to(self.data_dir):
            dsn["host"] = str(self.inside / socket_dir.relative_to(self.data_dir))
        with psycopg.connect(**dsn) as conn:  # type: ignore[arg-type]
            row = conn.execute(
                "SELECT relay.send('shop@relay.localhost', %s, %s, 'text')", (recipient, subject)
            ).fetchone()
        assert row is not None
        return str(row[0])

    def empty(self) -> None:
        """Take that back."""
        (self.inside / "filler").unlink()


@pytest.fixture(scope="module")
def island(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    """A relay on a small disk."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [
                "unshare",
                "--user",
                "--map-root-user",
                "--mount",
                "mount",
                "-t",
                "tmpfs",
                "none",
                "/mnt",
            ],
            check=False,
            capture_output=True,
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")
    process = Island(
        tmp_path_factory.mktemp("island") / "data",
        env={
            "RELAY_STORAGE__MIN_FREE": FLOOR,
            "RELAY_OUTBOUND__RETRY_UNIT": "1",
            "RELAY_COLLECTOR__SENDER": "shop@relay.localhost",
        },
    )
    with process:
        yield process
        assert process.stop() == 0, process.log_tail()


def mail_reply(relay: Island, *options: str) -> tuple[int, bytes]:
    """Return the reply to MAIL."""
    host, port = relay.smtp
    with smtplib.SMTP(host, port, timeout=20) as session:
        session.ehlo()
        return session.mail("a@example.org", list(options))


def metric(relay: Island, name: str) -> float:
    """Return the value of a metric."""
    with relay.http() as client:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(name)


def pushed(relay: Island, to: bytes, envelope: bytes) -> tuple[int, int] | None:
    """Push a blob; the reason and the seconds of a refusal."""
    host, _, port = relay.run["devices_push"].rpartition(":")
    with Pusher((host, int(port)), bytes.fromhex(relay.run["devices_key"])) as session:
        try:
            session.push(to, envelope)
        except RefusedByRelay as refusal:
            return refusal.reason, refusal.retry_after
    return None


def test_a_disk_that_fills_up_puts_off_what_is_new(island):
    """452, 507, 503 and Error 5 with the reason; reads, deletes and acknowledgements go on; with
    room again everything works, and what was acknowledged or queued is all there."""
    device = KeyPair.generate()
    box = island.create_mailbox(local_part="box")
    assert mail_reply(island)[0] == 250
    assert pushed(island, device.public, b"before") is None
    smtp_host, smtp_port = island.smtp
    with smtplib.SMTP(smtp_host, smtp_port, timeout=20) as session:
        session.sendmail("a@example.org", [box], LETTER)
    with (
        island.http() as client,
        socket.create_connection(island.smtp, timeout=30) as arriving,
    ):
        lines = arriving.makefile("rwb", buffering=0)
        assert lines.readline().startswith(b"220")
        for command in ("HELO me", "MAIL FROM:<a@example.org>", f"RCPT TO:<{box}>", "DATA"):
            lines.write(command.encode() + b"\r\n")
            assert lines.readline()[:1] in b"23"

        def send(text: str) -> int:
            body = {"from": "shop@relay.localhost", "to": [box], "subject": text, "text": text}
            return int(client.post("/api/v1/messages/send", json=body).status_code)

        messages = f"/api/v1/mailboxes/{box}/messages"
        eventually_sync(lambda: len(client.get(messages).json()) == 1, "the first is there")

        island.fill()
        eventually_sync(lambda: mail_reply(island)[0] == 452, "MAIL is refused")
        _, text = mail_reply(island)
        assert text.startswith(b"4.3.1")
        assert b"disk" in text
        lines.write(LETTER.encode() + b".\r\n")
        assert lines.readline().startswith(b"452 4.3.1")
        blobs = f"/api/v1/devices/{device.public.hex()}/blobs"
        answer = client.post(blobs, content=b"refused")
        assert (answer.status_code, answer.json()["type"]) == (
            507,
            "/problems/insufficient-storage",
        )
        assert int(answer.headers["Retry-After"]) > 0
        assert "disk" in answer.json()["detail"]
        assert send("refused") == 503
        reason, seconds = pushed(island, device.public, b"refused") or (0, 0)
        assert (reason, seconds > 0) == (Reason.UNAVAILABLE, True)
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert "refused" in ready.json()["notices"][0]
        assert metric(island, "relay_storage_free_bytes") < 100 << 20
        assert metric(island, "relay_storage_floor_bytes") == 100 << 20

        # What does not grow, or makes room.
        (message,) = client.get(messages).json()
        assert client.delete(f"{messages}/{message['id']}").status_code == 204
        assert client.get(messages).json() == []
        host, _, port = island.run["devices_receive"].rpartition(":")
        with Receiver((host, int(port)), device) as receiving:
            blob = receiving.receive(20)
            assert isinstance(blob, Delivery)
            assert blob.envelope == b"before"
            receiving.acknowledge(blob.id)
            receiving.settle(20)
        with Receiver((host, int(port)), device) as receiving, pytest.raises(TimeoutError):
            receiving.receive(0.3)

        # A token waits for its letter, and what SQL queues for a mailbox here for its delivery.
        later = island.send_by_sql(box, "waits")
        account = {"email": box, "login": "ada"}
        assert client.post("/api/v1/accounts", json=account).status_code == 201
        eventually_sync(
            lambda: (
                metric(island, 'relay_storage_refused_total{what="letter"}') > 0
                and metric(island, 'relay_storage_refused_total{what="delivery"}') > 0
            ),
            "the loop and the collector have met the floor",
        )
        entry = client.get(f"/api/v1/outbound/{later}").json()
        assert entry["status"] in {"queued", "processing"}
        assert entry["attempts"] == 0
        assert client.get(messages).json() == []

        island.empty()
        eventually_sync(lambda: mail_reply(island)[0] == 250, "MAIL is welcome again")
        assert client.get("/readyz").json() == {"status": "ready"}
        assert send("welcome") == 202
        assert client.post(blobs, content=b"after").status_code == 201
        assert pushed(island, device.public, b"after") is None
        eventually_sync(
            lambda: len(client.get(messages).json()) == 3, "all that waited was delivered"
        )
        found = {entry["subject"] for entry in client.get(messages).json()}
        assert {"waits", "welcome"} < found
        assert client.get(f"/api/v1/outbound/{later}").json()["attempts"] == 1
    log = island.log_file.read_text()
    assert '"event":"storage.low"' in log
    assert '"event":"storage.recovered"' in log


def test_an_announced_size_that_does_not_fit_is_refused_at_once(island):
    """SIZE counts at MAIL: what would go below the floor is 452 before a byte of it was sent."""
    disk = os.statvfs(island.inside)
    spare = disk.f_bavail * disk.f_frsize - (100 << 20)
    with open(island.inside / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, spare - (12 << 20))
    try:
        eventually_sync(
            lambda: mail_reply(island, "SIZE=20000000")[0] == 452, "the announced size does not fit"
        )
        assert mail_reply(island, "SIZE=1000")[0] == 250
        assert mail_reply(island)[0] == 250
    finally:
        island.empty()
