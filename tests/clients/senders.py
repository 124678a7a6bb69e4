"""Third-party SMTP clients, each as one function: send these bytes, tell what came of it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import smtplib
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.npm import node_modules

TIMEOUT = 60.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sent:
    """Whether the client took it for delivered, what it said, and what it adds to a message."""

    ok: bool
    said: str
    added: bytes = b""


@dataclass(frozen=True)
class Job:
    """One message to send; `scratch` is a directory for files.

    `login`: the user name and the password to sign in with first; `tls`: `starttls`, which must
    be had, or `implicit`, and `trust` the file of the certificate that is trusted then; without,
    it goes in clear.
    """

    port: int
    sender: str
    recipient: str
    message: bytes
    scratch: Path
    login: tuple[str, str] | None = None
    tls: str = ""
    trust: str = ""

    def file(self, content: bytes | None = None) -> Path:
        """Return a file with the message, or with `content`."""
        path = self.scratch / "message.eml"
        path.write_bytes(self.message if content is None else content)
        return path


def program(name: str) -> str:
    """Return the path of a program, or skip the test with the reason."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(
    *command: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a client, bounded in time."""
    return subprocess.run(
        list(map(str, command)),
        input=stdin,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )


def _sent(done: subprocess.CompletedProcess[bytes]) -> Sent:
    return Sent(done.returncode == 0, (done.stdout + done.stderr).decode("utf-8", "replace"))


def by_swaks(job: Job) -> Sent:
    """Send with swaks, which ends the data with a CRLF of its own whether there is one or not."""
    data = job.file(job.message.removesuffix(b"\r\n"))
    return _sent(
        run(
            program("swaks"), "--server", "127.0.0.1", "--port", str(job.port),
            "--ehlo", "client.example", "--from", job.sender, "--to", job.recipient,
            "--data", f"@{data}",
            *{"": (), "starttls": ("--tls",), "implicit": ("--tlsc",)}[job.tls],
            *(("--tls-verify", "--tls-ca-path", job.trust) if job.tls else ()),
            *(("--auth-user", job.login[0], "--auth-password", job.login[1]) if job.login else ()),
        )
    )  # fmt: skip


def by_smtp_source(job: Job) -> Sent:
    """Send with Postfix's load generator, which puts an empty line after the file's last."""
    done = run(
        program("smtp-source"), "-M", "client.example", "-f", job.sender, "-t", job.recipient,
        "-m", "1", "-F", job.file(job.message.replace(b"\r\n", b"\n")),
        f"inet:127.0.0.1:{job.port}",
    )  # fmt: skip
    return dataclasses.replace(_sent(done), added=b"\r\n")


def by_smtplib(job: Job) -> Sent:
    """Send with Python's smtplib."""
    context = ssl.create_default_context(cafile=job.trust) if job.tls else None
    connect: Callable[..., smtplib.SMTP] = smtplib.SMTP
    if job.tls == "implicit":
        connect = partial(smtplib.SMTP_SSL, context=context)
    try:
        with connect("127.0.0.1", job.port, "client.example", timeout=TIMEOUT) as session:
            if job.tls == "starttls":
                session.starttls(context=context)
            if job.login:
                session.login(*job.login)
            session.sendmail(job.sender, job.recipient, job.message)
    except smtplib.SMTPException as error:
        return Sent(False, str(error))
    return Sent(True, "")


def by_curl(job: Job) -> Sent:
    """Send with curl."""
    scheme = "smtps" if job.tls == "implicit" else "smtp"
    return _sent(
        run(
            program("curl"), "--silent", "--show-error", "--max-time", "30", "--verbose",
            "--url", f"{scheme}://127.0.0.1:{job.port}/client.example",
            *(("--ssl-reqd", "--cacert", job.trust) if job.tls else ()),
            "--mail-from", job.sender, "--mail-rcpt", job.recipient, "--upload-file", job.file(),
            *(("--user", ":".join(job.login)) if job.login else ()),
        )
    )  # fmt: skip


def by_nodemailer(job: Job) -> Sent:
    """Send with nodemailer, installed from the lock file beside this one."""
    node = program("node")
    modules = node_modules(HERE)
    return _sent(
        run(
            node, HERE / "send.js", str(job.port), job.sender, job.recipient, *(job.login or ()),
            stdin=job.message, env={"NODE_PATH": str(modules), "TLS": job.tls, "TRUST": job.trust},
        )
    )  # fmt: skip


def by_msmtp(job: Job) -> Sent:
    """Send with msmtp, which wants LF on its input and sends CRLF."""
    user, password = job.login or ("", "")
    login = (f"--auth={'plain' if job.login else 'off'}", f"--user={user}")
    tls: tuple[str, ...] = (f"--tls={'on' if job.tls else 'off'}",)
    if job.tls:
        at_once = "off" if job.tls == "implicit" else "on"
        tls += (f"--tls-starttls={at_once}", f"--tls-trust-file={job.trust}")
    return _sent(
        run(
            program("msmtp"), "--file=/dev/null", "--host=127.0.0.1", f"--port={job.port}",
            "--domain=client.example", *tls, "--set-date-header=off",
            "--set-msgid-header=off", *login, f"--passwordeval=echo {password}",
            f"--from={job.sender}", "--", job.recipient,
            stdin=job.message.replace(b"\r\n", b"\n"),
        )
    )  # fmt: skip


def as_rails(job: Job) -> Sent:
    """Send as Action Mailer does by default: STARTTLS if it is offered, whoever's certificate it
    is, and the login in two answers.  With swaks."""
    assert job.login is not None
    data = job.file(job.message.removesuffix(b"\r\n"))
    return _sent(
        run(
            program("swaks"), "--server", "localhost", "--port", str(job.port),
            "--ehlo", "client.example", "--from", job.sender, "--to", job.recipient,
            "--tls-optional", "--auth", "LOGIN", "--auth-user", job.login[0],
            "--auth-password", job.login[1], "--data", f"@{data}",
        )
    )  # fmt: skip


def as_django(job: Job) -> Sent:
    """Send as Django's SMTP backend does: its calls of smtplib, in its order."""
    assert job.login is not None
    try:
        with smtplib.SMTP("localhost", job.port, local_hostname="client.example") as connection:
            connection.starttls(context=ssl.create_default_context(cafile=job.trust))
            connection.login(*job.login)
            refused = connection.sendmail(job.sender, [job.recipient], job.message)
    except (smtplib.SMTPException, OSError) as error:
        return Sent(False, str(error))
    return Sent(not refused, "")


SENDERS: dict[str, Callable[[Job], Sent]] = {
    "swaks": by_swaks,
    "smtp-source": by_smtp_source,
    "smtplib": by_smtplib,
    "curl": by_curl,
    "nodemailer": by_nodemailer,
    "msmtp": by_msmtp,
}

BY_TLS = {name: send for name, send in SENDERS.items() if name != "smtp-source"}
"""Those that can sign in, and speak TLS."""

FRAMEWORKS = {"django": as_django, "rails": as_rails}
"""How applications send, over STARTTLS and signed in."""
