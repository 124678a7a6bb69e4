"""A group of the tree that fails for as long as it likes, while the others do not notice.

Each test breaks one group, and for `SECONDS` sends mail in and out, makes accounts and puts blobs,
as far as these do not need that group: all arrive, and none of the other actors is ever restarted.
`/readyz` names the group meanwhile.  When the cause is gone, all is well again by itself, and what
waited is done.
"""

from __future__ import annotations

import os
import shutil
import smtplib
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

SECONDS = 2.0
PACE = 0.02
LONG = 600.0
DEVICE = "5a" * 32


class World:
    """A relay, and somebody who uses all of it."""

    def __init__(self, relay: RelayProcess, api: httpx.Client, crashes: Path) -> None:
        self.relay = relay
        self.api = api
        self.crashes = crashes
        self.rounds = 0
        self.sent: list[str] = []
        self.accounts: list[str] = []
        self.address = relay.create_mailbox(ttl_minutes=60)

    # What people do -------------------------------------------------------------------------------

    def receive(self) -> None:
        """Mail comes by SMTP and is read over HTTP."""
        subject = f"round {self.rounds}"
        with smtplib.SMTP(*self.relay.smtp, timeout=20) as client:
            client.sendmail("a@example.org", [self.address], f"Subject: {subject}\r\n\r\nx\r\n")
        path = f"/api/v1/mailboxes/{self.address}/messages/wait"
        found = self.api.get(path, params={"subject": subject, "timeout": 20})
        assert found.status_code == 200, found.text

    def send(self) -> None:
        """Mail is queued."""
        message = {
            "from": "shop@relay.localhost",
            "to": [self.address],
            "subject": f"sent {self.rounds}",
            "text": "x",
        }
        answer = self.api.post("/api/v1/messages/send", json=message)
        assert answer.status_code == 202, answer.text
        self.sent += [one["id"] for one in answer.json()["messages"]]

    def arrives(self) -> None:
        """What was queued is sent, all of it."""
        eventually_sync(
            lambda: self._status(self.sent) <= {"sent"}, "all queued mail is sent", within=60
        )
        self.sent.clear()

    def register(self) -> None:
        """An account is made."""
        email = f"ada{self.rounds}@relay.localhost"
        made = self.api.post("/api/v1/accounts", json={"email": email, "login": f"a{self.rounds}"})
        assert made.status_code == 201, made.text
        self.accounts.append(made.json()["id"])

    def is_mailed(self) -> None:
        """Each account gets one letter, which is queued."""
        for account in self.accounts:
            eventually_sync(
                partial(self._is_mailed, account), "the account has its letter", within=60
            )
        self.accounts.clear()

    def put(self) -> None:
        """A blob is stored."""
        answer = self._put()
        assert answer.status_code == 201, answer.text

    # What an operator sees ------------------------------------------------------------------------

    def restarts(self) -> dict[str, dict[str, int]]:
        """How often each actor was restarted, by group."""
        groups = self.api.get("/api/v1/supervision").raise_for_status().json()["children"]
        return {
            group["name"]: {actor["name"]: actor["restarts"] for actor in group["children"]}
            for group in groups
        }

    def trouble(self) -> str:
        """What /readyz says is wrong; empty: nothing."""
        answer = self.api.get("/readyz")
        return "" if answer.status_code == 200 else str(answer.json()["detail"])

    def crash(self, *actors: str) -> None:
        """Let these crash from now on."""
        for actor in actors:
            (self.crashes / actor).touch()

    def mend(self) -> None:
        """Let nothing crash any more."""
        for flag in self.crashes.iterdir():
            flag.unlink()

    def goes_on(self, group: str, seconds: float, *doings: Callable[[], None]) -> int:
        """Do all this for so long while `group` is down; return how often.

        Nothing outside the group is restarted, and /readyz names it nearly all the time: an actor
        that was started again and has not failed yet is not in trouble.
        """
        eventually_sync(lambda: group in self.trouble(), f"/readyz names {group}", within=60)
        before, rounds, named = self._others(group), 0, 0
        until = time.monotonic() + seconds
        while time.monotonic() < until or rounds < 2:
            for do in doings:
                do()
            rounds += 1
            self.rounds += 1
            named += group in self.trouble()
            assert self._others(group) == before
            time.sleep(min(3.0, seconds / 20))
        assert set(before.values()) == {0}, before
        assert named > rounds / 2, (named, rounds)
        return rounds

    def recovers(self, seconds: float) -> float:
        """Wait until /readyz is content, without a hand; return the seconds."""
        began = time.monotonic()
        eventually_sync(
            self.trouble, "it is ready again", until=lambda trouble: not trouble, within=seconds
        )
        return time.monotonic() - began

    def put_is_refused(self) -> None:
        """A blob and the list of devices are a clear 503."""
        for answer in (self._put(), self.api.get("/api/v1/devices")):
            assert answer.status_code == 503, answer.text
            assert "device store does not answer" in answer.json()["detail"]
            assert int(answer.headers["Retry-After"]) > 0

    def _put(self) -> httpx.Response:
        return self.api.post(f"/api/v1/devices/{DEVICE}/blobs", content=b"blob")

    def _others(self, group: str) -> dict[str, int]:
        return {
            name: count
            for other, actors in self.restarts().items()
            if other != group
            for name, count in actors.items()
        }

    def _status(self, ids: list[str]) -> set[str]:
        return {self.api.get(f"/api/v1/outbound/{one}").json()["status"] for one in ids}

    def _is_mailed(self, account: str) -> bool:
        answer = self.api.get(f"/api/v1/accounts/{account}").raise_for_status()
        return len(answer.json()["letters"]) == 1


@contextmanager
def world(tmp_path: Path, pace: float) -> Iterator[World]:
    """Run a relay whose actors can be made to crash."""
    crashes = tmp_path / "crashes"
    crashes.mkdir(exist_ok=True)
    relay = RelayProcess(
        tmp_path / "var",
        env={"CRASHES": str(crashes), "PACE": str(pace), "RELAY_OUTBOUND__RETRY_UNIT": "1s"},
        module="tests.faults.crashing_relay",
    )
    with relay, relay.http() as api:
        try:
            yield World(relay, api, crashes)
        except AssertionError as error:
            error.add_note(relay.log_tail())
            raise
        assert relay.stop() == 0


def broken_outbound(tmp_path: Path, seconds: float, pace: float, patience: float) -> str:
    """Mail comes in, accounts are made, blobs put; what was queued is sent afterwards."""
    with world(tmp_path, pace) as here:
        here.crash("claimer", "webhooks")
        rounds = here.goes_on(
            "outbound", seconds, here.receive, here.send, here.register, here.is_mailed, here.put
        )
        here.mend()
        took = here.recovers(patience)
        here.arrives()
        restarts = here.restarts()["outbound"]
        return f"outbound: {rounds} rounds, back after {took:.1f} s, {restarts}"


def broken_lifecycle(tmp_path: Path, seconds: float, pace: float, patience: float) -> str:
    """Mail goes in and out, blobs are put; accounts are mailed afterwards."""
    with world(tmp_path, pace) as here:
        here.crash("collector")
        rounds = here.goes_on(
            "lifecycle", seconds, here.receive, here.send, here.arrives, here.register, here.put
        )
        here.mend()
        took = here.recovers(patience)
        here.is_mailed()
        restarts = here.restarts()["lifecycle"]
        return f"lifecycle: {rounds} rounds, back after {took:.1f} s, {restarts}"


def broken_store(
    tmp_path: Path, cause: str, at_start: bool, seconds: float, pace: float, patience: float
) -> str:
    """Mail goes in and out and accounts are mailed; blobs are refused, and taken afterwards."""
    file = tmp_path / "var" / "devices.db"
    aside = tmp_path / "aside"
    if at_start:
        with world(tmp_path, pace) as here:
            here.put()
        _damage(file, aside, cause)
    with world(tmp_path, pace) as here:
        if not at_start:
            here.put()
            _damage(file, aside, cause)
            if cause != "garbage" and pace < 1:  # it is waited for a quarter of a minute
                here.api.post("/api/v1/supervision/device_store/restart").raise_for_status()
        try:
            rounds = here.goes_on(
                "devices-store",
                seconds,
                *(here.receive, here.send, here.arrives, here.register, here.is_mailed),
                here.put_is_refused,
            )
            if cause == "a folder":  # the log says why, not only that something was raised
                why = '"error":"unable to open database file"'  # once the store has given it up
                eventually_sync(lambda: why in here.relay.log_tail(10_000), "the log says why")
        finally:
            _repair(file, aside, cause)
        took = here.recovers(patience)
        here.put()
        waiting = here.api.get("/api/v1/devices")
        assert waiting.status_code == 200
        store = here.restarts()["devices-store"]
        return f"devices-store, {cause}: {rounds} rounds, back after {took:.1f} s, {store}"


def _damage(file: Path, aside: Path, cause: str) -> None:
    aside.mkdir()
    for part in file.parent.glob("devices.db*"):
        os.rename(part, aside / part.name)
    if cause == "a folder":
        file.mkdir()
    elif cause == "read-only folder":
        # Not even root may make a file in it; its sub-folders are not concerned.
        subprocess.run(["chattr", "+i", file.parent], check=True)
    else:
        file.write_bytes(b"no database " * 1000)


def _repair(file: Path, aside: Path, cause: str) -> None:
    if cause == "read-only folder":
        subprocess.run(["chattr", "-i", file.parent], check=True)
    for part in file.parent.glob("devices.db*"):
        part.rmdir() if part.is_dir() else part.unlink()
    for part in aside.iterdir():
        os.rename(part, file.parent / part.name)


def can_be_immutable(path: Path) -> bool:
    """Whether `chattr +i` works here."""
    if shutil.which("chattr") is None:
        return False
    done = subprocess.run(["chattr", "+i", path], check=False, capture_output=True)
    subprocess.run(["chattr", "-i", path], check=False, capture_output=True)
    return done.returncode == 0


CAUSES = ["a folder", "garbage", "read-only folder"]


def test_outbound_that_crashes_takes_nobody_with_it(tmp_path: Path) -> None:
    """Claimer and webhooks crash at every start; see `broken_outbound`."""
    broken_outbound(tmp_path, SECONDS, PACE, patience=30.0)


def test_lifecycle_that_crashes_takes_nobody_with_it(tmp_path: Path) -> None:
    """The collector crashes at every start; see `broken_lifecycle`."""
    broken_lifecycle(tmp_path, SECONDS, PACE, patience=30.0)


@pytest.mark.parametrize("at_start", [False, True], ids=["later", "at the start"])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_device_store_that_cannot_be_read_takes_nobody_with_it(
    tmp_path: Path, cause: str, at_start: bool
) -> None:
    """Its file is something else, or its folder takes none; see `broken_store`."""
    if cause == "read-only folder" and not can_be_immutable(tmp_path):
        pytest.skip("a folder cannot be made read-only for root here")
    broken_store(tmp_path, cause, at_start, SECONDS, PACE, patience=30.0)


@pytest.mark.soak
@pytest.mark.parametrize("group", ["outbound", "lifecycle", *CAUSES])
def test_ten_minutes_of_a_group_that_fails(tmp_path: Path, group: str) -> None:
    """The same, at the pace of every day."""
    if group == "outbound":
        print(broken_outbound(tmp_path, LONG, 1.0, patience=180.0))
    elif group == "lifecycle":
        print(broken_lifecycle(tmp_path, LONG, 1.0, patience=180.0))
    elif group == "read-only folder" and not can_be_immutable(tmp_path):
        pytest.skip("a folder cannot be made read-only for root here")
    else:
        print(broken_store(tmp_path, group, False, LONG, 1.0, patience=180.0))
