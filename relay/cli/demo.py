"""`relay demo`: one real message through every system, on a relay of its own.

What it is: a relay is started as a process on a temporary data directory and free ports, and
driven from outside, by SMTP, HTTP and SQL, as anybody's programs would.

Promises: nothing of the user's is touched (settings from the environment are not passed on)
and nothing is left behind, on failure and on Ctrl-C too.  Exit code 0 only when every step
found what it expected.

Why a list of steps: a system adds its part by adding its steps to `STEPS`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import smtplib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import click

import relay
from relay.cli import exits, options, output
from relay.cli.client import Api, path_of, segment
from relay.cli.exits import Failure
from relay.cli.messages import await_message
from relay.datadir import DataDir

if TYPE_CHECKING:
    from relay.devices.client import Receiver
    from relay.devices.noise import KeyPair

START_TIMEOUT = 90.0  # seconds; initdb on a slow disk takes most of it
STOP_TIMEOUT = 20.0  # seconds until the second SIGTERM, then a quarter of it until SIGKILL
STEP_TIMEOUT = 15.0  # seconds that any other step may wait
SILENCE = 0.3  # seconds without a blob, where none should come
LONGEST_TEMPORARY = 60  # characters; a PostgreSQL socket's path must fit into 107 bytes

CODE = "493817"
LINK = "https://shop.example/confirm?order=7&key=aZ3"
BLOB = bytes(range(256)) * 4


@dataclass
class Stage:
    """The relay of the demonstration, and what the steps tell each other."""

    directory: Path
    process: subprocess.Popen[bytes]
    run: dict[str, Any] = field(default_factory=dict)
    address: str = ""
    message_id: str = ""
    sent: bytes = b""
    outbound_id: str = ""
    account: int = 0
    link: str = ""
    device: KeyPair | None = None

    @property
    def data(self) -> DataDir:
        """The data directory of the relay."""
        return DataDir(self.directory / "data")

    def api(self) -> Api:
        """Return the HTTP API, as the administrator."""
        return Api.find(self.data.path)

    def devices(self, port: str) -> tuple[tuple[str, int], bytes]:
        """Return address and key of a device port, push or receive."""
        from relay.settings import parse_endpoint

        return parse_endpoint(self.run[f"devices_{port}"]), bytes.fromhex(self.run["devices_key"])

    def receiver(self) -> Receiver:
        """Return a receive session of the device."""
        from relay.devices.client import Receiver

        assert self.device is not None
        address, key = self.devices("receive")
        return Receiver(address, self.device, key, STEP_TIMEOUT)

    def smtp(self) -> smtplib.SMTP:
        """Return an SMTP session."""
        parts = urlsplit(f"smtp://{self.run['smtp']}")
        assert parts.hostname is not None
        return smtplib.SMTP(parts.hostname, parts.port or 25, timeout=STEP_TIMEOUT)


class Unexpected(Exception):
    """A step did not find what it expected."""


@dataclass(frozen=True)
class Step:
    """One thing to see: `run` returns what happened, or raises."""

    system: str
    title: str
    run: Callable[[Stage], str]


@dataclass(frozen=True)
class StepResult:
    """What became of a step; `seconds` is None when it was not reached."""

    step: Step
    ok: bool
    detail: str
    seconds: float | None


def _start(stage: Stage) -> str:
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end:
        if stage.process.poll() is not None:
            raise Unexpected(f"it ended with status {stage.process.returncode}")
        run = stage.data.read_run()
        if run is not None:
            stage.run = run
            return f"SMTP {run['smtp']}, HTTP {run['http']}"
        time.sleep(0.02)
    raise Unexpected(f"it was not ready within {START_TIMEOUT:g} s")


def _make_mailbox(stage: Stage) -> str:
    api = stage.api()
    made = api.call("POST", "/api/v1/mailboxes", json={"ttl_minutes": 10}).json()
    stage.address = made["address"]
    return f"{stage.address}, expires {output.until(made['expires_at'])}"


def _send(stage: Stage) -> str:
    message = EmailMessage(policy=SMTP.clone(cte_type="8bit"))
    message["From"] = "Example Shop <orders@shop.example>"
    message["To"] = stage.address
    message["Subject"] = "Your order № 7: please confirm"
    message["Message-ID"] = "<order-7@shop.example>"
    message.set_content(
        f"Grüß Gott,\n\nyour confirmation code is {CODE}, or follow\n{LINK}\n\n.\n..two dots\n",
        cte="8bit",
    )
    stage.sent = message.as_bytes()
    with stage.smtp() as session:
        session.ehlo("demo.example")
        session.mail("orders@shop.example", ["BODY=8BITMIME"])
        code, reply = session.rcpt(stage.address)
        if code == 250:
            code, reply = session.data(stage.sent)
    if code != 250:
        raise Unexpected(f"the answer was {code} {reply.decode('utf-8', 'replace')}")
    return f"{len(stage.sent)} bytes, answered 250 after the commit"


def _wait(stage: Stage) -> str:
    api = stage.api()
    message = await_message(api, stage.address, STEP_TIMEOUT, subject="confirm")
    if message is None:
        raise Unexpected("it did not come")
    stage.message_id = message["id"]
    return f"from {output.line(message['from_address'])}: {output.line(message['subject'])}"


def _read(stage: Stage) -> str:
    api = stage.api()
    message = api.get(path_of(stage.address, stage.message_id))
    if message["otp"] != CODE or LINK not in message["links"]:
        raise Unexpected(f"code {message['otp']!r}, links {message['links']!r}")
    return f"code {message['otp']}, link {message['links'][0]}"


def _compare(stage: Stage) -> str:
    api = stage.api()
    raw = api.call("GET", f"{path_of(stage.address, stage.message_id)}/raw").content
    if raw != stage.sent:
        raise Unexpected(f"{len(stage.sent)} bytes were sent and {len(raw)} others came back")
    return f"{len(raw)} bytes, all equal"


def _enqueue(stage: Stage) -> str:
    api = stage.api()
    sent = api.call(
        "POST",
        "/api/v1/messages/send",
        json={
            "from": "Example Shop <orders@shop.example>",
            "to": [stage.address],
            "subject": "Your order № 7 has left",
            "text": "It is on its way.\n.\n..two dots\n",
            "html": "<p>It is <b>on its way</b>.</p>",
        },
        headers={"Idempotency-Key": "demo-order-7"},
    ).json()
    (message,) = sent["messages"]
    stage.outbound_id = message["id"]
    return f"202, {message['status']}, id {message['id']}"


def _arrive(stage: Stage) -> str:
    api = stage.api()
    message = await_message(api, stage.address, STEP_TIMEOUT, subject="has left")
    if message is None:
        raise Unexpected("it did not come")
    raw = api.call("GET", f"{path_of(stage.address, message['id'])}/raw").content
    if f"Message-ID: <{stage.outbound_id}@".encode() not in raw:
        raise Unexpected("another message came")
    stage.message_id = message["id"]
    return f"from {output.line(message['from_address'])}: {output.line(message['subject'])}"


def _delivered(stage: Stage) -> str:
    api = stage.api()
    path = f"/api/v1/outbound/{segment(stage.outbound_id)}"
    end = time.monotonic() + STEP_TIMEOUT
    while time.monotonic() < end:
        state = api.get(path)
        if state["status"] == "sent":
            phases = [event["phase"] for event in api.get(f"{path}/events")]
            return f"sent, {state['attempts']} attempt, {', '.join(phases)}"
        time.sleep(0.01)
    raise Unexpected(f"it stayed {state['status']}: {output.line(state['error'])}")


def _push(stage: Stage) -> str:
    from relay.devices.client import Pusher
    from relay.devices.noise import KeyPair

    stage.device = KeyPair.generate()
    with Pusher(*stage.devices("push"), STEP_TIMEOUT) as session:
        session.push(stage.device.public, BLOB)
    return f"{len(BLOB)} bytes for {stage.device.public.hex()[:16]}…, acknowledged"


def _receive(stage: Stage) -> str:
    from relay.devices.client import Delivery

    with stage.receiver() as session:
        blob = session.receive(STEP_TIMEOUT)
        if not isinstance(blob, Delivery) or blob.envelope != BLOB:
            raise Unexpected("something else came")
        session.acknowledge(blob.id)
        session.settle(STEP_TIMEOUT)
    return f"blob {blob.id}, all bytes equal, acknowledged"


def _receive_again(stage: Stage) -> str:
    with stage.receiver() as session:
        try:
            blob = session.receive(SILENCE)
        except TimeoutError:
            return "a new session is given nothing"
    raise Unexpected(f"{blob!r} came again")


def _account(stage: Stage) -> str:
    import psycopg

    with psycopg.connect(stage.run["database_url"], autocommit=True, connect_timeout=5) as sql:
        row = sql.execute(
            "INSERT INTO relay.accounts (email, login) VALUES (%s, %s) RETURNING id, status::text",
            [stage.address, "ada"],
        ).fetchone()
    if row is None or row[1] != "provisioned":
        raise Unexpected(f"the row is {row}")
    stage.account = row[0]
    return f"INSERT INTO relay.accounts: id {row[0]}, {row[1]}"


def _activation(stage: Stage) -> str:
    api = stage.api()
    found = await_message(api, stage.address, STEP_TIMEOUT, subject="activate")
    if found is None:
        raise Unexpected("it did not come")
    stage.message_id = found["id"]
    message = api.get(path_of(stage.address, stage.message_id))
    stage.link = next((link for link in message["links"] if "/activate?token=" in link), "")
    if not stage.link.startswith(stage.run["http"]):
        raise Unexpected(f"links {message['links']!r}")
    return f"{output.line(message['subject'])}: {stage.link[:60]}…"


def _activate(stage: Stage) -> str:
    import httpx
    import psycopg

    parts = urlsplit(stage.link)
    page = parts._replace(query="").geturl()
    form = dict(parse_qsl(parts.query))
    with (
        httpx.Client(timeout=STEP_TIMEOUT) as browser,
        psycopg.connect(stage.run["database_url"], autocommit=True, connect_timeout=5) as sql,
    ):
        statuses = []
        for method in ("GET", "POST", "POST"):  # a GET is what a mail scanner does, too
            answer = browser.get(stage.link) if method == "GET" else browser.post(page, data=form)
            row = sql.execute(
                "SELECT status::text FROM relay.accounts WHERE id = %s", [stage.account]
            ).fetchone()
            statuses.append((answer.status_code, row[0] if row else None))
    if statuses != [(200, "provisioned"), (200, "active"), (400, "active")]:
        raise Unexpected(f"the pages answered {statuses}")
    return "opened: provisioned; confirmed: active; once more: refused"


def _expire(stage: Stage) -> str:
    import psycopg

    # Any program that writes SQL may do this; the change is acted on at once.
    with psycopg.connect(stage.run["database_url"], autocommit=True, connect_timeout=5) as sql:
        sql.execute(
            """
            UPDATE relay.mailboxes
            SET expires_at = now() + interval '400 milliseconds'
            WHERE address = %s
            """,
            [stage.address],
        )
        began = time.monotonic()
        api = stage.api()
        try:
            # After the message that is there, so that only the expiry can end this call.
            await_message(api, stage.address, STEP_TIMEOUT, after=stage.message_id)
        except Failure:
            lasted = time.monotonic() - began
        else:
            raise Unexpected("a waiting call was not told")
        with stage.smtp() as session:
            session.ehlo("demo.example")
            session.mail("orders@shop.example")
            code, reply = session.rcpt(stage.address)
        if code != 550:
            raise Unexpected(f"RCPT was answered {code} {reply.decode('utf-8', 'replace')}")
        end = time.monotonic() + STEP_TIMEOUT
        while time.monotonic() < end:
            row = sql.execute(
                "SELECT is_active FROM relay.mailboxes WHERE address = %s", [stage.address]
            ).fetchone()
            if row == (False,):
                return f"after {output.span(lasted)}: wait 404, RCPT 550, is_active false"
            time.sleep(0.01)
    raise Unexpected("is_active stayed true")


def _stop(stage: Stage) -> str:
    stage.process.send_signal(signal.SIGTERM)
    try:
        status = stage.process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise Unexpected(f"it did not end within {STOP_TIMEOUT:g} s") from None
    if status != 0:
        raise Unexpected(f"it ended with status {status}")
    if stage.data.run_file.exists():
        raise Unexpected("run/relay.json is still there")
    return "SIGTERM, drained, exit code 0"


STEPS: tuple[Step, ...] = (
    Step("relay", "starts on free ports, with its own PostgreSQL", _start),
    Step("inbox", "a mailbox is made over HTTP", _make_mailbox),
    Step("inbox", "SMTP takes a message", _send),
    Step("inbox", "a waiting call gets it", _wait),
    Step("inbox", "code and link are found", _read),
    Step("inbox", "the raw message comes back", _compare),
    Step("outbound", "a message is queued over HTTP", _enqueue),
    Step("outbound", "it is delivered, and arrives", _arrive),
    Step("outbound", "its outcome is recorded", _delivered),
    Step("devices", "a blob is pushed into an inbox", _push),
    Step("devices", "its device receives it", _receive),
    Step("devices", "acknowledged, it stays away", _receive_again),
    Step("lifecycle", "an account is inserted by SQL", _account),
    Step("lifecycle", "its activation mail arrives", _activation),
    Step("lifecycle", "the link activates it, once", _activate),
    Step("inbox", "the mailbox expires", _expire),
    Step("relay", "stops cleanly", _stop),
)


@click.command()
@options.as_json
def demo(as_json: bool) -> int:
    """Send a real message through a relay of its own, and show what happened.

    Uses a temporary data directory and free ports, and leaves nothing behind. Exit code 0 only
    when everything arrived.
    """
    with _terminable(), _stage() as stage:
        results = perform(stage)
        failed = any(not result.ok for result in results)
        if failed:
            output.note(_last_words(stage.directory))
    _report(results, as_json)
    return exits.REFUSED if failed else exits.OK


def perform(stage: Stage, steps: tuple[Step, ...] = STEPS) -> list[StepResult]:
    """Take the steps one after the other; after one that fails the others are not reached."""
    results: list[StepResult] = []
    for step in steps:
        if results and not results[-1].ok:
            results.append(StepResult(step, False, "not reached", None))
            continue
        began = time.monotonic()
        try:
            with output.working(f"{step.system}: {step.title}"):
                detail, ok = step.run(stage), True
        except Exception as error:  # whatever went wrong is what the table shows
            detail, ok = output.line(f"{error}" or type(error).__name__), False
        results.append(StepResult(step, ok, detail, time.monotonic() - began))
    return results


def _report(results: list[StepResult], as_json: bool) -> None:
    if as_json:
        output.document(
            [
                {
                    "system": result.step.system,
                    "step": result.step.title,
                    "ok": result.ok,
                    "detail": result.detail,
                    "seconds": None if result.seconds is None else round(result.seconds, 4),
                }
                for result in results
            ]
        )
        return
    output.table(
        ("", "system", "step", "what happened", "time"),
        [
            (
                ("ok", "green") if result.ok else ("FAIL", "red"),
                result.step.system,
                result.step.title,
                result.detail,
                "" if result.seconds is None else output.span(result.seconds),
            )
            for result in results
        ],
    )


@contextmanager
def _stage() -> Iterator[Stage]:
    """Start a relay; whatever happens, stop it and remove every trace."""
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_TEMPORARY:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
    directory = Path(tempfile.mkdtemp(prefix="relay-demo-", dir=parent))
    stage = None
    try:
        with (directory / "relay.log").open("wb") as log:
            stage = Stage(
                directory,
                subprocess.Popen(  # noqa: S603 - this very program
                    [sys.executable, "-m", "relay", "up", "--data-dir", str(directory / "data")],
                    env=_environment(),
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us: we then stop it in order
                ),
            )
        yield stage
    finally:
        with _undisturbed():
            if stage is not None:
                _end(stage.process)
            _remove(directory)


def _environment() -> dict[str, str]:
    """Return the environment of the relay: the user's, less the settings of their own relay."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RELAY_")}
    for name in (
        "HTTP__BIND",
        "SMTP__BIND",
        "SUBMISSION__BIND",
        "DEVICES__PUSH_BIND",
        "DEVICES__RECEIVE_BIND",
    ):
        environment[f"RELAY_{name}"] = "127.0.0.1:0"
    # It runs in a directory of its own, so it must find the same program as we are.
    root = str(Path(relay.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [root, environment.get("PYTHONPATH", "")])
    )
    return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    for patience in (STOP_TIMEOUT, STOP_TIMEOUT / 4):
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


def _remove(directory: Path) -> None:
    """Remove the directory, what PostgreSQL had to keep elsewhere, and an orphan of it."""
    places = [directory]
    with suppress(OSError, ValueError):
        record = json.loads((directory / "data" / "postgres" / "place.json").read_text())
        places += [Path(record[key]) for key in ("base", "socket") if key in record]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone already, or another user's
            if any((process / "cwd").readlink().is_relative_to(place) for place in places):
                os.kill(int(process.name), signal.SIGKILL)
    for place in places:
        for _ in range(50):  # a server that is dying may still be writing
            shutil.rmtree(place, ignore_errors=True)
            if not place.exists():
                break
            time.sleep(0.1)


def _last_words(directory: Path) -> str:
    lines = (directory / "relay.log").read_text("utf-8", "replace").splitlines()
    return "The relay's last lines were:\n" + "\n".join(output.line(line) for line in lines[-15:])


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, so that they clean up like Ctrl-C."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)  # no Exception: a step must not take it for its own

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals while cleaning up, which takes a bounded time."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
